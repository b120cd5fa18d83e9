#!/bin/bash
# Usage: hack/build.sh OUTPUT PACKAGE
#
# Builds a program by "go build", and tells how far it is: the first time this takes minutes. What is compiled already is not counted.
set -euo pipefail

[ $# -eq 2 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
# A terminal has one line that changes, and a log a line for every 200 packages.
every=200 begin='' end='\n'
if [ -t 2 ]; then every=1 begin='\r\033[K' end=''; fi
all=$(go list -deps "$2" | wc -l)
go build -v -o "$1" "$2" 2>&1 | awk -v every=$every -v begin="$begin" -v end="$end" -v all="$all" '
	/^go: downloading / { if (every == 1) { printf begin "loading %s", $3; shown = 1 } next }
	/^[a-z0-9][^ :]*$/ { if (++n % every == 0) { printf begin "%d packages are compiled, of %d at most" end, n, all; shown = 1 } next }
	{ printf "%s%s\n", shown ? begin : "", $0; shown = 0 }
	END { if (shown && every == 1) printf begin }' >&2
