#!/bin/bash
# Usage: hack/testbed/postgres.sh VERSION
#
# Installs the programs of PostgreSQL 13, 14 or 16, which Debian does not carry, in bin/testbed/npm, and prints the directory to be put in
# PATH. They are for amd64, and come from npm: hack/testbed/npm pins them. Needs npm.
set -euo pipefail
cd "$(dirname "$0")/../.."

[ $# -eq 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
all=$PWD/bin/testbed/npm
dir=$all/node_modules/postgres-$1
if [ ! -e "$all/installed" ] || ! cmp -s hack/testbed/npm/package-lock.json "$all/package-lock.json"; then
	mkdir -p "$all"
	rm -f "$all/installed"
	cp hack/testbed/npm/package.json hack/testbed/npm/package-lock.json "$all/"
	npm --prefix "$all" ci --ignore-scripts --no-audit --no-fund >&2
	# A package cannot hold links, so it has a program that makes those of its libraries.
	for package in "$all"/node_modules/postgres-*; do
		(cd "$package" && node scripts/hydrate-symlinks.js)
	done
	touch "$all/installed"
fi
[ -x "$dir/native/bin/postgres" ] || { echo "postgres.sh: there is no PostgreSQL $1 in hack/testbed/npm/package.json" >&2; exit 2; }
echo "$dir/native/bin"
