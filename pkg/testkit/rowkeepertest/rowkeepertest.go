// Package rowkeepertest runs Rowkeeper's own API server inside tests; see package testkit.
package rowkeepertest

import (
	"testing"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// API is Rowkeeper's API.
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
