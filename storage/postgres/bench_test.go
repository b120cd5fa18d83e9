package postgres_test

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
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
	rand.Read(w.value)
	s, err := b.State(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	w.seen = s.Head
	for len(w.keys) < keys {
		n := min(keys-len(w.keys), b.Limits().GroupMutations)
		ms := make([]*contract.Mutation, n)
		for i := range ms {
			ms[i] = &contract.Mutation{Key: contract.Key(fmt.Sprintf("/registry/example.com/%s/namespace-%02d/object-%06d", prefix, i%20, len(w.keys)+i)), Value: w.value}
		}
		for i, o := range w.commit(tb, ms) {
			if !o.Accepted {
				tb.Fatalf("the key %q was refused", ms[i].Key)
			}
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
		tb.Fatal(err)
	}
	w.seen = r.State.Head
	return r.Outcomes
}

// update updates n random keys by one group.
func (w *writer) update(tb testing.TB, n int) {
	tb.Helper()
	ms := make([]*contract.Mutation, n)
	at := make([]int, n)
	start, step := mathrand.IntN(len(w.keys)), 7919
	for i := range ms {
		at[i] = (start + i*step) % len(w.keys)
		ms[i] = &contract.Mutation{Key: w.keys[at[i]], Expect: w.revisions[at[i]], Value: w.value}
	}
	for i, o := range w.commit(tb, ms) {
		if !o.Accepted {
			tb.Fatalf("the update of %q was refused", ms[i].Key)
		}
		w.revisions[at[i]] = o.Revision
	}
}

// BenchmarkCommit updates random ones of 10,000 keys by groups, from one process or two, and says
// what an update costs in rows of the database's log (WAL) and in files.
func BenchmarkCommit(b *testing.B) {
	for _, bench := range []struct{ processes, group, valueBytes int }{
		{1, 1, 1 << 10}, {1, 16, 1 << 10}, {1, 64, 1 << 10}, {1, 256, 1 << 10}, {1, 512, 1 << 10},
		{2, 1, 1 << 10}, {2, 64, 1 << 10}, {2, 256, 1 << 10},
		{1, 64, 4 << 10}, {1, 64, 16 << 10},
	} {
		b.Run(fmt.Sprintf("processes=%d/group=%d/value=%d", bench.processes, bench.group,
			bench.valueBytes), func(b *testing.B) {
			url := migrated(b)
			writers := make([]*writer, bench.processes)
			for i := range writers {
				backend := openURL(b, url)
				defer backend.Close()
				writers[i] = newWriter(b, backend, fmt.Sprintf("widgets%d", i),
					10_000/bench.processes, bench.valueBytes)
			}
			written := func() (wal, disk int64) {
				if err := connect(b, url).QueryRow(b.Context(),
					`SELECT (pg_current_wal_lsn() - '0/0')::bigint, sum(pg_total_relation_size(c))::bigint
					FROM unnest(ARRAY['rowkeeper_log', 'rowkeeper_live']::regclass[]) c`).Scan(&wal, &disk); err != nil {
					b.Fatal(err)
				}
				return wal, disk
			}
			wal, disk := written()
			b.ResetTimer()
			done := make(chan struct{})
			for i, w := range writers {
				groups := b.N / bench.processes
				if i == 0 {
					groups += b.N % bench.processes
				}
				go func() {
					for range groups {
						w.update(b, bench.group)
					}
					done <- struct{}{}
				}()
			}
			for range writers {
				<-done
			}
			b.StopTimer()
			updates := float64(b.N * bench.group)
			walAfter, diskAfter := written()
			b.ReportMetric(updates/b.Elapsed().Seconds(), "updates/s")
			b.ReportMetric(float64(walAfter-wal)/updates, "WAL-B/update")
			b.ReportMetric(float64(diskAfter-disk)/updates, "disk-B/update")
		})
	}
}

// BenchmarkReads reads from 100,000 keys with values of 1 KB.
func BenchmarkReads(b *testing.B) {
	backend := openURL(b, migrated(b))
	defer backend.Close()
	w := newWriter(b, backend, "widgets", 100_000, 1<<10)
	ctx := b.Context()
	run := func(name string, rows int, read func() (int, error)) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if n, err := read(); err != nil || n != rows {
					b.Fatalf("%d rows, %v", n, err)
				}
			}
		})
	}
	page := func(limit int, keysOnly bool) func() (int, error) {
		return func() (int, error) {
			p, err := backend.Page(ctx, contract.PageQuery{Start: "/", End: "0", Limit: limit,
				KeysOnly: keysOnly})
			if err != nil {
				return 0, err
			}
			return len(p.Rows), nil
		}
	}
	run("state", 0, func() (int, error) { _, err := backend.State(ctx); return 0, err })
	run("get", 1, func() (int, error) {
		row, _, err := backend.Get(ctx, w.keys[50_000])
		if err != nil || row == nil {
			return 0, err
		}
		return 1, nil
	})
	run("page of 500", 500, page(500, false))
	run("page of 500 keys", 500, page(500, true))
	run("all 100,000", 100_000, page(200_000, false))
	run("tail of 500", 500, func() (int, error) {
		t, err := backend.Tail(ctx, 50_000, 500, contract.PrevOfDeletions)
		if err != nil {
			return 0, err
		}
		return len(t.Rows), nil
	})
	run("500 values", 500, func() (int, error) {
		rows, _, err := backend.Values(ctx, w.revisions[50_000:50_500])
		return len(rows), err
	})
}
