package mvcc_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// large is a backend that keeps the read of the key "first" waiting, and counts the others.
type large struct {
	*memdb.Backend
	release chan struct{}
	mu      sync.Mutex
	// alone is how many keys were read alone, and most the most bytes that were read at a time.
	alone, most int
}

func (l *large) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	if key == "first" {
		<-l.release
		return l.Backend.Get(ctx, key)
	}
	l.mu.Lock()
	l.alone++
	l.mu.Unlock()
	return l.Backend.Get(ctx, key)
}

func (l *large) GetKeys(ctx context.Context, keys []contract.Key) ([]contract.Row, contract.State,
	error) {
	rows, st, err := l.Backend.GetKeys(ctx, keys)
	bytes := 0
	for i := range rows {
		bytes += len(rows[i].Value)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = max(l.most, bytes)
	return rows, st, err
}

// TestLargeGets: clients who read large values at the same time, and share a query, make it bring
// no more than a list would. All are answered.
func TestLargeGets(t *testing.T) {
	for _, cache := range []int{0, 1 << 30} {
		synctest.Test(t, func(t *testing.T) {
			b := &large{Backend: memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{}),
				release: make(chan struct{})}
			const size, keys = 1 << 20, 24
			s, err := mvcc.Open(t.Context(), b, mvcc.Config{CacheBytes: cache,
				Ring: mvcc.RingLimits{Bytes: size}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			key := func(i int) contract.Key { return contract.Key(fmt.Sprintf("/k/%02d", i)) }
			for i := range keys {
				put(t, s, key(i), 0, strings.Repeat(string(rune('0'+i)), size))
			}
			var gets sync.WaitGroup
			get := func(key contract.Key, want string) {
				gets.Go(func() {
					kv, _, err := s.Get(t.Context(), key)
					if err != nil || (kv == nil) != (want == "") || kv != nil && string(kv.Value) != want {
						t.Errorf("%s: %v", key, err)
					}
				})
			}
			get("first", "")
			synctest.Wait()
			for i := range keys {
				get(key(i), strings.Repeat(string(rune('0'+i)), size))
			}
			synctest.Wait() // they wait for one query
			close(b.release)
			gets.Wait()
			if b.most >= contract.ReadBytes+size || cache == 0 && b.alone != keys-contract.ReadBytes/size {
				t.Errorf("%d bytes were read at a time, and %d keys alone", b.most, b.alone)
			}
		})
	}
}

// BenchmarkReads lists 10,000 keys with values of 1 KB: whole, in pages of 500, and in pages at a
// revision after which a hundredth of the keys was written. It also reads single keys. The store
// keeps either no rows in memory or all of them.
func BenchmarkReads(b *testing.B) {
	run := func(b *testing.B, db dbtest.DB) {
		for _, bytes := range []int{0, 64 << 20} {
			b.Run(fmt.Sprintf("cache=%dM", bytes>>20), func(b *testing.B) {
				benchmarkReads(b, open(b, db, mvcc.Config{CacheBytes: bytes}))
			})
		}
	}
	b.Run("memdb", func(b *testing.B) { run(b, inMemory(b)) })
	dbtest.Each(b, run, dbtest.SQLite)
}

func benchmarkReads(b *testing.B, s *mvcc.Engine) {
	const keys, size = 10_000, 500
	key := func(i int) contract.Key { return contract.Key(fmt.Sprintf("/k/%05d", i%keys)) }
	value := []byte(strings.Repeat("v", 1000))
	write := func(n, step int) {
		outcomes := make(chan error)
		for i := range n {
			go func() {
				_, err := s.Commit(b.Context(), contract.Mutation{Key: key(i * step), Expect: contract.Any,
					Value: value})
				outcomes <- err
			}()
		}
		for range n {
			if err := <-outcomes; err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Ready(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	list := func(o mvcc.RangeOptions) {
		o.Start, o.End = "/k/", "/k0"
		for more := true; more; {
			r, err := s.Range(b.Context(), o)
			if err != nil {
				b.Fatal(err)
			}
			if more = r.More; more {
				o.From, o.At = r.KVs[len(r.KVs)-1].Key+"\x00", r.Revision
			}
		}
	}
	write(keys, 1)
	head, err := s.Head(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	write(keys/100, 100)
	list(mvcc.RangeOptions{})
	pages := mvcc.RangeOptions{Limit: size, Count: true, Exact: true, Ahead: size}
	older := mvcc.RangeOptions{Limit: size, Count: true, Exact: true, At: head}
	for _, reads := range []struct {
		name string
		do   func(i int)
	}{
		{"whole", func(int) { list(mvcc.RangeOptions{}) }},
		{"pages", func(int) { list(pages) }},
		{"older", func(int) { list(older) }},
		{"get", func(i int) {
			if kv, _, err := s.Get(b.Context(), key(i)); err != nil || kv == nil {
				b.Fatal(kv, err)
			}
		}},
	} {
		b.Run(reads.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				reads.do(i)
			}
		})
	}
	b.Run("gets=64", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if kv, _, err := s.Get(context.Background(), key(i)); err != nil || kv == nil {
					b.Error(kv, err)
				}
			}
		})
	})
}
