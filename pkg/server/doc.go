// Package server is the program around an API: flags, their validation, the listener, logging,
// audit and tracing. The program runs in one of two ways. A server that stands alone has users of
// its own, and a directory with its database, certificates and kubeconfig. An aggregated server is
// a part of a cluster, and uses the cluster's users and rights.
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
//	authz       the same, decided by a file: roles or webhooks, in any order
//	signin      users by the tokens of issuers
//	follow      files of settings that change while the server runs
//	pki         certificates, in memory and in files
//	rotation    a serving certificate in a cluster that is made and renewed by the server itself
//	openapi     the names of types in OpenAPI documents
//	version     which version of Rowkeeper and of Kubernetes's API machinery the program is
//
// A server that stands alone collects garbage by package garbagecollector.
//
// The package clustertest is for their tests: a cluster as an aggregated server sees it.
package server
