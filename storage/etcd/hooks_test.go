package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// hooked is a database in memory whose operations call a hook first; see [memdb.Backend].
type hooked struct {
	*memdb.Database
	hook func(ctx context.Context, method string) error
}

func (d hooked) Connect(_ context.Context, _ string,
	o contract.DriverOptions) (contract.Database, error) {
	return contract.Separate(func(context.Context, string) (contract.Backend, error) {
		b := d.Open(o)
		b.Hook = d.hook
		return b, nil
	}), nil
}

// inMemory opens a database in memory twice: once with a hook, and once without.
func inMemory(t *testing.T, hook func(context.Context, string) error) (with, without dbtest.DB) {
	d := memdb.New(t.Name(), time.Now)
	return dbtest.DB{URL: "memdb:", Driver: hooked{d, hook}}, dbtest.DB{URL: "memdb:", Driver: d}
}

// TestTxnBesideCompaction: a transaction whose keys are compacted while it reads them reads them
// again.
func TestTxnBesideCompaction(t *testing.T) {
	var other *clientv3.Client
	var armed atomic.Bool
	with, without := inMemory(t, func(_ context.Context, method string) error {
		if method == "Get" && armed.CompareAndSwap(true, false) {
			res, err := other.Put(context.Background(), "a", "2")
			if err != nil {
				return err
			}
			_, err = other.Compact(context.Background(), res.Header.Revision)
			return err
		}
		return nil
	})
	c := serve(t, with)
	other = serve(t, without)
	put(t, c, "a", "1")
	put(t, c, "b", "1")
	armed.Store(true)
	res, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Value("a"), "=", "2"),
		clientv3.Compare(clientv3.Value("b"), "=", "1")).Then(clientv3.OpGet("a")).Commit()
	if err != nil || !res.Succeeded || text(res.Responses[0].GetResponseRange().Kvs) != "a=2@2.4.2" {
		t.Errorf("%v, %v", res, err)
	}
	if armed.Load() {
		t.Error("nothing was compacted meanwhile")
	}
	_, err = c.Txn(t.Context()).Then(clientv3.OpGet("a", clientv3.WithRev(2))).Commit()
	is(t, err, rpctypes.ErrCompacted)
}

// TestTxnBesideHotRange: a transaction that writes because a range does not hold is not held up by
// keys of the range that others write all the time, as long as one is left that does not fit.
func TestTxnBesideHotRange(t *testing.T) {
	var other *clientv3.Client
	var armed atomic.Bool
	tries := 0
	with, without := inMemory(t, func(_ context.Context, method string) error {
		if method != "Commit" || !armed.Load() || tries == 20 {
			return nil
		}
		tries++
		_, err := other.Put(context.Background(), "r/hot", fmt.Sprint(tries))
		return err
	})
	c := serve(t, with)
	other = serve(t, without)
	put(t, c, "r/cold", "1")
	put(t, c, "r/hot", "0")
	none := clientv3.Compare(clientv3.CreateRevision("r/").WithPrefix(), "=", 0)
	armed.Store(true)
	for what, txn := range map[string]clientv3.Txn{
		"the outermost": c.Txn(t.Context()).If(none).Else(clientv3.OpPut("late", "")),
		"one inside": c.Txn(t.Context()).Then(clientv3.OpTxn([]clientv3.Cmp{none}, nil,
			[]clientv3.Op{clientv3.OpPut("late", "")})),
	} {
		tries = 0
		res, err := txn.Commit()
		if err != nil || tries != 1 {
			t.Errorf("%s: it was tried %d times: %v, %v", what, tries, res, err)
		}
	}
}

// TestPagesNameOneRevision: an answer that is read in several pages names the revision of the first
// one, so that a watch from there misses nothing that was written between two pages.
func TestPagesNameOneRevision(t *testing.T) {
	var other *clientv3.Client
	var armed atomic.Bool
	var written []int64
	with, without := inMemory(t, func(ctx context.Context, method string) error {
		if method != "Page" || !armed.Load() {
			return nil
		}
		res, err := other.Put(ctx, "written", "")
		if err == nil {
			written = append(written, res.Header.Revision)
		}
		return err
	})
	c := serve(t, with)
	other = serve(t, without)
	const keys = 10_001
	var wg sync.WaitGroup
	for worker := range 100 {
		wg.Go(func() {
			for i := worker; i < keys; i += 100 {
				if _, err := c.Put(t.Context(), fmt.Sprintf("k%d", i), "v"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	armed.Store(true)
	for _, stream := range []bool{false, true} {
		written = nil
		var res *clientv3.GetResponse
		var err error
		if stream {
			var chunks clientv3.GetStreamChan
			if chunks, err = c.GetStream(t.Context(), "k", clientv3.WithPrefix()); err == nil {
				res, err = clientv3.GetStreamToGetResponse(chunks)
			}
		} else {
			res, err = c.Get(t.Context(), "k", clientv3.WithPrefix())
		}
		if err != nil || len(res.Kvs) != keys || len(written) < 2 ||
			res.Header.Revision != written[0] {
			t.Errorf("a stream %t: %v, %d keys at %v, while %v were written", stream, err,
				len(res.Kvs), res.Header, written)
		}
	}
}

// TestLaterPagesAreReadAhead: who turns a page has the one after it read. Its answer names the
// revision that is the newest when it is asked for.
func TestLaterPagesAreReadAhead(t *testing.T) {
	reads := make(chan struct{}, 100)
	with, _ := inMemory(t, func(_ context.Context, method string) error {
		if method == "Page" {
			reads <- struct{}{}
		}
		return nil
	})
	c := serve(t, with)
	for i := range 9 {
		put(t, c, fmt.Sprintf("k%d", i), "v")
	}
	want := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "k", clientv3.WithPrefix()))
	at := want.Header.Revision
	for _, stream := range []bool{false, true} {
		for len(reads) > 0 {
			<-reads
		}
		var all []*mvccpb.KeyValue
		next := "k0"
		for page := range 3 {
			o := []clientv3.OpOption{clientv3.WithRange("l"), clientv3.WithLimit(3),
				clientv3.WithRev(at)}
			get := c.Get
			if stream {
				get = func(ctx context.Context, key string,
					o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
					chunks, err := c.GetStream(ctx, key, o...)
					if err != nil {
						return nil, err
					}
					return clientv3.GetStreamToGetResponse(chunks)
				}
			}
			head := must[*clientv3.PutResponse](t)(c.Put(t.Context(), "k5", "later"))
			res := must[*clientv3.GetResponse](t)(get(t.Context(), next, o...))
			if res.Header.Revision != head.Header.Revision || res.Count != int64(9-3*page) ||
				res.More != (page < 2) {
				t.Errorf("page %d: %v, %d keys left, more: %t", page, res.Header, res.Count, res.More)
			}
			all = append(all, res.Kvs...)
			next = string(all[len(all)-1].Key) + "\x00"
			if page == 1 {
				// The two pages themselves, and the next one.
				for range 3 {
					select {
					case <-reads:
					case <-time.After(time.Minute):
						t.Fatal("the next page is not read ahead")
					}
				}
			}
		}
		if text(all) != text(want.Kvs) {
			t.Errorf("a stream %t: the pages have %s, want %s", stream, text(all), text(want.Kvs))
		}
	}
}

// TestDeleteInGroups: a range is deleted by few commits, in the order of its keys.
func TestDeleteInGroups(t *testing.T) {
	var commits atomic.Int64
	with, without := inMemory(t, func(_ context.Context, method string) error {
		if method == "Commit" {
			commits.Add(1)
		}
		return nil
	})
	c, other := serve(t, with), serve(t, without)
	const keys = 2_500
	for _, prev := range []bool{false, true} {
		var wg sync.WaitGroup
		for worker := range 50 {
			wg.Go(func() {
				for i := worker; i < keys; i += 50 {
					if _, err := other.Put(t.Context(), fmt.Sprintf("k%04d", i), "v"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		put(t, other, "l", "stays")
		o := []clientv3.OpOption{clientv3.WithPrefix()}
		if prev {
			o = append(o, clientv3.WithPrevKV())
		}
		before := commits.Load()
		res := must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "k", o...))
		if n := commits.Load() - before; res.Deleted != keys || n > keys/10 {
			t.Errorf("%d keys were deleted by %d commits", res.Deleted, n)
		}
		if prev && (len(res.PrevKvs) != keys || string(res.PrevKvs[7].Key) != "k0007") {
			t.Errorf("%d previous values, and not in order", len(res.PrevKvs))
		}
		left := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "k", clientv3.WithRange("m")))
		if left.Count != 1 {
			t.Errorf("%d keys are left", left.Count)
		}
	}
}

// TestDeleteAsOne: a range that a commit holds is deleted at one revision, with what was written in
// it meanwhile. If others write in it all the time, it is deleted all the same.
func TestDeleteAsOne(t *testing.T) {
	var other *clientv3.Client
	var writes atomic.Int64
	with, without := inMemory(t, func(ctx context.Context, method string) error {
		if method == "Commit" && writes.Add(-1) >= 0 {
			_, err := other.Put(ctx, fmt.Sprint("k/", writes.Load()), "late")
			return err
		}
		return nil
	})
	c := serve(t, with)
	other = serve(t, without)
	for _, during := range []int64{0, 3, 100} {
		for i := range 512 - 3 {
			put(t, other, fmt.Sprintf("k/%03d/", i), "early")
		}
		writes.Store(during)
		res := must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), "k/", clientv3.WithPrefix(),
			clientv3.WithPrevKV()))
		writes.Store(0)
		if int(res.Deleted) != len(res.PrevKvs) || res.Deleted < 509 ||
			during == 3 && res.Deleted != 512 {
			t.Errorf("%d keys were deleted, of which %d are told", res.Deleted, len(res.PrevKvs))
		}
		last := must[*clientv3.GetResponse](t)(other.Get(t.Context(), "k/", clientv3.WithPrefix(),
			clientv3.WithRev(res.Header.Revision-1), clientv3.WithCountOnly()))
		if during < 100 && last.Count != res.Deleted {
			t.Errorf("beside %d writes, the last of %d deletions found %d keys", during, res.Deleted,
				last.Count)
		}
	}
}

// TestRevokeLeavesKeys: who revokes a lease is not told that it is done while keys of it are left.
func TestRevokeLeavesKeys(t *testing.T) {
	var full atomic.Bool
	with, _ := inMemory(t, func(_ context.Context, method string) error {
		if full.Load() && method == "Commit" {
			return contract.Errorf(contract.Full, "the disk is full")
		}
		return nil
	})
	c := serve(t, with)
	lease := must[*clientv3.LeaseGrantResponse](t)(c.Grant(t.Context(), 3600))
	put(t, c, "lock", "held", clientv3.WithLease(lease.ID))
	full.Store(true)
	// Not by the client of etcd, which tries again.
	if _, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseRevoke(t.Context(),
		&pb.LeaseRevokeRequest{ID: int64(lease.ID)}); !unavailable(err) {
		t.Errorf("the lease was revoked, and its key is there: %v", err)
	}
	full.Store(false)
	must[*clientv3.LeaseRevokeResponse](t)(c.Revoke(t.Context(), lease.ID))
	res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "lock"))
	if len(res.Kvs) > 0 {
		t.Errorf("the lease was revoked, and there is %s", text(res.Kvs))
	}
}

// TestRequireLeader: while the database is away, a watch ends only if its client requires a leader,
// and the other one misses nothing.
func TestRequireLeader(t *testing.T) {
	var away atomic.Bool
	with, without := inMemory(t, func(context.Context, string) error {
		if away.Load() {
			return contract.Errorf(contract.Unavailable, "the database is away")
		}
		return nil
	})
	c := serveBy(t, with, etcd.ServerConfig{LeaderTimeout: 4 * time.Second})
	other := serve(t, without)
	strict := c.Watch(clientv3.WithRequireLeader(t.Context()), "a", clientv3.WithCreatedNotify())
	patient := c.Watch(t.Context(), "a", clientv3.WithCreatedNotify())
	for _, w := range []clientv3.WatchChan{strict, patient} {
		if res := <-w; !res.Created {
			t.Fatalf("%+v", res)
		}
	}
	away.Store(true)
	res := <-strict
	is(t, res.Err(), rpctypes.ErrNoLeader)
	put(t, other, "a", "1")
	away.Store(false)
	if res = <-patient; res.Err() != nil || len(res.Events) != 1 {
		t.Errorf("%+v, %v", res, res.Err())
	}
	if _, open := <-strict; open {
		t.Error("the watch goes on")
	}
	_, err := c.Get(clientv3.WithRequireLeader(t.Context()), "a")
	if err != nil && !errors.Is(err, rpctypes.ErrNoLeader) {
		t.Error(err)
	}
}
