#!/usr/bin/env bash
# Fails if the generated code is not what hack/codegen/update.sh would write now, and shows the difference.
#
# usage: hack/verify/codegen.sh
set -o errexit -o nounset -o pipefail

cd "$(dirname "$0")/../.."
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -r pkg/example/apis pkg/example/generated pkg/internal/access docs/reference hack/compat/kubebuilder "$before"

hack/codegen/update.sh

status=0
for dir in pkg/example/apis pkg/example/generated pkg/internal/access docs/reference hack/compat/kubebuilder; do
  diff -ru "$before/$(basename "$dir")" "$dir" || status=1
done
if [ "$status" -ne 0 ]; then
  echo "verify-codegen: the generated code was out of date; hack/codegen/update.sh has now mended it" >&2
fi
exit "$status"
