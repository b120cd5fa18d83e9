package mvcc

import (
	"context"
	"errors"
	"maps"
	"slices"

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
	// After is where the page before has ended, nil for the first page. The row there belongs to
	// this page only if Including.
	After     *contract.IndexRow
	Including bool
	// Backwards begins at the last row.
	Backwards bool
	// Limit is how many keys a page has at most, > 0.
	Limit int
	// Entry says which entry a value has, and false if it has none.
	Entry func(*KeyValue) (contract.Entry, bool)
}

// order compares rows as the page has them.
func (o *SortOptions) order(a, b contract.IndexRow) int {
	if o.Backwards {
		a, b = b, a
	}
	return a.Compare(b)
}

// behind tells whether the page begins before a row.
func (o *SortOptions) behind(row contract.IndexRow) bool {
	if o.After == nil {
		return true
	}
	order := o.order(row, *o.After)
	return order > 0 || order == 0 && o.Including
}

// Sorted is a page in the order that was asked for.
type Sorted struct {
	Revision contract.Revision
	// Keys are in order when [Sorted.Sort] has been called.
	Keys []SortedKey
	// More tells that rows follow, after Last.
	More bool
	Last contract.IndexRow

	options *SortOptions
}

// SortedKey is a key at its place.
type SortedKey struct {
	Row contract.IndexRow
	KeyValue
}

// NewSorted begins a page.
func NewSorted(o *SortOptions) *Sorted { return &Sorted{options: o} }

// Add puts a key into the page, if it belongs there. The page holds no more than twice Limit keys.
func (p *Sorted) Add(row contract.IndexRow, kv KeyValue) {
	if !p.options.behind(row) || p.More && p.options.order(row, p.Last) > 0 {
		return
	}
	if p.Keys = append(p.Keys, SortedKey{row, kv}); len(p.Keys)/2 >= p.options.Limit {
		p.Sort()
	}
}

// Sort puts the keys in order, and ends the page at Limit.
func (p *Sorted) Sort() {
	slices.SortFunc(p.Keys, func(a, b SortedKey) int { return p.options.order(a.Row, b.Row) })
	if limit := p.options.Limit; len(p.Keys) > limit {
		clear(p.Keys[limit:])
		p.Keys = p.Keys[:limit]
		p.More, p.Last = true, p.Keys[limit-1].Row
	}
}

// unknownRows is how many keys of which nothing is known are read at a time, and mostUnknown how
// many there may be: each page looks at all of them.
const (
	unknownRows = 1_000
	mostUnknown = 10_000
)

// ErrMuchUnknown refuses a page of an index that does not know what too many values say.
var ErrMuchUnknown = errors.New("the index does not know what many values say")

// Sorted reads a page in the order of an index. Its errors are those of Range, and
// contract.ErrOtherIndexes if the generation is another one, and ErrMuchUnknown.
func (s *Engine) Sorted(ctx context.Context, o SortOptions) (*Sorted, error) {
	wanted, err := s.unknown(ctx, &o)
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
	page := NewSorted(&o)
	if page.Revision = o.At; o.At == 0 {
		page.Revision = st.Head.Revision
	}
	if err := s.undo.check(page.Revision, st); err != nil {
		return nil, err
	}
	if len(rows) == o.Limit {
		page.More, page.Last = true, rows[len(rows)-1]
	}
	for _, row := range rows {
		wanted[row.Key] = row.Entry
	}
	add := func(kv *KeyValue, entry contract.Entry) {
		ok := entry != ""
		if !ok {
			entry, ok = o.Entry(kv)
		}
		if ok {
			page.Add(contract.IndexRow{Entry: entry, Key: kv.Key}, *kv)
		}
	}
	current := map[contract.Key]bool{}
	head, err := s.live(ctx, wanted, func(kv *KeyValue) {
		if kv.Revision <= page.Revision {
			current[kv.Key] = true
			add(kv, wanted[kv.Key])
		}
	})
	if err != nil {
		return nil, err
	}
	if head = max(head, st.Head.Revision); head > page.Revision {
		undone, err := s.reads.Replaced(ctx, contract.ReplacedQuery{Start: o.Start, End: o.End,
			At: page.Revision, After: page.Revision, Upto: head})
		if err != nil {
			return nil, err
		}
		old := oldRows{u: s.undo, at: page.Revision, asked: undone,
			rows: map[contract.RowID]*contract.Row{}}
		for i := range undone {
			if current[undone[i].Key] {
				continue // it was written after its live row was read, which comes in pieces
			}
			old.bytes = 0 // what does not belong to the page is not kept
			row, err := old.row(ctx, i)
			if err != nil {
				return nil, err
			}
			delete(old.rows, row.ID())
			add(keyValue(row), "")
		}
	}
	page.Sort()
	return page, nil
}

// unknown returns the keys of which the index does not know what their values say.
func (s *Engine) unknown(ctx context.Context, o *SortOptions) (map[contract.Key]contract.Entry,
	error) {
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
		switch {
		case len(found) > mostUnknown:
			return nil, ErrMuchUnknown
		case len(rows) < w.Limit:
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

// live calls each for the live rows of keys, piece by piece, and returns a head up to which these
// may have been written.
func (s *Engine) live(ctx context.Context, keys map[contract.Key]contract.Entry,
	each func(*KeyValue)) (head contract.Revision, err error) {
	for piece := range slices.Chunk(slices.Sorted(maps.Keys(keys)), unknownRows) {
		found, st, err := s.reads.GetKeys(ctx, piece)
		if err != nil {
			return 0, err
		}
		head = max(head, st.Head.Revision)
		for _, k := range piece {
			kv := found[k]
			if kv != nil && kv.Value == nil { // it is beyond ReadBytes, or damaged: this says how
				var at contract.Revision
				if kv, at, err = s.get(ctx, k); err != nil {
					return 0, err
				}
				head = max(head, at)
			}
			if kv != nil {
				each(kv)
			}
		}
	}
	return head, nil
}
