#!/bin/bash
# Usage: hack/verify/ui.sh
#
# Checks that the files of "rowkeeper ui", which the program embeds, are those that their source and
# its lock file make. Without npm it says so, and fails where CI is set.
set -euo pipefail
cd "$(dirname "$0")/../../cmd/rowkeeper/ui"
if ! command -v npm >/dev/null; then
	echo "ui.sh: there is no npm: whether cmd/rowkeeper/ui/dist is what its source makes is not checked" >&2
	[ -z "${CI-}" ]
	exit
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar --exclude=node_modules -C web -c . | tar -x -C "$copy"
(cd "$copy" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npm run --silent build -- made) >&2
if ! diff -r "$copy/made" dist >/dev/null; then
	diff -rq "$copy/made" dist >&2 || true
	echo "ui.sh: cmd/rowkeeper/ui/dist is not what cmd/rowkeeper/ui/web makes, run make ui" >&2
	exit 1
fi
