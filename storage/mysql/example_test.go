package mysql_test

import (
	"context"
	"log"

	"github.com/rowkeeper/rowkeeper/storage" //nolint:depguard // an example is a caller, who has both
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// A store is kept in MySQL or MariaDB. The password is in a file, and the server's certificate
// is verified.
func Example() {
	store, err := storage.Open(context.Background(), storage.Config{
		URL:     "mysql://rowkeeper@db.example.com/rowkeeper?tls=true&password_file=/run/secrets/db",
		Drivers: []storage.Driver{mysql.Driver}, Migrate: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}
