#!/bin/bash
# Usage: hack/verify/lint.sh GOLANGCI_LINT MODULE…
#
# Runs the linters over the modules that have Go code of ours. The program uses the workspace
# (go.work), which has the library; the others do not.
set -uo pipefail
cd "$(dirname "$0")/../.."

config=$PWD/.golangci.yml
status=0
golangci=$1
shift
for dir in "$@"; do
	export GOWORK=off
	[ "$dir" != ./cmd/rowkeeper ] || GOWORK=
	[ -n "$(cd "$dir" && go list -e ./... 2>/dev/null)" ] || continue # a module that only pins tools
	echo "golangci-lint: $dir"
	(cd "$dir" && "$golangci" run --allow-parallel-runners --config "$config" ./...) || status=1
done
exit $status
