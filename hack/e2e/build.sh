#!/bin/bash
# Usage: hack/e2e/build.sh [PROGRAM…]
#
# Builds the programs that the tests in hack/e2e run, or some of them, in bin/cluster. The first time takes some minutes, most of them for Kubernetes.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=$PWD/bin/cluster
wanted=" $* "
export CGO_ENABLED=0 GOWORK=off
mkdir -p "$bin"

# build MODULE PROGRAM PACKAGE [FLAG…]
build() { compile build "$@"; }

# compile COMMAND MODULE PROGRAM PACKAGE [FLAG…]
compile() {
	local command=$1 module=$2 program=$3 package=$4
	shift 4
	[[ $wanted == "  " || $wanted == *" $program "* ]] || return 0
	echo "building $program"
	go "$command" -C "$module" "$@" -o "$bin/$program" "$package"
}

# The version of a Kubernetes program is what its linker was told.
kubernetes() {
	local version=$1
	local minor=${version#v1.}
	local package=k8s.io/component-base/version
	echo "-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
}

GOWORK= build . rowkeeper ./cmd/rowkeeper
build hack/e2e cluster ./cluster
control=hack/e2e/controlplane
version=$(go list -C "$control" -m -f '{{.Version}}' k8s.io/kubernetes)
build $control etcd go.etcd.io/etcd/server/v3 -ldflags "-s -w"
build $control etcdctl go.etcd.io/etcd/etcdctl/v3 -ldflags "-s -w"
build $control etcdutl go.etcd.io/etcd/etcdutl/v3 -ldflags "-s -w"
for program in kube-apiserver kube-controller-manager kube-scheduler; do
	build $control $program k8s.io/kubernetes/cmd/$program -ldflags "$(kubernetes "$version")"
done
# Upstream's tests are asked for by name: they take as long to build as kube-apiserver.
[[ $wanted != *" e2e.test "* ]] || compile test $control e2e.test k8s.io/kubernetes/test/e2e -c -vet=off -ldflags "$(kubernetes "$version")"
version=$(go list -C hack/tools/kubectl -m -f '{{.Version}}' k8s.io/kubectl)
build hack/tools/kubectl kubectl . -ldflags "$(kubernetes "v1.${version#v0.}")"
build hack/tools/helm helm helm.sh/helm/v4/cmd/helm -ldflags "-s -w"
build hack/e2e sample-apiserver k8s.io/sample-apiserver -ldflags "-s -w"
build hack/compat/sampleapiserver sampleapiserver . -ldflags "-s -w"
