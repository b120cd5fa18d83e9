#!/bin/bash
# Usage: hack/testbed/versions.sh [IMAGE…]
#
# Runs what touches the database directly on other versions of the databases than the whole suite
# uses: by default those of the images below. It also tests MySQL's group replication. It needs a
# Docker engine, which it starts where none runs. A version that cannot be tested is a failure.
set -uo pipefail
cd "$(dirname "$0")/../.."

images=("$@")
[ $# -gt 0 ] || images=(postgres:15 postgres:18 mariadb:10.11)
packages='./storage/internal/contract ./storage/internal/mvcc/... ./storage/internal/sqlkit ./storage/postgres/... ./storage/mysql/...'

trap 'hack/testbed/docker.sh stop' EXIT
hack/testbed/docker.sh start && hack/testbed/images.sh "${images[@]}" || exit 1
# There is no registry to pull the reaper's image from.
export TESTCONTAINERS_RYUK_DISABLED=true

failed=()
for image in "${images[@]}"; do
	kind=${image%:*}
	export "ROWKEEPER_TEST_${kind^^}_IMAGE=localhost/rowkeeper/$image"
	printf '\n=== %s\n' "$image"
	ROWKEEPER_TEST_ONLY=$kind ROWKEEPER_TEST_REQUIRE=$kind make --no-print-directory test-all PACKAGES="$packages" || failed+=("$image")
done

# The servers of a group have to reach each other, so they are programs of this machine.
printf '\n=== a group of MySQL servers\n'
hack/testbed/mysqld.sh bin/testbed/mysql &&
	PATH=$PWD/bin/testbed/mysql:$PATH ROWKEEPER_TEST_SOURCE=local ROWKEEPER_TEST_ONLY=mysql ROWKEEPER_TEST_REQUIRE=mysql make --no-print-directory test-all \
		PACKAGES=./storage/mysql TESTFLAGS='-run TestGroupReplication' || failed+=("a group")
[ ${#failed[@]} -eq 0 ] || echo "FAILED: ${failed[*]}"
[ ${#failed[@]} -eq 0 ]
