#!/bin/bash
# Usage: hack/testbed/docker.sh start | stop
#
# start makes a Docker engine answer on a machine without one: it installs Debian's packages if there is no engine, and starts the engine
# by hand if none runs. stop ends the engine that start has started, and no other.
set -euo pipefail

state=/run/rowkeeper-testbed   # pid and log of the engine that was started here

start() {
	if docker info >/dev/null 2>&1; then
		echo "A Docker engine runs already."
		return
	fi
	if [ "$(id -u)" != 0 ]; then
		echo "docker.sh: starting a Docker engine needs root; start yours, or run this as root" >&2
		exit 1
	fi
	if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
		apt-get -qq update
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends docker.io iptables >/dev/null
	fi
	# Newer Debians have the client apart.
	if ! command -v docker >/dev/null; then
		apt-get -qq update
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends docker-cli >/dev/null
	fi
	mkdir -p "$state"
	# An engine that was killed leaves its pid files, and would not start.
	if [ -s /var/run/docker.pid ] && ! kill -0 "$(cat /var/run/docker.pid)" 2>/dev/null; then rm -f /var/run/docker.pid; fi
	setsid dockerd >"$state/log" 2>&1 </dev/null &
	echo $! >"$state/pid"
	for _ in $(seq 300); do
		if docker info >/dev/null 2>&1; then
			echo "Started a Docker engine ($(docker version --format '{{.Server.Version}}'))."
			return
		fi
		kill -0 "$(cat "$state/pid")" 2>/dev/null || break
		sleep 0.1
	done
	echo "docker.sh: the Docker engine does not start; its log ends:" >&2
	tail -n 15 "$state/log" >&2
	exit 1
}

stop() {
	[ -s "$state/pid" ] || return 0
	pid=$(cat "$state/pid")
	if kill "$pid" 2>/dev/null; then
		while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
	fi
	rm -rf "$state"
}

case "${1:-}" in
start | stop) "$1" ;;
*) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
