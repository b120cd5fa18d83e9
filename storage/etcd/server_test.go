package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// each runs a test with a client of a server on a database of each kind.
func each(t *testing.T, test func(t *testing.T, c *clientv3.Client)) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) { test(t, serve(t, d)) })
}

// serve starts a server, as one of several on the database, and returns a client of it.
func serve(t testing.TB, d dbtest.DB) *clientv3.Client {
	t.Helper()
	return serveBy(t, d, etcd.ServerConfig{})
}

func serveBy(t testing.TB, d dbtest.DB, cfg etcd.ServerConfig) *clientv3.Client {
	t.Helper()
	return serveOpen(t, etcd.Opened(openStore(t, d)), cfg)
}

func openStore(t testing.TB, d dbtest.DB) *etcd.Store {
	t.Helper()
	store, err := etcd.Open(t.Context(), etcd.Config{URL: d.URL,
		Drivers: []etcd.Driver{d.Driver}, Migrate: true,
		Logger:     slog.New(slog.DiscardHandler),
		Compaction: etcd.CompactionPolicy{Window: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// serveOpen starts a server of what it is told to open, and returns a client of it.
func serveOpen(t testing.TB, open etcd.Opener, cfg etcd.ServerConfig) *clientv3.Client {
	t.Helper()
	return serveServer(t, etcd.New(open, cfg))
}

// serveServer serves a server by gRPC, and returns a client of it.
func serveServer(t testing.TB, s *etcd.Server) *clientv3.Client {
	t.Helper()
	g := grpc.NewServer(s.Options()...)
	s.Register(g)
	dir, err := os.MkdirTemp("", "etcd") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Error(err)
		}
	})
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket},
		Context: context.WithoutCancel(t.Context()), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close()); err != nil {
			t.Error(err)
		}
		g.Stop()
		s.Close()
		wg.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return c
}

// must returns an answer that has to be one.
func must[T any](t *testing.T) func(T, error) T {
	return func(answer T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
}

func put(t *testing.T, c *clientv3.Client, key, value string, o ...clientv3.OpOption) int64 {
	t.Helper()
	res := must[*clientv3.PutResponse](t)(c.Put(t.Context(), key, value, o...))
	return res.Header.Revision
}

// text writes keys as key=value@create.mod.version, to compare them.
func text(kvs []*mvccpb.KeyValue) string {
	var b strings.Builder
	for _, kv := range kvs {
		fmt.Fprintf(&b, "%s=%s@%d.%d.%d ", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision,
			kv.Version)
	}
	return strings.TrimSpace(b.String())
}

func TestRange(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		get := func(key string, o ...clientv3.OpOption) *clientv3.GetResponse {
			t.Helper()
			return must[*clientv3.GetResponse](t)(c.Get(t.Context(), key, o...))
		}
		if res := get("a"); res.Header.Revision != 1 || res.Header.MemberId == 0 ||
			res.Header.ClusterId == 0 || res.Header.RaftTerm != 1 || res.Count != 0 {
			t.Errorf("an empty store answers %v", res)
		}
		put(t, c, "a", "3") // revision 2
		put(t, c, "b", "1")
		put(t, c, "c", "2")
		put(t, c, "b", "9")
		must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "a")) // 6
		for _, test := range []struct {
			key         string
			o           []clientv3.OpOption
			want        string
			count, more int64
		}{
			{"b", nil, "b=9@3.5.2", 1, 0},
			{"a", nil, "", 0, 0},
			{"a", []clientv3.OpOption{clientv3.WithRev(2)}, "a=3@2.2.1", 1, 0},
			{"b", []clientv3.OpOption{clientv3.WithRev(4)}, "b=1@3.3.1", 1, 0},
			{"c", []clientv3.OpOption{clientv3.WithRev(3)}, "", 0, 0},
			{"a", []clientv3.OpOption{clientv3.WithFromKey()}, "b=9@3.5.2 c=2@4.4.1", 2, 0},
			{"a", []clientv3.OpOption{clientv3.WithRange("c"), clientv3.WithRev(4)},
				"a=3@2.2.1 b=1@3.3.1", 2, 0},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(1)}, "b=9@3.5.2", 2, 1},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(2),
				clientv3.WithRev(4)}, "a=3@2.2.1 b=1@3.3.1", 3, 1},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCountOnly()}, "", 2, 0},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCountOnly(),
				clientv3.WithRev(4)}, "", 3, 0},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly()},
				"b=@3.5.2 c=@4.4.1", 2, 0},
			{"", clientv3.WithLastRev(), "b=9@3.5.2", 2, 1},
			{"", clientv3.WithFirstCreate(), "b=9@3.5.2", 2, 1},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByValue,
				clientv3.SortAscend)}, "c=2@4.4.1 b=9@3.5.2", 2, 0},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMinModRev(5)},
				"b=9@3.5.2", 2, 0},
			{"", []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMaxCreateRev(3)},
				"b=9@3.5.2", 2, 0},
			{"c", []clientv3.OpOption{clientv3.WithRange("b")}, "", 0, 0},
		} {
			res := get(test.key, test.o...)
			if got := text(res.Kvs); got != test.want || res.Count != test.count ||
				res.More != (test.more == 1) || res.Header.Revision != 6 {
				t.Errorf("%q: %s, %d, %t, %v, want %s", test.key, got, res.Count, res.More,
					res.Header, test.want)
			}
		}
		for _, o := range []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRange("")} {
			stream, err := c.GetStream(t.Context(), "a", o, clientv3.WithRev(4))
			if err != nil {
				t.Fatal(err)
			}
			res, err := clientv3.GetStreamToGetResponse(stream)
			if err != nil || text(res.Kvs) != "a=3@2.2.1" || res.Count != 1 ||
				res.Header.Revision != 6 {
				t.Errorf("the stream is %v, %v", res, err)
			}
		}
		_, err := c.Get(t.Context(), "a", clientv3.WithRev(7))
		is(t, err, rpctypes.ErrFutureRev)
		_, err = c.Get(t.Context(), "", clientv3.WithRev(7))
		is(t, err, rpctypes.ErrEmptyKey)
		must[*clientv3.CompactResponse](t)(c.Compact(t.Context(), 5, clientv3.WithCompactPhysical()))
		_, err = c.Get(t.Context(), "b", clientv3.WithRev(4))
		is(t, err, rpctypes.ErrCompacted)
		_, err = c.Get(t.Context(), "b", clientv3.WithRev(4), clientv3.WithPrefix())
		is(t, err, rpctypes.ErrCompacted)
		_, err = c.Compact(t.Context(), 5)
		is(t, err, rpctypes.ErrCompacted)
		_, err = c.Compact(t.Context(), 7)
		is(t, err, rpctypes.ErrFutureRev)
	})
}

// TestRangeStream: a stream begins with a small chunk, goes on with larger ones, and is what Range
// answers. Writes of that time are not in it.
func TestRangeStream(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		const keys, size = 1_000, 8 << 10
		var wg sync.WaitGroup
		for worker := range 10 {
			wg.Go(func() {
				for i := worker; i < keys; i += 10 {
					_, err := c.Put(t.Context(), fmt.Sprintf("/k/%04d", i), strings.Repeat("v", size))
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for _, limit := range []int{0, 1, 99, 100, 101, 500, 999, 1000, 1001} {
			o := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(int64(limit))}
			want := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "/k/", o...))
			stream, err := c.GetStream(t.Context(), "/k/", o...)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for chunk := range stream {
				if chunk.Err() != nil {
					t.Fatal(chunk.Err())
				}
				kvs := chunk.RangeResponse.Kvs
				if n == 0 && len(kvs) > 100 || len(kvs)*size > 3<<20 {
					t.Errorf("limit %d: after %d keys a chunk has %d", limit, n, len(kvs))
				}
				if n == 0 {
					put(t, c, fmt.Sprintf("/k/%04d-after-limit-%d", keys/2, limit), "later")
				}
				if n+len(kvs) > len(want.Kvs) || text(kvs) != text(want.Kvs[n:n+len(kvs)]) {
					t.Fatalf("limit %d: after %d keys a chunk is another one than Range's", limit, n)
				}
				n += len(kvs)
				if header := chunk.RangeResponse.Header; header != nil && (n != len(want.Kvs) ||
					chunk.RangeResponse.Count != want.Count ||
					chunk.RangeResponse.More != want.More ||
					header.Revision != want.Header.Revision) {
					t.Errorf("limit %d: the stream ends with %v, %d and %t after %d keys, and Range "+
						"with %v, %d and %t", limit, header, chunk.RangeResponse.Count,
						chunk.RangeResponse.More, n, want.Header, want.Count, want.More)
				}
			}
			if n != len(want.Kvs) {
				t.Errorf("limit %d: the stream has %d keys, and Range %d", limit, n, len(want.Kvs))
			}
		}
	})
}

func is(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}

func TestPut(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		res := must[*clientv3.PutResponse](t)(c.Put(t.Context(), "a", "1", clientv3.WithPrevKV()))
		if res.PrevKv != nil {
			t.Errorf("the key was %v", res.PrevKv)
		}
		res = must[*clientv3.PutResponse](t)(c.Put(t.Context(), "a", "2", clientv3.WithPrevKV()))
		if got := text([]*mvccpb.KeyValue{res.PrevKv}); got != "a=1@2.2.1" ||
			res.Header.Revision != 3 {
			t.Errorf("the key was %s at %v", got, res.Header)
		}
		put(t, c, "a", "", clientv3.WithIgnoreValue())
		_, err := c.Put(t.Context(), "b", "", clientv3.WithIgnoreValue())
		is(t, err, rpctypes.ErrKeyNotFound)
		_, err = c.Put(t.Context(), "", "x")
		is(t, err, rpctypes.ErrEmptyKey)
		_, err = c.Put(t.Context(), "b", strings.Repeat("x", 1_700_000))
		is(t, err, rpctypes.ErrRequestTooLarge)
		_, err = c.Put(t.Context(), "b", "", clientv3.WithLease(1<<60))
		is(t, err, rpctypes.ErrLeaseNotFound)
		d := must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "a", clientv3.WithPrevKV()))
		if text(d.PrevKvs) != "a=2@2.4.3" || d.Deleted != 1 || d.Header.Revision != 5 {
			t.Errorf("the deletion is %v", d)
		}
		for _, o := range [][]clientv3.OpOption{nil, {clientv3.WithPrevKV()},
			{clientv3.WithPrefix()}} {
			d = must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "a", o...))
			if d.Deleted != 0 || len(d.PrevKvs) != 0 || d.Header.Revision != 5 {
				t.Errorf("the deletion of nothing is %v", d)
			}
		}
		put(t, c, "x/1", "1")
		put(t, c, "x/2", "2")
		d = must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "x/", clientv3.WithPrefix(),
			clientv3.WithPrevKV()))
		if d.Deleted != 2 || d.Header.Revision != 8 || text(d.PrevKvs) != "x/1=1@6.6.1 x/2=2@7.7.1" {
			t.Errorf("the deletion of two is %v", d)
		}
	})
}

// TestTxn: what a transaction compares, writes and reads.
// TestReserved: what Rowkeeper records in the store is neither written nor deleted by a client, and
// the error is one that clients do not retry.
func TestReserved(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		ctx := t.Context()
		refused := func(what string, err error) {
			t.Helper()
			if code := status.Code(err); code != codes.InvalidArgument ||
				!strings.Contains(err.Error(), `begin with "rowkeeper/"`) {
				t.Errorf("%s: %v", what, err)
			}
		}
		const key = contract.Reserved + "x"
		_, err := c.Put(ctx, key, "v")
		refused("a put", err)
		_, err = c.Delete(ctx, key)
		refused("a deletion", err)
		for _, op := range []clientv3.Op{clientv3.OpPut(key, "v"), clientv3.OpDelete(key)} {
			_, err = c.Txn(ctx).Then(op).Commit()
			refused("a transaction", err)
			_, err = c.Txn(ctx).Then(clientv3.OpGet("k")).Else(op).Commit()
			refused("the other branch of a transaction", err)
		}
		put(t, c, "rowkeeper", "v")
		put(t, c, "rowkeeper0", "v")
		if n := must[*clientv3.DeleteResponse](t)(c.Delete(ctx, "rowkeeper",
			clientv3.WithPrefix())).Deleted; n != 2 {
			t.Errorf("%d keys beside the reserved ones are deleted, not 2", n)
		}
	})
}

// TestReservedRange: a deletion of a range in which something is recorded deletes nothing.
func TestReservedRange(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	c := serve(t, d)
	put(t, c, "a", "v")
	store, err := etcd.Open(t.Context(), etcd.Config{URL: d.URL,
		Drivers: []etcd.Driver{d.Driver}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = database.Engine(store).Apply(t.Context(), contract.Mutation{Key: contract.Reserved + "x",
		Value: []byte("v")})
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), "\x00", clientv3.WithFromKey()); status.Code(err) !=
		codes.InvalidArgument {
		t.Error(err)
	}
	if n := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "\x00",
		clientv3.WithFromKey())).Count; n != 2 {
		t.Errorf("there are %d keys, not 2", n)
	}
}

func TestTxn(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		txn := func(compare clientv3.Cmp, then, otherwise []clientv3.Op) *clientv3.TxnResponse {
			t.Helper()
			return must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(compare).Then(then...).
				Else(otherwise...).Commit())
		}
		ops := func(ops ...clientv3.Op) []clientv3.Op { return ops }
		get := ops(clientv3.OpGet("a"))
		write := func(value string) []clientv3.Op { return ops(clientv3.OpPut("a", value)) }
		for i, test := range []struct {
			compare   clientv3.Cmp
			value     string
			succeeded bool
		}{
			{clientv3.Compare(clientv3.ModRevision("a"), "=", 7), "no", false},
			{clientv3.Compare(clientv3.ModRevision("a"), "=", 0), "1", true}, // 2
			{clientv3.Compare(clientv3.ModRevision("a"), "=", 0), "no", false},
			{clientv3.Compare(clientv3.CreateRevision("a"), "=", 0), "no", false},
			{clientv3.Compare(clientv3.Version("a"), "=", 1), "2", true}, // 3
			{clientv3.Compare(clientv3.Version("a"), ">", 2), "no", false},
			{clientv3.Compare(clientv3.Value("a"), "=", "2"), "3", true},           // 4
			{clientv3.Compare(clientv3.CreateRevision("a"), "<", 3), "4", true},    // 5
			{clientv3.Compare(clientv3.LeaseValue("a"), "!=", 0), "no", false},     //
			{clientv3.Compare(clientv3.ModRevision("a"), "=", 5), "5", true},       // 6
			{clientv3.Compare(clientv3.Value("missing"), "=", ""), "", false},      //
			{clientv3.Compare(clientv3.ModRevision("a"), "!=", 5), "6", true},      // 7
			{clientv3.Compare(clientv3.ModRevision("a"), "=", 1<<62), "no", false}, //
		} {
			then := write(test.value)
			if test.value == "" {
				then = get
			}
			res := txn(test.compare, then, get)
			if res.Succeeded != test.succeeded || len(res.Responses) != 1 {
				t.Fatalf("%d: %v", i, res)
			}
			kv := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a"))
			if !test.succeeded && text(res.Responses[0].GetResponseRange().Kvs) != text(kv.Kvs) {
				t.Errorf("%d: the key is %v, and it was read %v", i, kv, res)
			}
			if test.succeeded && string(kv.Kvs[0].Value) != test.value ||
				res.Header.Revision != kv.Header.Revision {
				t.Errorf("%d: %v, and the key is %v", i, res, kv)
			}
		}
		// Reads before and after the write of a transaction.
		put(t, c, "b", "x") // 8
		res := txn(clientv3.Compare(clientv3.ModRevision("a"), "=", 7),
			ops(clientv3.OpGet("a", clientv3.WithFromKey()), clientv3.OpPut("a", "7",
				clientv3.WithPrevKV()), clientv3.OpGet("", clientv3.WithPrefix())), get)
		if !res.Succeeded || len(res.Responses) != 3 ||
			text(res.Responses[0].GetResponseRange().Kvs) != "a=6@2.7.6 b=x@8.8.1" ||
			string(res.Responses[1].GetResponsePut().PrevKv.Value) != "6" ||
			text(res.Responses[2].GetResponseRange().Kvs) != "a=7@2.9.7 b=x@8.8.1" {
			t.Errorf("%v", res)
		}
		// A deletion that reads what it deletes, as vcluster's.
		deletion := ops(clientv3.OpGet("a"), clientv3.OpDelete("a"))
		res = must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(deletion...).Commit())
		if text(res.Responses[0].GetResponseRange().Kvs) != "a=7@2.9.7" ||
			res.Responses[1].GetResponseDeleteRange().Deleted != 1 || res.Header.Revision != 10 {
			t.Errorf("%v", res)
		}
		res = must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(deletion...).Commit())
		if res.Responses[0].GetResponseRange().Count != 0 ||
			res.Responses[1].GetResponseDeleteRange().Deleted != 0 || res.Header.Revision != 10 {
			t.Errorf("%v", res)
		}
		refused := func(want error, ops ...clientv3.Op) {
			t.Helper()
			_, err := c.Txn(t.Context()).Then(ops...).Commit()
			is(t, err, want)
		}
		refused(rpctypes.ErrDuplicateKey, clientv3.OpPut("a", "1"), clientv3.OpPut("a", "2"))
		refused(rpctypes.ErrEmptyKey, clientv3.OpPut("", "1"))
		refused(rpctypes.ErrTooManyOps, slices.Repeat(get, 129)...)
		put := clientv3.OpPut("a", "1")
		nested := func(then, otherwise []clientv3.Op) clientv3.Op { return clientv3.OpTxn(nil, then, otherwise) }
		refused(rpctypes.ErrDuplicateKey, put, clientv3.OpDelete("", clientv3.WithPrefix()))
		refused(rpctypes.ErrDuplicateKey, clientv3.OpDelete("a"), nested(nil, ops(put)))
		refused(rpctypes.ErrDuplicateKey, put, nested(ops(put), nil))
		refused(rpctypes.ErrDuplicateKey, nested(nil, ops(clientv3.OpDelete("a"))), put)
		refused(rpctypes.ErrDuplicateKey, nested(ops(put), nil), nested(nil, ops(put)))
		refused(rpctypes.ErrDuplicateKey, nested(ops(put), nil), nested(nil, ops(clientv3.OpDelete("a"))))
		refused(rpctypes.ErrTooManyOps, append(slices.Repeat(get, 127), nested(slices.Repeat(get, 2), nil))...)
		refused(rpctypes.ErrFutureRev, put, clientv3.OpGet("a", clientv3.WithRev(11)))
		refused(rpctypes.ErrLeaseNotFound, put, clientv3.OpPut("b", "", clientv3.WithLease(99)))
		// Only one branch is taken.
		must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.Version("a"), ">", 0)}, ops(put),
			ops(clientv3.OpDelete("a")))).Commit())
		if res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a")); res.Count != 0 ||
			res.Header.Revision != 10 {
			t.Errorf("a transaction that was refused has written: %v", res)
		}
	})
}

// TestDeepTxn: transactions are as deep within others as etcd's default allows, and no deeper.
func TestDeepTxn(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		put(t, c, "a", "0")
		there := []clientv3.Cmp{clientv3.Compare(clientv3.Version("a"), "=", 1)}
		deep := func(levels int) (*clientv3.TxnResponse, error) {
			op := clientv3.OpPut("b", "1")
			for range levels {
				op = clientv3.OpTxn(there, []clientv3.Op{op}, nil)
			}
			return c.Txn(t.Context()).If(there...).Then(op).Commit()
		}
		_, err := deep(128)
		is(t, err, rpctypes.ErrTooManyOps)
		inner := (*pb.TxnResponse)(must[*clientv3.TxnResponse](t)(deep(127)))
		levels := 0
		for inner.Succeeded && inner.Responses[0].GetResponseTxn() != nil {
			inner = inner.Responses[0].GetResponseTxn()
			levels++
		}
		if levels != 127 || inner.Responses[0].GetResponsePut() == nil || inner.Header.Revision != 3 {
			t.Errorf("%d levels: %v", levels, inner)
		}
	})
}

// TestTxnOfSeveralKeys: a transaction changes several keys at one revision, and reads between its
// changes, as etcd's do.
func TestTxnOfSeveralKeys(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		for _, key := range []string{"a", "b", "d/1", "d/2"} {
			put(t, c, key, "0") // 2 to 5
		}
		all := clientv3.OpGet("", clientv3.WithPrefix())
		watch := c.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(6), clientv3.WithPrevKV())
		res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(
			clientv3.Compare(clientv3.Version("a").WithRange("e"), "=", 1)).Then(
			all, clientv3.OpPut("a", "1"), clientv3.OpPut("c", "1"), all,
			clientv3.OpGet("a", clientv3.WithRange("d"), clientv3.WithLimit(2)),
			clientv3.OpGet("", clientv3.WithPrefix(), clientv3.WithCountOnly()),
			clientv3.OpDelete("d/", clientv3.WithPrefix(), clientv3.WithPrevKV()),
			clientv3.OpDelete("d/1"),
			clientv3.OpGet("d/", clientv3.WithPrefix()), clientv3.OpGet("a", clientv3.WithRev(2)),
			clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value("a"), "=", "0")},
				[]clientv3.Op{clientv3.OpPut("e", "1", clientv3.WithPrevKV()), clientv3.OpGet("a")},
				[]clientv3.Op{clientv3.OpPut("f", "1")})).Commit())
		var got []string
		for _, r := range res.Responses {
			switch {
			case r.GetResponseRange() != nil:
				got = append(got, fmt.Sprint(text(r.GetResponseRange().Kvs), " of ", r.GetResponseRange().Count))
			case r.GetResponseDeleteRange() != nil:
				d := r.GetResponseDeleteRange()
				got = append(got, fmt.Sprint(d.Deleted, " ", text(d.PrevKvs)))
			case r.GetResponseTxn() != nil:
				inner := r.GetResponseTxn()
				got = append(got, fmt.Sprint(inner.Succeeded, " ", text(inner.Responses[1].GetResponseRange().Kvs)))
			}
		}
		if want := []string{"a=0@2.2.1 b=0@3.3.1 d/1=0@4.4.1 d/2=0@5.5.1 of 4",
			"a=1@2.6.2 b=0@3.3.1 c=1@6.6.1 d/1=0@4.4.1 d/2=0@5.5.1 of 5", "a=1@2.6.2 b=0@3.3.1 of 3", " of 5",
			"2 d/1=0@4.4.1 d/2=0@5.5.1", "0 ", " of 0", "a=0@2.2.1 of 1",
			"true a=1@2.6.2"}; !slices.Equal(got, want) || !res.Succeeded || res.Header.Revision != 6 {
			t.Errorf("%v at %d:\n%v\nwant\n%v", res.Succeeded, res.Header.Revision, strings.Join(got, "\n"),
				strings.Join(want, "\n"))
		}
		after := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "", clientv3.WithPrefix()))
		if text(after.Kvs) != "a=1@2.6.2 b=0@3.3.1 c=1@6.6.1 e=1@6.6.1" || after.Header.Revision != 6 {
			t.Errorf("%s at %d", text(after.Kvs), after.Header.Revision)
		}
		before := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(5)))
		if text(before.Kvs) != "a=0@2.2.1 b=0@3.3.1 d/1=0@4.4.1 d/2=0@5.5.1" {
			t.Errorf("%s before", text(before.Kvs))
		}
		// One response has all events of the revision, in the order of the changes.
		told := func(ch clientv3.WatchChan) string {
			t.Helper()
			res := <-ch
			var events []string
			for _, e := range res.Events {
				events = append(events, fmt.Sprint(e.Type, " ", e.Kv.ModRevision, " ", string(e.Kv.Key), "=",
					string(e.Kv.Value), " was ", text(slices.DeleteFunc([]*mvccpb.KeyValue{e.PrevKv},
						func(kv *mvccpb.KeyValue) bool { return kv == nil }))))
			}
			return strings.Join(events, "\n")
		}
		const want = "PUT 6 a=1 was a=0@2.2.1\nPUT 6 c=1 was \nDELETE 6 d/1= was d/1=0@4.4.1\n" +
			"DELETE 6 d/2= was d/2=0@5.5.1\nPUT 6 e=1 was "
		if got := told(watch); got != want {
			t.Errorf("the events are\n%s\nwant\n%s", got, want)
		}
		put(t, c, "a", "2") // 7
		// A watch that begins at the transaction, also when it is compacted, has all of it.
		must[*clientv3.CompactResponse](t)(c.Compact(t.Context(), 6, clientv3.WithCompactPhysical()))
		at := told(c.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(6)))
		if !strings.HasPrefix(at, strings.NewReplacer("a=0@2.2.1", "", "d/1=0@4.4.1", "", "d/2=0@5.5.1", "").
			Replace(want)) {
			t.Errorf("the events at the compacted revision are\n%s", at)
		}
		must[*clientv3.CompactResponse](t)(c.Compact(t.Context(), 7, clientv3.WithCompactPhysical()))
		// What is deleted and created in one is new.
		res = must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(clientv3.OpDelete("c"),
			clientv3.OpPut("b", "1"), clientv3.OpPut("g", "1")).Commit())
		if res.Header.Revision != 8 || res.Responses[0].GetResponseDeleteRange().Deleted != 1 {
			t.Errorf("%v", res)
		}
		put(t, c, "c", "2")
		after = must[*clientv3.GetResponse](t)(c.Get(t.Context(), "", clientv3.WithPrefix()))
		if text(after.Kvs) != "a=2@2.7.3 b=1@3.8.2 c=2@9.9.1 e=1@6.6.1 g=1@8.8.1" {
			t.Errorf("%s", text(after.Kvs))
		}
	})
}

// TestTxnIsWhole: while many transactions move parts of a sum from key to key on two servers, every
// read, and every response of a watch, has the whole sum.
func TestTxnIsWhole(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		clients := []*clientv3.Client{serve(t, d), serve(t, d)}
		const keys, moves, sum = 6, 25, 600
		ctx := t.Context()
		for i := range keys {
			put(t, clients[0], fmt.Sprint("k/", i), fmt.Sprint(sum/keys))
		}
		start := must[*clientv3.GetResponse](t)(clients[0].Get(ctx, "k/", clientv3.WithPrefix()))
		total := func(kvs map[string]int) (n int) {
			for _, v := range kvs {
				n += v
			}
			return n
		}
		number := func(kv *mvccpb.KeyValue) int {
			n, err := strconv.Atoi(string(kv.Value))
			if err != nil {
				t.Error(err)
			}
			return n
		}
		var watchers, movers sync.WaitGroup
		watching, stop := context.WithCancel(ctx)
		for _, c := range clients {
			watchers.Go(func() {
				state := map[string]int{}
				for _, kv := range start.Kvs {
					state[string(kv.Key)] = number(kv)
				}
				for res := range c.Watch(watching, "k/", clientv3.WithPrefix(),
					clientv3.WithRev(start.Header.Revision+1)) {
					for _, e := range res.Events {
						state[string(e.Kv.Key)] = 0
						if e.Type == clientv3.EventTypePut {
							state[string(e.Kv.Key)] = number(e.Kv)
						}
					}
					if n := total(state); n != sum {
						t.Errorf("after a response up to %d the sum is %d", res.Header.Revision, n)
					}
				}
			})
		}
		for i := range 4 {
			movers.Go(func() {
				c := clients[i%2]
				for n := range moves {
					from, to := fmt.Sprint("k/", (i+n)%keys), fmt.Sprint("k/", (i+n*(1+i)+1)%keys)
					if from == to {
						continue
					}
					for done := false; !done && ctx.Err() == nil; {
						all, err := c.Get(ctx, "k/", clientv3.WithPrefix())
						if err != nil {
							t.Error(err)
							return
						}
						state, revisions := map[string]int{}, map[string]int64{}
						for _, kv := range all.Kvs {
							state[string(kv.Key)], revisions[string(kv.Key)] = number(kv), kv.ModRevision
						}
						if got := total(state); got != sum {
							t.Errorf("the sum at %d is %d", all.Header.Revision, got)
							return
						}
						write := []clientv3.Op{clientv3.OpPut(to, fmt.Sprint(state[to]+state[from]/2+state[from]%2)),
							clientv3.OpPut(from, fmt.Sprint(state[from]/2))}
						if state[from] < 2 { // all of it
							write[1] = clientv3.OpDelete(from)
						}
						res, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(from), "=", revisions[from]),
							clientv3.Compare(clientv3.ModRevision(to), "=", revisions[to])).Then(write...).Commit()
						if err != nil {
							t.Error(err)
							return
						}
						done = res.Succeeded
					}
				}
			})
		}
		movers.Wait()
		stop()
		watchers.Wait()
	})
}

// TestWatchOfALargeTransaction: a response has all events of a revision, though it becomes larger
// than others.
func TestWatchOfALargeTransaction(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		c := serveBy(t, d, etcd.ServerConfig{MaxRequestBytes: 8 << 20})
		large := strings.Repeat("x", 400<<10)
		for i := range 2 {
			var ops []clientv3.Op
			for n := range 5 {
				ops = append(ops, clientv3.OpPut(fmt.Sprint("k/", n), large))
			}
			res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(ops...).Commit())
			if want := int64(2 + i); res.Header.Revision != want {
				t.Errorf("it is at %d, want %d", res.Header.Revision, want)
			}
		}
		watch := c.Watch(t.Context(), "k/", clientv3.WithPrefix(), clientv3.WithRev(2))
		for seen := int64(1); seen < 3; {
			res := <-watch
			if n := len(res.Events); n == 0 || n%5 != 0 || res.Events[0].Kv.ModRevision != seen+1 {
				t.Fatalf("a response after %d has %d events: %v", seen, n, res.Err())
			}
			seen = res.Events[len(res.Events)-1].Kv.ModRevision
		}
	})
}

// TestTxnTooLarge: a transaction that does not fit into a commit is refused, and says why.
func TestTxnTooLarge(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		c := serveBy(t, d, etcd.ServerConfig{MaxTxnOps: 600, MaxRequestBytes: 8 << 20})
		refused := func(says string, ops ...clientv3.Op) {
			t.Helper()
			_, err := c.Txn(t.Context()).Then(ops...).Commit()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), says) {
				t.Errorf("%v", err)
			}
		}
		var puts []clientv3.Op
		for i := range 513 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("k/%03d", i), "x"))
		}
		refused("513 keys, more than the limit of 512", puts...)
		res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(puts[:512]...).Commit())
		got := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "k/", clientv3.WithPrefix()))
		if res.Header.Revision != 2 || got.Count != 512 || got.Kvs[0].ModRevision != 2 || got.Kvs[511].ModRevision != 2 {
			t.Errorf("at %d there are %d keys", res.Header.Revision, got.Count)
		}
		put(t, c, "k/513", "")
		refused("513 keys", clientv3.OpDelete("k/", clientv3.WithPrefix()))
		res = must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(clientv3.OpDelete("k/0", clientv3.WithRange("k/513"))).Commit())
		if res.Responses[0].GetResponseDeleteRange().Deleted != 512 || res.Header.Revision != 4 {
			t.Errorf("%v", res)
		}
		large := strings.Repeat("x", 1<<20)
		for i := range 9 {
			put(t, c, fmt.Sprint("large/", i), large)
		}
		refused("bytes, more than the limit of", clientv3.OpDelete("large/", clientv3.WithPrefix()))
		if got := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "large/", clientv3.WithPrefix(),
			clientv3.WithCountOnly())); got.Count != 9 || got.Header.Revision != 13 {
			t.Errorf("%v", got)
		}
	})
}

// TestTxnComparesOthers: a transaction that changes a key compares other keys and ranges as etcd
// does, in either branch.
func TestTxnComparesOthers(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		put(t, c, "a", "1") // 2
		put(t, c, "b", "2")
		put(t, c, "b", "3") // 4
		written := 0
		for i, test := range []struct {
			compare []clientv3.Cmp
			holds   bool
		}{
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Value("a"), "=", "1")}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Value("a"), ">", "1")}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Value("none"), "!=", "1")}, false},
			// A comparison that alone would tell what the written key has to be.
			{[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("a"), "=", 0)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 0)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision("none"), "=", 0)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("b"), "=", 4)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue("b"), "<", 1)}, true},
			// Beside one of the written key.
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 2),
				clientv3.Compare(clientv3.Version("w"), ">", 0)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 1),
				clientv3.Compare(clientv3.Version("w"), ">", 0)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 2),
				clientv3.Compare(clientv3.Version("w"), "=", 0)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 1),
				clientv3.Compare(clientv3.Version("w"), "=", 0)}, false},
			// Ranges: with keys, without one, with the written key, and ranges that are none.
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("a").WithRange("c"), ">", 0)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("a").WithRange("c"), "=", 1)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Value("a").WithRange("c"), "<", "4")}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Value("a").WithRange("c"), "<", "3")}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("x").WithPrefix(), "=", 0)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Value("x").WithPrefix(), "=", "")}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("b").WithRange("\x00"), ">", 3)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("a").WithRange("\x00"), ">", 3)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("w").WithRange("w\x00"), ">", 0)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("w").WithRange("w\x00"), "=", 0)}, false},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("c").WithRange("a"), "=", 0)}, true},
			{[]clientv3.Cmp{clientv3.Compare(clientv3.Version("a").WithRange("c"), ">", 0),
				clientv3.Compare(clientv3.Version("b"), ">", 2)}, false},
		} {
			for _, op := range []clientv3.Op{clientv3.OpPut("w", "then"), clientv3.OpPut("w", "then",
				clientv3.WithPrevKV()), clientv3.OpGet("a")} {
				before := must[*clientv3.PutResponse](t)(c.Put(t.Context(), "w", "before"))
				res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(test.compare...).
					Then(op, clientv3.OpGet("w")).Else(clientv3.OpPut("w", "else"), clientv3.OpGet("w")).
					Commit())
				want, revision := "before", before.Header.Revision
				if !test.holds {
					want, revision = "else", revision+1
				} else if op.IsPut() {
					want, revision = "then", revision+1
				}
				if revision > before.Header.Revision {
					written++
				}
				got := res.Responses[1].GetResponseRange().Kvs[0]
				if res.Succeeded != test.holds || res.Header.Revision != revision ||
					string(got.Value) != want {
					t.Errorf("%d: %v, want %s at %d", i, res, want, revision)
				}
			}
		}
		if written < 30 {
			t.Errorf("only %d transactions have written", written)
		}
		// Another key is compared than the written one, which does not exist.
		for _, compare := range []clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 0),
			clientv3.Compare(clientv3.CreateRevision("b"), "=", 0),
			clientv3.Compare(clientv3.ModRevision("b"), "=", 0),
			clientv3.Compare(clientv3.Version("new").WithPrefix(), "=", 1)} {
			res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(compare).
				Then(clientv3.OpPut("new", "")).Commit())
			if kv := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "new")); res.Succeeded ||
				kv.Count != 0 {
				t.Errorf("%v: %v", compare, res)
			}
		}
		// The keys that are compared beside a write are bounded, and may be large.
		for size, want := range map[int]error{1 << 20: nil, 3 << 19: rpctypes.ErrRequestTooLarge} {
			_, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Value("b"), "<",
				strings.Repeat("x", size))).Then(clientv3.OpPut("w", "")).Commit()
			is(t, err, want)
		}
		// A deletion that is guarded, and one of a key that is not there.
		for range 2 {
			res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(clientv3.Compare(
				clientv3.Version("a"), "=", 1)).Then(clientv3.OpDelete("w")).Commit())
			deleted := res.Responses[0].GetResponseDeleteRange().Deleted
			if kv := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "w")); !res.Succeeded ||
				kv.Count != 0 || kv.Header.Revision != res.Header.Revision || deleted > 1 {
				t.Errorf("%v", res)
			}
		}
	})
}

// TestTxnHotKey: a key that another server writes all the time holds up nobody who compares it, as
// long as the comparison comes out the same.
func TestTxnHotKey(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		c, other := serve(t, d), serve(t, d)
		put(t, other, "hot", "")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					_, err := other.Put(ctx, "hot", "")
					if ctx.Err() != nil {
						return
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 20 {
			res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(
				clientv3.Compare(clientv3.Version("hot"), ">", 0),
				clientv3.Compare(clientv3.Value("hot").WithPrefix(), "=", "")).
				Then(clientv3.OpPut("cold", "")).Else(clientv3.OpPut("cold", "no")).Commit())
			if !res.Succeeded {
				t.Errorf("%v", res)
			}
		}
		cancel()
		wg.Wait()
		if kv := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "cold")); kv.Kvs[0].Version != 20 {
			t.Errorf("%v", kv)
		}
	})
}

// TestTxnFencing: a key that is written only if its writer owns a lock is never written after the
// lock is lost, whatever else is written at the same time by two servers.
func TestTxnFencing(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		clients := []*clientv3.Client{serve(t, d), serve(t, d)}
		const owners, rounds = 4, 15
		ctx := t.Context()
		var wg sync.WaitGroup
		for i := range owners {
			wg.Go(func() {
				c := clients[i%2]
				for n := 0; n < rounds; {
					lock, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision("lock"), "=", 0)).
						Then(clientv3.OpPut("lock", "")).Commit()
					if err != nil {
						t.Error(err)
						return
					}
					if !lock.Succeeded {
						continue
					}
					n++
					owns := clientv3.Compare(clientv3.CreateRevision("lock"), "=", lock.Header.Revision)
					value := fmt.Sprint(lock.Header.Revision)
					var round sync.WaitGroup
					for k := range 4 {
						round.Go(func() {
							_, err := clients[k%2].Txn(ctx).If(owns).Then(clientv3.OpPut("data", value)).
								Commit()
							if err != nil {
								t.Error(err)
							}
						})
					}
					round.Go(func() {
						_, renewed := c.Txn(ctx).If(owns).Then(clientv3.OpPut("lock", value)).Commit()
						_, deleted := clients[(i+1)%2].Delete(ctx, "lock")
						if err := errors.Join(renewed, deleted); err != nil {
							t.Error(err)
						}
					})
					round.Wait()
				}
			})
		}
		wg.Wait()
		owner, guarded, unguarded := int64(0), 0, 0
		end := put(t, clients[0], "end", "")
		w := clients[1].Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1))
		for last := int64(0); last < end; {
			res := <-w
			if res.Err() != nil {
				t.Fatal(res.Err())
			}
			for _, e := range res.Events {
				last = e.Kv.ModRevision
				switch {
				case string(e.Kv.Key) == "lock" && e.Type == clientv3.EventTypeDelete:
					owner = 0
				case string(e.Kv.Key) == "lock":
					owner = e.Kv.CreateRevision
				case string(e.Kv.Key) == "data" && string(e.Kv.Value) != fmt.Sprint(owner):
					unguarded++
				case string(e.Kv.Key) == "data":
					guarded++
				}
			}
		}
		if guarded == 0 || unguarded > 0 {
			t.Errorf("%d writes by owners of the lock, and %d by others", guarded, unguarded)
		}
	})
}

// TestLeasing: clients that keep keys for themselves, by etcd's own package, and write keys that
// others keep, which they have to be asked for first. The kept state is never older than the
// written one.
func TestLeasing(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		const clients, rounds, keys = 3, 20, 2
		kvs := make([]clientv3.KV, clients)
		for i := range kvs {
			kv, end, err := leasing.NewKV(c, "leasing/")
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			kvs[i] = kv
		}
		// Each key has one writer, which tells the others of what it has written.
		var written [keys]atomic.Int64
		var wg sync.WaitGroup
		for k := range keys {
			key := fmt.Sprint("k", k)
			wg.Go(func() {
				for n := range int64(rounds) {
					if _, err := kvs[k].Put(t.Context(), key, fmt.Sprint(n+1)); err != nil {
						t.Error(err)
						return
					}
					written[k].Store(n + 1)
				}
			})
			for _, kv := range kvs {
				wg.Go(func() {
					for last := int64(0); last < rounds; {
						before := written[k].Load()
						res, err := kv.Get(t.Context(), key)
						if err != nil {
							t.Error(err)
							return
						}
						n := int64(0)
						if len(res.Kvs) > 0 {
							n, err = strconv.ParseInt(string(res.Kvs[0].Value), 10, 64)
						}
						if err != nil || n < max(before, last) {
							t.Errorf("the key %s is %d, after %d was written and %d was read: %v", key, n,
								before, last, err)
							return
						}
						last = n
					}
				})
			}
		}
		wg.Wait()
		if _, err := kvs[2].Delete(t.Context(), "k0"); err != nil {
			t.Error(err)
		}
		if res := must[*clientv3.GetResponse](t)(kvs[1].Get(t.Context(), "k0")); res.Count != 0 {
			t.Errorf("the key that was deleted is %v", res)
		}
	})
}

// TestNegativeBounds: as in etcd, no revision is less than a negative bound, and all are greater.
func TestNegativeBounds(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		put(t, c, "a", "1")
		for _, test := range []struct {
			bound clientv3.OpOption
			want  int
		}{
			{clientv3.WithMinModRev(-1), 1}, {clientv3.WithMaxModRev(-1), 0},
			{clientv3.WithMinCreateRev(-1), 1}, {clientv3.WithMaxCreateRev(-1), 0},
		} {
			if res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a",
				test.bound)); len(res.Kvs) != test.want {
				t.Errorf("%d keys, not %d", len(res.Kvs), test.want)
			}
		}
	})
}

// TestTxnRaces: of writers that compare the same, one succeeds, and what the others are told is a
// state in which they fail.
func TestTxnRaces(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		const writers, rounds = 8, 20
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range rounds {
					for revision := int64(0); ; {
						res, err := c.Txn(t.Context()).
							If(clientv3.Compare(clientv3.ModRevision("n"), "=", revision)).
							Then(clientv3.OpPut("n", fmt.Sprint(w))).Else(clientv3.OpGet("n")).Commit()
						if err != nil {
							t.Error(err)
							return
						}
						if res.Succeeded {
							break
						}
						kvs := res.Responses[0].GetResponseRange().Kvs
						if len(kvs) != 1 || kvs[0].ModRevision == revision ||
							kvs[0].ModRevision > res.Header.Revision {
							t.Errorf("after %d: %v", revision, res)
							return
						}
						revision = kvs[0].ModRevision
					}
				}
			})
		}
		wg.Wait()
		res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "n"))
		if len(res.Kvs) != 1 || res.Kvs[0].Version != writers*rounds {
			t.Errorf("the key is %v", res)
		}
	})
}

// events reads a watch until it has so many events.
func events(t *testing.T, w clientv3.WatchChan, n int) (out []string) {
	t.Helper()
	for len(out) < n {
		select {
		case res, ok := <-w:
			if !ok || res.Err() != nil {
				t.Fatalf("the watch ends: %v", res.Err())
			}
			for _, e := range res.Events {
				line := strings.ToLower(e.Type.String()) + " " + text([]*mvccpb.KeyValue{e.Kv})
				if e.PrevKv != nil {
					line += " was " + text([]*mvccpb.KeyValue{e.PrevKv})
				}
				out = append(out, line)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the watch has only %v", out)
		}
	}
	return out
}

func TestWatch(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		put(t, c, "a/1", "x") // 2
		put(t, c, "a0", "y")
		put(t, c, "a/1", "z") // 4
		must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "a/1"))
		first, updated := "put a/1=x@2.2.1", "put a/1=z@2.4.2 was a/1=x@2.2.1"
		deleted := "delete a/1=@0.5.0 was a/1=z@2.4.2"
		for _, test := range []struct {
			key  string
			o    []clientv3.OpOption
			want []string
		}{
			{"a/", []clientv3.OpOption{clientv3.WithPrefix()}, []string{first, updated, deleted}},
			{"a/1", nil, []string{first, updated, deleted}},
			{"a", []clientv3.OpOption{clientv3.WithPrefix()},
				[]string{first, "put a0=y@3.3.1", updated, deleted}},
			{"a0", []clientv3.OpOption{clientv3.WithFromKey()}, []string{"put a0=y@3.3.1"}},
			{"a/", []clientv3.OpOption{clientv3.WithRange("a0"), clientv3.WithFilterDelete()},
				[]string{first, updated}},
			{"a/", []clientv3.OpOption{clientv3.WithRange("a1"), clientv3.WithFilterPut()},
				[]string{deleted}},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			w := c.Watch(ctx, test.key, append(test.o, clientv3.WithRev(1), clientv3.WithPrevKV())...)
			if got := events(t, w, len(test.want)); strings.Join(got, "\n") !=
				strings.Join(test.want, "\n") {
				t.Errorf("%q: %q, want %q", test.key, got, test.want)
			}
			cancel()
		}
		// The next event reaches every kind of range, and a future revision waits for it.
		var watches []clientv3.WatchChan
		watches = append(watches, c.Watch(t.Context(), "b", clientv3.WithPrefix()),
			c.Watch(t.Context(), "b/", clientv3.WithPrefix()), c.Watch(t.Context(), "b/c"),
			c.Watch(t.Context(), "b/a", clientv3.WithRange("b/d")),
			c.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCreatedNotify()),
			c.Watch(t.Context(), "b/c", clientv3.WithRev(6)))
		if res := <-watches[4]; !res.Created {
			t.Fatal(res)
		}
		put(t, c, "b/c", "v")
		for i, w := range watches {
			if got := events(t, w, 1); got[0] != "put b/c=v@6.6.1" {
				t.Errorf("watch %d: %q", i, got)
			}
		}
	})
}

// TestProgressOrder: progress that was asked for is not older than any event before it on the
// stream, however much is written meanwhile, and no event after it belongs to what it has covered.
func TestProgressOrder(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		stream := must[pb.Watch_WatchClient](t)(pb.NewWatchClient(c.ActiveConnection()).
			Watch(t.Context()))
		for _, key := range []string{"a", "b", "idle"} {
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &pb.WatchCreateRequest{Key: []byte(key)}}}); err != nil {
				t.Fatal(err)
			}
			if res := must[*pb.WatchResponse](t)(stream.Recv()); !res.Created {
				t.Fatal(res)
			}
		}
		const writes = 300
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, key := range []string{"a", "b"} {
			wg.Go(func() {
				for i := range writes {
					if _, err := c.Put(t.Context(), key, fmt.Sprint(i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		ask := func() {
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
				ProgressRequest: &pb.WatchProgressRequest{}}}); err != nil {
				t.Fatal(err)
			}
		}
		ask()
		told, seen, answers := int64(0), int64(0), 0
		for events := 0; events < 2*writes || answers < 2; {
			res := must[*pb.WatchResponse](t)(stream.Recv())
			if len(res.Events) == 0 {
				if res.Header.Revision < seen {
					t.Fatalf("progress up to %d after an event of %d", res.Header.Revision, seen)
				}
				told = res.Header.Revision
				answers++
				ask()
			}
			for _, e := range res.Events {
				if e.Kv.ModRevision <= told {
					t.Fatalf("an event of %d after progress up to %d", e.Kv.ModRevision, told)
				}
				seen = max(seen, e.Kv.ModRevision)
				events++
			}
		}
		t.Logf("%d answers", answers)
	})
}

// TestProgress: progress that is asked for is told when all watches of the stream have come so far,
// also watches that nothing concerns.
func TestProgress(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		w := c.Watch(t.Context(), "idle", clientv3.WithCreatedNotify())
		if res := <-w; !res.Created {
			t.Fatal(res)
		}
		revision := put(t, c, "other", "x")
		for {
			if err := c.RequestProgress(t.Context()); err != nil {
				t.Fatal(err)
			}
			res := <-w
			if !res.IsProgressNotify() {
				t.Fatalf("%v", res)
			}
			if res.Header.Revision >= revision {
				return
			}
		}
	})
}

// TestHalfClosedWatch: a watch goes on when its client has no more requests.
func TestHalfClosedWatch(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream := must[pb.Watch_WatchClient](t)(pb.NewWatchClient(c.ActiveConnection()).Watch(ctx))
		err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("a")}}})
		if err = errors.Join(err, stream.CloseSend()); err != nil {
			t.Fatal(err)
		}
		if res := must[*pb.WatchResponse](t)(stream.Recv()); !res.Created {
			t.Fatal(res)
		}
		for range 3 {
			revision := put(t, c, "a", "1")
			res := must[*pb.WatchResponse](t)(stream.Recv())
			if len(res.Events) != 1 || res.Events[0].Kv.ModRevision != revision {
				t.Errorf("%v", res)
			}
		}
		cancel()
		if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("the stream that its client has canceled ends with %v", err)
		}
	})
}

// TestCompactedWatch: a watch from the compacted revision, which the refusal of an older one names,
// has everything from there on, and nothing of what was before, as in etcd.
func TestCompactedWatch(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		for i := range 4 {
			put(t, c, "a", fmt.Sprint(i))
		}
		must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "a")) // 6
		put(t, c, "a", "again")
		for _, at := range []int64{3, 6} {
			want := map[int64]string{
				3: "put a=1@2.3.2, put a=2@2.4.3 was a=1@2.3.2, put a=3@2.5.4 was a=2@2.4.3, " +
					"delete a=@0.6.0 was a=3@2.5.4",
				6: "delete a=@0.6.0, put a=again@7.7.1"}[at]
			must[*clientv3.CompactResponse](t)(c.Compact(t.Context(), at,
				clientv3.WithCompactPhysical()))
			res := <-c.Watch(t.Context(), "a", clientv3.WithRev(at-1))
			if res.CompactRevision != at || !res.Canceled ||
				!errors.Is(res.Err(), rpctypes.ErrCompacted) {
				t.Errorf("%v", res)
			}
			n := strings.Count(want, ",") + 1
			got := events(t, c.Watch(t.Context(), "a", clientv3.WithPrevKV(),
				clientv3.WithRev(res.CompactRevision)), n)
			if strings.Join(got[:n], ", ") != want {
				t.Errorf("from the compacted revision %d: %q, want %s", at, got, want)
			}
		}
	})
}

// TestLargeEvents: responses are split, and nothing is left out.
func TestLargeEvents(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		const n = 6
		for i := range n {
			put(t, c, fmt.Sprint("a/", i), strings.Repeat("v", 700_000))
		}
		w := c.Watch(t.Context(), "a/", clientv3.WithPrefix(), clientv3.WithRev(1))
		last, responses := int64(1), 0
		for last < n+1 {
			res := <-w
			responses++
			for _, e := range res.Events {
				if e.Kv.ModRevision != last+1 || len(e.Kv.Value) != 700_000 {
					t.Fatalf("after %d: %d", last, e.Kv.ModRevision)
				}
				last = e.Kv.ModRevision
			}
			if res.Header.Revision < last {
				t.Errorf("the header is at %d, and the event at %d", res.Header.Revision, last)
			}
		}
		if responses < 2 {
			t.Errorf("%d responses", responses)
		}
	})
}

func TestLease(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		long := must[*clientv3.LeaseGrantResponse](t)(c.Grant(t.Context(), 3600))
		short := must[*clientv3.LeaseGrantResponse](t)(c.Grant(t.Context(), 1))
		if long.TTL != 3600 || short.TTL != 2 || long.ID <= 0 || long.Revision != 1 {
			t.Errorf("%v, %v", long, short)
		}
		w := c.Watch(t.Context(), "b", clientv3.WithPrevKV())
		put(t, c, "a", "1", clientv3.WithLease(long.ID))
		put(t, c, "b", "2", clientv3.WithLease(short.ID))
		res := must[*clientv3.LeaseTimeToLiveResponse](t)(c.TimeToLive(t.Context(), long.ID,
			clientv3.WithAttachedKeys()))
		if res.GrantedTTL != 3600 || res.TTL < 3000 || string(bytes.Join(res.Keys, nil)) != "a" {
			t.Errorf("%v", res)
		}
		if got := events(t, w, 2); got[1] != "delete b=@0.4.0 was b=2@3.3.1" {
			t.Errorf("%q", got)
		}
		_, err := c.Put(t.Context(), "c", "", clientv3.WithLease(short.ID))
		is(t, err, rpctypes.ErrLeaseNotFound)
		kv := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a")).Kvs[0]
		if kv.Lease != int64(long.ID) {
			t.Errorf("the lease is %d, want %d", kv.Lease, long.ID)
		}
		put(t, c, "a", "", clientv3.WithIgnoreValue())
		if kv = must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a")).Kvs[0]; kv.Lease != 0 {
			t.Errorf("the lease is %d, want none", kv.Lease)
		}
		_, err = c.Grant(t.Context(), 1<<40)
		is(t, err, rpctypes.ErrLeaseTTLTooLarge)
		put(t, c, "a", "again", clientv3.WithLease(long.ID))
		renewed := must[*clientv3.LeaseKeepAliveResponse](t)(c.KeepAliveOnce(t.Context(), long.ID))
		if renewed.TTL != 3600 || renewed.ID != long.ID {
			t.Errorf("%v", renewed)
		}
		leases := must[*clientv3.LeaseLeasesResponse](t)(c.Leases(t.Context()))
		if len(leases.Leases) != 1 || leases.Leases[0].ID != long.ID {
			t.Errorf("%v", leases)
		}
		revoked := must[*clientv3.LeaseRevokeResponse](t)(c.Revoke(t.Context(), long.ID))
		gone := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a"))
		if gone.Count != 0 || revoked.Header.Revision != gone.Header.Revision {
			t.Errorf("%v, %v", revoked, gone)
		}
		res = must[*clientv3.LeaseTimeToLiveResponse](t)(c.TimeToLive(t.Context(), long.ID))
		if res.TTL != -1 {
			t.Errorf("%v", res)
		}
		_, err = c.KeepAliveOnce(t.Context(), long.ID)
		is(t, err, rpctypes.ErrLeaseNotFound)
		_, err = c.Revoke(t.Context(), long.ID)
		is(t, err, rpctypes.ErrLeaseNotFound)
	})
}

// TestSessions: what etcd's client makes of leases works across two servers of one database: a
// lock, an election, and the end of a session.
func TestSessions(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		clients := []*clientv3.Client{serve(t, d), serve(t, d)}
		session := func(i int) *concurrency.Session {
			t.Helper()
			return must[*concurrency.Session](t)(concurrency.NewSession(clients[i],
				concurrency.WithTTL(5)))
		}
		a, b := session(0), session(1)
		defer b.Close()

		// One at a time holds the lock.
		const turns = 5
		holders := 0
		var wg sync.WaitGroup
		for _, s := range []*concurrency.Session{a, b} {
			wg.Go(func() {
				for range turns {
					m := concurrency.NewMutex(s, "/lock")
					if err := m.Lock(t.Context()); err != nil {
						t.Error(err)
						return
					}
					holders++ // the race detector sees who does it without the lock
					if err := m.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if holders != 2*turns {
			t.Errorf("the lock was held %d times", holders)
		}
		first, second := concurrency.NewMutex(a, "/lock"), concurrency.NewMutex(b, "/lock")
		if err := first.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := second.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Error(err)
		}

		// The next one leads when the session of the leader ends, which gives back its lock, too.
		leader, follower := concurrency.NewElection(a, "/election"), concurrency.NewElection(b,
			"/election")
		if err := leader.Campaign(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		won := make(chan error)
		go func() { won <- follower.Campaign(t.Context(), "b") }()
		of := func(want string) {
			t.Helper()
			for _, s := range []*concurrency.Session{a, b} {
				res, err := concurrency.NewElection(s, "/election").Leader(t.Context())
				if err != nil || string(res.Kvs[0].Value) != want {
					t.Errorf("the leader is %v, %v, want %s", res, err, want)
				}
			}
		}
		of("a")
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-won; err != nil {
			t.Fatal(err)
		}
		of("b")
		if err := second.Lock(t.Context()); err != nil {
			t.Error(err)
		}

		// A session that is not kept alive ends.
		c := session(0)
		if err := concurrency.NewMutex(c, "/lost").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Orphan()
		if err := concurrency.NewMutex(b, "/lost").Lock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestStatus(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		members := must[*clientv3.MemberListResponse](t)(c.MemberList(t.Context()))
		res := must[*clientv3.StatusResponse](t)(c.Status(t.Context(), c.Endpoints()[0]))
		if len(members.Members) != 1 || members.Members[0].ID != res.Leader ||
			res.Header.MemberId != res.Leader || res.Version != etcd.Version ||
			res.DbSize == 0 && !dbtest.OnTiDB(dbtest.MySQL) {
			t.Errorf("%v, %v", members, res)
		}
		alarms := must[*clientv3.AlarmResponse](t)(c.AlarmList(t.Context()))
		if len(alarms.Alarms) != 0 {
			t.Errorf("%v", alarms)
		}
		refused := func(err error, says string) {
			t.Helper()
			if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), says) {
				t.Error(err)
			}
		}
		must[*clientv3.DefragmentResponse](t)(c.Defragment(t.Context(), c.Endpoints()[0]))
		auth := must[*clientv3.AuthStatusResponse](t)(c.AuthStatus(t.Context()))
		if auth.Enabled || auth.Header.Revision != 1 {
			t.Errorf("%v", auth)
		}
		_, err := c.UserAdd(t.Context(), "user", "password")
		refused(err, "certificates")
		snapshot := must[pb.Maintenance_SnapshotClient](t)(pb.NewMaintenanceClient(
			c.ActiveConnection()).Snapshot(t.Context(), &pb.SnapshotRequest{}))
		_, err = snapshot.Recv()
		refused(err, "rowkeeper etcd export")
		health := healthpb.NewHealthClient(c.ActiveConnection())
		if res := must[*healthpb.HealthCheckResponse](t)(health.Check(t.Context(),
			&healthpb.HealthCheckRequest{})); res.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%v", res)
		}
		_, err = health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
		if status.Code(err) != codes.NotFound {
			t.Error(err)
		}
		user, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "user",
			Password: "password", Context: context.WithoutCancel(t.Context()), Logger: zap.NewNop()})
		if err != nil {
			t.Fatalf("a client with a user: %v", err)
		}
		defer user.Close()
		must[*clientv3.GetResponse](t)(user.Get(t.Context(), "k"))
		_, err = c.MemberAdd(t.Context(), []string{"http://localhost:2380"})
		refused(err, "rowkeeper etcd")
		_, err = c.MoveLeader(t.Context(), 1)
		refused(err, "every server leads")
		_, err = c.HashKV(t.Context(), c.Endpoints()[0], 0)
		refused(err, "no copies")
		_, err = pb.NewMaintenanceClient(c.ActiveConnection()).Hash(t.Context(), &pb.HashRequest{})
		refused(err, "no copies")
		_, err = c.Downgrade(t.Context(), clientv3.DowngradeValidate, "3.6.0")
		refused(err, "rowkeeper migrate")
	})
}
