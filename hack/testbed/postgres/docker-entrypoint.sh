#!/bin/bash
# Makes a cluster in PGDATA if there is none, by POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB, and runs the command.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA"
	chown -R postgres "$PGDATA"
	chmod 700 "$PGDATA"
	install -d -o postgres -m 2775 /var/run/postgresql
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

if [ "${1:-}" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
	if [ -z "${POSTGRES_PASSWORD:-}" ]; then
		echo "POSTGRES_PASSWORD is not set" >&2
		exit 1
	fi
	user=${POSTGRES_USER:-postgres}
	db=${POSTGRES_DB:-$user}
	initdb --username="$user" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth=scram-sha-256 --encoding=UTF8 --no-sync >/dev/null
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	export PGPASSWORD=$POSTGRES_PASSWORD
	pg_ctl --silent --wait --options="-c listen_addresses=''" start
	[ "$db" = postgres ] || createdb --username="$user" --maintenance-db=postgres "$db"
	pg_ctl --silent --wait --mode=fast stop
	unset PGPASSWORD
	echo "PostgreSQL init process complete; ready for start up."
fi
exec "$@"
