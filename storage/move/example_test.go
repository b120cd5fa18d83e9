package move_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/move"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// A kine has been stopped, and a new database gets all that it holds.
func ExampleRun() {
	ctx := context.Background()
	from, err := move.Kine(ctx, "sqlite:///var/lib/rancher/k3s/server/db/state.db", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer from.Close()
	moved, err := move.Run(ctx, move.Options{Finish: true, From: from, To: move.Config{
		URL: "postgres://rowkeeper@db.example.com/rowkeeper", Drivers: []etcd.Driver{postgres.Driver}}})
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(moved.Keys, "keys; the history begins at revision", moved.Head)
}
