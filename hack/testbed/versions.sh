#!/bin/bash
# Usage: hack/testbed/versions.sh [VERSION…]
#
# Runs what touches the database directly on other versions of the databases than the whole suite
# uses: by default those below. Debian carries some of them, which run in containers, and npm the
# others, which are programs of this machine (amd64). It also tests MySQL's group replication. It
# needs npm and a Docker engine, which it starts where none runs. A version that cannot be tested is
# a failure.
set -uo pipefail
cd "$(dirname "$0")/../.."

versions=("$@")
[ $# -gt 0 ] || versions=(postgres:13 postgres:14 postgres:15 postgres:16 postgres:18 mariadb:10.11)
images=()
for version in "${versions[@]}"; do
	case $version in
	postgres:13 | postgres:14 | postgres:16) ;;
	*) images+=("$version") ;;
	esac
done
packages='./storage/internal/contract ./storage/internal/mvcc/... ./storage/internal/sqlkit'
declare -A driver=([postgres]=./storage/postgres/... [mariadb]=./storage/mysql/... [mysql]=./storage/mysql/...)

trap 'hack/testbed/docker.sh stop' EXIT
[ ${#images[@]} -eq 0 ] || { hack/testbed/docker.sh start && hack/testbed/images.sh "${images[@]}"; } || exit 1
# There is no registry to pull the reaper's image from.
export TESTCONTAINERS_RYUK_DISABLED=true

failed=()
for version in "${versions[@]}"; do
	kind=${version%:*}
	printf '\n=== %s\n' "$version"
	server=(env "ROWKEEPER_TEST_${kind^^}_IMAGE=localhost/rowkeeper/$version")
	if [[ ! " ${images[*]} " == *" $version "* ]]; then
		programs=$(hack/testbed/postgres.sh "${version#*:}") || { failed+=("$version"); continue; }
		server=(env "PATH=$programs:$PATH" ROWKEEPER_TEST_SOURCE=local)
	fi
	"${server[@]}" ROWKEEPER_TEST_ONLY=$kind ROWKEEPER_TEST_REQUIRE=$kind make --no-print-directory test-all PACKAGES="$packages ${driver[$kind]}" || failed+=("$version")
done

# The servers of a group have to reach each other, so they are programs of this machine.
printf '\n=== a group of MySQL servers\n'
hack/testbed/mysqld.sh bin/testbed/mysql &&
	PATH=$PWD/bin/testbed/mysql:$PATH ROWKEEPER_TEST_SOURCE=local ROWKEEPER_TEST_ONLY=mysql ROWKEEPER_TEST_REQUIRE=mysql make --no-print-directory test-all \
		PACKAGES=./storage/mysql TESTFLAGS='-run TestGroupReplication' || failed+=("a group")
[ ${#failed[@]} -eq 0 ] || echo "FAILED: ${failed[*]}"
[ ${#failed[@]} -eq 0 ]
