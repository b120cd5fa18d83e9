package backendtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// indexModel is what the index of a store has to have.
type indexModel struct {
	*fixture
	x     *contract.Indexes
	now   map[contract.Key][]contract.Entry
	ids   map[contract.Key]contract.RowID
	lease contract.Lease
	// replaced are the rows that were, oldest first, and what the log has to know of them.
	replaced []replacedRow
}

type replacedRow struct {
	contract.Replaced
	by      contract.Revision
	entries []contract.Entry
	known   bool
}

const indexed = contract.Key("/indexed/")

// group commits mutations with their entries, as mvcc does.
func (m *indexModel) group(whole bool, ms ...*contract.Mutation) (*contract.GroupResult, error) {
	g := &contract.Group{Token: contract.NewToken(), Seen: m.state().Head, Mutations: ms,
		Generation: m.x.Generation}
	if whole {
		g.Whole, g.Token = true, contract.NewTransactionToken(len(ms)-1)
	}
	res, err := m.b.Commit(m.ctx, g)
	if err != nil {
		return nil, err
	}
	for i, mutation := range ms {
		o := &res.Outcomes[i]
		if o.Accepted && o.Prev != 0 {
			m.replaced = append(m.replaced, replacedRow{contract.Replaced{Key: mutation.Key, ID: o.Prev},
				o.Revision, m.now[mutation.Key], mutation.Indexed})
		}
		switch {
		case !o.Accepted || !mutation.Indexed:
		case mutation.Delete:
			delete(m.now, mutation.Key)
			delete(m.ids, mutation.Key)
		default:
			m.now[mutation.Key], m.ids[mutation.Key] = mutation.Entries, o.ID()
		}
	}
	return res, nil
}

// change declares, as [contract.ChangeIndexes] does.
func (m *indexModel) change(f func(*contract.Indexes) (bool, error)) {
	m.Helper()
	x, err := contract.ChangeIndexes(m.ctx, m.b, f)
	m.must(err)
	m.x = x
}

// compare reads all keys of each entry, page by page, and what has none.
func (m *indexModel) compare(all []contract.Entry) {
	m.Helper()
	for _, e := range all {
		var want []contract.Key
		for _, k := range slices.Sorted(maps.Keys(m.now)) {
			if slices.Contains(m.now[k], e) {
				want = append(want, k)
			}
		}
		var got []contract.Key
		for from := indexed; ; {
			// The second entry is one that nobody has.
			p, err := m.b.Page(m.ctx, contract.PageQuery{Start: from, End: indexed + "~", Limit: 3,
				Entries: []contract.Entry{e, contract.ValueEntry(99, "")}})
			m.must(err)
			if p.Generation != m.x.Generation {
				m.Fatalf("a page tells the generation %d, not %d", p.Generation, m.x.Generation)
			}
			for i := range p.Rows {
				r := &p.Rows[i]
				if got = append(got, r.Key); r.ID() != m.ids[r.Key] || string(r.Value) != "v"+string(r.Key) {
					m.Fatalf("the page has the row %d of %q with %q, not %d", r.ID(), r.Key, r.Value, m.ids[r.Key])
				}
			}
			if len(p.Rows) < 3 {
				break
			}
			from = got[len(got)-1] + "\x00"
		}
		if !slices.Equal(got, want) {
			m.Fatalf("the entry %q has the keys %q, not %q", string(e), got, want)
		}
		m.rows([]contract.Entry{e}, indexed, indexed+"~")
		for _, limit := range []int64{1, 2, 1000} {
			n, _, err := m.b.CountEntries(m.ctx, []contract.Entry{e, contract.ValueEntry(99, "")}, indexed,
				indexed+"~", limit)
			m.must(err)
			if n != min(int64(len(want)), limit) {
				m.Fatalf("%d keys are counted of %q up to %d, not %d", n, string(e), limit, len(want))
			}
		}
	}
	if keys := slices.Sorted(maps.Keys(m.now)); len(keys) > 2 {
		m.rows(all, indexed, indexed+"~")
		m.rows(all, keys[1], keys[len(keys)-1])
	}
}

// rows walks through the rows of an index from the first entry to the last, forwards and backwards,
// past the keys that are not in a range.
func (m *indexModel) rows(all []contract.Entry, start, end contract.Key) {
	m.Helper()
	low, high := all[0], all[len(all)-1]+"\x00"
	var want []contract.IndexRow
	for k, entries := range m.now {
		for _, e := range entries {
			if k >= start && k < end && e >= low && e < high {
				want = append(want, contract.IndexRow{Entry: e, Key: k})
			}
		}
	}
	slices.SortFunc(want, contract.IndexRow.Compare)
	for _, backwards := range []bool{false, true} {
		q := contract.IndexWalk{From: contract.IndexRow{Entry: low}, Bound: high, Start: start, End: end,
			Limit: 4, Backwards: backwards}
		if backwards {
			q.From, q.Bound = contract.IndexRow{Entry: high}, low
		}
		var got []contract.IndexRow
		for {
			p, _, err := m.b.IndexRows(m.ctx, q)
			m.must(err)
			if p.Generation != m.x.Generation {
				m.Fatalf("an index tells the generation %d, not %d", p.Generation, m.x.Generation)
			}
			got = append(got, p.Rows...)
			if len(p.Rows) < q.Limit {
				break
			}
			if q.From = got[len(got)-1]; !backwards {
				q.From.Key += "\x00"
			}
		}
		if backwards {
			slices.Reverse(got)
		}
		if !slices.Equal(got, want) {
			m.Fatalf("the index has the rows %q, not %q (backwards: %t)", got, want, backwards)
		}
	}
}

// compareReplaced reads what was replaced since some revisions, by an entry.
func (m *indexModel) compareReplaced(rng *rand.Rand, all []contract.Entry) {
	m.Helper()
	head := m.state().Head.Revision
	for _, e := range all {
		at := 1 + contract.Revision(rng.Int64N(int64(head)))
		q := contract.ReplacedQuery{Start: "/", End: "~", At: at, After: at, Upto: head,
			Known:   at + contract.Revision(rng.Int64N(int64(head-at+1))),
			Entries: []contract.Entry{e, contract.ValueEntry(99, "")}}
		var want []contract.Replaced
		for _, r := range m.replaced {
			if r.by > at && r.ID.Revision() <= at && (!r.known || r.by <= q.Known || slices.Contains(r.entries, e)) {
				want = append(want, r.Replaced)
			}
		}
		got, _, err := m.b.Replaced(m.ctx, q)
		m.must(err)
		order := func(a, b contract.Replaced) int {
			return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.ID, b.ID))
		}
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if !slices.Equal(got, want) {
			m.Fatalf("of %+v the rows %v are replaced, not %v", q, got, want)
		}
	}
}

// testIndexes compares the index with what random groups, steps of a walk and imports have written.
func testIndexes(f *fixture) {
	m := &indexModel{fixture: f, now: map[contract.Key][]contract.Entry{},
		ids: map[contract.Key]contract.RowID{}, lease: 7}
	f.grant(m.lease)
	declared, _, err := f.b.Indexes(f.ctx)
	f.must(err)
	if declared.Generation != 0 || len(declared.All) > 0 {
		f.Fatalf("a new store has the indexes %+v", declared)
	}
	m.change(func(x *contract.Indexes) (bool, error) {
		return true, errors.Join(x.Add(contract.Directory{Path: indexed}, "one"),
			x.Add(contract.Directory{Path: indexed}, "zwei'\\ü"))
	})
	if declared, _, err = f.b.Indexes(f.ctx); err != nil || declared.Generation != m.x.Generation ||
		!slices.EqualFunc(declared.All, m.x.All, func(a, b contract.Index) bool { return a.ID == b.ID && a.Name == b.Name }) {
		f.Fatalf("the indexes are %+v, not %+v, %v", declared, m.x, err)
	}
	if _, generation, _, err := f.b.Quota(f.ctx); err != nil || generation != m.x.Generation {
		f.Fatalf("the quota tells the generation %d, %v", generation, err)
	}
	var all []contract.Entry
	for id := range uint32(2) {
		for _, v := range []string{"", "a", "a\x00'\\", "\xff{}\","} {
			all = append(all, contract.ValueEntry(id+1, v))
		}
		all = append(all, contract.ExistsEntry(id+1), contract.UnknownEntry(id+1))
	}
	slices.Sort(all)

	// A group that was made by other declarations writes nothing.
	{
		mutation := contract.Mutation{Key: indexed + "none", Value: []byte("v")}
		for _, generation := range []int64{0, m.x.Generation - 1, m.x.Generation + 1} {
			before := f.state()
			_, err := f.b.Commit(f.ctx, &contract.Group{Token: contract.NewToken(), Seen: before.Head,
				Mutations: []*contract.Mutation{&mutation}, Generation: generation})
			if !errors.Is(err, contract.ErrOtherIndexes) {
				f.Fatalf("a group of the generation %d: %v", generation, err)
			}
			if after := f.state(); after.Head != before.Head {
				f.Fatalf("a refused group has moved the head from %v to %v", before.Head, after.Head)
			}
		}
	}

	rng := rand.New(rand.NewPCG(3, 4))
	some := func() (entries []contract.Entry) {
		for _, e := range all {
			if rng.IntN(4) == 0 {
				entries = append(entries, e)
			}
		}
		return entries
	}
	for range 60 {
		var ms []*contract.Mutation
		for _, i := range rng.Perm(12)[:1+rng.IntN(6)] {
			k := indexed + contract.Key(fmt.Sprintf("%02d", i))
			mutation := &contract.Mutation{Key: k, Value: []byte("v" + k), Indexed: true,
				Expect: m.ids[k].Revision(), Entries: some()}
			switch rng.IntN(8) {
			case 0:
				mutation.Expect = contract.Any
			case 1:
				mutation.Lease = m.lease
			case 2, 3:
				if mutation.Expect != 0 {
					mutation.Delete, mutation.Value, mutation.Entries = true, nil, nil
				}
			case 4:
				mutation.Expect = 1 // no key is at this revision
			case 5:
				mutation.Entries = m.now[k] // nothing changes
			}
			ms = append(ms, mutation)
		}
		whole := rng.IntN(3) == 0 && len(ms) > 1
		if !whole && rng.IntN(2) == 0 {
			ms = append(ms, &contract.Mutation{Key: "/other", Value: []byte("v"), Expect: contract.Any})
		}
		if _, err := m.group(whole, ms...); err != nil {
			f.Fatal(err)
		}
		m.compare(all)
		m.compareReplaced(rng, all)
	}
	if len(m.now) == 0 {
		f.Fatal("no key is left to look at")
	}

	// A step of a walk gives entries to keys that were not written since.
	{
		var keys []contract.Reindexed
		for k, id := range m.ids {
			entries := some()
			keys = append(keys, contract.Reindexed{Key: k, ID: id, Entries: entries})
			if rng.IntN(3) == 0 {
				keys[len(keys)-1].ID++ // it was written since
			} else {
				m.now[k] = entries
			}
		}
		keys = append(keys, contract.Reindexed{Key: indexed + "gone", ID: 3, Entries: all[:1]})
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error { return tx.Reindex(keys) }))
		m.compare(all)
		if _, err := m.group(false, &contract.Mutation{Key: keys[0].Key, Value: []byte("v" + keys[0].Key),
			Expect: m.ids[keys[0].Key].Revision(), Indexed: true, Entries: all}); err != nil {
			f.Fatal(err)
		}
		m.compare(all)
		m.compareReplaced(rng, all)
	}

	// A step that was read in a history that is lost is not taken.
	{
		seen := f.state().Head
		for _, other := range []contract.Position{
			{Epoch: seen.Epoch, Revision: seen.Revision, Token: contract.NewToken()},
			{Epoch: seen.Epoch + 1, Revision: seen.Revision, Token: seen.Token},
			{Epoch: seen.Epoch, Revision: seen.Revision + 7, Token: seen.Token},
		} {
			_, err := contract.BuildIndexes(f.ctx, f.b, other, indexed, m.x, nil, nil, []byte(indexed+"00"), false)
			f.is(err, contract.Transient)
		}
		x, err := contract.BuildIndexes(f.ctx, f.b, seen, indexed, m.x, nil, nil, []byte(indexed+"00"), false)
		f.must(err)
		for _, d := range x.All {
			if string(d.Built) != string(indexed+"00") {
				f.Fatalf("a step was not taken: %+v", x)
			}
		}
		m.x = x
		if x, err = contract.BuildIndexes(f.ctx, f.b, seen, indexed, m.x, []byte(indexed+"00"), nil, nil, true); err != nil {
			f.Fatal(err)
		}
		for _, d := range x.All {
			if d.State != contract.IndexReady || d.Since != seen.Revision {
				f.Fatalf("at %d the indexes are ready: %+v", seen.Revision, x)
			}
		}
		m.x = x
	}

	// The rows of an index that was dropped go, and the others stay.
	{
		m.change(func(x *contract.Indexes) (bool, error) { return x.Drop(indexed, "one"), nil })
		for more := true; more; {
			more, m.x, err = contract.ForgetEntries(f.ctx, f.b, 3)
			f.must(err)
		}
		for k, entries := range m.now {
			m.now[k] = slices.DeleteFunc(slices.Clone(entries),
				func(e contract.Entry) bool { return e.Index() == 1 })
		}
		m.compare(all)
		if len(m.x.All) != 1 {
			f.Fatalf("the dropped index is left: %+v", m.x)
		}
	}

	// An import leaves nothing in the index, and has it built anew.
	{
		in := &contract.Import{Store: "another", Replace: true, Token: contract.NewToken(), Target: "this",
			Seen: f.state().Head,
			Records: func(each func(*contract.Record) error) error {
				return each(&contract.Record{Key: indexed + "new", Revision: 2, Create: 2, Version: 1,
					Value: []byte("v" + indexed + "new")})
			}}
		_, err := in.Into(f.ctx, f.b)
		f.must(err)
		generation := m.x.Generation
		m.x, _, err = f.b.Indexes(f.ctx)
		f.must(err)
		if m.x.Generation == generation || m.x.All[0].State != contract.IndexBuilding {
			f.Fatalf("after an import the indexes are %+v", m.x)
		}
		clear(m.now)
		m.compare(all)
	}
}
