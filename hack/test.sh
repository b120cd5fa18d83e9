#!/bin/bash
# Usage: hack/test.sh [go test flag…] package…
#
# Runs tests and prints them as JSON, for gotestsum. If all packages (./...) are asked for, the
# modules of the workspace (go.work) are tested, too, and without -short those outside of it. The
# library is tested without the workspace, as its users have it. The linters vet the code, so that
# the tests do not do it again. Without tables for debuggers (-w), linking takes a third less time,
# that of the programs which tests build, too.
set -uo pipefail
cd "$(dirname "$0")/.."

# The modules of the workspace besides the library.
workspace=(./cmd/rowkeeper/... ./pkg/crds/...)
# The modules outside of it whose tests run with those of the library.
modules=(cmd/rowkeeper-login-azure cmd/rowkeeper-login-cloudsql cmd/rowkeeper-login-rds cmd/rowkeeper-login-vault hack/compat/aggregator hack/bench hack/image hack/release hack/verify/linkage hack/compat/sampleapiserver hack/torture hack/torture/robustness hack/compat/crds hack/compat/etcd3 hack/compat/kubebuilder hack/compat/otherversions hack/compat/scaffold pkg/example/controller pkg/testkit/containers pkg/testkit/process)
# Those whose tests do not, with the reason.
declare -A elsewhere=(
	[hack/compat/backends]="make test-clients: they compile for minutes"
	[hack/compat/controllers]="docs/contributing.md has the command: they compile for minutes, and run for 18"
	[hack/compat/etcdtests]="make test-clients: they run for minutes"
	[hack/e2e]="make e2e: they need a Kubernetes control plane"
)

export GOFLAGS="${GOFLAGS-} -ldflags=-w"

status=0
if [ "${*: -1}" = ./... ]; then
	while read -r dir; do
		if [ "$dir" != . ] && [[ " ${modules[*]} ${!elsewhere[*]} " != *" $dir "* && " ${workspace[*]} " != *" ./$dir/... "* ]]; then
			printf 'hack/test.sh: the tests of module %s are neither run nor named as run elsewhere\n' "$dir" >&2
			status=1
		fi
	done < <(find . -name '*_test.go' -not -path './bin/*' | while read -r file; do
		dir=$(dirname "${file#./}")
		until [ -f "$dir/go.mod" ]; do dir=$(dirname "$dir"); done
		echo "$dir"
	done | sort -u)
	[[ " $* " != *" -short "* ]] || modules=()
	# They run beside the main module, since most of them have one package. They have a process group
	# of their own (-m), and what they print follows at the end.
	output=$(mktemp)
	set -m
	(
		status=0
		for module in "${modules[@]}"; do
			if [ -f "$module/go.mod" ]; then
				GOWORK=off go -C "$module" test -json -vet=off -timeout 40m "$@" || status=1
			fi
		done
		exit $status
	) >"$output" &
	others=$!
	set +m
	trap 'kill -- -$others 2>/dev/null; rm -f "$output"' EXIT
	trap 'exit 130' INT TERM
fi
tests() { go test -json -vet=off -timeout 60m "$@" || status=1; }
if [ "${*: -1}" = ./... ]; then
	GOWORK=off tests "$@"
	GOWORK='' tests "${@:1:$#-1}" "${workspace[@]}"
else
	GOWORK='' tests "$@"
fi
if [ -n "${others-}" ]; then
	wait $others || status=1
	cat "$output"
fi
exit $status
