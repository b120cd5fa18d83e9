// Package scaffold is for the commands init and add of the program rowkeeper: it writes projects of
// authors, and adds kinds to them.
//
// A project has one of three variants: a server on package kinds, a server with registries by hand,
// or a definition and its controller. The files are templates, below templates/, under the names
// that they have in the project. A file that is alike in several variants is there once. The
// manifests of servers are those of this repository's own deploy/, under the project's names, so
// that there is one truth about how a server runs in a cluster. Only the files that name groups and
// kinds are templates there, too. Code that generators make of a project's types is a template as
// well, so that a project can be compiled as it is written; a test compares it with what they make.
//
// Every function first works out all that it would write, and checks it, and only then writes.
// Files that are there already are left alone. [AddKind] adds to the lists of kinds, which it finds
// by their syntax trees, and to the roles for users. The generated code for the types of the new
// kind is no template: [Generate] calls the generators.
package scaffold
