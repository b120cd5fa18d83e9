// Rowkeeper is a Kubernetes-style API server that keeps its objects in a SQL database.
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
