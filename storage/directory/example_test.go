package directory_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/rowkeeper/rowkeeper/storage/directory"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// Example places a store in one of two databases, and moves it to the other one.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "databases")
	urls := fmt.Sprintf("db-1 sqlite:%[1]s/one.db\ndb-2 sqlite:%[1]s/two.db\n", dir)
	if err := os.WriteFile(file, []byte(urls), 0o600); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	config := directory.Config{Drivers: drivers.All(), Migrate: true, Logger: slog.New(slog.DiscardHandler)}
	databases, err := directory.ReadDatabases(file, config)
	if err != nil {
		log.Fatal(err)
	}
	config.URL = "sqlite:" + dir + "/control.db"
	d, err := directory.OpenDirectory(ctx, config, databases)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Create(ctx, "blue", "db-1"); err != nil {
		log.Fatal(err)
	}
	stores := directory.NewPool(d)
	defer stores.Close()
	where := func() {
		store, release, err := stores.Use(ctx, "blue")
		if err != nil {
			log.Fatal(err)
		}
		defer release()
		row, err := d.Get(ctx, "blue")
		if err != nil || store.Ready(ctx) != nil {
			log.Fatal(err)
		}
		fmt.Printf("the store is in %s, generation %d\n", row.Database, row.Generation)
	}
	where()
	if _, err := d.MoveTo(ctx, "blue", "db-2", directory.MoveOptions{}); err != nil {
		log.Fatal(err)
	}
	where()
	// Output:
	// the store is in db-1, generation 1
	// the store is in db-2, generation 2
}
