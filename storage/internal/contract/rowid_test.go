package contract

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
)

// TestRowID: an ID names one row, and tells the revision and the part. Lowest parts the rows at or
// before a revision from those after it.
func TestRowID(t *testing.T) {
	revisions := []Revision{1, 2, 3, 511, 512, 513, 1 << 30, lastOfParts - 1, lastOfParts}
	seen := map[RowID]bool{}
	var ids []RowID
	for _, r := range revisions {
		for _, part := range []int{0, 1, 2, MaxParts - 1, MaxParts} {
			id := IDOf(r, part)
			if id.Revision() != r || id.Part() != part || seen[id] || (id < 0) != (part > 0) {
				t.Errorf("part %d at revision %d has the ID %d, which names part %d at %d", part, r, id,
					id.Part(), id.Revision())
			}
			seen[id] = true
			ids = append(ids, id)
		}
	}
	if last := lastOfParts + 1; IDOf(last, 0).Revision() != last || Lowest(last) != math.MinInt64 ||
		Lowest(lastOfParts) == math.MinInt64 {
		t.Errorf("beyond the last revision with parts: %d, %d", IDOf(last, 0), Lowest(last))
	}
	for _, r := range append(revisions, 0, lastOfParts+1, math.MaxInt64) {
		for _, id := range ids {
			if before := id >= Lowest(r) && id <= r; before != (id.Revision() <= r) {
				t.Errorf("row %d at revision %d is at or before %d: %t", id, id.Revision(), r, before)
			}
			if after := id > r || id < Lowest(r); after != (id.Revision() > r) {
				t.Errorf("row %d at revision %d is after %d: %t", id, id.Revision(), r, after)
			}
		}
	}
}

// TestTokenParts: a token says how many parts its transaction has, and differs from all others.
func TestTokenParts(t *testing.T) {
	for _, n := range []int{1, 2, 255, 256, MaxParts} {
		if got := NewTransactionToken(n).Parts(); got != n {
			t.Errorf("%d parts, want %d", got, n)
		}
	}
	tokens := map[Token]bool{NewToken(): true, NewToken(): true, NewTransactionToken(1): true,
		NewTransactionToken(1): true}
	if NewToken().Parts() != 0 || len(tokens) != 4 {
		t.Error("a token is that of another group")
	}
	row := Row{Key: "k", Token: NewTransactionToken(3)}
	part, marker := row, row
	part.Part, marker.Key = 1, ""
	if row.Parts() != 3 || part.Parts() != 0 || marker.Parts() != 0 {
		t.Errorf("the rows have %d, %d and %d parts", row.Parts(), part.Parts(), marker.Parts())
	}
}

// TestDecideTransaction: a transaction is accepted as a whole, at one revision, or not at all.
func TestDecideTransaction(t *testing.T) {
	current := map[Key]Current{"a": {ID: IDOf(5, 2), Create: 4, Version: 2, Lease: 9},
		"b": {ID: 7, Create: 7, Version: 1}}
	touched := false
	found := &Found{
		Current:  func(k Key) Current { return current[k] },
		Held:     func(l Lease) bool { return l == 3 },
		Touched:  func(*Condition) bool { return touched },
		Removed:  func(*Mutation, RowID) ([]byte, bool, error) { return []byte("removed"), true, nil },
		Returned: Returned{Bound: 100},
	}
	good := func() []*Mutation {
		return []*Mutation{{Key: "new"}, {Key: "a", Expect: 5, Delete: true}, {Key: "b", Expect: Any, Lease: 3}}
	}
	g := &Group{Mutations: good(), Whole: true}
	outcomes, n := DecideGroup(g, 10, found)
	want := []Outcome{{Accepted: true, Revision: 11, Part: 1, Create: 11, Version: 1},
		{Accepted: true, Revision: 11, Part: 2, Prev: IDOf(5, 2), Create: 4, Version: 3, Lease: 9,
			PrevValue: []byte("removed")},
		{Accepted: true, Revision: 11, Prev: 7, Create: 7, Version: 2, Lease: 3}}
	if !reflect.DeepEqual(outcomes, want) || n != 3 || g.Rises(n) != 1 {
		t.Errorf("%+v, %d", outcomes, n)
	}
	plain := []Outcome{{}, {Revision: 5}, {Revision: 7}}
	for _, c := range []struct {
		name   string
		change func(ms []*Mutation)
		before Revision
		err    error
	}{
		{"an expectation that does not hold", func(ms []*Mutation) { ms[2].Expect = 6 }, 10, nil},
		{"the ID in the place of the revision", func(ms []*Mutation) { ms[1].Expect = IDOf(5, 2) }, 10, nil},
		{"a lease that has ended", func(ms []*Mutation) { ms[2].Lease = 4 }, 10, ErrNoLease},
		{"a touched range", func(ms []*Mutation) {
			touched = true
			ms[0].If = &Condition{Hold: true, Untouched: []Span{{"x", "y"}}}
		}, 10, ErrCondition},
		{"the last revisions", func([]*Mutation) {}, lastOfParts, errNoParts},
	} {
		touched = false
		g := &Group{Mutations: good(), Whole: true}
		c.change(g.Mutations)
		outcomes, n := DecideGroup(g, c.before, found)
		var err error
		for i := range outcomes {
			err = errors.Join(err, outcomes[i].Err)
			outcomes[i].Err = nil
		}
		if !reflect.DeepEqual(outcomes, plain) || n != 0 || g.Rises(n) != 0 ||
			(c.err == nil) != (err == nil) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %d, %v", c.name, outcomes, n, err)
		}
	}
	if _, n := DecideGroup(&Group{Mutations: good(), Whole: true}, lastOfParts-1, found); n != 3 {
		t.Errorf("at the last revision with parts, %d are accepted", n)
	}
}

// TestTouches: a span has its start and not its end.
func TestTouches(t *testing.T) {
	c := &Condition{Untouched: []Span{{"b", "c"}, {"e", "e\x00"}}}
	for key, want := range map[Key]bool{"a": false, "b": true, "bz": true, "c": false, "e": true,
		"e\x00": false} {
		if c.Touches(key) != want {
			t.Errorf("%q is in the ranges: %t", key, !want)
		}
	}
}

// TestPlanSweepOfParts: parts are looked at with the last row of their transaction, and swept by
// the same rules.
func TestPlanSweepOfParts(t *testing.T) {
	part := IDOf
	for _, c := range []struct {
		name        string
		rows, parts []SweepRow
		cut         Revision
		removed     []RowID
		swept       Revision
	}{
		{"what parts replaced", []SweepRow{{42, 7, false}},
			[]SweepRow{{part(42, 1), 5, false}, {part(42, 2), part(6, 3), false}}, 0,
			[]RowID{7, 5, part(6, 3)}, 50},
		{"a part that is a tombstone", []SweepRow{{42, 0, false}}, []SweepRow{{part(42, 1), 5, true}}, 0,
			[]RowID{5, part(42, 1)}, 50},
		{"a watch at compacted needs all parts", []SweepRow{{50, 0, true}},
			[]SweepRow{{part(50, 1), 5, true}}, 0, []RowID{5}, 50},
		{"the parts at swept were kept", []SweepRow{{40, 1, true}},
			[]SweepRow{{part(40, 1), 5, true}, {part(40, 2), 6, false}}, 0, []RowID{40, part(40, 1)}, 50},
		{"the batch ends before the parts", []SweepRow{{41, 1, false}, {43, 2, false}, {45, 3, false},
			{46, 4, false}}, []SweepRow{{part(45, 1), 5, false}, {part(46, 1), 6, false}}, 0,
			[]RowID{1, 2, 3, 5}, 45},
		{"too many parts", []SweepRow{{41, 1, false}, {43, 2, false}},
			[]SweepRow{{part(41, 1), 5, false}, {part(43, 1), 6, false}}, 43, []RowID{1, 5}, 42},
		{"too many parts behind the batch", []SweepRow{{41, 1, false}, {42, 2, false}, {43, 3, false},
			{44, 4, false}}, []SweepRow{{part(46, 1), 5, false}}, 46, []RowID{1, 2, 3}, 43},
	} {
		p := PlanSweep(Sweepable{State: ruled, Rows: c.rows, Parts: c.parts, Cut: c.cut}, 3)
		if !slices.Equal(p.Rows, c.removed) || p.Swept != c.swept || p.Done != (c.swept == 50) || !p.Moves {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// TestRecordsFollow: the records of parts come first, and each kind in its order.
func TestRecordsFollow(t *testing.T) {
	var ids []RowID
	for r := Revision(1); r < 5; r++ {
		for part := range 3 {
			ids = append(ids, IDOf(r, part))
		}
	}
	place := func(id RowID) int {
		if id < 0 {
			return int(-id)
		}
		return 1<<40 + int(id)
	}
	slices.SortFunc(ids, func(a, b RowID) int { return place(a) - place(b) })
	for i, id := range ids {
		r := Record{Key: "k", Revision: id.Revision(), Part: id.Part(), Create: 1, Version: 1}
		limits := Limits{KeyBytes: 1, ValueBytes: 1}
		if err := r.Valid(0, 4, limits); err != nil {
			t.Error(err)
		}
		for j, before := range ids {
			if err := r.Valid(before, 4, limits); (err == nil) != (j < i) {
				t.Errorf("%d after %d: %v", id, before, err)
			}
		}
		if r.Valid(0, r.Revision-1, limits) == nil {
			t.Errorf("%d is beyond the head", id)
		}
	}
	for _, part := range []int{-1, MaxParts + 1} {
		r := Record{Key: "k", Revision: 3, Part: part, Create: 1, Version: 1}
		if r.Valid(0, 4, Limits{KeyBytes: 1, ValueBytes: 1}) == nil {
			t.Errorf("part %d", part)
		}
	}
}
