#!/bin/bash
# Usage: hack/testbed/tidb.sh DIRECTORY [COMMAND…]
#
# Builds DIRECTORY/tidb-server, a TiDB server, from its Go module, unless it is there: in 13 minutes of processor time. Then it
# runs a command beside one server, with ROWKEEPER_TEST_MYSQL naming it. The server keeps its data by itself ("unistore"), in
# DIRECTORY/data, which is new each time: there is no TiKV and no PD, so there is one server, and a crash of it loses data.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
commit=20241125141335-ec8b81b98edc
mkdir -p "$1"
dir=$(realpath "$1")
shift

if [ ! -x "$dir/tidb-server" ]; then
	rm -rf "$dir/module"
	mkdir "$dir/module"
	cat >"$dir/module/go.mod" <<-MODULE
		module tidb

		go 1.23

		require github.com/pingcap/tidb v1.1.0-beta.0.$commit

		// What the module's own file replaces; a build of another module does not see that.
		replace (
			github.com/go-ldap/ldap/v3 => github.com/YangKeao/ldap/v3 v3.4.5-0.20230421065457-369a3bab1117
			github.com/pingcap/tidb/pkg/parser => github.com/pingcap/tidb/pkg/parser v0.0.0-$commit
			sourcegraph.com/sourcegraph/appdash => github.com/sourcegraph/appdash v0.0.0-20190731080439-ebfcffb1b5c0
			sourcegraph.com/sourcegraph/appdash-data => github.com/sourcegraph/appdash-data v0.0.0-20151005221446-73f23eafcf67
		)
	MODULE
	echo "Building TiDB. This takes a quarter of an hour."
	(cd "$dir/module" && GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0 \
		go build -ldflags=-checklinkname=0 -o "$dir/tidb-server" github.com/pingcap/tidb/cmd/tidb-server)
	rm -rf "$dir/module"
fi
[ $# -gt 0 ] || exit 0

port=${TIDB_PORT:-4000}
rm -rf "$dir/data"
mkdir "$dir/data"
"$dir/tidb-server" -store unistore -path "$dir/data" -host 127.0.0.1 -P "$port" -status 0 -report-status=false \
	-socket "$dir/data/socket" -temp-dir "$dir/data" -log-slow-query "$dir/data/slow.log" -log-file "$dir/log" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for ((i = 0; i < 600; i++)); do
	(: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
	kill -0 $server || { tail -n 15 "$dir/log" >&2; exit 1; }
	sleep 0.1
done
export ROWKEEPER_TEST_MYSQL=mysql://root@127.0.0.1:$port/ ROWKEEPER_TEST_TIDB=1
"$@"
