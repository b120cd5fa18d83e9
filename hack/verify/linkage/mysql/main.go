// Mysql opens a store as a program does that names one kind of database.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

func main() {
	db, err := storage.Open(context.Background(), storage.Config{
		URL:     os.Getenv("DATABASE_URL"),
		Drivers: []storage.Driver{mysql.Driver},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := db.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
