package containers_test

import (
	"database/sql"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/testkit/containers"
)

// PostgreSQL runs in a container until the test ends. In a test, t is at hand.
func ExamplePostgres() {
	var t *testing.T
	db, err := sql.Open("pgx", containers.Postgres(t, "postgres:17"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
}
