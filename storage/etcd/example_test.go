package etcd_test

import (
	"context"
	"fmt"
	"log"
	"net"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// A client of etcd uses a SQL database. Its own compactions are the only ones.
func ExampleServer() {
	ctx := context.Background()
	store, err := storage.Open(ctx, storage.Config{URL: "memory:",
		Drivers: []storage.Driver{sqlite.Driver}, Migrate: true,
		Compaction: storage.CompactionPolicy{Window: -1}})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	server := etcd.New(etcd.Opened(store), etcd.Config{})
	calls := grpc.NewServer(server.Options()...)
	server.Register(calls)
	go calls.Serve(listener) //nolint:errcheck // it ends with Stop
	defer calls.Stop()

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{listener.Addr().String()}})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	if _, err := client.Put(ctx, "greeting", "hello"); err != nil {
		log.Print(err)
		return
	}
	got, err := client.Get(ctx, "greeting")
	if err != nil {
		log.Print(err)
		return
	}
	for _, kv := range got.Kvs {
		fmt.Printf("%s: %s\n", kv.Key, kv.Value)
	}
	// Output: greeting: hello
}
