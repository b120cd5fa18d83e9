package etcdmove_test

import (
	"context"
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	served "github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/etcdmove"
)

// A store that holds nothing gets the keys of an etcd that runs.
func ExampleImport() {
	var (
		client *clientv3.Client
		store  *served.Store
	)
	imported, err := etcdmove.Import(context.Background(), client, store, nil)
	if err != nil {
		log.Fatal(err)
	}
	if imported.From != imported.Now {
		log.Print("etcd was written meanwhile: what came after is missing")
	}
	fmt.Println(imported.Objects, "keys; the history begins at revision", imported.Head)
}
