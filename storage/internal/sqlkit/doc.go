// Package sqlkit is what the drivers of SQL databases do once: the reads of [contract.Backend],
// the methods of a transaction and of a snapshot, and the connections that the stores of a process
// share. A driver supplies the texts of the statements, runs them, and decodes columns.
//
// # Reads
//
// A driver embeds a [Reader] in its backend and supplies three things:
//
//   - The [Statements]: whole texts, each with its argument and the index that it uses.
//   - A [Runner] that runs one statement on a connection of the [Class] that the read asks for.
//   - A [Cursor] that decodes the columns of a row without a detour over interface values.
//
// Everything else is here: which parameters a read has and what its columns mean, when a read has
// reached its bound in bytes, what counts as damage and how it is reported, and that lists leave
// connections for reads of single keys, and a store some for other stores.
//
// Every read returns the state of the store, of the same snapshot as its rows. A statement of one
// row has it in that row; see [Read]. Other statements return the state in at least one row. That
// row may hold only the state.
//
// # Transactions and snapshots
//
// A driver begins a transaction, and takes the commit lock if it is to write. Then a [Tx], or a
// [View], stands on its connection: the [TxStatements] are the texts, and a [Conn] runs them.
//
// # Connections to a server
//
// The backend of a store on a server embeds a [Member]. It takes the connections that the store's
// [contract.Gate] lets pass, and no more writing ones than one store may have. Where a server says
// that it is read-only, the member tells the [contract.Address]. [Poll] polls several members by
// one statement.
package sqlkit
