package mvcc_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestGroupsOfLargeDeletions reaps a flood of large keys: what a group holds, and what its answer
// brings, is bounded, and every deletion has its event with the value that it removed.
func TestGroupsOfLargeDeletions(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s, f := openFaulty(t, db, mvcc.Config{})
		limits := s.Limits()
		size := min(1<<20, limits.ValueBytes)
		var mu sync.Mutex
		most := 0
		f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
			r, err := f.Backend.Commit(ctx, g)
			held := 0
			for i, m := range g.Mutations {
				held += len(m.Key) + len(m.Value) + len(m.PrevValue)
				if err == nil {
					held += len(r.Outcomes[i].PrevValue)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			most = max(most, held)
			return r, err
		})
		w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/flood/", After: s.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		const keys = 24
		for i := range keys {
			_, err := s.Commit(t.Context(),
				contract.Mutation{Key: contract.Key(fmt.Sprintf("/flood/%02d", i)), TTL: time.Hour,
					Value: bytes.Repeat([]byte{'a' + byte(i)}, size)})
			if err != nil {
				t.Fatal(err)
			}
		}
		exec(t, raw(t, db), "UPDATE rowkeeper_live SET expiry = 1")
		if err := s.DeleteExpired(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, e := range next(t, w, 2*keys)[keys:] {
			i := 0
			if _, err := fmt.Sscanf(string(e.Key), "/flood/%d", &i); err != nil || !e.Deleted {
				t.Fatalf("event %+v, %v", e, err)
			}
			prev, err := s.PrevValue(t.Context(), e)
			if err != nil || !bytes.Equal(prev, bytes.Repeat([]byte{'a' + byte(i)}, size)) {
				t.Fatalf("the deletion of %s removed %d bytes, %v", e.Key, len(prev), err)
			}
		}
		if most > max(limits.GroupBytes, limits.KeyBytes+2*size) {
			t.Errorf("a group held %d bytes; the bound is %d", most, limits.GroupBytes)
		}
	})
}

// TestOneDamagedKey deletes, in one group with other writes, a key whose value is lost: only this
// deletion fails, and says which key it is.
func TestOneDamagedKey(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s, f := openFaulty(t, db, mvcc.Config{})
		lost := put(t, s, "/lost", 0, "value")
		good := put(t, s, "/good", 0, "value")
		put(t, s, "/other", 0, "value")
		exec(t, raw(t, db), fmt.Sprintf("DELETE FROM rowkeeper_log WHERE revision = %d", lost))

		begun, hold := make(chan struct{}, 16), make(chan struct{})
		groups := 0
		f.set(func(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
			begun <- struct{}{}
			<-hold
			groups++
			return f.Backend.Commit(ctx, g)
		})
		type answer struct {
			revision contract.Revision
			err      error
		}
		commit := func(m contract.Mutation) chan answer {
			c := make(chan answer, 1)
			go func() {
				r, err := s.Commit(t.Context(), m)
				c <- answer{r, err}
			}()
			return c
		}
		// The first group is held, so that the writes after it gather in one.
		first := commit(contract.Mutation{Key: "/first", Value: []byte("x")})
		<-begun
		before := s.Delivered()
		deletion := commit(contract.Mutation{Key: "/lost", Expect: lost, Delete: true})
		others := []chan answer{
			commit(contract.Mutation{Key: "/new", Value: []byte("x")}),
			commit(contract.Mutation{Key: "/good", Expect: good, Delete: true}),
		}
		if err := mvcc.WaitQueued(t.Context(), s, 3); err != nil {
			t.Fatal(err)
		}
		close(hold)
		if a := <-first; a.err != nil {
			t.Fatal(a.err)
		}
		for _, c := range others {
			if a := <-c; a.err != nil || a.revision > before+3 {
				t.Errorf("a write beside a damaged key: revision %d after %d, %v", a.revision,
					before, a.err)
			}
		}
		a := <-deletion
		if contract.ClassOf(a.err) != contract.Data || !strings.Contains(a.err.Error(), "/lost") ||
			!strings.Contains(a.err.Error(), "backup") {
			t.Errorf("the deletion of the damaged key: %d, %v", a.revision, a.err)
		}
		if groups != 2 {
			t.Errorf("%d groups were tried, want 2", groups)
		}
	})
}

// TestRangeOfLargeReplacedRows pages through a snapshot whose rows were all replaced since: the
// pages are bounded in bytes, and together they have everything.
func TestRangeOfLargeReplacedRows(t *testing.T) {
	s := open(t, inMemory(t), mvcc.Config{})
	const size, keys = 1 << 20, contract.ReadBytes>>20 + 8
	var at contract.Revision
	revisions := make([]contract.Revision, keys)
	for i := range keys {
		r, err := s.Commit(t.Context(), contract.Mutation{Key: contract.Key(fmt.Sprintf("/k/%03d", i)),
			Value: bytes.Repeat([]byte{'a' + byte(i)}, size)})
		if err != nil {
			t.Fatal(err)
		}
		revisions[i], at = r, r
	}
	for i, r := range revisions {
		put(t, s, contract.Key(fmt.Sprintf("/k/%03d", i)), r, "new")
	}
	o := mvcc.RangeOptions{Start: "/k/", End: "/k0", At: at}
	for n := 0; n < keys; {
		r, err := s.Range(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		held := 0
		for _, kv := range r.KVs {
			held += len(kv.Value)
			if kv.Revision != revisions[n] || len(kv.Value) != size || kv.Value[0] != 'a'+byte(n) {
				t.Fatalf("row %d is %s at %d", n, kv.Key, kv.Revision)
			}
			n++
		}
		if held >= 2*contract.ReadBytes || r.More != (n < keys) || len(r.KVs) == 0 {
			t.Fatalf("a page has %d keys of %d bytes, and more to come: %t, after %d of %d",
				len(r.KVs), held, r.More, n, keys)
		}
		o.From = r.KVs[len(r.KVs)-1].Key + "\x00"
	}
}

// counts counts the counting.
type counts struct {
	contract.Backend
	n int
}

func (c *counts) Count(ctx context.Context, start, end contract.Key, at contract.Revision,
	limit int64) (int64, contract.State, error) {
	c.n++
	return c.Backend.Count(ctx, start, end, at, limit)
}

// TestPagesCountOnce: a list is counted by its first page. The later ones know how many keys are
// left, whatever is written meanwhile.
func TestPagesCountOnce(t *testing.T) {
	for _, exact := range []bool{false, true} {
		b := &counts{Backend: openBackend(t, inMemory(t))}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			put(t, s, contract.Key(fmt.Sprintf("/k/%d", i)), 0, "v")
		}
		o := mvcc.RangeOptions{Start: "/k/", End: "/k0", Limit: 3, Count: true, Exact: exact}
		for left := int64(10); left > 0; left -= 3 {
			r, err := s.Range(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if o.Count && r.Count != left || !o.Count && r.Count != -1 || b.n != 1 {
				t.Fatalf("%d keys are left, not %d, after counting %d times", r.Count, left, b.n)
			}
			last := r.KVs[len(r.KVs)-1]
			o.At, o.From = r.Revision, last.Key+"\x00"
			o.Count = left != 10 // the second page is not asked for it
			put(t, s, last.Key+"/new", 0, "v")
			if _, err := s.Commit(t.Context(), contract.Mutation{Key: last.Key, Delete: true,
				Expect: last.Revision}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
