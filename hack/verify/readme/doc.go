// Package readme follows the README and the pages of docs to the letter: what it says to type is
// typed, in an empty directory beside a clone of Rowkeeper, what it says to write into files is
// written, and what it shows as answers is compared with what is answered. It also checks that
// every link leads somewhere.
//
// Comments, which nobody sees who reads the page, mark what is followed:
//
//	<!-- readme: walk NAME -->   begins a walk, which has a directory of its own
//	<!-- readme: end -->         ends it
//	<!-- readme: on NAME... -->  what follows is done on these machines, one after the other
//	<!-- readme: file PATH -->   the next block is the content of this file; on a named machine,
//	                             PATH may be absolute
//	<!-- readme: serve -->       the last command of the next block goes on while the walk does
//	<!-- readme: skip REASON --> the next block is not followed
//	<!-- readme: tested FILE --> outside of walks: another test, or the walk of another page, runs
//	                             the next block
//	<!-- readme: untested -->    outside of walks: nothing runs the next block, and the page says
//	                             so to its reader, by the words "not run here"
//
// The walk "cluster" goes on where the one before it on its page begins to serve. It needs a
// cluster, and the tests in hack/e2e follow it. They also follow the walk "machines".
//
// Within a walk, a block that is neither a file nor skipped is a session: its language is console.
// A line that begins with "$ " is a command for bash, those after it that begin with "> " continue
// it, and all others are what it prints, to both of its outputs. A directory or variable that a
// command sets is there for those after it; after a block that serves, commands are given to
// another terminal, in the directory in which the walk began.
//
// If the page shows nothing, a command may print anything. Otherwise it prints what is shown, in
// which "..." stands for any text, and a line of nothing else for any number of lines; blanks count
// as one, and any two times such as 5s and 3m20s are the same. A command that serves may print
// other lines before and between the ones that are shown, and the walk goes on when it has printed
// them. A command has to succeed, unless it is shown to answer with a line that begins with "Error"
// or "error:", or says that something "is invalid: ".
package readme
