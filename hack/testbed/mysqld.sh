#!/bin/bash
# Usage: hack/testbed/mysqld.sh DIRECTORY
#
# Makes DIRECTORY/mysqld, a MySQL server from Debian sid that runs on an older Debian, for machines where no container can: its programs
# and libraries are unpacked into DIRECTORY and run by their own loader. Put DIRECTORY in PATH. Needs root.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mirror=${ROWKEEPER_TEST_MIRROR:-http://deb.debian.org/debian}
mkdir -p "$1"
dir=$(realpath "$1")
root=$dir/root

[ ! -x "$dir/mysqld" ] || exit 0
if ! command -v debootstrap >/dev/null; then
	apt-get -qq update
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends debootstrap >/dev/null
fi
rm -rf "$root"
debootstrap --variant=minbase --include=mysql-server-core sid "$root" "$mirror" >"$dir/log" || { tail -n 15 "$dir/log" >&2; exit 1; }
chmod 755 "$root"
cat >"$dir/mysqld" <<WRAPPER
#!/bin/sh
# --no-defaults must be the first argument; those after it may come last.
exec "$root/lib64/ld-linux-x86-64.so.2" --argv0 mysqld --library-path "$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/mysql/private" \\
	"$root/usr/sbin/mysqld" "\$@" --basedir="$root/usr" --lc-messages-dir="$root/usr/share/mysql" --character-sets-dir="$root/usr/share/mysql/charsets" \\
	--plugin-dir="$root/usr/lib/mysql/plugin" --secure-file-priv=NULL
WRAPPER
chmod 755 "$dir" "$dir/mysqld"
