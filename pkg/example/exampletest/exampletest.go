// Package exampletest is for tests. It runs the server of the example API in package testkit.
package exampletest

import (
	"testing"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/example/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// API is the example API.
var API = testkit.API{
	Scheme:    apiserver.Scheme,
	Codecs:    apiserver.Codecs,
	NewConfig: func() *genericapiserver.RecommendedConfig { return apiserver.NewConfig().Generic },
	New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
		return (&apiserver.Config{Generic: c}).New()
	},
}

// Start starts a server, which stops with the test.
func Start(t testing.TB, o testkit.Options) *testkit.Server {
	t.Helper()
	return testkit.Start(t, API, o)
}
