package mvcc

import (
	"context"
	"sort"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A list at a revision R, in pages or whole, is exactly the state at R. The database keeps the
// current state (live) and the log; the state at R is found by undoing what happened since:
//
//	 the live rows not newer than R
//	+ the rows that were current at R and were replaced by a row in (R, H]   (its Prev is not later)
//
// where H is the head of the snapshot that the live rows were read in. The two parts are disjoint,
// as a key's live row is newer than R if the key was written after R; and complete, as a key that
// existed at R either was not written since, and is live and not newer than R, or was, and its
// first such row names the one current at R. A key has at most one such row, since later ones have
// Prev > R or, after a deletion, Prev = 0.
//
// The second part is the delta of R. Rows of the log are immutable, and those newer than the
// compacted revision are all there, so the delta may be read in another snapshot than the live
// rows. The replaced rows' values are there as long as R >= compacted, which is checked in the
// snapshot that reads them, after everything else.
//
// In a page by an index, rows are left out of both parts, where the index and the log say that the
// list does not want them.

// undo is the reader that makes the state at a revision of the live rows that the next reader has.
type undo struct {
	reader
	// values reads rows of the log.
	values func(ctx context.Context, at contract.Revision, ids []contract.RowID) ([]contract.Row, error)
}

func (u *undo) link(next reader) reader { u.reader = next; return u }

// check compares the state that a read has found with the revision that was asked for.
func (u *undo) check(at contract.Revision, st contract.State) error {
	switch {
	case at > st.Head.Revision:
		return &contract.FutureRevisionError{Revision: at, Head: st.Head.Revision}
	case at < st.Compacted:
		return contract.ErrCompacted
	}
	return nil
}

// Page implements reader. It asks for one key more than is wanted, and so knows whether keys
// follow.
func (u *undo) Page(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	limit := o.Limit
	if limit <= 0 {
		limit = int(^uint(0)>>1) - 1
	}
	o.Limit = limit + 1
	res, err := u.reader.Page(ctx, o)
	if err == nil {
		err = u.check(res.Revision, res.state)
	}
	if err != nil {
		return nil, err
	}
	if res.Revision < res.Head {
		undone, err := u.delta(ctx, o, res.Revision, res.Head)
		if err != nil {
			return nil, err
		}
		if err := u.merge(ctx, res, undone, o); err != nil {
			return nil, err
		}
	}
	if len(res.KVs) > limit {
		res.KVs[limit].Value = nil // nobody sees it, so nothing is to keep it in memory
		res.KVs, res.More = res.KVs[:limit], true
	}
	return res, nil
}

// Count implements reader. The keys are counted in another snapshot than the page was read in, so
// the delta reaches from the same revision to another head.
func (u *undo) Count(ctx context.Context, o RangeOptions, page *RangeResult) (int64, contract.State, error) {
	n, st, err := u.reader.Count(ctx, o, page)
	head := st.Head.Revision
	if err != nil || o.At == 0 {
		return n, st, err
	}
	if err := u.check(o.At, st); err != nil {
		return 0, st, err
	}
	if n > CountLimit && !o.Exact || o.At == head {
		return n, st, nil
	}
	undone, err := u.delta(ctx, o, o.At, head)
	return n + int64(len(undone)), st, err
}

// delta returns the keys from o.From on that were current at a revision and were replaced up to
// the head. The delta of the whole list is read, since its other pages need it, too.
func (u *undo) delta(ctx context.Context, o RangeOptions, at, head contract.Revision) ([]contract.Replaced, error) {
	q := contract.ReplacedQuery{Start: o.Start, End: o.End, At: at, After: at, Upto: head}
	if o.By != nil {
		q.Entries, q.Known = o.By.Entries, o.By.Since
	}
	d, err := u.Replaced(ctx, q)
	if err != nil {
		return nil, err
	}
	return d[sort.Search(len(d), func(i int) bool { return d[i].Key >= o.From }):], nil
}

// merge adds the undone rows that belong to the page, with their values, and ends the page at
// ReadBytes.
func (u *undo) merge(ctx context.Context, page *RangeResult, undone []contract.Replaced,
	o RangeOptions) error {
	kvs := page.KVs
	if len(kvs) == o.Limit || page.More {
		// The page is full: only what sorts before its end can belong to it.
		end := kvs[len(kvs)-1].Key
		undone = undone[:sort.Search(len(undone), func(i int) bool { return undone[i].Key >= end })]
	}
	undone = undone[:min(len(undone), o.Limit)]
	if len(undone) == 0 {
		return nil
	}
	old := oldRows{u: u, at: page.Revision, asked: undone, rows: map[contract.RowID]*contract.Row{}}
	page.KVs = make([]KeyValue, 0, min(len(kvs)+len(undone), o.Limit))
	for i, j := 0, 0; (i < len(kvs) || j < len(undone)) && len(page.KVs) < o.Limit; {
		if j == len(undone) || i < len(kvs) && kvs[i].Key < undone[j].Key {
			page.KVs = append(page.KVs, kvs[i])
			i++
			continue
		}
		if o.KeysOnly {
			old.bytes = 0 // nothing of them is kept
		}
		row, err := old.row(ctx, j)
		if err != nil {
			return err
		}
		if row == nil {
			page.More = true
			return nil
		}
		kv := *keyValue(row)
		if o.KeysOnly {
			kv.Value, row.Value = nil, nil
		}
		page.KVs = append(page.KVs, kv)
		j++
	}
	return nil
}

// oldRows reads rows of the log as a page comes to need them.
type oldRows struct {
	u  *undo
	at contract.Revision
	// asked are the rows that may be needed, in this order.
	asked []contract.Replaced
	rows  map[contract.RowID]*contract.Row
	// bytes is the size of the values that were read.
	bytes int
}

// oldPiece is how many revisions every database takes in one statement.
const oldPiece = 1_000

// row returns the asked row j, or nil if it was not read yet and the values have reached ReadBytes.
func (o *oldRows) row(ctx context.Context, j int) (*contract.Row, error) {
	id := o.asked[j].ID
	if row := o.rows[id]; row != nil || o.bytes >= contract.ReadBytes {
		return row, nil
	}
	var piece []contract.RowID
	for _, r := range o.asked[j:min(j+oldPiece, len(o.asked))] {
		if o.rows[r.ID] == nil {
			piece = append(piece, r.ID)
		}
	}
	// A read that ends at its bound need not have come to this row.
	for _, piece := range [][]contract.RowID{piece, {id}} {
		found, err := o.u.values(ctx, o.at, piece)
		if err != nil {
			return nil, err
		}
		for i := range found {
			o.rows[found[i].ID()] = &found[i]
			o.bytes += len(found[i].Value)
		}
		if row := o.rows[id]; row != nil {
			return row, nil
		}
	}
	return nil, contract.Damaged("the log has no row %d, which a snapshot at %d needs", id, o.at)
}
