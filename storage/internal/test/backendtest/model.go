package backendtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// model is the store as plain data: the whole log, never swept.
type model struct {
	log       []contract.Row
	live      map[contract.Key]contract.Row
	compacted contract.Revision
}

// at returns the state at a revision.
func (m *model) at(r contract.Revision) []contract.Row {
	state := map[contract.Key]contract.Row{}
	for _, row := range m.log {
		switch {
		case row.Revision > r || row.Marker():
		case row.Deleted:
			delete(state, row.Key)
		default:
			state[row.Key] = contract.Row{Key: row.Key, Revision: row.Revision, Part: row.Part, Create: row.Create,
				Version: row.Version, Lease: row.Lease, Value: row.Value}
		}
	}
	return sorted(state)
}

func sorted(state map[contract.Key]contract.Row) []contract.Row {
	var rows []contract.Row
	for _, key := range slices.Sorted(maps.Keys(state)) {
		rows = append(rows, state[key])
	}
	return rows
}

// kept returns what a full sweep leaves of the log.
func (m *model) kept() []contract.Row {
	gone := map[contract.RowID]bool{}
	for _, row := range m.log {
		if row.Revision > m.compacted {
			break
		}
		gone[row.Prev] = true
		if row.Deleted && row.Revision < m.compacted {
			gone[row.ID()] = true
		}
	}
	var rows []contract.Row
	for _, row := range m.log {
		if !gone[row.ID()] {
			row.PrevValue, row.PrevLease, row.HasPrev = nil, 0, false
			rows = append(rows, row)
		}
	}
	return rows
}

// testModel makes random groups, compactions, sweeps and fences and compares the whole store, at
// random revisions, with the model.
func testModel(f *fixture) {
	const steps, keys = 150, 12
	seed := rand.Uint64()
	f.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	m := &model{live: map[contract.Key]contract.Row{}, log: []contract.Row{{Revision: 1, Deleted: true}}}
	f.grant(1<<60, 2<<60)
	key := func() contract.Key { return oddKeys[rng.IntN(keys)*3] }

	for step := range steps {
		switch n := rng.IntN(20); {
		case n < 14:
			switch rng.IntN(5) {
			case 0:
				f.apply(m, []*contract.Mutation{onCondition(m, rng, key)})
				f.compareWith(m, rng)
				continue
			case 1:
				f.transact(m, transaction(m, rng, key)...)
				f.compareWith(m, rng)
				continue
			}
			var ms []*contract.Mutation
			keys := map[contract.Key]bool{} // those in the group, and whether they are alone
			for range 1 + rng.IntN(9) {
				k := key()
				expect := m.live[k].Revision
				switch rng.IntN(5) {
				case 0:
					expect = contract.Revision(rng.IntN(10))
				case 1:
					expect = contract.Any
				}
				w := put(k, expect, fmt.Sprintf("value %d of step %d", len(ms), step))
				if expect != 0 && rng.IntN(3) == 0 {
					w = del(k, expect)
				} else {
					w.Lease = contract.Lease(rng.IntN(3)) << 60
				}
				alone, found := keys[k]
				if alone || found && w.Alone() {
					continue
				}
				keys[k] = w.Alone()
				ms = append(ms, w)
			}
			f.apply(m, ms)
		case n < 17:
			m.compacted = max(m.compacted, min(contract.Revision(rng.Int64N(int64(f.seen.Revision)+2)),
				f.seen.Revision))
			s, err := contract.RaiseCompacted(f.ctx, f.b, m.compacted)
			f.must(err)
			if s.Compacted != m.compacted {
				f.Fatalf("step %d: compacted is %d, want %d", step, s.Compacted, m.compacted)
			}
		case n < 19:
			_, _, err := contract.SweepBatch(f.ctx, f.b, 1+rng.IntN(20))
			f.must(err)
		default:
			s, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: f.seen, Token: newToken(),
				Jump: contract.Revision(1 + rng.IntN(5))})
			f.must(err)
			m.log = append(m.log, contract.Row{Revision: s.Head.Revision, Deleted: true})
			m.compacted = s.Head.Revision
			f.seen = s.Head
		}
		f.compareWith(m, rng)
	}
	f.compact(f.seen.Revision, 7)
	m.compacted = f.seen.Revision
	f.equal(f.withoutPrev(f.log(contract.PrevOfAll)), m.kept())
}

// whole is what is found where no value is lost and no lease has ended.
func whole(current func(contract.Key) contract.Current) *contract.Found {
	return &contract.Found{
		Current: current,
		Held:    func(contract.Lease) bool { return true },
		Removed: func(*contract.Mutation, contract.RowID) ([]byte, bool, error) { return nil, true, nil },
	}
}

// found is what is found of live rows, of which no value is lost and no lease has ended.
func (m *model) found() *contract.Found {
	live := m.live
	current := func(row contract.Row) contract.Current {
		return contract.Current{ID: row.ID(), Create: row.Create, Version: row.Version,
			Lease: row.Lease}
	}
	f := whole(func(k contract.Key) contract.Current { return current(live[k]) })
	f.Compacted = m.compacted
	f.Compared = func(of *contract.Condition, c *contract.Comparison) (some, misfit bool) {
		for key, row := range live {
			if key >= c.Start && key < c.End {
				some = true
				misfit = misfit || !(c.Changed && row.Revision <= of.Since) &&
					!c.Fits(current(row), row.Value)
			}
		}
		return some, misfit
	}
	f.Touched = func(c *contract.Condition) bool {
		return slices.ContainsFunc(m.log, func(r contract.Row) bool {
			return r.Revision > c.Since && c.Touches(r.Key)
		})
	}
	return f
}

// transaction are mutations of different keys, which mostly are accepted together.
func transaction(m *model, rng *rand.Rand, key func() contract.Key) []*contract.Mutation {
	ms := []*contract.Mutation{onCondition(m, rng, key)}
	if rng.IntN(2) == 0 {
		ms[0].If = nil
	}
	for range 1 + rng.IntN(6) {
		k := key()
		if slices.ContainsFunc(ms, func(m *contract.Mutation) bool { return m.Key == k }) {
			continue
		}
		w := put(k, m.live[k].Revision, fmt.Sprintf("value %d", rng.IntN(3)))
		switch {
		case rng.IntN(20) == 0:
			w.Expect++
		case rng.IntN(4) == 0:
			w.Expect = contract.Any
		}
		if w.Expect != 0 && m.live[k].Revision != 0 && rng.IntN(3) == 0 {
			w = del(k, w.Expect)
		} else {
			w.Lease = contract.Lease(rng.IntN(3)) << 60
		}
		ms = append(ms, w)
	}
	return ms
}

// onCondition is a mutation of a key that compares others, of a kind that mostly is accepted.
func onCondition(m *model, rng *rand.Rand, key func() contract.Key) *contract.Mutation {
	live := m.live
	k := key()
	w := put(k, live[k].Revision, fmt.Sprintf("value %d", rng.IntN(3)))
	switch rng.IntN(5) {
	case 0:
		w.Expect = contract.Any
	case 1:
		w.Expect++
	}
	if w.Expect > 0 && rng.IntN(3) == 0 {
		w = del(k, w.Expect)
	}
	w.If = &contract.Condition{Hold: rng.IntN(2) == 0}
	for range 1 + rng.IntN(3) {
		start := key()
		row := live[start]
		property := contract.Property(rng.IntN(5))
		c := contract.Comparison{Start: start, End: start + "\x00", Property: property,
			Operator: contract.Operator(rng.IntN(4)), Value: row.Value,
			Number: []int64{row.Version, int64(row.Create), int64(row.Revision), 0,
				int64(row.Lease)}[property]}
		switch rng.IntN(8) {
		case 0:
			c.Number, c.Value = -1<<63, []byte{}
		case 1:
			c.Number, c.Value = 1<<63-1, []byte("value 1\x00")
		case 2:
			c.Number, c.Value = c.Number+1, []byte("value 1")
		}
		switch rng.IntN(4) {
		case 0:
			c.End = key()
		case 1:
			c.Start, c.End = "\x00", "\xff\xff\xff"
		}
		w.If.Comparisons = append(w.If.Comparisons, c)
	}
	if rng.IntN(2) == 0 {
		w.If.Since = max(1, m.log[len(m.log)-1].Revision-contract.Revision(rng.IntN(4)))
		w.If.Untouched = append(w.If.Untouched, contract.Span{Start: key(), End: key()},
			contract.Span{Start: "\x00", End: key()})
		w.If.Untouched = w.If.Untouched[rng.IntN(3):]
		w.If.Comparisons = w.If.Comparisons[:rng.IntN(len(w.If.Comparisons)+1)]
		for i := range w.If.Comparisons {
			w.If.Comparisons[i].Changed = rng.IntN(2) == 0
		}
	}
	return w
}

// apply commits a group and writes what Decide says to the model.
func (f *fixture) apply(m *model, ms []*contract.Mutation) {
	f.Helper()
	want, _ := contract.Decide(ms, f.seen.Revision, m.found())
	f.applied(m, ms, f.commit(ms...), want)
}

// transact is apply for a transaction. It tells whether that was accepted.
func (f *fixture) transact(m *model, ms ...*contract.Mutation) bool {
	f.Helper()
	g := &contract.Group{Token: contract.NewTransactionToken(len(ms) - 1), Seen: f.seen, Mutations: ms,
		Whole: true}
	want, n := contract.DecideGroup(g, f.seen.Revision, m.found())
	got, err := f.b.Commit(f.ctx, g)
	f.must(err)
	head := f.seen
	if n > 0 {
		head.Revision, head.Token = head.Revision+1, g.Token
	}
	if got.Before != f.seen || got.State.Head != head {
		f.Fatalf("the head was %+v before %s and %+v after it, want %+v and %+v; the condition is %+v, the "+
			"outcomes are %+v, want %+v", got.Before, describeGroup(ms), got.State.Head, f.seen, head,
			ms[0].If, got.Outcomes, want)
	}
	f.seen = head
	f.applied(m, ms, got, want)
	return n > 0
}

// transaction commits mutations as a transaction.
func (f *fixture) transaction(ms ...*contract.Mutation) *contract.GroupResult {
	f.Helper()
	r, err := f.b.Commit(f.ctx, &contract.Group{Token: contract.NewTransactionToken(len(ms) - 1),
		Seen: f.seen, Mutations: ms, Whole: true})
	f.must(err)
	f.seen = r.State.Head
	return r
}

// testLastTransactions: the last revision with parts is like others. Then a transaction is refused,
// and says why unless it is refused anyway; and single writes go on.
func testLastTransactions(f *fixture) {
	const last = contract.Revision(1<<54 - 1)
	st, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: contract.Position{Revision: last - 2},
		Replaces: f.seen.Epoch, Token: newToken(), Jump: 1})
	f.must(err)
	f.seen = st.Head
	r := f.transaction(put("a", 0, "x"), put("b", 0, "x"))
	if !r.Outcomes[0].Accepted || f.seen.Revision != last {
		f.Fatalf("the last transaction is decided as %+v, and the head is %+v", r.Outcomes, f.seen)
	}
	head := f.seen
	for _, expect := range []contract.Revision{last, last - 1} {
		r := f.transaction(put("a", last, "y"), del("b", expect))
		for i, o := range r.Outcomes {
			reason := o.Err
			if o.Err = nil; !reflect.DeepEqual(o, contract.Outcome{Revision: last}) ||
				(reason != nil) != (expect == last) ||
				reason != nil && contract.ClassOf(reason) != contract.Invalid {
				f.Errorf("mutation %d of a transaction after it is decided as %+v, %v", i, o, reason)
			}
		}
		if f.seen != head {
			f.Fatalf("the head is %+v", f.seen)
		}
	}
	f.put("a", last, "y")
	for _, at := range []contract.Revision{last, last + 1} {
		state := f.snapshot(at)
		if len(state) != 2 || string(state[0].Value) != map[bool]string{true: "x", false: "y"}[at == last] ||
			state[1].Revision != last {
			f.Errorf("at %d there is\n%s", at, describe(state))
		}
	}
	if rows := f.logAfter(last-1, contract.PrevOfAll); len(rows) != 3 || rows[0].Part != 1 ||
		string(rows[2].PrevValue) != "x" {
		f.Errorf("the log is\n%s", describe(rows))
	}
}

func (f *fixture) applied(m *model, ms []*contract.Mutation, got *contract.GroupResult,
	want []contract.Outcome) {
	f.Helper()
	for i, w := range want {
		g := got.Outcomes[i]
		if g.PrevValue = nil; !reflect.DeepEqual(g, w) {
			f.Fatalf("mutation %d of %s: the outcome is %+v, want %+v", i, describeGroup(ms), g, w)
		}
		if !w.Accepted {
			continue
		}
		old := m.live[ms[i].Key]
		row := contract.Row{Key: ms[i].Key, Revision: w.Revision, Part: w.Part, Prev: w.Prev, Create: w.Create,
			Version: w.Version, Lease: w.Lease, Deleted: ms[i].Delete, Value: ms[i].Value}
		m.log = append(m.log, row)
		if old.Revision != 0 && w.Prev != old.ID() {
			f.Fatalf("row %d has replaced %d, and not %d", row.ID(), w.Prev, old.ID())
		}
		if row.Deleted {
			delete(m.live, row.Key)
			if removed := got.Outcomes[i].PrevValue; string(removed) != string(old.Value) {
				f.Fatalf("the deletion of %q removed %s, want %s", row.Key, brief(removed),
					brief(old.Value))
			}
		} else {
			m.live[row.Key] = row
		}
	}
}

// snapshot reads the state at a revision as the store does: the live rows that are not newer, and
// the rows that were replaced since.
func (f *fixture) snapshot(r contract.Revision) []contract.Row {
	f.Helper()
	const start, end = "\x00", "\xff\xff\xff"
	state := map[contract.Key]contract.Row{}
	for _, row := range f.page(contract.PageQuery{Start: start, End: end, At: r, Limit: 1000}) {
		state[row.Key] = row
	}
	replaced, s, err := f.b.Replaced(f.ctx, contract.ReplacedQuery{Start: start, End: end, At: r,
		After: r, Upto: f.seen.Revision})
	f.must(err)
	f.sane(s)
	var ids []contract.RowID
	for _, p := range replaced {
		ids = append(ids, p.ID)
	}
	rows, _, err := f.b.Values(f.ctx, ids)
	f.must(err)
	for _, row := range rows {
		if _, both := state[row.Key]; both {
			f.Fatalf("at %d the key %q is live and replaced", r, row.Key)
		}
		state[row.Key] = row
	}
	return sorted(state)
}

func (f *fixture) withoutPrev(rows []contract.Row) []contract.Row {
	for i := range rows {
		rows[i].HasPrev, rows[i].PrevValue, rows[i].PrevLease = false, nil, 0
	}
	return rows
}

func (f *fixture) compareWith(m *model, rng *rand.Rand) {
	f.Helper()
	s := f.state()
	if s.Head != f.seen || s.Compacted != m.compacted {
		f.Fatalf("the state is %+v, want head %+v and compacted %d", s, f.seen, m.compacted)
	}
	revisions := []contract.Revision{f.seen.Revision, max(1, m.compacted)}
	if m.compacted < f.seen.Revision {
		revisions = append(revisions,
			m.compacted+1+contract.Revision(rng.Int64N(int64(f.seen.Revision-m.compacted))))
	}
	for _, r := range revisions {
		f.equal(f.snapshot(r), m.at(r))
		n, _, err := f.b.Count(f.ctx, "\x00", "\xff\xff\xff", 0, 0)
		f.must(err)
		if n != int64(len(m.live)) {
			f.Fatalf("the count is %d, want %d", n, len(m.live))
		}
		old := len(slices.DeleteFunc(sorted(m.live), func(row contract.Row) bool { return row.Revision > r }))
		for limit, want := range map[int64]int{0: old, 3: min(old, 3)} {
			n, _, err := f.b.Count(f.ctx, "\x00", "\xff\xff\xff", r, limit)
			f.must(err)
			if n != int64(want) {
				f.Fatalf("the count at %d is %d, want %d", r, n, want)
			}
		}
	}
	// The events after the compacted revision are all there.
	var events []contract.Row
	for _, row := range m.log {
		if row.Revision > m.compacted {
			events = append(events, row)
		}
	}
	rows := f.logAfter(m.compacted, contract.PrevOfDeletions)
	for _, row := range rows {
		if row.Deleted && !row.Marker() && !row.HasPrev && row.Prev.Revision() > m.compacted {
			f.Fatalf("the deletion at %d has no previous value", row.Revision)
		}
	}
	f.equal(f.withoutPrev(rows), events)
}
