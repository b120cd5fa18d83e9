#!/bin/bash
# Usage: hack/tidy.sh [-diff] MODULE…
#
# Tidies modules, or says with -diff which are not tidy and how. The program's own go.mod has no
# replace directive, since go install takes none. It requires the library in a version that is not
# published yet, so that it is tidied by a copy that takes the library from here.
set -uo pipefail
cd "$(dirname "$0")/.."

diff=
[ "${1-}" != -diff ] || { diff=-diff && shift; }
export GOWORK=off
root=$PWD
status=0
for module in "$@"; do
	[ -n "$diff" ] || echo "go mod tidy: $module"
	if [ "$module" != ./cmd/rowkeeper ]; then
		(cd "$module" && go mod tidy $diff) || status=1
		continue
	fi
	copy=$(mktemp -d)
	cp "$module"/go.{mod,sum} "$copy"
	library=github.com/rowkeeper/rowkeeper
	(
		cd "$module" || exit
		go mod edit -replace $library="$root" -replace $library/pkg/crds="$root/pkg/crds" "$copy/go.mod" &&
			go mod tidy -modfile "$copy/go.mod" $diff
	) || status=1
	if [ -z "$diff" ]; then
		go mod edit -dropreplace $library -dropreplace $library/pkg/crds "$copy/go.mod" && cp "$copy"/go.{mod,sum} "$module" || status=1
	fi
	rm -r "$copy"
done
exit $status
