package contract

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestAdoptable: a process goes over to a history in which nobody can ask for anything that it has
// seen.
func TestAdoptable(t *testing.T) {
	const half = slowJump / 2
	for _, tc := range []struct {
		name                  string
		seen, compacted, head Revision
		want                  bool
	}{
		{"fenced by another replica that had seen as much", 100, 100 + slowJump, 100 + slowJump,
			true},
		{"fenced by another replica that had seen less", 100, 100 + half, 100 + half + 5, true},
		{"fenced by another replica that had seen much less", 100, 99 + half, 100 + slowJump, false},
		{"a copy that was fenced at 50 and is at 150 now", 100, 50, 150, false},
		{"a copy that was fenced earlier than this database", 5 * slowJump, 4 * slowJump,
			4*slowJump + 9, false},
		{"a copy that was fenced a little later", 5 * slowJump, 5*slowJump + half - 1,
			6 * slowJump, false},
		{"a copy that was fenced much later", 5 * slowJump, 6 * slowJump, 6 * slowJump, true},
		{"a copy that was never fenced and is ahead", 100, 0, 10 * slowJump, false},
		{"nothing was seen but the marker", 1, 1 + half, 1 + half, true},
	} {
		if got := Adoptable(tc.seen, State{Head: Position{Revision: tc.head},
			Compacted: tc.compacted}); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

// TestFenceAfter: a fence is left out only if somebody else's will do for it, and else goes beyond
// both.
func TestFenceAfter(t *testing.T) {
	now := time.Unix(4, 0)
	for _, tc := range []struct {
		name           string
		seen           Position
		replaces       Epoch
		head           Position
		compacted      Revision
		write          bool
		epoch          Epoch
		marker, before Revision
	}{
		{name: "nobody else has fenced", seen: Position{Epoch: 1, Revision: 100}, replaces: 1,
			head: Position{Epoch: 1, Revision: 90}, write: true, epoch: 2, marker: 100 + slowJump},
		{name: "somebody else has", seen: Position{Epoch: 1, Revision: 100}, replaces: 1,
			head: Position{Epoch: 2, Revision: 90 + slowJump}, compacted: 90 + slowJump},
		{name: "it is another copy, fenced twice, and lower",
			seen: Position{Epoch: 1, Revision: 100}, replaces: 1,
			head: Position{Epoch: 3, Revision: 60}, compacted: 50, write: true, epoch: 4,
			marker: 100 + slowJump},
		{name: "it is another copy, fenced twice, and higher",
			seen: Position{Epoch: 1, Revision: 100}, replaces: 1,
			head: Position{Epoch: 3, Revision: 150}, compacted: 50, write: true, epoch: 4,
			marker: 150 + slowJump},
		{name: "it is another copy with a lower epoch", seen: Position{Epoch: 7, Revision: 100},
			replaces: 7,
			head:     Position{Epoch: 3, Revision: 150}, compacted: 50, write: true, epoch: 8,
			marker: 150 + slowJump},
		{name: "the copy that it names has been compacted far beyond",
			seen: Position{Epoch: 1, Revision: 100}, replaces: 3,
			head: Position{Epoch: 3, Revision: 2 * slowJump}, compacted: 2 * slowJump, write: true,
			epoch: 4, marker: 3 * slowJump},
	} {
		f := Fence{Seen: tc.seen, Replaces: tc.replaces, Token: Token{7}, Jump: slowJump,
			PerSecond: 1}
		st := State{Head: tc.head, Compacted: tc.compacted, Now: now}
		want := st
		if tc.write {
			want.Head = Position{Epoch: tc.epoch, Revision: tc.marker, Token: f.Token}
			want.Compacted = tc.marker
		}
		if got, write := f.After(st); write != tc.write || got != want {
			t.Errorf("%s: %t, %+v, want %+v", tc.name, write, got, want)
		}
	}
}

// TestFencesMeet lets processes that have seen different histories look at one database and fence
// it, each from what it read at some time before, in random order: nobody ever has a revision below
// what he has seen, that could be asked for, and they come to rest.
func TestFencesMeet(t *testing.T) {
	for range 2000 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		position := func() Position {
			r := Revision(rng.IntN(5)) * slowJump / 2
			return Position{Epoch: Epoch(1 + rng.IntN(4)), Revision: r + Revision(rng.IntN(3)),
				Token: NewToken()}
		}
		db := State{Head: position(), Now: time.Unix(0, 0)}
		db.Compacted = Revision(rng.Int64N(int64(db.Head.Revision) + 1))
		type process struct {
			seen Position
			read State
		}
		processes := make([]process, 1+rng.IntN(5))
		for i := range processes {
			processes[i] = process{seen: position(), read: db}
		}
		fences := 0
		for calm := 0; calm < 20*len(processes); calm++ {
			p := &processes[rng.IntN(len(processes))]
			if rng.IntN(2) == 0 {
				p.read = db
				continue
			}
			st := p.read
			switch {
			case st.Head == p.seen:
				continue
			case st.Head.Epoch != p.seen.Epoch && Adoptable(p.seen.Revision, st):
			default:
				f := NewFence(p.seen, Identity{Epoch: st.Head.Epoch})
				var write bool
				if st, write = f.After(db); write {
					db, calm = st, 0
					fences++
				}
			}
			if p.seen.Revision >= st.Compacted {
				t.Fatalf("seed %d: %+v was seen, and what is used is %+v", seed, p.seen, st)
			}
			p.seen, p.read = st.Head, st
		}
		if fences > 2*len(processes) {
			t.Fatalf("seed %d: %d processes fenced %d times", seed, len(processes), fences)
		}
	}
}

var (
	tokenA, tokenB = Token{1}, Token{2}
	ruled          = State{Head: Position{Epoch: 2, Revision: 100, Token: Token{9}}, Compacted: 50,
		Swept: 40}
)

// TestContinues: an answer is put beside an earlier one if it is of the same history, and not
// older.
func TestContinues(t *testing.T) {
	first := State{Head: Position{Epoch: 2, Revision: 10, Token: Token{1}}, Writable: true}
	for name, tc := range map[string]struct {
		change func(st *State)
		want   bool
	}{
		"the same":                       {func(*State) {}, true},
		"later":                          {func(st *State) { st.Head.Revision, st.Head.Token = 11, Token{2} }, true},
		"earlier":                        {func(st *State) { st.Head.Revision = 9 }, false},
		"another row at the same place":  {func(st *State) { st.Head.Token = Token{2} }, false},
		"a later epoch":                  {func(st *State) { st.Head.Epoch, st.Head.Revision = 3, 20 }, false},
		"an earlier epoch":               {func(st *State) { st.Head.Epoch, st.Head.Revision = 1, 20 }, false},
		"dropped":                        {func(st *State) { st.Head.Epoch, st.Head.Revision = -3, 20 }, false},
		"a standby that has caught up":   {func(st *State) { st.Writable = false }, false},
		"other boundaries, and the time": {func(st *State) { st.Compacted, st.Swept, st.Now = 10, 9, time.Now() }, true},
	} {
		st := first
		if tc.change(&st); st.Continues(first) != tc.want {
			t.Errorf("%s: %t", name, !tc.want)
		}
	}
	standby := first
	standby.Writable = false
	if !standby.Continues(standby) {
		t.Error("of two answers of a standby, the first one says what it is worth")
	}
}

// TestCheckGroup: a group is refused if it was given up, if what was seen before it is not there,
// or if compaction has passed that.
func TestCheckGroup(t *testing.T) {
	for _, tc := range []struct {
		name    string
		seen    Position
		at      Token
		aborted bool
		earlier map[Position]Token
		want    Class // Unavailable: none
	}{
		{name: "the head was seen", seen: ruled.Head, at: ruled.Head.Token},
		{name: "an older row was seen", seen: Position{2, 60, tokenA}, at: tokenA},
		{name: "a row at compacted was seen", seen: Position{2, 50, tokenA}, at: tokenA},
		{name: "the row was compacted", seen: Position{2, 49, tokenA}, want: Transient},
		{name: "compacted has passed the row", seen: Position{2, 49, tokenA}, at: tokenA,
			want: Transient},
		{name: "the row at compacted is missing", seen: Position{2, 50, tokenA}, want: Fenced},
		{name: "the row is missing", seen: Position{2, 60, tokenA}, want: Fenced},
		{name: "another row is there", seen: Position{2, 60, tokenA}, at: tokenB, want: Fenced},
		{name: "another row is there, before compacted", seen: Position{2, 30, tokenA}, at: tokenB,
			want: Fenced},
		{name: "the head is lower", seen: Position{2, 101, tokenA}, want: Fenced},
		{name: "a greater epoch", seen: Position{1, 60, tokenA}, at: tokenA, want: Fenced},
		{name: "a lower epoch", seen: Position{3, 60, tokenA}, at: tokenA, want: Fenced},
		{name: "earlier rows are there", seen: ruled.Head, at: ruled.Head.Token,
			earlier: map[Position]Token{{2, 60, tokenA}: tokenA, {2, 70, tokenB}: tokenB}},
		{name: "an earlier row was compacted", seen: ruled.Head, at: ruled.Head.Token,
			earlier: map[Position]Token{{2, 49, tokenA}: {}, {2, 70, tokenB}: tokenB},
			want:    Transient},
		{name: "an earlier row below compacted is there", seen: ruled.Head, at: ruled.Head.Token,
			earlier: map[Position]Token{{2, 49, tokenA}: tokenA}},
		{name: "an earlier row was compacted, and another one is lost", seen: ruled.Head,
			at: ruled.Head.Token, want: Fenced,
			earlier: map[Position]Token{{2, 49, tokenA}: {}, {2, 60, tokenA}: {}}},
		{name: "an earlier row is missing", seen: ruled.Head, at: ruled.Head.Token,
			earlier: map[Position]Token{{2, 60, tokenA}: {}, {2, 70, tokenB}: tokenB},
			want:    Fenced},
		{name: "another row is in the place of an earlier one", seen: ruled.Head,
			at:      ruled.Head.Token,
			earlier: map[Position]Token{{2, 60, tokenA}: tokenA, {2, 70, tokenB}: tokenA},
			want:    Fenced},
		{name: "it was given up", seen: ruled.Head, at: ruled.Head.Token, aborted: true,
			want: Aborted},
		{name: "it was given up, and compacted", seen: Position{2, 30, tokenA}, aborted: true,
			want: Aborted},
		{name: "it was given up in another history", seen: Position{1, 60, tokenA}, aborted: true,
			want: Aborted},
	} {
		g, guard := &Group{Seen: tc.seen}, Guard{State: ruled, At: tc.at, Aborted: tc.aborted}
		for p, at := range tc.earlier {
			g.Earlier, guard.Earlier = append(g.Earlier, p), append(guard.Earlier, at)
		}
		err := CheckGroup(g, guard)
		if (err == nil) != (tc.want == Unavailable) || err != nil && ClassOf(err) != tc.want ||
			errors.Is(err, ErrOvertaken) != (tc.want == Transient) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestResolveRule: "not done" is only said of a group whose rows would be there.
func TestResolveRule(t *testing.T) {
	rows := []Row{{Revision: 61}}
	const committed, aborted, recorded, unknown = "committed", "aborted", "aborted now", "unknown"
	for _, tc := range []struct {
		name    string
		after   Position
		at      Token
		aborted bool
		rows    []Row
		want    string
	}{
		{name: "its rows are there", after: Position{2, 60, tokenA}, at: tokenA, rows: rows,
			want: committed},
		{name: "some of its rows are there", after: Position{2, 30, tokenA}, rows: rows,
			want: committed},
		{name: "its token is recorded", after: Position{2, 60, tokenA}, at: tokenA, aborted: true,
			want: aborted},
		{name: "its token is recorded, and compacted", after: Position{2, 30, tokenA},
			aborted: true, want: aborted},
		{name: "neither", after: Position{2, 60, tokenA}, at: tokenA, want: recorded},
		{name: "neither, after the head", after: ruled.Head, at: ruled.Head.Token, want: recorded},
		{name: "neither, after compacted", after: Position{2, 50, tokenA}, at: tokenA,
			want: recorded},
		{name: "compacted has passed it", after: Position{2, 49, tokenA}, at: tokenA,
			want: unknown},
		{name: "swept has passed it", after: Position{2, 39, tokenA}, want: unknown},
		{name: "a fence came in between", after: Position{1, 60, tokenA}, at: tokenA,
			want: unknown},
		{name: "the tail was lost", after: Position{2, 101, tokenA}, want: unknown},
		{name: "the tail was lost and written again", after: Position{2, 60, tokenA}, at: tokenB,
			want: unknown},
	} {
		r, record := Resolve(tc.after, Guard{State: ruled, At: tc.at, Aborted: tc.aborted}, tc.rows)
		got := unknown
		switch {
		case r.Committed && !r.Aborted && len(r.Rows) > 0 && !record:
			got = committed
		case r.Aborted && !r.Committed:
			got = aborted
			if record {
				got = recorded
			}
		case r.Committed || r.Aborted || record:
			got = "nonsense"
		}
		if got != tc.want || r.State != ruled {
			t.Errorf("%s: it is %s, want %s: %+v", tc.name, got, tc.want, r)
		}
	}
}

func TestCompactTo(t *testing.T) {
	for _, tc := range []struct {
		ask, want Revision
		write     bool
	}{{-1, 50, false}, {0, 50, false}, {49, 50, false}, {50, 50, false}, {51, 51, true},
		{100, 100, true}, {101, 100, true}} {
		want := ruled
		want.Compacted = tc.want
		if got, write := CompactTo(ruled, tc.ask); got != want || write != tc.write {
			t.Errorf("to %d: %+v, %t", tc.ask, got, write)
		}
	}
}

// TestPlanSweep plans one batch of three rows.
func TestPlanSweep(t *testing.T) {
	for _, tc := range []struct {
		name      string
		rows      []SweepRow
		aborted   Revision
		revisions []Revision
		swept     Revision
		forget    bool
	}{
		{name: "nothing is there", swept: 50},
		{name: "what was replaced", rows: []SweepRow{{41, 7, false}, {42, 0, false}},
			revisions: []Revision{7}, swept: 50},
		{name: "tombstones and markers", rows: []SweepRow{{41, 7, true}, {42, 0, true}},
			revisions: []Revision{7, 41, 42}, swept: 50},
		{name: "the row at compacted stays", rows: []SweepRow{{49, 7, true}, {50, 49, true}},
			revisions: []Revision{7, 49, 49}, swept: 50},
		{name: "the row at swept was kept", rows: []SweepRow{{40, 7, true}, {42, 0, false}},
			revisions: []Revision{40}, swept: 50},
		{name: "the row at swept is live", rows: []SweepRow{{40, 7, false}, {42, 8, false}},
			revisions: []Revision{8}, swept: 50},
		{name: "as many as a batch has", rows: []SweepRow{{41, 1, false}, {43, 2, false},
			{45, 3, false}}, revisions: []Revision{1, 2, 3}, swept: 45},
		{name: "more", rows: []SweepRow{{41, 1, false}, {43, 2, false}, {45, 3, false},
			{46, 4, false}}, revisions: []Revision{1, 2, 3}, swept: 45},
		{name: "more, and the row at swept", rows: []SweepRow{{40, 1, true}, {43, 2, false},
			{45, 3, false}, {46, 4, false}}, revisions: []Revision{40, 2, 3, 4}, swept: 46},
		{name: "the batch ends at compacted", rows: []SweepRow{{41, 1, false}, {43, 2, false},
			{50, 3, true}}, revisions: []Revision{1, 2, 3}, swept: 50},
		{name: "a token of compacted", aborted: 50, swept: 50},
		{name: "a token below compacted", aborted: 49, swept: 50, forget: true},
	} {
		from := Sweepable{State: ruled, Rows: tc.rows, Aborted: tc.aborted}
		p := PlanSweep(from, 3)
		if !slices.Equal(p.Rows, tc.revisions) || p.Swept != tc.swept ||
			p.Done != (tc.swept == 50) || !p.Moves ||
			(p.Forget == 50) != tc.forget || (p.Forget == 0) == tc.forget || p.Epoch != 2 ||
			p.Empty() {
			t.Errorf("%s: %+v", tc.name, p)
		}
		from.State.Swept = 50
		from.Rows = slices.DeleteFunc(from.Rows, func(r SweepRow) bool { return r.ID < 50 })
		if p := PlanSweep(from, 3); p.Empty() == tc.forget || p.Swept != 50 || p.Moves {
			t.Errorf("%s, at the end: %+v", tc.name, p)
		}
	}
}

// TestSweepsMeet carries out plans late, in any order and several times, while the log grows and is
// compacted: nothing is removed that a state at or after compacted needs, and in the end all else
// is.
func TestSweepsMeet(t *testing.T) {
	for range 500 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		log := []SweepRow{{1, 0, true}}
		gone := map[RowID]bool{}
		live := map[int]RowID{}
		st := State{Head: Position{Epoch: 1, Revision: 1}}
		var plans []SweepPlan
		plan := func(limit int) {
			from := Sweepable{State: st}
			for _, r := range log {
				at := r.ID.Revision()
				switch {
				case at < st.Swept || at > st.Compacted || gone[r.ID]:
				case r.ID > 0 && len(from.Rows) <= limit:
					from.Rows = append(from.Rows, r)
				case r.ID < 0 && from.Cut == 0:
					from.Parts = append(from.Parts, r)
					if len(from.Parts) >= 2*limit && at > st.Swept+1 {
						from.Cut = at
					}
				}
			}
			plans = append(plans, PlanSweep(from, limit))
		}
		sweep := func(p SweepPlan) {
			for _, r := range p.Rows {
				gone[r] = true
			}
			st.Swept = max(st.Swept, p.Swept)
		}
		needed := func(r SweepRow) bool {
			replaced := slices.ContainsFunc(log, func(by SweepRow) bool {
				return by.Prev == r.ID && by.ID.Revision() <= st.Compacted
			})
			return r.ID.Revision() >= st.Compacted && !replaced || !r.Deleted && !replaced
		}
		write := func(key, part int) {
			r := SweepRow{IDOf(st.Head.Revision, part), live[key], live[key] != 0 && rng.IntN(2) == 0}
			log = append(log, r)
			if live[key] = r.ID; r.Deleted {
				live[key] = 0
			}
		}
		for range 200 {
			switch rng.IntN(6) {
			case 0, 1:
				st.Head.Revision++
				write(rng.IntN(4), 0)
			case 2: // a transaction
				st.Head.Revision++
				keys := rng.Perm(4)[:2+rng.IntN(3)]
				for i, key := range keys {
					write(key, (i+1)%len(keys))
				}
			case 3:
				st, _ = CompactTo(st, st.Compacted+Revision(rng.IntN(5)))
			case 4:
				plan(1 + rng.IntN(4))
			default:
				if len(plans) > 0 {
					sweep(plans[rng.IntN(len(plans))])
				}
			}
			for _, r := range log {
				if gone[r.ID] && needed(r) {
					t.Fatalf("seed %d: %+v is gone in %+v", seed, r, st)
				}
			}
		}
		for {
			plan(2)
			p := plans[len(plans)-1]
			sweep(p)
			if p.Done {
				break
			}
		}
		for _, r := range log {
			if gone[r.ID] == needed(r) {
				t.Fatalf("seed %d: %+v is gone: %t, in %+v", seed, r, gone[r.ID], st)
			}
		}
	}
}

// TestDecide: of one key's mutations, the first that expects the current state is accepted.
func TestDecide(t *testing.T) {
	put := func(key Key, expect Revision) *Mutation { return &Mutation{Key: key, Expect: expect} }
	lost := &Mutation{Key: "lost", Expect: 3, Delete: true}
	ended := &Mutation{Key: "ended", Lease: 4}
	mutations := []*Mutation{put("a", 7), put("a", 5), put("a", 5), put("new", 0), put("new", 0),
		lost, put("lost", 3), put("lost", 2)}
	mutations = append(mutations, &Mutation{Key: "any", Expect: Any, Lease: 3},
		&Mutation{Key: "any new", Expect: Any}, &Mutation{Key: "none", Expect: Any, Delete: true},
		&Mutation{Key: "any deleted", Expect: Any, Delete: true}, ended,
		&Mutation{Key: "has", Expect: 9, Delete: true, HasPrev: true},
		&Mutation{Key: "large", Expect: 2, Delete: true},
		&Mutation{Key: "unreadable", Expect: 1, Delete: true})
	values := map[Revision][]byte{2: []byte("too large"), 8: []byte("removed"), 9: []byte("known")}
	unreadable := Errorf(Data, "unreadable")
	outcomes, n := Decide(mutations, 10, &Found{
		Current: func(k Key) Current {
			return map[Key]Current{"a": {ID: 5, Create: 4, Version: 2, Lease: 9},
				"lost": {ID: 3, Create: 1}, "any": {ID: 6, Create: 6, Version: 1},
				"has": {ID: 9}, "large": {ID: 2}, "unreadable": {ID: 1},
				"any deleted": {ID: 8, Create: 7, Version: 2, Lease: 5}}[k]
		},
		Held: func(l Lease) bool { return l == 3 },
		Removed: func(m *Mutation, at Revision) ([]byte, bool, error) {
			if m.Key == "unreadable" {
				return nil, false, unreadable
			}
			value, there := values[at]
			return value, there, nil
		},
		Returned: Returned{Bound: 7},
	})
	want := []Outcome{{Revision: 5},
		{Accepted: true, Revision: 11, Prev: 5, Create: 4, Version: 3}, {Revision: 5},
		{Accepted: true, Revision: 12, Create: 12, Version: 1}, {}, {Revision: 3}, {Revision: 3},
		{Revision: 3},
		{Accepted: true, Revision: 13, Prev: 6, Create: 6, Version: 2, Lease: 3},
		{Accepted: true, Revision: 14, Create: 14, Version: 1}, {},
		{Accepted: true, Revision: 15, Prev: 8, Create: 7, Version: 3, Lease: 5,
			PrevValue: []byte("removed")}, {},
		{Accepted: true, Revision: 16, Prev: 9, Version: 1},
		{Accepted: true, Revision: 17, Prev: 2, Version: 1}, {Revision: 1}}
	errs := map[int]error{5: lostPrevious("lost", 3), 6: lostPrevious("lost", 3), 12: ErrNoLease,
		15: unreadable}
	for i, o := range outcomes {
		if fmt.Sprint(o.Err) != fmt.Sprint(errs[i]) {
			t.Errorf("%d: %v, want %v", i, o.Err, errs[i])
		}
		o.Err = nil
		if !reflect.DeepEqual(o, want[i]) {
			t.Errorf("%d: %+v, want %+v", i, o, want[i])
		}
	}
	if n != 7 {
		t.Errorf("%d are accepted", n)
	}
}

// TestRefused: a statement that decides tells no more than that a mutation was not accepted.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		m    Mutation
		want error
	}{
		{Mutation{Expect: 4}, nil},
		{Mutation{Expect: 4, Delete: true}, nil},
		{Mutation{Expect: 4, Lease: 1}, nil},
		{Mutation{Expect: 5}, nil},
		{Mutation{Expect: 5, Delete: true, HasPrev: true}, nil},
		{Mutation{Key: "k", Expect: 5, Delete: true}, lostPrevious("k", 5)},
		{Mutation{Expect: 5, Lease: 1}, ErrNoLease},
		{Mutation{Expect: Any, Lease: 1}, ErrNoLease},
		{Mutation{Expect: 4, If: &Condition{}}, nil},
		{Mutation{Expect: 5, Lease: 1, If: &Condition{}}, ErrCondition},
		{Mutation{Expect: 5, Delete: true, If: &Condition{}}, ErrCondition},
	} {
		if o := Refused(&c.m, 5, false, c.m.WantsPrevious()); o.Accepted || o.Revision != 5 ||
			fmt.Sprint(o.Err) != fmt.Sprint(c.want) {
			t.Errorf("%+v: %+v, want %v", c.m, o, c.want)
		}
	}
	if o := Refused(&Mutation{Expect: 5, Lease: 1, If: &Condition{}}, 5, true,
		false); fmt.Sprint(o.Err) != fmt.Sprint(ErrNoLease) {
		t.Errorf("a mutation whose condition is met, and which has no lease: %+v", o)
	}
	update := Mutation{Key: "k", Expect: 5}
	if o := Refused(&update, 5, true, true); fmt.Sprint(o.Err) != fmt.Sprint(lostPrevious("k", 5)) {
		t.Errorf("an update beside a deletion that was refused: %+v", o)
	}
}

// TestSweptSoFar: a process that sweeps for long records how far it came with each 64th batch, and
// when it is done.
func TestSweptSoFar(t *testing.T) {
	var s SweptSoFar
	p := SweepPlan{Epoch: 3}
	var records []Revision
	for p.Swept = 1; p.Swept <= 150; p.Swept++ {
		p.Done = p.Swept == 100
		record := s.Records(&p)
		if record {
			records = append(records, p.Swept)
		}
		if p.Swept == 60 {
			continue // it failed
		}
		s.Did(&p, record)
		if epoch, at := s.From(); epoch != 3 || at != p.Swept {
			t.Errorf("it has come to %d in epoch %d, want %d", at, epoch, p.Swept)
		}
	}
	if want := []Revision{65, 100}; !slices.Equal(records, want) {
		t.Errorf("recorded were %v, want %v", records, want)
	}
}

func TestExpiryRoundsUp(t *testing.T) {
	now := time.UnixMicro(1000)
	for ttl, want := range map[time.Duration]int64{0: 0, 1: 1001, time.Microsecond: 1001,
		time.Microsecond + 1: 1002, time.Millisecond: 2000} {
		if got := (&Mutation{TTL: ttl}).Expiry(now); got != want {
			t.Errorf("a key with the TTL %d ns expires at %d, want %d", ttl, got, want)
		}
	}
}

func TestCheckWriter(t *testing.T) {
	for oldest, refused := range map[int64]bool{0: false, 2: false, 3: true} {
		if err := CheckWriter(oldest, 2); (err != nil) != refused ||
			refused && ClassOf(err) != Invalid {
			t.Errorf("version 2 where %d is the oldest that may write: %v", oldest, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	for _, test := range []struct {
		name             string
		recorded, actual string
		moved            bool
	}{
		{"nothing is recorded yet", "", "a", true},
		{"the same database", "a", "a", false},
		{"restored", "a", "b", true},
	} {
		id := Identity{Recorded: test.recorded, Actual: test.actual}
		if id.Moved() != test.moved {
			t.Errorf("%s: moved is %v", test.name, id.Moved())
		}
	}
}
