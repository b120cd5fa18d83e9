#!/usr/bin/env bash
# Writes all generated code: deepcopy, defaults, conversions, declarative validation, OpenAPI, apply configurations, clients, listers, informers.
# The generators are built at the versions that hack/codegen/generators/go.mod pins, so that the result is the same everywhere.
#
# usage: hack/codegen/update.sh
set -o errexit -o nounset -o pipefail

cd "$(dirname "$0")/../.."
export GOWORK=off # the generators are outside of the workspace
module=github.com/rowkeeper/rowkeeper
bin="$PWD/bin/codegen"
header=hack/codegen/header.txt # empty: our files have no license header

mkdir -p "$bin"
go build -C hack/codegen/generators -o "$bin" tool

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/begun"

internal=("$module/pkg/example/apis/ci")
versions=("$module/pkg/example/apis/ci/v1" "$module/pkg/example/apis/ci/v1alpha1")

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

"$bin/deepcopy-gen" --go-header-file "$header" --output-file zz_generated.deepcopy.go "${internal[@]}" "${versions[@]}"
"$bin/defaulter-gen" --go-header-file "$header" --output-file zz_generated.defaults.go --extra-peer-dirs "$module/pkg/example/apis/ci/v1" "${versions[@]}"
"$bin/conversion-gen" --go-header-file "$header" --output-file zz_generated.conversion.go "${versions[@]}"

# The types of apimachinery are opaque here: what is declared of them has been generated into another package, which the generator does not find from outside.
"$bin/validation-gen" --go-header-file "$header" --output-file zz_generated.validations.go "$module/pkg/example/apis/ci/v1"

# Upstream publishes the definitions of the types that every API uses. They are left out of ours, and servers add them.
upstream="$(go list -f '{{.Dir}}' k8s.io/apiextensions-apiserver/pkg/generated/openapi)/zz_generated.openapi.go"
subset() { # DIRECTORY [PACKAGE.TYPE…]: the wanted part of $work/openapi/all.go
  go run ./hack/codegen/openapi-subset "$work/openapi/all.go" "$upstream" "${@:2}" >"$work/openapi/subset.go"
  mkdir -p "$1"
  "$bin/goimports" "$work/openapi/subset.go" >"$1/zz_generated.openapi.go"
}
"$bin/openapi-gen" --go-header-file "$header" --output-file all.go \
  --output-dir "$work/openapi" --output-pkg "$module/pkg/example/generated/openapi" \
  --output-model-name-file zz_generated.model_name.go \
  --report-filename "$work/violations" "${readonly_flags[@]}" \
  k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version \
  k8s.io/apimachinery/pkg/api/resource k8s.io/api/autoscaling/v1 "${versions[@]}"
if grep -F "$module" "$work/violations"; then
  echo "update-codegen: the lines above break the rules for API types" >&2
  exit 1
fi
subset pkg/example/generated/openapi

# Of k8s.io/api, the types of reviews. Servers without definitions answer them, too. Package crds has
# upstream's definitions.
reviews=(k8s.io/api/authentication/v1 k8s.io/api/authorization/v1
  k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime)
reviews_readonly=()
for p in "${reviews[@]}"; do reviews_readonly+=(--readonly-pkg "$p"); done
"$bin/openapi-gen" --go-header-file "$header" --output-file all.go --output-dir "$work/openapi" --output-pkg "$module/pkg/internal/access/openapi" \
  --output-model-name-file zz_generated.model_name.go --report-filename "$work/review-violations" "${reviews_readonly[@]}" "${reviews[@]}"
subset pkg/internal/access/openapi \
  authorizationv1.{,Local,Self}SubjectAccessReview authorizationv1.SelfSubjectRulesReview v1.{SelfSubject,Token}Review

# Apply configurations are typed by the schemas.
generated="$module/pkg/example/generated"
go run ./hack/codegen/models-schema >"$work/schema.json"
"$bin/applyconfiguration-gen" --go-header-file "$header" --openapi-schema "$work/schema.json" \
  --output-dir pkg/example/generated/applyconfiguration --output-pkg "$generated/applyconfiguration" "${versions[@]}"
"$bin/client-gen" --go-header-file "$header" --clientset-name versioned --input-base "$module/pkg/example/apis" --input ci/v1 --input ci/v1alpha1 \
  --apply-configuration-package "$generated/applyconfiguration" \
  --output-dir pkg/example/generated/clientset --output-pkg "$generated/clientset"
"$bin/lister-gen" --go-header-file "$header" \
  --output-dir pkg/example/generated/listers --output-pkg "$generated/listers" "${versions[@]}"
"$bin/informer-gen" --go-header-file "$header" \
  --versioned-clientset-package "$generated/clientset/versioned" --listers-package "$generated/listers" \
  --output-dir pkg/example/generated/informers --output-pkg "$generated/informers" "${versions[@]}"

# What was not written now has no source any more, other than the methods of clients that are written by hand.
find pkg/example/apis -name 'zz_generated.*' ! -newer "$work/begun" -print -delete
find pkg/example/generated -mindepth 2 -name '*.go' ! -name '*_expansion.go' ! -newer "$work/begun" -print -delete

# The definition, webhooks and methods of the project that stands for those of others.
go generate -C hack/compat/kubebuilder ./...

# The reference of the commands.
GOWORK= go run ./cmd/rowkeeper/tests/reference >"$work/cli.md"
mv "$work/cli.md" docs/reference/cli.md
