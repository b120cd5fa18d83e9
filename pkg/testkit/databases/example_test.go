package databases_test

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/pkg/testkit/databases"
)

// A test's server stores in PostgreSQL, which runs in a container until the test ends. In a test, t
// and api are at hand.
func ExamplePostgres() {
	var t *testing.T
	var api testkit.API
	database := databases.Postgres(t, "postgres:17")
	server := testkit.Start(t, api, testkit.Options{Database: database})
	_ = server.Config // for clients
}
