// Package sqlite3 is a thin client of SQLite: connections, statements, errors, and a pool of
// connections. It knows nothing of the store and its tables.
//
// It calls SQLite's C interface in the Go translation of modernc.org/sqlite/lib, below that
// module's driver for database/sql. There are three reasons:
//
//   - Speed. A lookup of a row takes 0.9 µs and no allocation here, against 3.6 µs and twelve
//     allocations through database/sql. A write needs four lookups while it holds the commit lock.
//   - Certainty. The interface tells whether a transaction is still open after an error of COMMIT,
//     and the operating system's error number. The driver keeps both to itself.
//   - Control. Checkpoints, busy timeouts and interruption are per connection and can change while
//     it is open. A statement that is not reset holds a snapshot for those after it.
//
// Code that does not need these, such as migrations, uses database/sql.
//
// zombiezen.com/go/sqlite, which stands on the same translation, was tried in place of this package
// (version 1.4.2, by a prototype below the same methods). With 64 writers creates cost 1.02
// (0.94–1.09) and updates 1.05 (0.98–1.10) of the CPU, and reached 0.96 (0.63–1.33) and 0.82
// (0.69–1.03) of the rate; twelve pairs on a busy machine, medians and 95 % intervals. That alone
// would not decide. But it keeps the handle of the connection to itself, and has none of these:
//
//   - [Conn.KeepLog]. Without it, whoever closes the last connection to a file that was replaced
//     deletes the log of the file that has its name now.
//   - [Error.Errno], by which a full disk is told from a broken one.
//   - [Conn.ReadOnly], and [Conn.DisableLookaside], which saves some 50 kB for each reader of each
//     store.
//
// # Invariants
//
//   - One goroutine at a time uses a [Conn], and the statements that belong to it. A [Pool] sees to
//     that.
//   - Parameters are copied to memory of the statement, and columns are copied out, except by
//     [Stmt.ColRaw]. The translated code treats addresses as integers, which the garbage collector
//     and the race detector do not follow into Go's heap.
//   - A connection has one [Stmt] for each text, compiled once. It serves one use at a time: bind
//     the parameters in order, step through the rows, reset. The end of the rows and errors reset
//     it, too.
//   - While a statement is not reset, its connection reads one snapshot. SQLite ends a connection's
//     read transaction when its last statement is reset.
//   - A connection whose state is unknown is marked [Conn.Broken]. A Pool closes it and opens
//     another.
package sqlite3
