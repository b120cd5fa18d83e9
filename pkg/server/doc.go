// Package server is for programs that serve an API. It is the program around the API: flags, their
// validation, the listener, logging, audit and tracing, and the two ways to run. A server that
// stands alone has a directory with its database, certificates and kubeconfig. An aggregated one is
// a part of a cluster, whose users and rights it takes.
//
//	program := server.Program{Name: "bookmarks", …}
//	root := commands.New(program, server.New(program).Command())
//
// Package kinds does so for Go types, and cmd/rowkeeper for the example API. The packages below are
// parts of such a program:
//
//	commands    the root command, and those beside serve: backup, migrate, stores and others
//	standalone  the directory of a server that stands alone, with its users and kubeconfig
//	access      who may do what in such a server, and the reviews that tell
//	pki         certificates, in memory and in files
//	rotation    a serving certificate in a cluster that is made and renewed by the server itself
//	openapi     the names of types in OpenAPI documents
//	version     which version of Rowkeeper and of Kubernetes's API machinery the program is
//
// A server that stands alone collects garbage by package garbagecollector.
//
// The package clustertest is for their tests: a cluster as an aggregated server sees it.
package server
