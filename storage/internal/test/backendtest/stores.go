package backendtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// neighbour is another store in the database of a test, as it was before the test.
type neighbour struct {
	*fixture
	was string
}

// neighbours fills the other stores with what the tests use: the same keys, with other revisions
// and values, expired ones, tombstones, an aborted token, and a sweep that has to go on. Their
// histories are longer than those of most tests.
func (f *fixture) neighbours() []*neighbour {
	f.Helper()
	var list []*neighbour
	for i, open := range f.db.Others {
		n := &neighbour{fixture: &fixture{T: f.T, ctx: f.ctx,
			db: Subject{Open: open, Private: f.db.Private}}}
		n.b = n.open()
		n.seen = n.state().Head
		value := fmt.Sprintf("of the neighbour %d", i)
		for round := range 3 {
			var ms []*contract.Mutation
			for j := range 40 {
				key := fmt.Sprintf("k%d", j)
				switch j % 4 {
				case 1:
					key = fmt.Sprintf("/registry/a/%d", j)
				case 2:
					key = strings.Repeat("a", 1+j)
				case 3:
					key = string(rune('a' + j/2))
				}
				m := put(contract.Key(key), 0, value)
				if round > 0 {
					m.Expect = n.seen.Revision - 39 + contract.Revision(j)
				}
				if round == 2 && j%4 == 0 {
					m.TTL = time.Microsecond
				}
				ms = append(ms, m)
			}
			for j, o := range n.commit(ms...).Outcomes {
				if !o.Accepted {
					f.Fatalf("mutation %d of a neighbour was refused: %+v", j, o)
				}
			}
		}
		n.del("k4", n.seen.Revision-39+4)
		if _, err := contract.ResolveGroup(n.ctx, n.b, newToken(), n.seen); err != nil {
			f.Fatal(err)
		}
		if _, err := contract.RaiseCompacted(n.ctx, n.b, n.seen.Revision-30); err != nil {
			f.Fatal(err)
		}
		if _, _, err := contract.SweepBatch(n.ctx, n.b, 20); err != nil {
			f.Fatal(err)
		}
		n.was = n.whole()
		list = append(list, n)
	}
	return list
}

// whole describes all that the store holds.
func (n *neighbour) whole() string {
	n.Helper()
	id, err := n.b.Identity(n.ctx)
	n.must(err)
	st := n.state()
	st.Now = time.Time{}
	from, err := n.b.Sweepable(n.ctx, 1000)
	n.must(err)
	expired, _, err := n.b.Expired(n.ctx, 1000)
	n.must(err)
	keys, _, err := n.b.Count(n.ctx, "\x00", "\xff\xff", math.MaxInt64, 0)
	n.must(err)
	return fmt.Sprintf("%+v\n%+v\nswept %d, aborted at %d\n%d keys, %d expired\n%s%s", id, st,
		from.State.Swept, from.Aborted, keys, len(expired), describe(n.log(contract.PrevOfAll)),
		describe(n.page(contract.PageQuery{Start: "\x00", End: "\xff\xff", Limit: 1000})))
}

// unchanged checks that the test has not touched the store.
func (n *neighbour) unchanged() {
	n.Helper()
	if is := n.whole(); is != n.was {
		n.Errorf("another store of the database was\n%s\nand is now\n%s", n.was, is)
	}
}

// testStores: the stores of a database have identities and commit locks of their own, and the
// token of one is nothing to the other.
func testStores(f *fixture) {
	if len(f.db.Others) == 0 {
		f.Skip("the database has one store")
	}
	other := &fixture{T: f.T, ctx: f.ctx, db: Subject{Open: f.db.Others[0]}}
	other.b = other.open()
	other.seen = other.state().Head
	here, err := f.b.Identity(f.ctx)
	f.must(err)
	there, err := other.b.Identity(f.ctx)
	f.must(err)
	if here.Store == there.Store || here.Actual == "" {
		f.Errorf("the identities are %+v and %+v", here, there)
	}
	// A commit does not wait for the lock of the other store, nor does compaction or a sweep.
	locked, release, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- other.b.Locked(f.ctx, contract.LockOptions{}, func(contract.Tx) error {
			close(locked)
			<-release
			return nil
		})
	}()
	select {
	case <-locked:
	case err := <-done:
		f.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.ctx, 3*time.Second)
	free := &fixture{T: f.T, ctx: ctx, db: f.db, b: f.b, seen: f.seen}
	r := free.put("a", 0, "1")
	r = free.put("a", r, "2")
	free.compact(r, 10)
	cancel()
	close(release)
	f.must(<-done)
	f.seen = free.seen
	// A token that is aborted in one store commits in the other, and the rows are not found there.
	token := newToken()
	before := other.seen
	res, err := contract.ResolveGroup(f.ctx, other.b, token, other.seen)
	f.must(err)
	if !res.Aborted {
		f.Fatalf("%+v", res)
	}
	committed, err := f.try(token, f.seen, put("b", 0, "1"))
	f.must(err)
	f.seen = committed.State.Head
	if res, err = contract.ResolveGroup(f.ctx, other.b, token, before); err != nil || res.Committed {
		f.Errorf("%+v, %v", res, err)
	}
	// A fence and an import concern one store.
	st, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: f.seen, Replaces: f.seen.Epoch,
		Token: newToken(), Jump: 10})
	f.must(err)
	f.seen = st.Head
	if st := other.state(); st.Head != other.seen {
		f.Errorf("the other store is at %+v, and was at %+v", st.Head, other.seen)
	}
}

// testEverywhere: a key is read in all stores that have it, but for dropped stores.
func testEverywhere(f *fixture) {
	is := func(when string, key contract.Key, neighbours bool, own ...string) {
		f.Helper()
		want := own
		for i := range f.db.Others {
			if neighbours {
				want = append(want, fmt.Sprintf("of the neighbour %d", i))
			}
		}
		values, st, err := f.b.Everywhere(f.ctx, key)
		f.must(err)
		var got []string
		for _, value := range values {
			got = append(got, string(value))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || st.Head != f.state().Head {
			f.Errorf("%s: %q has the values %q at %+v, want %q", when, key, values, st, want)
		}
	}
	is("at first", "k8", true)
	f.put("k", 0, "not this")
	f.put("k4", f.put("k4", 0, "old"), "new")
	f.put("k8", f.put("k8", 0, "old"), "new")
	f.put("k88", 0, "nor this")
	is("deleted elsewhere", "k4", false, "new")
	is("everywhere", "k8", true, "new")
	is("not elsewhere", "k88", false, "nor this")
	st := f.state()
	st.Head = contract.Position{Epoch: -2, Revision: 1000, Token: newToken()}
	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error { return tx.Mark(st, "") }))
	if len(f.db.Others) > 0 {
		f.db.Open = f.db.Others[0]
		f.b = f.open()
		is("dropped", "k8", true)
	}
}

// OfStore makes the database of a suite of a URL: the tested store is the second one of three,
// whose ids are in order, so that whatever goes beyond the ends of its rows finds others. The first
// backend of the tested store shares connections with those of the others.
func OfStore(t testing.TB, driver contract.Driver, url string,
	o func(testing.TB) contract.DriverOptions) Subject {
	t.Helper()
	for _, name := range []string{"tested", "last"} {
		opts := o(t)
		opts.Store = name
		if created, err := contract.CreateStore(t.Context(), driver, url, opts); err != nil || !created {
			t.Fatalf("create the store %q: %t, %v", name, created, err)
		}
	}
	shared, err := driver.Connect(t.Context(), url, o(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	open := func(name string) func(testing.TB) contract.Backend {
		return func(t testing.TB) contract.Backend {
			t.Helper()
			b, err := shared.Store(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	first := true
	return Subject{
		Open: func(t testing.TB) contract.Backend {
			t.Helper()
			if first {
				first = false
				return open("tested")(t)
			}
			opts := o(t)
			opts.Store = "tested"
			b, err := contract.OpenBackend(t.Context(), driver, url, opts)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Others: []func(testing.TB) contract.Backend{open("last"), open(contract.DefaultStore)},
	}
}
