package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// written is a write that a test remembers.
type written struct {
	key      contract.Key
	revision contract.Revision
	value    string // "" of a deletion
	before   string // "" of a creation
	// object counts the objects that the key had.
	object int
}

// pastWriter writes keys, and remembers all that it has written.
type pastWriter struct {
	*testing.T
	s       *mvcc.Engine
	written []written
	live    map[contract.Key]written
	objects map[contract.Key]int
}

func (w *pastWriter) did(key contract.Key, r contract.Revision, value string) {
	old := w.live[key]
	if old.revision == 0 {
		w.objects[key]++
	}
	n := written{key, r, value, old.value, w.objects[key]}
	if w.written = append(w.written, n); value == "" {
		delete(w.live, key)
	} else {
		w.live[key] = n
	}
}

func (w *pastWriter) put(key contract.Key, value string) {
	w.Helper()
	w.did(key, put(w.T, w.s, key, w.live[key].revision, value), value)
}

func (w *pastWriter) del(key contract.Key) {
	w.Helper()
	r, err := w.s.Commit(w.Context(), contract.Mutation{Key: key, Expect: w.live[key].revision,
		Delete: true})
	if err != nil {
		w.Fatal(err)
	}
	w.did(key, r, "")
}

// of returns what was written to a key, or to all, the newest first.
func (w *pastWriter) of(key contract.Key) (all []written) {
	for i := len(w.written) - 1; i >= 0; i-- {
		if key == "" || w.written[i].key == key {
			all = append(all, w.written[i])
		}
	}
	return all
}

// pages reads all pages of a past.
func pages(t *testing.T, limit int, read func(mvcc.PastOptions) (*mvcc.Past, error)) (rows []mvcc.PastRow,
	omitted bool, compacted contract.Revision) {
	t.Helper()
	for o := (mvcc.PastOptions{Limit: limit, Earlier: true}); ; {
		p, err := read(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Rows) > limit {
			t.Fatalf("a page has %d rows, more than %d", len(p.Rows), limit)
		}
		rows, omitted, compacted = append(rows, p.Rows...), omitted || p.Omitted, p.State.Compacted
		if p.Next == nil {
			return rows, omitted, compacted
		}
		o.Place = *p.Next
	}
}

// check compares rows with what was written. They may end where compaction has been.
func (w *pastWriter) check(rows []mvcc.PastRow, want []written, compacted contract.Revision) {
	w.Helper()
	for i, r := range rows {
		if i >= len(want) {
			w.Fatalf("row %d was never written: %+v", i, r)
		}
		n := want[i]
		if r.Key != n.key || r.Revision != n.revision || r.Deleted != (n.value == "") ||
			string(r.Value) != n.value || r.HasPrev && string(r.PrevValue) != n.before ||
			r.HasPrev == (r.Prev == 0) && r.Revision > compacted ||
			r.Earlier != (w.live[n.key].object != n.object) {
			w.Fatalf("row %d is %+v, not %+v, after a compaction to %d", i, r, n, compacted)
		}
	}
	for _, n := range want[len(rows):] {
		if n.revision > compacted {
			w.Fatalf("revision %d is missing, after a compaction to %d: there are %d of %d rows",
				n.revision, compacted, len(rows), len(want))
		}
	}
}

func newPastWriter(t *testing.T, db dbtest.DB) *pastWriter {
	return &pastWriter{T: t, s: open(t, db, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}}),
		live: map[contract.Key]written{}, objects: map[contract.Key]int{}}
}

// TestPast: whatever was written and compacted, a page of the past is what was written, without
// gaps, and as far back as compaction promises.
func TestPast(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		w := newPastWriter(t, db)
		rng := rand.New(rand.NewPCG(48, 1))
		key := func() contract.Key { return contract.Key(fmt.Sprintf("/k/%d", rng.IntN(4))) }
		compacted := contract.Revision(0)
		for i := range 300 {
			switch k := key(); {
			case w.live[k].revision != 0 && rng.IntN(5) == 0:
				w.del(k)
			default:
				w.put(k, fmt.Sprintf("value %d", i))
			}
			if i%25 != 24 {
				continue
			}
			head := w.written[len(w.written)-1].revision
			if compacted += contract.Revision(rng.IntN(int(head-compacted) + 1)); i%50 != 24 {
				if err := w.s.Compact(t.Context(), compacted); err != nil {
					t.Fatal(err)
				}
			}
			if i%100 == 99 {
				if err := w.s.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			limit := 1 + rng.IntN(20)
			for n := range 4 {
				k := contract.Key(fmt.Sprintf("/k/%d", n))
				rows, _, at := pages(t, limit, func(o mvcc.PastOptions) (*mvcc.Past, error) {
					return w.s.PastOf(t.Context(), k, o)
				})
				w.check(rows, w.of(k), at)
				w.checkAt(k, rng, at)
			}
			rows, _, at := pages(t, limit, func(o mvcc.PastOptions) (*mvcc.Past, error) {
				return w.s.PastIn(t.Context(), "/k/", "/k0", o)
			})
			w.check(rows, w.of(""), at)
		}
	})
}

// checkAt compares the state at some revisions with what was written.
func (w *pastWriter) checkAt(key contract.Key, rng *rand.Rand, compacted contract.Revision) {
	w.Helper()
	for range 3 {
		at := 1 + contract.Revision(rng.IntN(int(w.written[len(w.written)-1].revision)))
		var want written
		for _, n := range w.of(key) {
			if n.revision <= at {
				want = n
				break
			}
		}
		p, err := w.s.PastAt(w.Context(), key, at, time.Time{}, true)
		switch {
		case errors.Is(err, contract.ErrCompacted) && at < compacted:
		case err != nil:
			w.Fatal(err)
		case len(p.Rows) == 0 && want.value != "":
			w.Fatalf("at %d, %s is gone, and it was %+v", at, key, want)
		case len(p.Rows) > 0 && (string(p.Rows[0].Value) != want.value ||
			p.Rows[0].Revision != want.revision):
			w.Fatalf("at %d, %s is %+v, not %+v", at, key, p.Rows[0], want)
		}
	}
}

// sweeping is a backend that has something done before it reads values.
type sweeping struct {
	*memdb.Backend
	before func()
}

func (b *sweeping) Values(ctx context.Context, ids []contract.RowID) ([]contract.Row, contract.State,
	error) {
	if f := b.before; f != nil {
		b.before = nil
		f()
	}
	return b.Backend.Values(ctx, ids)
}

// TestPastBesideSweep: rows that are swept after they were found, and before their values are read,
// end the past. What is told before them is whole.
func TestPastBesideSweep(t *testing.T) {
	b := &sweeping{Backend: memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{})}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := &pastWriter{T: t, s: s, live: map[contract.Key]written{}, objects: map[contract.Key]int{}}
	for i := range 10 {
		w.put("/a", fmt.Sprint("a", i))
		w.put("/b", fmt.Sprint("b", i))
	}
	for n, read := range []func(mvcc.PastOptions) (*mvcc.Past, error){
		func(o mvcc.PastOptions) (*mvcc.Past, error) { return s.PastOf(t.Context(), "/a", o) },
		func(o mvcc.PastOptions) (*mvcc.Past, error) { return s.PastIn(t.Context(), "/a", "/b", o) },
	} {
		boundary := w.of("/a")[5-2*n].revision
		b.before = func() {
			if err := s.Compact(t.Context(), boundary); err != nil {
				t.Fatal(err)
			}
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		rows, _, compacted := pages(t, 100, read)
		if w.check(rows, w.of("/a"), compacted); compacted != boundary || len(rows) < 5-2*n {
			t.Errorf("after a sweep up to %d there are %d rows", boundary, len(rows))
		}
	}
}

// TestPastOfEarlierObjects: what a name had before is told only to who wants it.
func TestPastOfEarlierObjects(t *testing.T) {
	w := newPastWriter(t, inMemory(t))
	w.put("/a", "1")
	w.put("/a", "2")
	w.del("/a")
	deleted := w.written[2].revision
	w.put("/b", "1")
	w.put("/a", "3")
	past := func(key contract.Key, place mvcc.PastPlace) (int, bool, *mvcc.PastPlace) {
		t.Helper()
		p, err := w.s.PastOf(t.Context(), key, mvcc.PastOptions{Limit: 10, Place: place})
		if err != nil {
			t.Fatal(err)
		}
		return len(p.Rows), p.Omitted, p.Next
	}
	if rows, omitted, _ := past("/a", mvcc.PastPlace{}); rows != 1 || !omitted {
		t.Errorf("there are %d rows of the object that exists, omitted: %t", rows, omitted)
	}
	if rows, omitted, _ := past("/b", mvcc.PastPlace{}); rows != 1 || omitted {
		t.Errorf("there are %d rows of an object with no earlier one, omitted: %t", rows, omitted)
	}
	// A place that somebody has made up gives them nothing.
	if rows, omitted, _ := past("/a", mvcc.PastPlace{Epoch: 1, Row: deleted}); rows != 0 || !omitted {
		t.Errorf("a place gives %d rows, omitted: %t", rows, omitted)
	}
	_, err := w.s.PastOf(t.Context(), "/b", mvcc.PastOptions{Limit: 10, Earlier: true,
		Place: mvcc.PastPlace{Epoch: 1, Row: deleted}})
	if !errors.Is(err, contract.ErrCompacted) {
		t.Errorf("a place at the row of another key gives %v", err)
	}
	p, err := w.s.PastIn(t.Context(), "/", "0", mvcc.PastOptions{Limit: 10})
	if err != nil || len(p.Rows) != 2 || !p.Omitted {
		t.Errorf("of all rows there are %+v, %v", p, err)
	}
	p, err = w.s.PastAt(t.Context(), "/a", deleted-1, time.Time{}, false)
	if err != nil || len(p.Rows) != 0 || !p.Omitted {
		t.Errorf("the state of an earlier object is %+v, %v", p, err)
	}
	w.del("/a")
	if rows, omitted, _ := past("/a", mvcc.PastPlace{}); rows != 0 || !omitted {
		t.Errorf("there are %d rows of an object that was deleted, omitted: %t", rows, omitted)
	}

	// After a fence, nothing goes on from a page of before.
	p, err = w.s.PastOf(t.Context(), "/b", mvcc.PastOptions{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.s.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = w.s.PastOf(t.Context(), "/b", mvcc.PastOptions{Limit: 10,
		Place: mvcc.PastPlace{Epoch: p.State.Head.Epoch, Below: 3}})
	if !errors.Is(err, mvcc.ErrOtherEpoch) {
		t.Errorf("a page after a fence goes on: %v", err)
	}
}

// TestPastOfLargeValues: a page ends where its values are large, and no row is lost.
func TestPastOfLargeValues(t *testing.T) {
	w := newPastWriter(t, inMemory(t))
	const rows = 20
	for i := range rows {
		w.put("/a", fmt.Sprint(i, strings.Repeat("x", 1<<20)))
	}
	for _, read := range []func(mvcc.PastOptions) (*mvcc.Past, error){
		func(o mvcc.PastOptions) (*mvcc.Past, error) { return w.s.PastOf(t.Context(), "/a", o) },
		func(o mvcc.PastOptions) (*mvcc.Past, error) { return w.s.PastIn(t.Context(), "/a", "/b", o) },
	} {
		p, err := read(mvcc.PastOptions{Limit: 100})
		if err != nil || len(p.Rows) < 5 || len(p.Rows) > 10 || p.Next == nil {
			t.Fatalf("a page of large values has %d rows, %v", len(p.Rows), err)
		}
		all, _, compacted := pages(t, 100, read)
		w.check(all, w.of("/a"), compacted)
	}
}

// TestPastOfMadeUpPlaces: a place that somebody has made up is refused, and is no damage.
func TestPastOfMadeUpPlaces(t *testing.T) {
	w := newPastWriter(t, inMemory(t))
	for i := range 5 {
		w.put("/a", fmt.Sprint(i))
		w.put("/b", fmt.Sprint(i))
	}
	o := mvcc.PastOptions{Limit: 2, Earlier: true}
	p, err := w.s.PastOf(t.Context(), "/a", o)
	if err != nil || p.Next == nil || p.Next.By == 0 {
		t.Fatalf("the page is %+v, %v", p, err)
	}
	place := *p.Next
	for what, wrong := range map[string]mvcc.PastPlace{
		"a row that never was":    {Epoch: place.Epoch, Row: 1_000_000, By: place.By},
		"a replacement of others": {Epoch: place.Epoch, Row: place.Row, By: place.By + 1},
		"one that never was":      {Epoch: place.Epoch, Row: place.Row, By: 1_000_000},
		"the row of another key":  {Epoch: place.Epoch, Row: place.Row + 1, By: place.By + 1},
	} {
		o.Place = wrong
		if p, err := w.s.PastOf(t.Context(), "/a", o); !errors.Is(err, mvcc.ErrOtherPlace) {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
	o.Place = place
	if p, err = w.s.PastOf(t.Context(), "/a", o); err != nil || len(p.Rows) != 2 {
		t.Errorf("the true place gives %+v, %v", p, err)
	}
}

// scanning counts the rows that scans return.
type scanning struct {
	*memdb.Backend
	rows int
}

func (b *scanning) Changes(ctx context.Context, q contract.ChangesQuery) ([]contract.Row,
	contract.State, error) {
	rows, st, err := b.Backend.Changes(ctx, q)
	b.rows += len(rows)
	return rows, st, err
}

// TestPastOfManyObjects: the way through many earlier objects of a name is bounded, and a page that
// has come to the bound says where to go on.
func TestPastOfManyObjects(t *testing.T) {
	b := &scanning{Backend: memdb.New(t.Name(), time.Now).Open(contract.DriverOptions{})}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := &pastWriter{T: t, s: s, live: map[contract.Key]written{}, objects: map[contract.Key]int{}}
	for i := range 2100 {
		w.put("/a", fmt.Sprint(i))
		w.del("/a")
	}
	if _, err := s.PastAt(t.Context(), "/a", w.written[0].revision, time.Time{},
		true); !errors.Is(err, mvcc.ErrLongPast) || b.rows > 200_000 {
		t.Errorf("the first object is found by %d rows, %v", b.rows, err)
	}
	b.rows = 0
	rows, _, compacted := pages(t, 400, func(o mvcc.PastOptions) (*mvcc.Past, error) {
		return s.PastOf(t.Context(), "/a", o)
	})
	if w.check(rows, w.of("/a"), compacted); b.rows > 300_000 {
		t.Errorf("the scans have returned %d rows", b.rows)
	}
}

// TestPastInBounds: a bound that nobody has written yet, or that compaction has passed, is refused.
func TestPastInBounds(t *testing.T) {
	w := newPastWriter(t, inMemory(t))
	for i := range 5 {
		w.put("/a", fmt.Sprint(i))
	}
	if err := w.s.Compact(t.Context(), w.written[2].revision); err != nil {
		t.Fatal(err)
	}
	in := func(after, upto contract.Revision) error {
		_, err := w.s.PastIn(t.Context(), "/", "0", mvcc.PastOptions{Limit: 10, After: after, Upto: upto})
		return err
	}
	head, boundary := w.written[4].revision, w.written[2].revision
	var future *contract.FutureRevisionError
	for _, err := range []error{in(0, head+1), in(head+1, 0)} {
		if !errors.As(err, &future) {
			t.Errorf("a bound above the head gives %v", err)
		}
	}
	if err := in(0, boundary-1); !errors.Is(err, contract.ErrCompacted) {
		t.Errorf("a bound below the boundary gives %v", err)
	}
	for _, err := range []error{in(0, boundary), in(1, head), in(head, head)} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestRevisionAt: times lead to revisions, and to states.
func TestRevisionAt(t *testing.T) {
	begin := time.UnixMicro(1_000_000_000_000_000)
	var minutes atomic.Int64 // the store's own reads ask for the time, too
	db := memdb.New(t.Name(), func() time.Time {
		return begin.Add(time.Duration(minutes.Load()) * time.Minute)
	})
	w := newPastWriter(t, dbtest.DB{Kind: "memdb", Driver: db})
	for i := range 5 {
		minutes.Add(1)
		w.put("/a", fmt.Sprint("at minute ", i+1))
	}
	minutes.Add(1)
	w.del("/a")
	for seconds, want := range map[int]int{0: -1, 59: -1, 60: 0, 61: 0, 180: 2, 300: 4, 359: 4,
		360: 5, 1000: 5} {
		when := begin.Add(time.Duration(seconds) * time.Second)
		r, err := w.s.RevisionAt(t.Context(), when)
		if err != nil {
			t.Fatal(err)
		}
		if want >= 0 && r != w.written[want].revision {
			t.Errorf("after %d seconds the revision is %d", seconds, r)
		}
		p, err := w.s.PastAt(t.Context(), "/a", 0, when, true)
		if err != nil {
			t.Fatal(err)
		}
		value := ""
		if len(p.Rows) > 0 {
			value = string(p.Rows[0].Value)
		}
		if want >= 0 && value != w.written[want].value || want < 0 && value != "" {
			t.Errorf("after %d seconds the value is %q", seconds, value)
		}
	}
	if _, err := w.s.PastAt(t.Context(), "/a", 1000, time.Time{}, true); err == nil {
		t.Error("a revision that is not written yet has a state")
	}
}
