package databases_test

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases"
)

// A test runs on SQLite, and on each database server that the environment names. In a test, t and
// api are at hand.
func ExampleEach() {
	var t *testing.T
	var api testkit.API
	databases.Each(t, func(t *testing.T, db testkit.Database) {
		server := testkit.Start(t, api, testkit.Options{Database: db})
		_ = server.Config // for clients
	})
}
