package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/rowkeeper/rowkeeper/storage" //nolint:depguard // an example is a caller, who has both
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// A store is kept in a file, which is created with its tables.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "state.db")
	store, err := storage.Open(context.Background(), storage.Config{
		URL: "sqlite://" + file, Drivers: []storage.Driver{sqlite.Driver}, Migrate: true,
	})
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()
	_, err = os.Stat(file)
	fmt.Println("the file is there:", err == nil)
	// Output: the file is there: true
}
