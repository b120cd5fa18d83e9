package mysql_test

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// writer updates keys by groups, and knows their revisions.
type writer struct {
	b         contract.Backend
	keys      []contract.Key
	revisions []contract.Revision
	seen      contract.Position
	value     []byte
}

// newWriter creates keys with a prefix of their own, so that writers do not conflict.
func newWriter(tb testing.TB, b contract.Backend, prefix string, keys, valueBytes int) *writer {
	tb.Helper()
	w := &writer{b: b, value: make([]byte, valueBytes)}
	for i := range w.value {
		// text, as JSON is: a few characters have to be escaped
		w.value[i] = byte(' ' + mathrand.IntN(95))
	}
	s, err := b.State(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	w.seen = s.Head
	for len(w.keys) < keys {
		ms := make([]*contract.Mutation, min(keys-len(w.keys), b.Limits().GroupMutations))
		for i := range ms {
			ms[i] = &contract.Mutation{Key: contract.Key(fmt.Sprintf("/registry/example.com/%s/namespace-%02d/object-%06d", prefix, i%20, len(w.keys)+i)), Value: w.value}
		}
		for i, o := range w.commit(tb, ms) {
			w.keys = append(w.keys, ms[i].Key)
			w.revisions = append(w.revisions, o.Revision)
		}
	}
	return w
}

func (w *writer) commit(tb testing.TB, ms []*contract.Mutation) []contract.Outcome {
	tb.Helper()
	g := &contract.Group{Seen: w.seen, Mutations: ms}
	rand.Read(g.Token[:])
	r, err := w.b.Commit(tb.Context(), g)
	if err != nil {
		tb.Error(err)
		return nil
	}
	for i, o := range r.Outcomes {
		if !o.Accepted {
			tb.Errorf("%q was refused", ms[i].Key)
		}
	}
	w.seen = r.State.Head
	return r.Outcomes
}

// update updates n keys by one group.
func (w *writer) update(tb testing.TB, n int) {
	tb.Helper()
	ms, at := make([]*contract.Mutation, n), make([]int, n)
	start := mathrand.IntN(len(w.keys))
	for i := range ms {
		at[i] = (start + i*7919) % len(w.keys)
		ms[i] = &contract.Mutation{Key: w.keys[at[i]], Expect: w.revisions[at[i]], Value: w.value}
	}
	for i, o := range w.commit(tb, ms) {
		w.revisions[at[i]] = o.Revision
	}
}

// BenchmarkCommit updates random ones of 10,000 keys by groups, from one process or two.
func BenchmarkCommit(b *testing.B) {
	for _, bench := range []struct{ processes, group int }{{1, 1}, {1, 16}, {1, 64}, {1, 256},
		{1, 512}, {2, 1}, {2, 64}, {2, 256}} {
		b.Run(fmt.Sprintf("processes=%d/group=%d", bench.processes, bench.group),
			func(b *testing.B) {
				dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
					migrate(b, db.URL)
					writers := make([]*writer, bench.processes)
					for i := range writers {
						writers[i] = newWriter(b, open(b, db.URL), fmt.Sprintf("widgets%d", i),
							10_000/bench.processes, 1<<10)
					}
					b.ResetTimer()
					var wg sync.WaitGroup
					for _, w := range writers {
						wg.Go(func() {
							for range max(1, b.N/bench.processes) {
								w.update(b, bench.group)
							}
						})
					}
					wg.Wait()
					b.ReportMetric(float64(max(bench.processes,
						b.N)*bench.group)/b.Elapsed().Seconds(), "updates/s")
				}, kinds...)
			})
	}
}

// BenchmarkState reads the head.
func BenchmarkState(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
		migrate(b, db.URL)
		backend := open(b, db.URL)
		newWriter(b, backend, "widgets", 10_000, 1<<10)
		for b.Loop() {
			if _, err := backend.State(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}, kinds...)
}

// BenchmarkPage reads pages of 500 of 10,000 keys.
func BenchmarkPage(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
		migrate(b, db.URL)
		backend := open(b, db.URL)
		w := newWriter(b, backend, "widgets", 10_000, 1<<10)
		for b.Loop() {
			p, err := backend.Page(b.Context(),
				contract.PageQuery{Start: w.keys[mathrand.IntN(len(w.keys)/2)], End: "/registry0",
					Limit: 500})
			if err != nil || len(p.Rows) == 0 {
				b.Fatal(len(p.Rows), err)
			}
		}
	}, kinds...)
}

// BenchmarkTail reads 100 log rows.
func BenchmarkTail(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
		migrate(b, db.URL)
		backend := open(b, db.URL)
		newWriter(b, backend, "widgets", 10_000, 1<<10)
		for b.Loop() {
			t, err := backend.Tail(b.Context(), contract.Revision(2+mathrand.IntN(9000)), 100,
				contract.PrevOfDeletions)
			if err != nil || len(t.Rows) != 100 {
				b.Fatal(err)
			}
		}
	}, kinds...)
}
