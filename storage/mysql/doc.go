// Package mysql keeps a store in MySQL (8.0 or newer) or MariaDB (10.6 or newer), on InnoDB, or in
// TiDB. The driver asks the server which of them it is. It is a contract.Backend, made with package
// sqlkit, on the tables that package migrations makes.
//
// # Database URLs
//
//	mysql://user[:password]@host[:port]/database[?parameters]
//	mysql://user[:password]@/database?socket=/run/mysqld/mysqld.sock
//
// The scheme mariadb means the same. Special characters in the user name and the password are
// written as %XX. Every part is checked, and an unknown parameter is an error.
//
//	parameter                default    meaning
//	password_file                       a file with the password. It is read for each new connection, so that the password can be
//	                                    changed while the program runs. Without it the password is the URL's, or that of the
//	                                    environment variable MYSQL_PWD.
//	socket                              the path of the server's Unix socket, instead of a host
//	tls                      true       false: no encryption (the default for a socket)
//	                                    preferred: encryption if the server offers it, its certificate is not verified (the
//	                                    default for localhost and loopback addresses)
//	                                    skip-verify: encryption, the certificate is not verified
//	                                    verify-ca: the certificate must be signed by an authority that is trusted
//	                                    true: and it must be for the host
//	ssl-ca                              a file with the authorities that are trusted, in PEM; without it those of the system
//	ssl-cert, ssl-key                   files with the client's certificate and its key, in PEM. Like ssl-ca, they are read for each
//	                                    new connection.
//	connect_timeout          10s        the time in which a server must accept a connection; a mere number is seconds
//	pool_max_conns           8          the greatest number of connections for lists and single reads, of which
//	                                    a store leaves one for the other stores; up to 17 more write and
//	                                    follow the logs; one store needs less than nine
//	pool_max_conn_lifetime   1h         the age at which a connection is replaced; those that poll
//	                                    are replaced after a minute
//	pool_max_conn_idle_time  5m         the time after which a connection that nobody uses is closed
//
// A Login of the configuration takes the place of the user and the password; see package login.
// Then the URL may leave out the user.
//
// # What the server must be like
//
// The account needs SELECT, INSERT, UPDATE and DELETE on the database, and CREATE, ALTER, INDEX and
// DROP for migrations, which may be those of another account. max_allowed_packet has to be 4 MiB or
// more, innodb_page_size 8 KiB or more, and binlog_format must not be STATEMENT. All other settings
// that matter are made for each session; see sessionSettings.
//
// Only a server without read_only and innodb_read_only is used: replicas must have one of them set,
// as they should anyhow (Aurora's readers have the second). The
// role is read in the statement that reads the head, and again under the commit lock. A server that
// turns read-only makes the pools connect anew, since its address may lead to another one by then.
//
// Durability is the server's: with innodb_flush_log_at_trx_commit=1, and sync_binlog=1 where there
// is a binary log (MariaDB's default is 0), every acknowledged write survives a crash. A write that
// was visible for a moment, but not acknowledged yet, may be lost in it; a process that saw it
// fences. Asynchronous replication loses the newest writes in a failover; see below.
//
// A proxy between this program and the server must lead all statements of a transaction to one
// server. If it goes over to another server and keeps the connections to itself, the first answer
// tells: each names its server (server_uuid, or MariaDB's server_id), and nothing is used of one
// that differs; see contract.Gate. That does not tell a server from itself after a restart: behind
// such a proxy, relaxed settings of durability lose commits unnoticed.
//
// Where the server confirms commits before they are on the disk (innodb_flush_log_at_trx_commit
// other than 1; sync_binlog other than 1 with a binary log; no fsync at all), the store records the
// server's start before its first commit, and waits until the redo log is on the disk up to there
// (MySQL before 8.0.30 does not tell; there the record is on the disk after a second). It fences
// when it finds another start, also after a restart in order, which no server tells from a crash:
// so no revision is given twice. A setting that is relaxed while processes run is noticed by their
// next new connection. The start is known to the second: a machine whose clock is wrong when it
// boots could start twice at the same time.
//
// # Transactions
//
// A commit group takes two round trips, and one before them if it has 16 KiB of large values,
// which become variables of the session; see transaction, and held.go. Between the two this process
// holds the commit lock and does nothing but decide. If it is paused there, or its host is gone,
// the server ends its session after a tenth of the operation timeout (wait_timeout, set for the
// transaction only). A lock is waited for during a third of it.
//
// The commit lock is a row. Processes queue for it at a lock by name (GET_LOCK), where they have no
// table open. So FLUSH TABLES WITH READ LOCK and LOCK TABLES, which backups use, get their locks
// when the commit that is under way has ended or waits for them, and writes go on when they are
// released. Writes wait meanwhile: for a backup without waiting, use --single-transaction.
//
// There are no notifications: other processes' writes are found by asking for the head, which costs
// the server about as much as any primary-key read.
//
// # Which database it is
//
// Each connection finds out which database it leads to: the server (server_uuid, or MariaDB's
// server_id, which has to differ between servers that replicate to each other), the database's
// name, and when the tables were created. If that is not the database this process has worked with,
// the connection is refused as fenced: a dump was restored, tables were moved here from a copy, or
// another server was promoted, perhaps without the newest writes. The store then fences, upon which
// all watches start anew. It does so also where nothing was lost, since nobody can know. With
// MariaDB, files that are copied or change their owner have a new creation time, too. (The number
// that InnoDB gives a table would be a better one than the time, but no account may read it that
// has no more privileges than this one.)
//
// These cannot be noticed while no server runs, so run `rowkeeper fence` after them:
//
//   - rows that are restored into the tables that are there (mysqldump --no-create-info)
//   - a data directory, or its volume, that is set back to a snapshot
//   - a copy of the data directory that was served and fenced elsewhere, and is put in place: it
//     brings its server_uuid along
//   - with MariaDB, a dump of a server with the same server_id, if the tables were created in the
//     same second
//
// # Clusters
//
// Galera (MariaDB): any node may be used, also by processes on different nodes. wsrep_sync_wait
// makes reads and transactions wait for what the cluster has committed before; see send, takeTurn
// and failedCommit for what else is different. Groups of different nodes collide, and one of them
// is tried again: writing through one node is faster. Locks for migrations are the node's own, and
// nodes that make views at once may wait for each other for ever. So servers that start together
// leave a migration to the first node that has one; see letFirstNode. Migrate by hand through one
// node. A node that is not ready counts as read-only. All nodes count
// as one database: it is known by the cluster and the database's name, so a restored dump has to be
// fenced by hand. With relaxed settings, a cluster whose nodes all lost their power has to be
// fenced by hand, too: it has no start of its own.
//
// TiDB: experimental. Any of its servers may be used. All of them count as one database, known by
// the database's name and by the number and the creation time of a table, which restored tables do
// not have. The row of a store has the head; see tidb.go.
//
// Galera with MySQL (Percona XtraDB Cluster) is refused: it has never been tried.
//
// Group replication (MySQL): with one primary. Several primaries are refused. The group counts as
// one database, known by its name and by when it was bootstrapped, so a new primary goes on with
// the store's history: it has what was confirmed, and answers when it has applied that. A group
// that is bootstrapped anew is another database. The account needs SELECT on the table
// performance_schema.replication_group_member_stats for that; without, each new primary is another
// database. After group_replication_force_members, which no server tells, run `rowkeeper fence`.
package mysql
