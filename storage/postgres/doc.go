// Package postgres keeps a store in PostgreSQL, versions 13 and later. It is a contract.Backend,
// made with package sqlkit, on the tables that package migrations makes.
//
// A program that imports it, and names [Driver], can open databases by URLs such as
//
//	postgres://user@host:5432/database?sslmode=verify-full
//
// # The database URL
//
// The scheme is postgres or postgresql. Several hosts may be named
// (postgres://user@a:5432,b:5432/database); the one that takes writes is used. The parameters are:
//
//	sslmode                       disable, allow, prefer, require, verify-ca, verify-full (the default, but to this machine, where it is prefer)
//	sslrootcert                   file with the certificate authorities, or "system"
//	sslcert, sslkey               files with the client certificate and its key
//	password_file                 file with the password
//	prepared_statements           false if a pooler in transaction mode (PgBouncer) is in between; see below
//	target_session_attrs          which of several hosts is used; read-write is the default if there are several
//	connect_timeout               seconds in which one host must take a connection; the default is a third of the time that an operation may take
//	pool_max_conns                most connections that read lists at the same time; 8
//	pool_min_conns                connections of these that are kept open; 0
//	pool_min_idle_conns           connections of these that are kept open and unused; 0
//	pool_max_conn_lifetime        age at which a connection is replaced, such as 30m; 1h. Those that poll are replaced after a minute
//	pool_max_conn_lifetime_jitter random part that is added to it; 0s
//	pool_max_conn_idle_time       time after which an unused connection is closed; 30m
//	pool_health_check_period      how often both are looked at; 1m
//	application_name              shown by pg_stat_activity; rowkeeper
//	search_path                   schema with the tables
//	lock_timeout                  milliseconds a commit waits for others; a third of the time that an operation may take
//	idle_in_transaction_session_timeout
//	                              milliseconds after which the server ends a session that holds a lock and does nothing; a sixth of it
//	statement_timeout             milliseconds that the server gives a read; the time that an operation may take
//
// To a server that is not on this machine, the default of sslmode is not libpq's: its certificate
// is verified, so that the password goes to nobody else. Where TLS is not certain, a password is
// not sent in clear text, whatever the server asks for, unless require_auth=password is set.
//
// All that pgx knows besides (such as channel_binding, sslnegotiation, service and passfile) works
// as it does there, as do the environment variables of libpq: PGPASSWORD, PGSSLMODE and so on. Any
// other parameter is a setting of the session, and the server refuses one that it does not know.
//
// The password is that of password_file, else of the URL, else of PGPASSWORD, else of a .pgpass
// file. Files and the environment are read again for every new connection, so credentials can be
// replaced while the server runs: existing connections live on until their lifetime ends. A Login
// of the configuration takes the place of all of these; see package login.
//
// # Connections
//
// A process uses, for all stores of a database that it has opened together:
//
//   - up to pool_max_conns connections for lists and single reads. If there are more than two,
//     lists leave two of them for single reads, and a store leaves one for the other stores;
//   - up to eight to write, of which one store takes three at most;
//   - up to four to read the head, the new rows of the log, and what expiry and compaction need,
//     and to notify. Bursts of lists cannot take these;
//   - one that listens for notifications.
//
// Usually it is five in all.
//
// A new session sets its time limits first of all, so the limits of the role and the database
// (statement_timeout, lock_timeout, idle_in_transaction_session_timeout, idle_session_timeout,
// transaction_timeout) do not matter, except behind a pooler in transaction mode: there, they hold
// for reads.
//
// A pooler in session mode works like the database itself. In transaction mode each transaction
// gets another session, so add prepared_statements=false: nothing is prepared and no session is set
// up, each transaction brings its settings along. Notifications cannot work there. This is noticed,
// and other processes' writes are polled for. Migrations need a direct connection.
//
// A pooler that goes over to another server keeps the connections to itself. So each answer, and
// each commit before its work, tells when its server was started, and nothing is used of a server
// that differs; see contract.Gate. That does not tell apart two databases of one server: if a
// pooler is led to another one of them, the connections that poll find it out within a minute.
//
// # Several stores
//
// All stores of a database are in the same tables, of which the store is the first column of each
// key. Commits of one store wait for no other one. A process polls the stores that it has opened
// together by one statement, so one that is idle costs none of its own.
//
// # Privileges
//
// `rowkeeper migrate up` and `rowkeeper stores create` need a role that may create tables: one that
// owns the database, or has CREATE on the schema (since PostgreSQL 15 not everybody has that). The
// server's role needs SELECT, INSERT, UPDATE and DELETE on the tables rowkeeper_log,
// rowkeeper_live, rowkeeper_lease, rowkeeper_store, rowkeeper_aborted, rowkeeper_resource,
// rowkeeper_index and rowkeeper_user, and SELECT on rowkeeper_schema.
//
// # Which database it is
//
// The store remembers which database holds it, to notice a restore or a failover that happened
// while nobody looked: by the system identifier, the time line, the name and the oid of the
// database, the name of the schema, and the oid of the table rowkeeper_log. To rename the database
// or the schema counts as a restore, as a copy may have taken the place of the one before.
//
// These cannot be noticed while no server runs, so run `rowkeeper fence` after them:
//
//   - rows that are restored into the tables that are there (pg_restore --data-only)
//   - a data directory, or its volume, that is set back to a snapshot
//   - a copy of the data directory that was served and fenced elsewhere, and is put in place: it
//     has recorded the time line on which it is
//   - a restore into another server that has the same numbers by chance, where the role may not
//     execute pg_control_system(), as in some managed services: then the number of the transaction
//     that created the store stands for the system identifier
//
// A running server notices lost writes in any case, by what it has seen.
//
// # What the server guarantees
//
// With fsync=off, a crash of the server's operating system undoes commits, if it does not damage
// the database. So the store records the server's start (pg_postmaster_start_time) before its first
// commit, and fences when it finds another one, also after a restart in order: no revision is given
// twice. It cannot force the record itself to the disk, synchronous_commit or not, so a crash
// within about half a minute after the first commit of a server's run may take the record along.
// Behind a pooler in transaction mode, the next answer finds the new start. full_page_writes=off
// can damage the database, and loses no commit.
//
// Commits are durable: synchronous_commit is switched on for sessions that write if the server's
// default is off. Stronger settings, that wait for standbys, are left as they are and are honoured:
// no commit is confirmed before the standbys have it, and time limits never cut that short. If
// somebody cancels the wait, the server sends a warning, upon which the outcome counts as unknown
// and is resolved by a commit that waits as well. client_min_messages is set for that, whatever the
// URL says.
package postgres
