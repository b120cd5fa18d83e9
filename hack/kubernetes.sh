#!/bin/bash
# Usage: hack/kubernetes.sh v1.38.0
#
# Raises the modules of Kubernetes to one version, in all modules here, and tidies these. What has a
# version of its own on purpose keeps it: hack/verify/versions names it. docs/upgrade-kubernetes.md
# tells what to look at then.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off

kubernetes=${1-}
[[ $kubernetes =~ ^v1\.[0-9]+\.[0-9]+ ]] || { echo "name a version, as in make kubernetes VERSION=v1.38.0" >&2; exit 2; }
staging=v0.${kubernetes#v1.}
# Asked before anything is written: what cannot be had, or needs a newer Go, changes nothing.
go mod download k8s.io/kubernetes@"$kubernetes" k8s.io/apiserver@"$staging"
before=$(go mod edit -json | sed -n '/"k8s.io\/apiserver"/{n;s/.*"\(v0[^"]*\)".*/\1/p}')

# Modules, tests and pages name the version in lines that name Kubernetes, too.
lines='/k8s\.io\|[Kk]ubernetes\|Server Version/'
git grep -lFw -e "$before" -e "v1.${before#v0.}" -- . ':!*go.sum' ':!go.work.sum' ':!docs/CHANGELOG.md' ':!*RESULTS.md' ':!*FINDINGS.md' |
	xargs sed -i -e "$lines s/\b${before//./\\.}\b/$staging/g" -e "$lines s/\bv1\.${before#v0.}\b/$kubernetes/g"

# The library comes first, then what requires it.
mapfile -t others < <(git ls-files '*/go.mod' | xargs dirname | grep -vx -e pkg/crds -e cmd/rowkeeper)
hack/tidy.sh . ./pkg/crds ./cmd/rowkeeper "${others[@]/#/./}"
GOWORK='' go list -deps ./cmd/rowkeeper >/dev/null # writes go.work.sum
git diff --stat
