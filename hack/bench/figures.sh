#!/bin/bash
# Usage: hack/bench/figures.sh [FLAG…]
#
# Measures the figures that the pages show, of one commit, on this machine, in about two hours.
# RESULTS.md has those of the bench, and REQUESTS.md the requests of a kube-apiserver on each database
# beside etcd. Both name the commit, the date, the machine and the versions.
# The flags, such as -mysqld or -rounds, go to each run of the bench. A measurement that was
# interrupted goes on where it was, and -fresh begins anew.
# ROWKEEPER_E2E_REQUESTS names the databases of the requests. If it is empty, no request is measured.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOWORK=off

# Reports may differ: they are what is written here.
if [ -n "$(git status --porcelain -- . ':!hack/bench/*.md' ':!hack/bench/*.svg')" ]; then
	echo "figures.sh: figures are those of a commit; commit or stash your changes first" >&2
	exit 1
fi

# Five runs add to the same results: creates of all targets, in turns; the other lines, without kine
# on PostgreSQL, which hangs in updates; the lines with 256 clients, without kine, which hangs there on
# PostgreSQL, too; what only the library does; sizes that take long, once.
targets() { echo "$1-sqlite,$1-postgres,$1-mariadb,$1-mysql"; }
flags=()
for flag; do
	if [[ $flag == -fresh || $flag == --fresh ]]; then rm -f hack/bench/results.jsonl; else flags+=("$flag"); fi
done
failed=
bench() { make --no-print-directory bench-peers BENCH="-duration 3s $* ${flags[*]}" || failed=1; }
library=etcd,$(targets rowkeeper)
bench -rounds 3 -targets "$library,$(targets rowkeeper-etcd),$(targets kine)" -lines create64
bench -rounds 3 -targets "$library,$(targets rowkeeper-etcd),kine-sqlite,kine-mariadb,kine-mysql" -lines update64,hotkey,get64,mixed
bench -rounds 3 -targets "$library,$(targets rowkeeper-etcd)" -lines create256,update256
bench -rounds 3 -targets "$library" -lines updatecached64,updatecached256,single,get1,getcached1,getcached64,list10k,pages10k,cachedlist,watch1,watch100,replicas
bench -rounds 1 -targets "$library" -lines list100k,pages100k,replay,compaction,history200k
[ -z "$failed" ] || echo "figures.sh: some runs failed, as told above: RESULTS.md lacks their figures" >&2

databases=${ROWKEEPER_E2E_REQUESTS-sqlite,postgres,mariadb,mysql}
[ -n "$databases" ] || exit ${failed:-0}
hack/e2e/build.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
(cd hack/e2e && ROWKEEPER_E2E_REQUESTS=$databases go test ./kubernetes -run '^TestRequests$' -count 1 -v -timeout 3h) | tee "$log"
version() { go -C "$1" list -m -f '{{.Version}}' "$2"; }
{
	cat <<-TEXT
		# Requests of a kube-apiserver

		<!-- Written by hack/bench/figures.sh. -->

		An unchanged kube-apiserver keeps its objects in one \`rowkeeper etcd\`, or in one member of etcd. All
		programs run on one machine, with the clients.

		- Rowkeeper $(git rev-parse --short=12 HEAD), $(date -u +%F)
		- $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(go env GOVERSION)
		- Kubernetes $(version hack/e2e/controlplane k8s.io/kubernetes), etcd $(version hack/e2e/controlplane go.etcd.io/etcd/server/v3)
	TEXT
	sed -n '/^[0-9]* clients, /p; /^|/p' "$log" | sed 's/^[0-9]* clients, .*/\n&\n/'
} >hack/bench/REQUESTS.md
exit ${failed:-0}
