package mvcc

import (
	"context"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A page in the order of an index, at a revision R, is made of three reads:
//
//  1. rows of the index, from a place on: in the newest state, which has a head H1 >= R;
//  2. the live rows of their keys, in later snapshots, the last of which has a head H2 >= H1;
//  3. what was replaced in (R, H2] of the state at R, as for a list at a revision (undo.go).
//
// A key that was not written in (R, H2] has at R the value of its live row, and the entry that the
// index has of it. Another one is not newer than R only by what the third read says: its value at R
// is decoded, which tells where it stands. So each key that existed at R is at its place once. The
// page ends where the index's rows end, if there are more, and what was replaced belongs to it only
// up to there.
//
// A key whose value nobody has looked at has the entry that says "unknown", and is looked at for
// each page. These keys are read before the index's rows: a walk that builds the index makes known
// ones of them meanwhile, never the other way round, but for writes after R and for changes of the
// generation. All reads of the index must tell the same generation.

// SortOptions asks for a page in the order of an index. No value has two entries in it.
type SortOptions struct {
	// Start (inclusive) and End (exclusive) bound the keys.
	Start, End contract.Key
	// At is the revision, 0 for the newest.
	At contract.Revision
	// Generation is that of the declarations that the options were made by.
	Generation int64
	// Index is the index.
	Index uint32
	// After is where the page before has ended, nil for the first page. The row there belongs to this
	// page only if Including.
	After     *contract.IndexRow
	Including bool
	// Backwards begins at the last row.
	Backwards bool
	// Limit is how many rows of the index are read, > 0. What was replaced comes in addition.
	Limit int
	// Entry says which entry a value has, and false if it has none.
	Entry func(*KeyValue) (contract.Entry, bool)
}

// Order compares rows as the page has them.
func (o *SortOptions) Order() func(a, b contract.IndexRow) int {
	if o.Backwards {
		return func(a, b contract.IndexRow) int { return b.Compare(a) }
	}
	return contract.IndexRow.Compare
}

// Behind tells whether the page begins before a row.
func (o *SortOptions) Behind(row contract.IndexRow) bool {
	if o.After == nil {
		return true
	}
	order := o.Order()(row, *o.After)
	return order > 0 || order == 0 && o.Including
}

// Sorted is a page in the order that was asked for.
type Sorted struct {
	Revision contract.Revision
	// Rows are the places of KVs.
	Rows []contract.IndexRow
	KVs  []KeyValue
	// More tells that rows follow, after Last.
	More bool
	Last contract.IndexRow
}

// unknownRows is how many keys of which nothing is known are read at a time.
const unknownRows = 1_000

// Sorted reads a page in the order of an index. Its errors are those of Range, and
// contract.ErrOtherIndexes if the generation is another one.
func (s *Engine) Sorted(ctx context.Context, o SortOptions) (*Sorted, error) {
	wanted, err := s.unknown(ctx, o)
	if err != nil {
		return nil, err
	}
	w := contract.IndexWalk{Start: o.Start, End: o.End, Limit: o.Limit, Backwards: o.Backwards}
	low, high := contract.ValueEntries(o.Index)
	w.From.Entry, w.Bound = low, high
	if o.Backwards {
		w.From.Entry, w.Bound = high, low
	}
	if o.After != nil {
		if w.From = *o.After; o.Including == o.Backwards {
			w.From.Key += "\x00"
		}
	}
	rows, st, err := s.indexRows(ctx, w, o.Generation)
	if err != nil {
		return nil, err
	}
	page := &Sorted{Revision: o.At, More: len(rows) == o.Limit}
	if page.Revision == 0 {
		page.Revision = st.Head.Revision
	}
	if err := s.undo.check(page.Revision, st); err != nil {
		return nil, err
	}
	if page.More {
		page.Last = rows[len(rows)-1]
	}
	for _, row := range rows {
		wanted[row.Key] = row.Entry
	}
	kvs, head, err := s.live(ctx, wanted)
	if err != nil {
		return nil, err
	}
	var undone []contract.Replaced
	if head = max(head, st.Head.Revision); head > page.Revision {
		if undone, err = s.reads.Replaced(ctx, contract.ReplacedQuery{Start: o.Start, End: o.End,
			At: page.Revision, After: page.Revision, Upto: head}); err != nil {
			return nil, err
		}
	}
	compare := o.Order()
	type placed struct {
		row contract.IndexRow
		kv  *KeyValue
	}
	var found []placed
	add := func(kv *KeyValue, entry contract.Entry) {
		if entry == "" {
			var ok bool
			if entry, ok = o.Entry(kv); !ok {
				return
			}
		}
		row := contract.IndexRow{Entry: entry, Key: kv.Key}
		if o.Behind(row) && (!page.More || compare(row, page.Last) <= 0) {
			found = append(found, placed{row, kv})
		}
	}
	old := oldRows{u: s.undo, at: page.Revision, asked: undone,
		rows: map[contract.RowID]*contract.Row{}}
	for i := range undone {
		old.bytes = 0 // what does not belong to the page is not kept
		row, err := old.row(ctx, i)
		if err != nil {
			return nil, err
		}
		delete(old.rows, row.ID())
		add(keyValue(row), "")
	}
	for i := range kvs {
		kv := &kvs[i]
		// The live rows are read in pieces, so one may have been replaced since.
		_, replaced := slices.BinarySearchFunc(undone, kv.Key,
			func(r contract.Replaced, k contract.Key) int {
				return strings.Compare(string(r.Key), string(k))
			})
		if kv.Revision <= page.Revision && !replaced {
			add(kv, wanted[kv.Key])
		}
	}
	slices.SortFunc(found, func(a, b placed) int { return compare(a.row, b.row) })
	for _, f := range found {
		page.Rows, page.KVs = append(page.Rows, f.row), append(page.KVs, *f.kv)
	}
	return page, nil
}

// unknown returns the keys of which the index does not know what their values say.
func (s *Engine) unknown(ctx context.Context, o SortOptions) (map[contract.Key]contract.Entry, error) {
	entry, found := contract.UnknownEntry(o.Index), map[contract.Key]contract.Entry{}
	w := contract.IndexWalk{From: contract.IndexRow{Entry: entry, Key: o.Start},
		Bound: entry + "\x00", Start: o.Start, End: o.End, Limit: unknownRows}
	for {
		rows, _, err := s.indexRows(ctx, w, o.Generation)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			found[row.Key] = ""
		}
		if len(rows) < w.Limit {
			return found, nil
		}
		w.From.Key = rows[len(rows)-1].Key + "\x00"
	}
}

func (s *Engine) indexRows(ctx context.Context, w contract.IndexWalk, generation int64) (
	[]contract.IndexRow, contract.State, error) {
	var found *contract.IndexRows
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		found, st, err = s.b.IndexRows(ctx, w)
		return st, err
	})
	switch {
	case err != nil:
		return nil, st, err
	case found.Generation != generation:
		return nil, st, contract.ErrOtherIndexes
	}
	return found.Rows, st, nil
}

// live reads the live rows of keys, and returns a head up to which they may have been written.
func (s *Engine) live(ctx context.Context, keys map[contract.Key]contract.Entry) (kvs []KeyValue,
	head contract.Revision, err error) {
	wanted := make([]contract.Key, 0, len(keys))
	for k := range keys {
		wanted = append(wanted, k)
	}
	slices.Sort(wanted)
	for piece := range slices.Chunk(wanted, unknownRows) {
		found, st, err := s.reads.GetKeys(ctx, piece)
		if err != nil {
			return nil, 0, err
		}
		head = max(head, st.Head.Revision)
		for _, k := range piece {
			kv := found[k]
			if kv != nil && kv.Value == nil { // it is beyond ReadBytes, or damaged, and this says how
				var at contract.Revision
				if kv, at, err = s.get(ctx, k); err != nil {
					return nil, 0, err
				}
				head = max(head, at)
			}
			if kv != nil {
				kvs = append(kvs, *kv)
			}
		}
	}
	return kvs, head, nil
}
