// Package sqlkit reads a store from a SQL database. It has the reads of [mvcc.Backend], once for
// all databases: which statement a read runs, and what the columns of its rows mean. A driver
// supplies the texts of the statements, runs them, and decodes columns.
//
// A driver embeds a [Reader] in its backend and supplies three things:
//
//   - The [Statements]: whole texts, each with its argument and the index that it uses.
//   - A [Database] that runs one statement on a connection of the [Class] that the read asks for.
//   - A [Cursor] that decodes the columns of a row without a detour over interface values.
//
// Everything else is here: which parameters a read has and what its columns mean, when a read has
// reached its bound in bytes, what counts as damage and how it is reported, and that lists leave
// connections for reads of single keys.
//
// # The state
//
// Every read returns the state of the store, of the same snapshot as its rows. A statement of one
// row has it in that row; see [Read]. Other statements return the state in at least one row. That
// row may hold only the state.
package sqlkit
