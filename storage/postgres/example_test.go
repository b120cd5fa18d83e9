package postgres_test

import (
	"context"
	"log"

	"github.com/rowkeeper/rowkeeper/storage" //nolint:depguard // an example is a caller, who has both
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// A store is kept in PostgreSQL. The password is in a file, and the server's certificate is
// verified.
func Example() {
	store, err := storage.Open(context.Background(), storage.Config{
		URL:     "postgres://rowkeeper@db.example.com/rowkeeper?sslmode=verify-full&password_file=/run/secrets/db",
		Drivers: []storage.Driver{postgres.Driver}, Migrate: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}
