// Package memdb is a database of Go values, for tests: the shortest complete [contract.Backend].
// SQLite's databases in memory are another thing.
//
// Tests of mvcc use it where the database does not matter: it needs no files and no server, has no
// clock and no randomness of its own, and all its waiting is for channels, so it works under
// testing/synctest. A [Database] is one value. Every [Backend] that is opened on it is what another
// process would be.
//
// # How to read it
//
// The package shows authors of drivers what a driver does, without SQL. Its files have the names of
// the real drivers' files:
//
//	tables.go       the six tables, as slices, and what statements do to them
//	driver.go       the database itself, and opening
//	transaction.go  the commit lock, and transactions under it
//	commit.go       the commit of a group
//	locked.go       what is rare, under the commit lock
//	sweep.go        the removal of old rows
//	read.go         the reads, each of one moment
//	snapshot.go     snapshots that last
//	listen.go       notifications, and polling
//	backend.go      the rest, which is short here
//	version.go      what a real database does not have: its earlier versions
//
// The package decides nothing. It reads rows, asks a rule of the contract ([contract.CheckGroup],
// [contract.Decide], [contract.SweepPlan.Check], and by [Backend.Locked] the others), and writes
// what the rule says.
//
// # What holds
//
//   - A version of the tables that was committed is never changed. A transaction works on a version
//     of its own, and puts it in the place of the newest one when it commits: all of it or nothing.
//   - Only the holder of the commit lock makes a version, from the newest one. So there is one
//     history.
//   - A read takes the newest version once. Its rows and its state come from that version.
//   - Values are shared and never changed.
//
// Real backends implement some of the optional interfaces. This one implements all. A test that
// wants a backend without them hides them: struct{ contract.Backend }.
//
// The suite in backendtest compares it with the real databases. If a real database behaves
// otherwise, the suite has to say so first.
package memdb
