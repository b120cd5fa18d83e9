package sqlite

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

func newToken() (t contract.Token) {
	rand.Read(t[:])
	return t
}

// BenchmarkCommit updates keys by groups, with values of 1 KB, on a file with synchronous=FULL and
// in memory. One operation is a group.
func BenchmarkCommit(b *testing.B) {
	for _, kind := range []string{"file", "memory"} {
		for _, size := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/group=%d", kind, size), func(b *testing.B) {
				url := "memory:"
				if kind == "file" {
					url = fresh(b)
				}
				store := open(b, url)
				defer store.Close()
				f := filler{store: store, value: make([]byte, 1024)}
				rand.Read(f.value)
				f.grow(b, 10_000)
				b.ReportAllocs()
				began := time.Now()
				for b.Loop() {
					f.update(b, size)
				}
				b.ReportMetric(float64(b.N*size)/time.Since(began).Seconds(), "updates/s")
			})
		}
	}
}

// filler writes keys round-robin.
type filler struct {
	store     contract.Backend
	value     []byte
	seen      contract.Position
	keys      []contract.Key
	revisions []contract.Revision
	next      int
}

func (f *filler) commit(tb testing.TB, ms []*contract.Mutation) *contract.GroupResult {
	if f.seen.Revision == 0 {
		st, err := f.store.State(context.Background())
		if err != nil {
			tb.Fatal(err)
		}
		f.seen = st.Head
	}
	r, err := f.store.Commit(context.Background(), &contract.Group{Token: newToken(), Seen: f.seen,
		Mutations: ms})
	if err != nil {
		tb.Fatal(err)
	}
	f.seen = r.State.Head
	return r
}

// grow creates n keys.
func (f *filler) grow(tb testing.TB, n int) {
	var ms []*contract.Mutation
	for i := range n {
		key := contract.Key(fmt.Sprintf("/registry/ci.rowkeeper.dev/pipelines/namespace-%03d/pipeline-%06d", i%100, i))
		f.keys = append(f.keys, key)
		ms = append(ms, &contract.Mutation{Key: key, Value: f.value})
		if len(ms) == 500 || i == n-1 {
			for _, o := range f.commit(tb, ms).Outcomes {
				f.revisions = append(f.revisions, o.Revision)
			}
			ms = nil
		}
	}
}

// update updates the next n keys in one group.
func (f *filler) update(tb testing.TB, n int) {
	ms := make([]*contract.Mutation, n)
	first := f.next
	for i := range ms {
		k := (first + i*7) % len(f.keys)
		ms[i] = &contract.Mutation{Key: f.keys[k], Expect: f.revisions[k], Value: f.value}
	}
	for i, o := range f.commit(tb, ms).Outcomes {
		if !o.Accepted {
			tb.Fatalf("update %d was refused: %+v", i, o)
		}
		f.revisions[(first+i*7)%len(f.keys)] = o.Revision
	}
	f.next = (first + 7*n) % len(f.keys)
}

// BenchmarkRead reads from a file with 100,000 keys.
func BenchmarkRead(b *testing.B) {
	store := open(b, fresh(b))
	defer store.Close()
	f := filler{store: store, value: make([]byte, 1024)}
	f.grow(b, 100_000)
	ctx := context.Background()
	end := contract.Key("/registry0")
	for _, bench := range []struct {
		name string
		read func(i int) error
	}{
		{"state", func(int) error { _, err := store.State(ctx); return err }},
		{"get", func(i int) error {
			_, _, err := store.Get(ctx, f.keys[i*7919%len(f.keys)])
			return err
		}},
		{"page=500", func(i int) error {
			_, err := store.Page(ctx, contract.PageQuery{Start: f.keys[i*7919%len(f.keys)], End: end,
				Limit: 500})
			return err
		}},
		{"page=100000", func(int) error {
			_, err := store.Page(ctx, contract.PageQuery{Start: "/", End: end, Limit: 200_000})
			return err
		}},
		{"count=100000", func(int) error {
			_, _, err := store.Count(ctx, "/", end, 0, 0)
			return err
		}},
		{"values=1000", func(i int) error {
			revisions := make([]contract.Revision, 1000)
			for j := range revisions {
				revisions[j] = f.revisions[(i+j*7919)%len(f.revisions)]
			}
			_, _, err := store.Values(ctx, revisions)
			return err
		}},
		{"tail=500", func(i int) error {
			_, err := store.Tail(ctx, contract.Revision(1+i*7919%len(f.keys)), 500,
				contract.PrevOfDeletions)
			return err
		}},
		{"changed", func(int) error { _, err := store.(contract.Poller).Changed(ctx); return err }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if err := bench.read(i); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
