// Rowkeeper serves Kubernetes-style APIs, or etcd's API, from a SQL database. It also moves data,
// and begins projects.
package main

import (
	"os"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/cmd/rowkeeper/app"
)

func main() {
	// The first signal asks the server to finish what it has begun; the second ends the program at
	// once.
	os.Exit(app.Run(genericapiserver.SetupSignalContext(), os.Args[1:], os.Stdout, os.Stderr))
}
