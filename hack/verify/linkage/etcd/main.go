// Etcd serves a store by etcd's API, and moves an etcd's keys into it, without Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/etcdmove"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	store, err := etcd.Open(ctx, etcd.Config{
		URL:     os.Getenv("DATABASE_URL"),
		Drivers: []etcd.Driver{sqlite.Driver},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	from, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD_URL")}})
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := etcdmove.Import(ctx, from, store, nil); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:2379")
	if err != nil {
		return err
	}
	open := func(context.Context) (*etcd.Store, func(), error) { return store, func() {}, nil }
	server := etcd.New(open, etcd.ServerConfig{})
	calls := grpc.NewServer(server.Options()...)
	server.Register(calls)
	return calls.Serve(listener)
}
