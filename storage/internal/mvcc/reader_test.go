package mvcc_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// readerModel is what the keys of a database were at each revision.
type readerModel struct {
	other     *mvcc.Engine
	states    map[contract.Revision]map[contract.Key]string
	head      contract.Revision
	compacted contract.Revision
}

// write lets another process write a random key.
func (m *readerModel) write(t *testing.T, rng *rand.Rand) {
	t.Helper()
	state := maps.Clone(m.states[m.head])
	mutation := contract.Mutation{Key: contract.Key(fmt.Sprintf("/k/%02d", rng.IntN(30))),
		Expect: contract.Any}
	if _, exists := state[mutation.Key]; exists && rng.IntN(3) == 0 {
		mutation.Delete = true
		delete(state, mutation.Key)
	} else {
		value := fmt.Sprint("v", m.head)
		state[mutation.Key], mutation.Value = value, []byte(value)
	}
	r, err := m.other.Commit(t.Context(), mutation)
	if err != nil || r != m.head+1 {
		t.Fatalf("%d was written after %d: %v", r, m.head, err)
	}
	m.head, m.states[r] = r, state
}

// list pages through a store by the options, and writes between pages. It checks each page.
func (m *readerModel) list(t *testing.T, s *mvcc.Engine, o mvcc.RangeOptions, rng *rand.Rand) {
	t.Helper()
	o.Start, o.End = "/k/", "/k0"
	want := m.states[o.At]
	if o.At == 0 {
		want = m.states[m.head]
	}
	keys := slices.Sorted(maps.Keys(want))
	for first := 0; ; {
		r, err := s.Range(t.Context(), o)
		if err != nil {
			t.Fatalf("%#v: %v", o, err)
		}
		if o.At == 0 {
			o.At = m.head
		}
		n := len(keys) - first
		if o.Limit > 0 {
			n = min(n, o.Limit)
		}
		left := int64(-1)
		if o.Count {
			left = int64(len(keys) - first)
		}
		if len(r.KVs) != n || r.More != (first+n < len(keys)) || r.Count != left ||
			r.Revision != o.At || r.Head != m.head {
			t.Fatalf("%#v: a page has %d keys of %d from %d on, more: %t, count: %d, revision: %d, "+
				"head: %d of %d", o, len(r.KVs), len(keys), first, r.More, r.Count, r.Revision,
				r.Head, m.head)
		}
		for i, kv := range r.KVs {
			value := want[keys[first+i]]
			if o.KeysOnly {
				value = ""
			}
			if kv.Key != keys[first+i] || string(kv.Value) != value {
				t.Fatalf("%#v: %s: %q, not %s: %q", o, kv.Key, kv.Value, keys[first+i], value)
			}
		}
		if !r.More {
			return
		}
		if first += n; rng.IntN(2) == 0 {
			m.write(t, rng)
		}
		o.From = r.KVs[n-1].Key + "\x00"
	}
}

// one reads one key, now and at a revision, and counts the keys at the revision.
func (m *readerModel) one(t *testing.T, s *mvcc.Engine, key contract.Key, at contract.Revision) {
	t.Helper()
	get(t, s, key, m.states[m.head][key])
	kv, head, err := s.GetAt(t.Context(), key, at)
	if value, exists := m.states[at][key]; err != nil || head != m.head || (kv != nil) != exists ||
		kv != nil && string(kv.Value) != value {
		t.Errorf("%s at %d is %+v, %v, not %q", key, at, kv, err, value)
	}
	n, head, err := s.CountAt(t.Context(), "/k/", "/k0", at)
	if err != nil || head != m.head || n != int64(len(m.states[at])) {
		t.Errorf("%d keys at %d and the head %d, %v, not %d at %d", n, at, head, err,
			len(m.states[at]), m.head)
	}
}

// TestReadersCanBeLeftOut: a store answers the same, whichever of its memories it does without.
func TestReadersCanBeLeftOut(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	m := &readerModel{other: openOther(t, db), states: map[contract.Revision]map[contract.Key]string{}}
	m.head = m.other.Delivered()
	m.states[m.head], m.compacted = map[contract.Key]string{}, m.head
	all := mvcc.Memories()
	left := append([][]string{{}, all}, slices.Collect(slices.Chunk(all, 1))...)
	stores := make([]*mvcc.Engine, len(left))
	for i := range left {
		_, stores[i] = openAsked(t, db, 1<<20)
		mvcc.LeaveOut(stores[i], left[i]...)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		for range rng.IntN(5) {
			m.write(t, rng)
		}
		if rng.IntN(20) == 0 {
			m.compacted = m.head - contract.Revision(rng.IntN(int(m.head-m.compacted)+1))
			if err := m.other.Compact(t.Context(), m.compacted); err != nil {
				t.Fatal(err)
			}
		}
		at := m.compacted + contract.Revision(rng.IntN(int(m.head-m.compacted)+1))
		o := mvcc.RangeOptions{At: at, Limit: rng.IntN(8), KeysOnly: rng.IntN(4) == 0,
			Count: rng.IntN(2) == 0, Exact: rng.IntN(2) == 0}
		if rng.IntN(2) == 0 {
			o.At = 0
		}
		if o.Limit > 0 && rng.IntN(2) == 0 {
			o.Ahead = o.Limit
		}
		key, wait := contract.Key(fmt.Sprintf("/k/%02d", rng.IntN(30))), rng.IntN(2) == 0
		for i, s := range stores {
			t.Run(fmt.Sprint("without ", left[i]), func(t *testing.T) {
				if wait {
					ready(t, s)
				}
				m.one(t, s, key, at)
				m.list(t, s, o, rng)
				r, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/k/", End: "/k0",
					At: m.compacted - 1, Limit: o.Limit})
				if m.compacted > 1 && !errors.Is(err, contract.ErrCompacted) {
					t.Errorf("a compacted revision: %+v, %v", r, err)
				}
			})
		}
	}
}

// TestEachReaderSavesReads: each memory answers what the database is asked for without it.
func TestEachReaderSavesReads(t *testing.T) {
	list := func(t *testing.T, s *mvcc.Engine, o mvcc.RangeOptions, pages int) mvcc.RangeOptions {
		o.Start, o.End = "/k/", "/k0"
		for range pages {
			r, err := s.Range(t.Context(), o)
			if err != nil || len(r.KVs) == 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			o.From, o.At = r.KVs[len(r.KVs)-1].Key+"\x00", r.Revision
		}
		return o
	}
	for name, test := range map[string]struct {
		bytes         int
		method        string
		with, without int
		// reads reads from a store whose database has ten keys since a revision, and an eleventh
		// since then.
		reads func(t *testing.T, a *asked, s *mvcc.Engine, at contract.Revision)
	}{
		"rows": {1 << 20, "Page", 1, 3,
			func(t *testing.T, _ *asked, s *mvcc.Engine, _ contract.Revision) {
				for range 3 {
					list(t, s, mvcc.RangeOptions{}, 1)
				}
			}},
		"deltas": {0, "Replaced", 1, 4,
			func(t *testing.T, _ *asked, s *mvcc.Engine, at contract.Revision) {
				list(t, s, mvcc.RangeOptions{At: at, Limit: 3}, 4)
			}},
		"ahead": {0, "Page", 0, 1,
			func(t *testing.T, a *asked, s *mvcc.Engine, at contract.Revision) {
				s.KeepAhead(time.Hour)
				o := list(t, s, mvcc.RangeOptions{At: at, Limit: 4, Ahead: 4}, 2)
				if err := mvcc.WaitReadAhead(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				a.mu.Lock()
				clear(a.count)
				a.mu.Unlock()
				list(t, s, o, 1)
			}},
		"left": {0, "Count", 1, 3,
			func(t *testing.T, _ *asked, s *mvcc.Engine, at contract.Revision) {
				list(t, s, mvcc.RangeOptions{At: at, Limit: 3, Count: true}, 4)
			}},
	} {
		for _, out := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/left out=%t", name, out), func(t *testing.T) {
				db := memdb.New(t.Name(), time.Now)
				other := openOther(t, db)
				var at contract.Revision
				for i := range 10 {
					at = put(t, other, contract.Key(fmt.Sprintf("/k/%d", i)), 0, "old")
				}
				put(t, other, "/k/a", 0, "new")
				a, s := openAsked(t, db, test.bytes)
				want := test.with
				if out {
					mvcc.LeaveOut(s, name)
					want = test.without
				}
				test.reads(t, a, s, at)
				a.mu.Lock()
				defer a.mu.Unlock()
				if n := a.count[test.method]; n != want {
					t.Errorf("the database was asked for %d × %s, not %d", n, test.method, want)
				}
			})
		}
	}
}
