package contract

import (
	"errors"
	"testing"
	"time"
)

// TestJumpRises: two fences that begin with the same revision, as after two restores of one backup,
// are in order, whatever was written between them.
func TestJumpRises(t *testing.T) {
	const seen = 1000
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fence := func(seen Revision, now time.Time) Revision {
		f := NewFence(Position{Revision: seen}, Identity{})
		return f.Marker(State{Head: Position{Revision: seen - 10}, Now: now})
	}
	for _, seen := range []Revision{seen, exact} {
		first := fence(seen, now)
		for _, later := range []time.Duration{time.Second / 32, time.Second, time.Hour} {
			// A million writes a second come between the fences.
			written := Revision(later.Seconds() * 1_000_000)
			if second := fence(seen, now.Add(later)); second <= first+written {
				t.Errorf("a fence at %d, and one %s later at %d", first, later, second)
			}
		}
		// Chance keeps those of one moment apart.
		places := map[Revision]bool{}
		for range 20 {
			places[fence(seen, now)] = true
		}
		if len(places) < 18 {
			t.Errorf("20 fences of the same moment are at %d places", len(places))
		}
		// The clock may go back.
		if again := fence(first, now.Add(-time.Hour)); again < first+JumpBefore(first) {
			t.Errorf("after %d, a fence with an older clock is at %d", first, again)
		}
	}
	// The head that the database has come to by then counts, and not twice.
	head := fence(seen, now)
	f := NewFence(Position{Revision: seen}, Identity{})
	if far := f.Marker(State{Head: Position{Revision: head}, Now: now}); far < head+slowJump ||
		far >= head+slowJump+slowPerSecond {
		t.Errorf("a fence of one who has seen %d in a database at %d is at %d", seen, head, far)
	}
}

// TestJumpLeavesRoom: until 2106 transactions of several keys can be written after a fence, even if
// the history has come beyond what JavaScript's numbers hold, and a hundred fences come before.
func TestJumpLeavesRoom(t *testing.T) {
	last := time.Unix(1<<32, 0)
	g := &Group{Whole: true}
	for _, head := range []Revision{1, exact - slowJump, exact - 1, exact, exact + 5} {
		for _, now := range []time.Time{time.Unix(0, 0), time.Unix(1_800_000_000, 0), time.Unix(1<<31, 0),
			last.Add(-24 * time.Hour)} {
			st := State{Head: Position{Epoch: 1, Revision: head}, Now: now}
			for range 100 {
				f := NewFence(st.Head, Identity{Epoch: st.Head.Epoch})
				before := st.Head.Revision
				if st, _ = f.After(st); st.Head.Revision < before+JumpBefore(st.Head.Revision) {
					t.Fatalf("a fence goes from %d to %d", before, st.Head.Revision)
				}
			}
			if err := g.Full(st.Head.Revision); err != nil {
				t.Errorf("a history at %d is at %d after fences on %s: %v", head, st.Head.Revision, now, err)
			}
		}
	}
	// Beyond that the history goes on as far as the clock says at the fast pace.
	for _, head := range []Revision{lastOfParts - slowJump, lastOfParts, lastOfParts + 5} {
		now := time.Unix(1_800_000_000, 0)
		f := NewFence(Position{Revision: head}, Identity{})
		if r := f.Marker(State{Now: now}); r < Revision(now.Unix())*fastPerSecond || r < head+JumpBefore(r) ||
			g.Full(r) == nil {
			t.Errorf("the fence goes from %d to %d", head, r)
		}
	}
}

// TestJumpIsExact: until 2038 a fence stays below what JavaScript's numbers hold, even if a hundred
// others come before it. A history that is beyond, and one of later years, goes on at another pace.
func TestJumpIsExact(t *testing.T) {
	f := NewFence(Position{}, Identity{})
	last := time.Unix(1<<31, 0)
	for _, tc := range []struct {
		name string
		head Revision
		now  time.Time
		slow bool
	}{
		{"a new store", 1, time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), true},
		{"years ahead of the clock", exact / 64 * 63, time.Unix(0, 0), true},
		{"the last day", 1, last.Add(-24 * time.Hour), true},
		{"the day after", 1, last, false},
		{"a step before the end", exact - slowJump, time.Unix(0, 0), false},
		{"beyond", exact + 5, time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), false},
		{"beyond, at the fast pace", 1 << 61, time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), false},
	} {
		marker := f.Marker(State{Head: Position{Revision: tc.head}, Now: tc.now})
		if slow := marker < exact; slow != tc.slow || marker < tc.head+JumpBefore(marker) {
			t.Errorf("%s: the fence goes from %d to %d", tc.name, tc.head, marker)
		}
	}
	st := State{Now: time.Date(2037, 12, 1, 0, 0, 0, 0, time.UTC)}
	for range 100 {
		f := NewFence(st.Head, Identity{})
		if st, _ = f.After(st); st.Head.Revision >= exact {
			t.Fatalf("a fence is at %d", st.Head.Revision)
		}
	}
}

// TestChanceKeepsCopiesApart: two copies of one database that are dropped, or imported into, within
// one second do not go on at the same revision.
func TestChanceKeepsCopiesApart(t *testing.T) {
	st := State{Head: Position{Epoch: 3, Revision: 1000}, Now: time.Unix(1_800_000_000, 0)}
	imported := func() State {
		in := &Import{Token: NewToken()}
		if err := in.begin(st, 0); err != nil {
			t.Fatal(err)
		}
		return in.end(st)
	}
	for name, marked := range map[string]func() State{
		"drop":   func() State { return afterDrop(st, NewToken()) },
		"import": imported,
	} {
		places := map[Revision]bool{}
		for range 20 {
			places[marked().Head.Revision] = true
		}
		if len(places) < 18 {
			t.Errorf("%s: 20 copies go on at only %d places", name, len(places))
		}
	}
}

// TestImportRevisions: what an import is stored with is decided by the state under the commit lock,
// which may be another one at each try, and is beyond both stores.
func TestImportRevisions(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fenced := Revision(now.Unix()) * slowPerSecond
	for _, tc := range []struct {
		name           string
		from           string
		archive, head  Revision
		renumbered     bool
		first, end     Revision
		firstCreatedAt Revision
	}{
		{"into an empty store", "other", 500, 1, false, 7, fenced + 1, 6},
		{"of the same store", "this", 500, 700, false, 7, fenced + 1, 6},
		{"of the same store, after a fence a moment ago", "this", 500, fenced + 3, false, 7,
			fenced + 3 + slowJump + 1, 6},
		{"of another store", "other", 500, 700, true, fenced + 1, fenced + 3, fenced + 1},
		{"of another store, which is ahead", "other", fenced + 500, 700, true,
			fenced + 500 + slowJump + 1, fenced + 500 + slowJump + 3, fenced + 500 + slowJump + 1},
	} {
		in := &Import{Store: tc.from, Head: tc.archive, Replace: true, Token: Token{1},
			Target: "this", Records: func(each func(*Record) error) error {
				for _, r := range []*Record{{Key: "a", Revision: 7, Create: 6},
					{Key: "b", Revision: 9, Create: 9}} {
					if err := each(r); err != nil {
						return err
					}
				}
				return nil
			}}
		st := State{Head: Position{Epoch: 4, Revision: tc.head}, Now: now}
		for range 2 {
			var got []Record
			if err := in.begin(st, 1); err != nil {
				t.Fatal(err)
			}
			if err := in.write(func(r *Record) error {
				got = append(got, *r)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			after := in.end(st)
			want := Position{Epoch: 5, Revision: tc.end, Token: in.Token}
			if in.Renumbered != tc.renumbered || got[0].Revision != tc.first ||
				got[0].Create != tc.firstCreatedAt || after.Head != want ||
				after.Compacted != tc.end || after.Swept != tc.end {
				t.Errorf("%s: renumbered %t, the first record is %+v, and the state after it %+v",
					tc.name, in.Renumbered, got[0], after)
			}
		}
	}
	in := &Import{Target: "this"}
	if err := in.begin(State{}, 1); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a store with keys: %v", err)
	}
}
