#!/bin/bash
# Usage: hack/verify/vulncheck.sh GOVULNCHECK
#
# Looks the dependencies of the program and of the library up in the Go vulnerability database (https://vuln.go.dev, or the copy that VULNDB names by URL),
# and fails if code is called that has a known vulnerability. Where the database cannot be reached, nothing was checked: that is said, and fails only if
# VULNCHECK=require.
set -uo pipefail
cd "$(dirname "$0")/../.."

govulncheck=$1
db=${VULNDB:-https://vuln.go.dev}
# The version is printed with that of the database, which is asked for it.
if ! answer=$(timeout 60 "$govulncheck" -db "$db" -version 2>&1) || ! grep -q '^DB updated' <<<"$answer"; then
	{
		echo "############################################################################"
		echo "# vulncheck: NOTHING WAS CHECKED, the vulnerability database $db cannot be reached."
		echo "# Run make vulncheck where it can be, or name a copy: make vulncheck VULNDB=file:///…"
		echo "############################################################################"
	} >&2
	[ "${VULNCHECK:-}" != require ]
	exit
fi
GOWORK='' exec "$govulncheck" -db "$db" ./cmd/rowkeeper/... ./storage \
	./storage/sqlite ./storage/postgres ./storage/mysql ./storage/conformance ./storage/storagetest \
	./pkg/options ./pkg/kinds ./pkg/testkit/... ./pkg/crds/...
