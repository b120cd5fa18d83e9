// Package inspect looks at a database for its operator: what uses it and how large it is
// ([Status]), and whether everything that Rowkeeper relies on is as it should be ([Report]). It
// never writes a row, takes no commit lock, and needs no server. It stands on the contract. The
// drivers answer its questions, and package database asks them.
//
// A driver answers a [Question] by rows of text, each with one whole statement. It judges nothing.
// A [Check] is a value: its name, the questions that it reads, and a pure function from the answers
// to findings, with a table of tests. What a database does not know has no answer there; what its
// role may not see is said.
//
// The consistency of the tables is checked by walks (walk.go): each reads a table in pieces of a
// bounded number of rows, each piece in a snapshot of its own, so that no old version has to be
// kept for long. What a piece is compared with, such as the compacted revision, is read in its
// snapshot.
package inspect
