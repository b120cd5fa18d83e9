package backendtest

import (
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// past are rows of the log as a read of the history returns them, the newest first.
func past(rows []contract.Row) []contract.Row {
	rows = slices.Clone(rows)
	for i, r := range rows {
		rows[i] = contract.Row{Key: r.Key, Revision: r.Revision, Part: r.Part, Prev: r.Prev,
			Create: r.Create, Version: r.Version, Time: r.Time, Deleted: r.Deleted}
	}
	slices.SortFunc(rows, func(a, b contract.Row) int { return contract.NewestFirst(&a, &b) })
	return rows
}

// pastOf is past with the rows of one key only, from one row back.
func pastOf(rows []contract.Row, key contract.Key, from contract.RowID) []contract.Row {
	rows = slices.DeleteFunc(past(rows), func(r contract.Row) bool { return r.Key != key })
	i := slices.IndexFunc(rows, func(r contract.Row) bool { return r.ID() == from })
	return rows[i:]
}

// samePast compares rows and their times.
func (f *fixture) samePast(what string, got []contract.Row, st contract.State, want []contract.Row) {
	f.Helper()
	f.same(st, f.state())
	same := slices.EqualFunc(got, want, func(a, b contract.Row) bool {
		return a.Key == b.Key && a.ID() == b.ID() && a.Prev == b.Prev && a.Create == b.Create &&
			a.Version == b.Version && a.Time.Equal(b.Time) && a.Deleted == b.Deleted &&
			a.Value == nil
	})
	if !same {
		f.Errorf("%s is\n%swant\n%s", what, describe(got), describe(want))
	}
}

func testChain(f *fixture) {
	chain := func(key contract.Key, id contract.RowID, limit int, want []contract.Row) {
		f.Helper()
		got, st, err := f.b.Chain(f.ctx, key, id, limit)
		f.must(err)
		f.samePast("the chain of "+string(key), got, st, want[:min(limit, len(want))])
	}
	a := f.put("a", 0, "a1")
	f.put("b", 0, "b1")
	a2 := f.put("a", a, "a2")
	deleted := f.del("a", a2)
	again := f.put("a", 0, "again")
	// Parts of transactions have IDs of their own.
	part := f.transaction(put("a", again, "part"), put("b", contract.Any, "last")).Outcomes[0]
	last := f.put("a", part.Revision, "newest")
	log := f.log(contract.PrevOfAll)
	for _, limit := range []int{1, 2, 3, contract.MaxChain} {
		chain("a", last, limit, pastOf(log, "a", last)[:3])
		chain("a", part.ID(), limit, pastOf(log, "a", part.ID())[:2])
		chain("a", deleted, limit, pastOf(log, "a", deleted))
		chain("a", a, limit, pastOf(log, "a", a))
		// The row of another key, rows that are not there, and the marker.
		for _, id := range []contract.RowID{part.Revision, 1, last + 1, -5} {
			chain("a", id, limit, nil)
		}
	}
	long := f.put("long", 0, "")
	for range contract.MaxChain + 10 {
		long = f.put("long", long, "")
	}
	log = f.log(contract.PrevOfAll)
	chain("long", long, contract.MaxChain, pastOf(log, "long", long))

	// A chain ends before what was swept, and goes on below the boundary to what was not.
	f.compact(last-1, 1000)
	chain("a", last, 10, pastOf(log, "a", last)[:2])
	chain("a", part.ID(), 10, pastOf(log, "a", part.ID())[:1])
	chain("a", a2, 10, nil)
}

func testChanges(f *fixture) {
	a := f.put("a", 0, "a1")
	b := f.put("b", 0, "b1")
	f.put("c", 0, "c1")
	f.transaction(put("a", a, "a2"), del("b", b), put("d", 0, "d1"))
	f.put("b", 0, "again")
	head := f.seen.Revision
	log := f.log(contract.PrevOfAll)
	for _, q := range []contract.ChangesQuery{
		{Start: "a", End: "z", After: 1, Upto: head},
		{Start: "a", End: "z", After: 1, Upto: head + 1000},
		{Start: "a", End: "z", After: b, Upto: head - 1},
		{Start: "a", End: "z", After: head, Upto: head},
		{Start: "b", End: "c", After: 1, Upto: head},
		{Start: "b", End: "b\x00", After: 1, Upto: head - 1},
		{Start: "b\x00", End: "d", After: 1, Upto: head},
		{Start: "x", End: "z", After: 1, Upto: head},
	} {
		got, st, err := f.b.Changes(f.ctx, q)
		f.must(err)
		want := slices.DeleteFunc(past(log), func(r contract.Row) bool {
			return r.Revision <= q.After || r.Revision > q.Upto || r.Key < q.Start || r.Key >= q.End
		})
		f.samePast("what was changed", got, st, want)
	}
}
