package etcd_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestOpenForEachCall: a server has its store open while it answers, and no longer: a call until it
// returns, and a stream until it ends. Another store that is opened for the next call is another
// cluster to clients. The client gets the error of a store that cannot be opened.
func TestOpenForEachCall(t *testing.T) {
	stores := make([]*etcd.Store, 2)
	for i := range stores {
		d := dbtest.Open(t, dbtest.SQLite)
		store, err := etcd.Open(t.Context(), etcd.Config{URL: d.URL,
			Drivers: []etcd.Driver{d.Driver}, Migrate: true,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		stores[i] = store
	}
	var now atomic.Pointer[etcd.Store]
	var users atomic.Int64
	released := make(chan struct{}, 1)
	c := serveOpen(t, func(context.Context) (*etcd.Store, func(), error) {
		store := now.Load()
		if store == nil {
			return nil, nil, status.Error(codes.Unavailable, "not now")
		}
		users.Add(1)
		return store, func() {
			users.Add(-1)
			released <- struct{}{}
		}, nil
	}, etcd.ServerConfig{})

	if _, err := pb.NewKVClient(c.ActiveConnection()).Range(t.Context(),
		&pb.RangeRequest{Key: []byte("k")}); status.Code(err) != codes.Unavailable {
		t.Errorf("a store that cannot be opened answers %v", err)
	}
	clusters := map[uint64]bool{}
	for _, store := range []*etcd.Store{stores[0], stores[0], stores[1]} {
		now.Store(store)
		res, err := c.Put(t.Context(), "k", "v")
		if err != nil {
			t.Fatal(err)
		}
		<-released
		clusters[res.Header.ClusterId] = true
	}
	if len(clusters) != 2 || clusters[0] {
		t.Errorf("two stores are the clusters %v", clusters)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watch := c.Watch(ctx, "k", clientv3.WithCreatedNotify())
	if res := <-watch; !res.Created {
		t.Fatalf("%+v", res)
	}
	put(t, c, "k", "w")
	<-released
	if n := users.Load(); n != 1 {
		t.Errorf("%d users while there is one watch", n)
	}
	if res := <-watch; len(res.Events) != 1 {
		t.Errorf("%+v", res)
	}
	cancel()
	<-released
	if n := users.Load(); n != 0 {
		t.Errorf("%d users after everything has ended", n)
	}
}

// TestPanic: a panic ends the call in which it happens. If it comes from below, its store is opened
// anew, since locks may be held.
func TestPanic(t *testing.T) {
	var armed atomic.Bool
	with, _ := inMemory(t, func(_ context.Context, method string) error {
		if method == "Page" && armed.CompareAndSwap(true, false) {
			panic("below")
		}
		return nil
	})
	logger := slog.New(slog.DiscardHandler)
	pool, err := etcd.OpenStores(t.Context(), etcd.Config{URL: with.URL,
		Drivers: []etcd.Driver{with.Driver}, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	var above atomic.Bool
	var last atomic.Pointer[etcd.Store]
	c := serveOpen(t, func(ctx context.Context) (*etcd.Store, func(), error) {
		if above.CompareAndSwap(true, false) {
			panic("above")
		}
		store, release, err := pool.Use(ctx, "default")
		last.Store(store)
		return store, release, err
	}, etcd.ServerConfig{Logger: logger})
	put(t, c, "k", "1")
	kv, before := pb.NewKVClient(c.ActiveConnection()), last.Load()
	for _, arm := range []*atomic.Bool{&above, &armed} {
		arm.Store(true)
		_, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")})
		if status.Code(err) != codes.Internal || arm.Load() {
			t.Errorf("a call that panics: %v", err)
		}
		res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "k", clientv3.WithPrefix()))
		if text(res.Kvs) != "k=1@2.2.1" {
			t.Errorf("after a panic there is %s", text(res.Kvs))
		}
		if again := last.Load() == before; again != (arm == &above) {
			t.Errorf("the same store is used: %t", again)
		}
	}
}

// TestDroppedStore: watches of a store that is dropped end, so that clients learn of it, and calls
// are answered as if the store could not be opened. One that is created in its place is served to
// the same clients, as another cluster.
func TestDroppedStore(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	config := etcd.Config{URL: d.URL, Drivers: []etcd.Driver{d.Driver}, Store: "team-a",
		Logger: slog.New(slog.DiscardHandler)}
	create := func() {
		t.Helper()
		if _, err := database.CreateStore(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	create()
	pool, err := etcd.OpenStores(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	c := serveOpen(t, func(ctx context.Context) (*etcd.Store, func(), error) {
		return pool.Use(ctx, "team-a")
	}, etcd.ServerConfig{})
	before, err := c.Put(t.Context(), "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := pb.NewWatchClient(c.ActiveConnection()).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}); err != nil {
		t.Fatal(err)
	}
	if res, err := stream.Recv(); err != nil || !res.Created {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := database.DropStore(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if res, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch of a dropped store has %+v, %v", res, err)
	}
	create()
	after, err := c.Put(t.Context(), "k", "v")
	if err != nil {
		t.Fatal(err)
	}
	if after.Header.ClusterId == before.Header.ClusterId ||
		after.Header.Revision <= before.Header.Revision {
		t.Errorf("the new store answers %v after %v", after.Header, before.Header)
	}
}
