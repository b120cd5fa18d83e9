package contract

import (
	"errors"
	"testing"
	"time"
)

// TestJumpRises: two fences that begin with the same revision, as after two restores of one backup,
// do not meet, whatever was written between them.
func TestJumpRises(t *testing.T) {
	const seen, writes = 1000, 1_000_000
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fence := func(seen Revision, now time.Time) Revision {
		f := NewFence(Position{Revision: seen}, Identity{})
		return f.Marker(State{Head: Position{Revision: seen - 10}, Now: now})
	}
	first, second := fence(seen, now), fence(seen, now.Add(time.Second))
	if second <= first+writes {
		t.Errorf("a fence at %d, and one a second later at %d", first, second)
	}
	// Also within a second: chance keeps them apart.
	apart := 0
	for range 20 {
		if other := fence(seen, now); max(first, other)-min(first, other) > writes {
			apart++
		}
	}
	if apart < 18 {
		t.Errorf("%d of 20 fences of the same second are apart", apart)
	}
	// Also where the clock goes back.
	if again := fence(second, now.Add(-time.Hour)); again < second+MinJump {
		t.Errorf("after %d, a fence with an older clock is at %d", second, again)
	}
	// What the database has come to by then counts, and not twice.
	f := NewFence(Position{Revision: seen}, Identity{})
	if far := f.Marker(State{Head: Position{Revision: second}, Now: now}); far < second+MinJump ||
		far >= second+MinJump+perSecond/2 {
		t.Errorf("a fence of one who has seen %d in a database at %d is at %d", seen, second, far)
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
	fenced := Revision(now.Unix()) << 30
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
			fenced + 3 + MinJump + 1, 6},
		{"of another store", "other", 500, 700, true, fenced + 1, fenced + 3, fenced + 1},
		{"of another store, which is ahead", "other", fenced + 500, 700, true,
			fenced + 500 + MinJump + 1, fenced + 500 + MinJump + 3, fenced + 500 + MinJump + 1},
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
