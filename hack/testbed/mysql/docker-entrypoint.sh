#!/bin/bash
# Fills the data directory if it is empty, by MYSQL_ROOT_PASSWORD, MYSQL_USER, MYSQL_PASSWORD and MYSQL_DATABASE, and runs the server.
set -euo pipefail

data=/var/lib/mysql
if [ "$(id -u)" = 0 ]; then
	chown mysql:mysql "$data"
	exec setpriv --reuid=mysql --regid=mysql --init-groups "$0" "$@"
fi

quote() { printf "'%s'" "$(printf %s "$1" | sed "s/[\\\\']/\\\\&/g")"; }

if [ "${1:-}" = mysqld ]; then
	shift
	if [ ! -d "$data/mysql" ]; then
		if [ -z "${MYSQL_ROOT_PASSWORD:-}" ]; then
			echo "MYSQL_ROOT_PASSWORD is not set" >&2
			exit 1
		fi
		cp -a /usr/share/rowkeeper/data/. "$data"
		# The server runs these statements before it takes connections.
		init=$(mktemp)
		{
			echo "ALTER USER root@localhost IDENTIFIED BY $(quote "$MYSQL_ROOT_PASSWORD");"
			echo "CREATE USER root@'%' IDENTIFIED BY $(quote "$MYSQL_ROOT_PASSWORD");"
			echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;"
			if [ -n "${MYSQL_DATABASE:-}" ]; then
				echo "CREATE DATABASE \`$MYSQL_DATABASE\`;"
			fi
			if [ -n "${MYSQL_USER:-}" ]; then
				echo "CREATE USER $(quote "$MYSQL_USER")@'%' IDENTIFIED BY $(quote "${MYSQL_PASSWORD:-}");"
				if [ -n "${MYSQL_DATABASE:-}" ]; then
					echo "GRANT ALL ON \`$MYSQL_DATABASE\`.* TO $(quote "$MYSQL_USER")@'%';"
				fi
			fi
		} >"$init"
		set -- "--init-file=$init" "$@"
	fi
	exec mysqld --no-defaults --datadir="$data" "$@"
fi
exec "$@"
