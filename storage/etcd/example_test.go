package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// A program serves a database to clients of etcd.
func ExampleOpen() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: the color is green, at revision 2
}

func run(ctx context.Context) (err error) {
	store, err := etcd.Open(ctx, etcd.Config{URL: "memory:",
		Drivers: []etcd.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	server := etcd.New(etcd.Opened(store), etcd.ServerConfig{ClientURLs: []string{url}})
	calls := grpc.NewServer(server.Options()...)
	server.Register(calls)
	served := make(chan error, 1)
	go func() { served <- calls.Serve(listener) }()
	defer func() {
		calls.Stop()
		err = errors.Join(err, <-served)
	}()

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Put(ctx, "color", "green"); err != nil {
		return err
	}
	color, err := client.Get(ctx, "color")
	if err != nil {
		return err
	}
	fmt.Printf("the %s is %s, at revision %d\n", color.Kvs[0].Key, color.Kvs[0].Value,
		color.Kvs[0].ModRevision)
	return nil
}
