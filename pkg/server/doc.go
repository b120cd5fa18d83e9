// Package server is the program around an API: flags, their validation, the listener, logging,
// audit and tracing. It can collect garbage, and serve custom resources that a program gives it
// (packages definitions and crds). The program runs in one of two ways. A server that stands alone
// has users of its own, and a directory with its database, certificates and kubeconfig. An
// aggregated server is a part of a cluster, and uses the cluster's users and rights.
//
//	program := server.Program{Name: "bookmarks", …}
//	root := commands.New(program, server.New(program).Command())
//
// Package kinds does so for Go types, and cmd/rowkeeper for the example API. Package commands has
// the root command, and those beside serve: backup, migrate, stores and others. Package openapi
// names the types in OpenAPI documents.
//
// A server that stands alone collects garbage by package garbagecollector.
package server
