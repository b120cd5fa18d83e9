#!/usr/bin/env bash
# Writes all generated code: deepcopy, defaults, conversions, declarative validation, OpenAPI. The generators are built at the versions
# that hack/codegen/go.mod pins, so that the result is the same everywhere.
#
# usage: hack/update-codegen.sh
set -o errexit -o nounset -o pipefail

cd "$(dirname "$0")/.."
module=github.com/rowkeeper/rowkeeper
bin="$PWD/bin/codegen"
header=hack/codegen/header.txt # empty: our files have no license header

mkdir -p "$bin"
go build -C hack/codegen -o "$bin" tool

internal=("$module/pkg/apis/ci")
versions=("$module/pkg/apis/ci/v1" "$module/pkg/apis/ci/v1alpha1")

# Types of apimachinery that ours refer to: read, never written.
readonly_packages=(
  k8s.io/api/autoscaling/v1
  k8s.io/apimachinery/pkg/apis/meta/v1
  k8s.io/apimachinery/pkg/api/resource
  k8s.io/apimachinery/pkg/runtime
  k8s.io/apimachinery/pkg/types
  k8s.io/apimachinery/pkg/util/intstr
  k8s.io/apimachinery/pkg/version
  time
)
readonly_flags=()
for p in "${readonly_packages[@]}"; do readonly_flags+=(--readonly-pkg "$p"); done

find pkg -name 'zz_generated.*' -delete

"$bin/deepcopy-gen" --go-header-file "$header" --output-file zz_generated.deepcopy.go "${internal[@]}" "${versions[@]}"
"$bin/defaulter-gen" --go-header-file "$header" --output-file zz_generated.defaults.go "${versions[@]}"
"$bin/conversion-gen" --go-header-file "$header" --output-file zz_generated.conversion.go "${versions[@]}"

# The types of apimachinery are opaque here: what is declared of them has been generated into another package, which the generator does not find from outside.
"$bin/validation-gen" --go-header-file "$header" --output-file zz_generated.validations.go "$module/pkg/apis/ci/v1"

mkdir -p pkg/generated/openapi
violations=$(mktemp)
trap 'rm -f "$violations"' EXIT
"$bin/openapi-gen" --go-header-file "$header" --output-file zz_generated.openapi.go \
  --output-dir pkg/generated/openapi --output-pkg "$module/pkg/generated/openapi" \
  --output-model-name-file zz_generated.model_name.go \
  --report-filename "$violations" "${readonly_flags[@]}" \
  k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version \
  k8s.io/apimachinery/pkg/api/resource k8s.io/api/autoscaling/v1 "${versions[@]}"
if grep -F "$module" "$violations"; then
  echo "update-codegen: the lines above break the rules for API types" >&2
  exit 1
fi
