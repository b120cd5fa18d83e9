#!/bin/bash
# Fills the data directory if it is empty, by MARIADB_ROOT_PASSWORD, MARIADB_USER, MARIADB_PASSWORD and MARIADB_DATABASE, and runs the server.
set -euo pipefail

data=/var/lib/mysql
if [ "$(id -u)" = 0 ]; then
	chown mysql:mysql "$data"
	exec setpriv --reuid=mysql --regid=mysql --init-groups "$0" "$@"
fi

# The older names of the variables are understood as well.
for name in ROOT_PASSWORD USER PASSWORD DATABASE; do
	new=MARIADB_$name old=MYSQL_$name
	[ -n "${!new:-}" ] || declare "$new=${!old:-}"
done

quote() { printf "'%s'" "$(printf %s "$1" | sed "s/[\\\\']/\\\\&/g")"; }

if [ "${1:-}" = mariadbd ]; then
	shift
	if [ ! -d "$data/mysql" ]; then
		if [ -z "${MARIADB_ROOT_PASSWORD:-}" ]; then
			echo "MARIADB_ROOT_PASSWORD is not set" >&2
			exit 1
		fi
		cp -a /usr/share/rowkeeper/data/. "$data"
		# The server runs these statements before it takes connections.
		init=$(mktemp)
		{
			echo "ALTER USER root@localhost IDENTIFIED BY $(quote "$MARIADB_ROOT_PASSWORD");"
			echo "CREATE USER root@'%' IDENTIFIED BY $(quote "$MARIADB_ROOT_PASSWORD");"
			echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;"
			if [ -n "${MARIADB_DATABASE:-}" ]; then
				echo "CREATE DATABASE \`$MARIADB_DATABASE\`;"
			fi
			if [ -n "${MARIADB_USER:-}" ]; then
				echo "CREATE USER $(quote "$MARIADB_USER")@'%' IDENTIFIED BY $(quote "${MARIADB_PASSWORD:-}");"
				if [ -n "${MARIADB_DATABASE:-}" ]; then
					echo "GRANT ALL ON \`$MARIADB_DATABASE\`.* TO $(quote "$MARIADB_USER")@'%';"
				fi
			fi
		} >"$init"
		set -- "--init-file=$init" "$@"
	fi
	exec mariadbd --no-defaults --datadir="$data" --character-set-server=utf8mb4 "$@"
fi
exec "$@"
