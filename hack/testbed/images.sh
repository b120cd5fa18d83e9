#!/bin/bash
# Usage: hack/testbed/images.sh [IMAGE…]
#
# Builds images of database servers from Debian's packages, for machines that have a Docker engine and a Debian mirror but no registry.
# IMAGE is one of those below; without any, the three that the tests take by default. Images that exist are kept.
set -euo pipefail
cd "$(dirname "$0")"

mirror=${ROWKEEPER_TEST_MIRROR:-http://deb.debian.org/debian}

# The suites that carry each version.
declare -A suites=(
	[postgres:15]=bookworm [postgres:17]=trixie [postgres:18]=sid
	[mariadb:10.11]=bookworm [mariadb:11.8]=trixie
	[mysql:9.7]=sid
)

have() { docker image inspect "localhost/rowkeeper/$1" >/dev/null 2>&1; }

# base makes the image of a suite's minimal system.
base() {
	have "debian:$1" && return
	if [ "$(id -u)" != 0 ]; then
		echo "images.sh: debootstrap needs root" >&2
		exit 1
	fi
	if ! command -v debootstrap >/dev/null; then
		apt-get -qq update
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends debootstrap >/dev/null
	fi
	local dir
	dir=$(mktemp -d -p /var/tmp)
	# shellcheck disable=SC2064 # the directory of now
	trap "rm -rf '$dir'" EXIT
	debootstrap --variant=minbase "$1" "$dir" "$mirror" >"$dir.log" || { tail -n 15 "$dir.log" >&2; exit 1; }
	# sid's release file may look expired on a mirror that is not quite fresh.
	[ "$1" != sid ] || echo 'Acquire::Check-Valid-Until "false";' >"$dir/etc/apt/apt.conf.d/99sid"
	tar -C "$dir" --exclude=./var/cache/apt/archives/*.deb --exclude=./var/lib/apt/lists/* -c . |
		docker import - "localhost/rowkeeper/debian:$1" >/dev/null
	rm -rf "$dir" "$dir.log"
	trap - EXIT
}

[ $# -gt 0 ] || set -- postgres:17 mariadb:11.8 mysql:9.7
for image in "$@"; do
	if [ -z "${suites[$image]:-}" ]; then
		echo "images.sh: $image is none of: ${!suites[*]}" >&2
		exit 2
	fi
	if have "$image"; then
		echo "localhost/rowkeeper/$image is there."
		continue
	fi
	base "${suites[$image]}"
	log=$(mktemp)
	# The host's network: the bridge may have no way to the mirror.
	if ! DOCKER_BUILDKIT=0 docker build --network=host --build-arg "SUITE=${suites[$image]}" --build-arg "VERSION=${image#*:}" \
		--tag "localhost/rowkeeper/$image" "${image%:*}" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		exit 1
	fi
	rm -f "$log"
	echo "localhost/rowkeeper/$image built."
done
