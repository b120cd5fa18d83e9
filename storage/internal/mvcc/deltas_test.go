package mvcc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// replacing is a reader that knows which keys were replaced, and nothing else.
type replacing struct {
	reader
	read func(contract.ReplacedQuery) []contract.Replaced
}

func (r replacing) Replaced(_ context.Context, q contract.ReplacedQuery) ([]contract.Replaced, error) {
	return r.read(q), nil
}

func newReplacing(read func(contract.ReplacedQuery) []contract.Replaced) *deltas {
	d := newDeltas()
	d.link(replacing{read: read})
	return d
}

// TestMergeReplaced compares the merge with sorting, for lists of all proportions.
func TestMergeReplaced(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var old, more, want []contract.Replaced
		few := 1 + rng.IntN(100)
		for i := range rng.IntN(200) {
			r := contract.Replaced{Key: contract.Key(fmt.Sprintf("%03d", i)), ID: contract.RowID(rng.Int64())}
			if rng.IntN(100) < few {
				old = append(old, r)
			} else {
				more = append(more, r)
			}
			want = append(want, r)
		}
		before := slices.Clone(old)
		if got := mergeReplaced(old, more); !slices.Equal(got, want) {
			t.Fatalf("%v and %v are merged to %v", old, more, got)
		}
		if !slices.Equal(old, before) {
			t.Fatal("the old list was changed; others read it")
		}
	}
}

// TestDeltaWaitsWithContext: a list waits no longer than its context for another one that extends
// the delta.
func TestDeltaWaitsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		c := newReplacing(func(contract.ReplacedQuery) []contract.Replaced {
			<-hold
			return nil
		})
		q := contract.ReplacedQuery{Start: "/", End: "0", At: 1, After: 1, Upto: 10}
		go func() {
			if _, err := c.Replaced(t.Context(), q); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Replaced(ctx, q)
			done <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the second list: %v", err)
			}
		default:
			t.Error("the second list still waits after its context has ended")
		}
		close(hold)
	})
}

// BenchmarkDelta is a list of 500 chunks while 100,000 of its keys change: evenly, or almost all
// before the second chunk and then one at a time.
func BenchmarkDelta(b *testing.B) {
	const keys, chunks = 100_000, 500
	shuffled := make([]contract.Key, keys+chunks)
	for i, n := range rand.New(rand.NewPCG(1, 2)).Perm(len(shuffled)) {
		shuffled[i] = contract.Key(fmt.Sprintf("/registry/pods/namespace/pod-%07d", n))
	}
	changes := func(q contract.ReplacedQuery) []contract.Replaced {
		var r []contract.Replaced
		for _, k := range shuffled[q.After-1 : q.Upto-1] {
			r = append(r, contract.Replaced{Key: k, ID: 1})
		}
		return r
	}
	for name, first := range map[string]int{"evenly": keys / chunks, "at first": keys - chunks} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c := newReplacing(changes)
				each := (keys - first) / (chunks - 1)
				for i := range chunks {
					upto := contract.Revision(1 + first + i*each)
					d, err := c.Replaced(b.Context(), contract.ReplacedQuery{Start: "/", End: "0", At: 1,
						After: 1, Upto: upto})
					if err != nil || len(d) != int(upto)-1 {
						b.Fatal(len(d), upto, err)
					}
				}
			}
		})
	}
}
