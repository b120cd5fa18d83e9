// Package drivers is the list of all databases, for programs that serve any of them. A program that
// imports the package links them all. A program that needs only one database imports only that
// driver. No package of storage or pkg imports this one, except in tests. Read on to add a
// database.
//
// # What a driver consists of
//
// A driver reads rows, runs statements and classifies errors. It decides nothing: the rules are in
// storage/internal/contract. A Driver connects to a Database, which opens a Backend for each store:
// the contract of these three is on its interfaces Driver, Database and Backend. PostgreSQL's
// statements say some of the rules in SQL as well; contract/rules.go says which. The files of
// sqlite, postgres and mysql have the same names:
//
//	doc.go          for users: URLs, what the server must be like, which accidents go unnoticed
//	driver.go       the Driver: its name and its URL schemes
//	url.go          what a URL says
//	open.go         Connect: can this program use the database? and Store: is there the store?
//	connect.go      one connection: its settings, what it must find, and where it leads
//	identity.go     which database it is: the fingerprint
//	boot.go         what can undo commits: durability
//	migrate.go      Migrate and Status; the SQL is in the folder migrations
//	stores.go       the stores in the database: finds, creates and lists them
//	backend.go      what stores share: pools; and the backend: limits, optional interfaces
//	statements.go   the statements on the store's tables, each with its argument and its index
//	read.go         runs a statement for the reads, and decodes columns
//	transaction.go  how a transaction is sent, and takes the commit lock
//	commit.go       Commit
//	locked.go       Locked, for what is rare: begins the transaction, and runs its statements
//	sweep.go        Sweep
//	snapshot.go     Snapshot: begins it
//	errors.go       what an error means
//	poll.go         one statement for the heads of many stores; SQLite: has the file changed?
//	query.go        runs a statement of a user, which can only read
//	inspect.go      what rowkeeper status and rowkeeper doctor ask: storage/internal/inspect judges
//
// The package storage/internal/sqlkit has what these have in common: the reads, the methods of a
// transaction and of a snapshot over tables of statements, the loop that takes a connection which
// the store may use, and the poll.
//
// Besides these, each has files for what only its database needs. SQLite: place.go and replaced.go
// (a file can be moved and replaced), space.go (a full disk), wal.go (the write-ahead log);
// its low-level client is storage/internal/sqlite3. PostgreSQL: binary.go (the binary
// format) and listen.go. MySQL: text.go (several statements in one text).
//
// The package storage/internal/test/memdb is the shortest example: a complete backend without SQL.
//
// # A fourth database
//
// It touches these places, and no other product code:
//
//   - a package beside sqlite, postgres and mysql, with the files above
//   - a folder in migrations, with a list of migrations like migrations.SQLite, and a locker if the
//     database needs one; the views that docs/reference/sql.md promises are a part of it
//   - one line in drivers.go
//   - a kind in pkg/support/test/programs, its starter in pkg/support/test/dbserver and
//     in hack/bench, and a line in the lists of drivers of storage/internal/test/dbtest and
//     pkg/testkit/databases; all suites then run on it
//   - hack/torture/internal/rows, which reads and damages the tables without the product's code,
//     and the packages that hack/verify/linkage looks for
//   - one line in .ci/run: the version that is tested
//
// Tests of its own follow the others: statements_test.go reads the plan of each statement,
// faults_test.go breaks connections, and backend_test.go runs the suite of
// storage/internal/test/backendtest.
package drivers
