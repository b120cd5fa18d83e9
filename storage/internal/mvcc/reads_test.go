package mvcc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

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
