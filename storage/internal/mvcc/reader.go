package mvcc

import (
	"context"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A chain of readers answers Range, Get and the counts of keys. Each reader has the methods of
// [reader]. It answers what it can, and asks the next one for all else. From the top:
//
//	left     remembers how many keys are left from the begin of a page on (left.go)
//	ahead    reads the page that will probably be asked for next (ahead.go)
//	undo     makes the state at a revision of live rows; it remembers nothing (undo.go)
//	deltas   remembers which rows were replaced since a revision (deltas.go)
//	rows     keeps the newest rows in memory (rowcache.go)
//	source   reads the database, and takes no answer of another history (below)
//
// source and undo are always there. Each of the other four is a memory, and may be left out: then
// the next reader answers the same, at a higher cost. The store composes the chain
// ([Engine.compose]), and no reader knows which ones are around it.
//
// # What a memory may answer, and what proves it
//
// I4 is about the newest state, I5 about the state at a revision. The two need different proofs:
//
//   - The newest state is proved by a statement that begins after the call. That is a read of the
//     state alone, or of the keys that are not in memory. rows is the only memory that answers
//     about the newest state, and only if the hub has delivered the head that the statement has
//     found.
//   - The state at a revision is the same whenever it is read, until the revision is compacted. So
//     a memory of it needs two proofs: the revision is not compacted, and the history is the one
//     that the memory is about. A fence compacts all revisions before it (I6), so the first proof
//     is the second one, too. It is a statement that begins after the call, and finds compacted.
//
// Each answer carries the state that its proof has found, and undo compares compacted and the head
// of each page with the revision that was asked for:
//
//   - rows answers Page, Count and GetKeys. It may answer a page if the whole range is in memory,
//     and if the head that a read of the state finds is the one that the hub has delivered. It may
//     answer a count if the hub has come to the head of the page that the count is about: the call
//     has read that page.
//   - deltas answers Replaced. The rows that were replaced in (R, H] are always the same. The proof
//     is the read of the page or the count that asks for them, whose head is H.
//   - ahead answers Page at a revision. It reads the state when the call has begun, and drops what
//     it has read ahead if the revision is compacted by then. The answer's head is that of this
//     read.
//   - left answers Count. The proof is the page at which the count begins. The count of a page
//     before it, in the same list, tells how many keys are left.
//
// A page by an index has a part of the keys of its range. The memories of ranges do not know which
// part: ahead, rows and left let the next reader answer, and remember nothing of it.
//
// # Why in this order
//
// A live row is the newest row of its key. rows knows live rows only, so it stands below undo, and
// serves pages at old revisions as well. undo alone asks for what was replaced, so deltas stands
// just below it. ahead keeps pages at a revision, so it stands above undo, and reads through all
// that is below. left stands at the top, since it has to see all pages, also the pages that were
// read ahead.

// reader answers reads of one history. A reader embeds the next one of the chain, and has methods
// of its own only for what it answers.
type reader interface {
	// Page reads a page of the list that the options name, at most o.Limit keys from o.From on.
	// Above undo it is the state at o.At, or the newest state if that is 0, and More tells whether
	// keys follow. Below undo it is the live rows that are not newer than o.At, 0 standing for all,
	// Limit is not 0, and More tells whether the page ended at ReadBytes. Count is -1.
	Page(ctx context.Context, o RangeOptions) (*RangeResult, error)
	// Count counts the keys from o.From on, at least up to CountLimit + 1, and all if o.Exact. As
	// for Page, these are the keys at o.At above undo, and live rows below. If page is not nil, it
	// is the page at o.At that begins at o.From. The state is that of the read or of the page.
	Count(ctx context.Context, o RangeOptions, page *RangeResult) (int64, contract.State, error)
	// Get reads the live row of one key, nil if there is none. No memory answers it, as a proof
	// would cost as much. If the value is lost, the error says so.
	Get(ctx context.Context, key contract.Key) (*KeyValue, contract.State, error)
	// GetKeys reads the live rows of several different keys. Without keys it reads the state. A
	// value that is lost, or beyond ReadBytes, is nil.
	GetKeys(ctx context.Context, keys []contract.Key) (map[contract.Key]*KeyValue, contract.State, error)
	// Replaced reads which rows of the state at q.At were replaced in (q.After, q.Upto], in the
	// order of keys. Nobody changes the result. The error is ErrCompacted if q.At is compacted.
	Replaced(ctx context.Context, q contract.ReplacedQuery) ([]contract.Replaced, error)
	// Cached tells whether a page of the range most likely costs no more than its proof.
	Cached(start, end contract.Key) bool
}

// link puts a reader on top of the next one.
type link func(next reader) reader

// chained makes a chain of links, the lowest first, on top of a reader.
func chained(r reader, links ...link) reader {
	for _, l := range links {
		r = l(r)
	}
	return r
}

// links are the readers above the source, from the lowest up.
func (s *Engine) links() []link {
	return []link{s.rows.link, s.deltas.link, s.undo.link, s.ahead.link, s.left.link}
}

// compose makes the chain, without rows if none are kept.
func (s *Engine) compose() {
	links := s.links()
	if s.cfg.CacheBytes <= 0 {
		links = links[1:]
	}
	s.reads = chained(s.source, links...)
}

// source reads the database. Each answer has passed Engine.read, so it belongs to this history.
type source struct{ s *Engine }

// State reads the state alone, which is the cheapest proof.
func (r *source) State(ctx context.Context) (contract.State, error) {
	return r.s.read(ctx, r.s.b.State)
}

// Page implements reader.
func (r *source) Page(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	q := contract.PageQuery{Start: o.From, End: o.End, At: o.At, Limit: o.Limit, KeysOnly: o.KeysOnly}
	if o.By != nil {
		q.Entries = o.By.Entries
	}
	var p *contract.Page
	_, err := r.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		if p, err = r.s.b.Page(ctx, q); err != nil {
			return st, err
		}
		return p.State, nil
	})
	if err != nil {
		return nil, err
	}
	if o.By != nil && p.Generation != o.By.Generation {
		return nil, contract.ErrOtherIndexes
	}
	res := newResult(o, p.State)
	res.KVs, res.More = make([]KeyValue, len(p.Rows)), p.More
	for i := range p.Rows {
		res.KVs[i] = *keyValue(&p.Rows[i])
	}
	return res, nil
}

// Count implements reader.
func (r *source) Count(ctx context.Context, o RangeOptions, _ *RangeResult) (int64, contract.State, error) {
	var n int64
	st, err := r.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		n, st, err = r.s.b.Count(ctx, o.From, o.End, o.At, o.countLimit())
		return st, err
	})
	return n, st, err
}

// Get implements reader.
func (r *source) Get(ctx context.Context, key contract.Key) (*KeyValue, contract.State, error) {
	var row *contract.Row
	st, err := r.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		row, st, err = r.s.b.Get(ctx, key)
		return st, err
	})
	if err != nil || row == nil {
		return nil, st, err
	}
	return keyValue(row), st, nil
}

// GetKeys implements reader. The Backend is a KeysReader. One key alone costs less by Get.
func (r *source) GetKeys(ctx context.Context, keys []contract.Key) (map[contract.Key]*KeyValue, contract.State, error) {
	if len(keys) == 1 {
		kv, st, err := r.Get(ctx, keys[0])
		if err != nil || kv == nil {
			return nil, st, err
		}
		return map[contract.Key]*KeyValue{kv.Key: kv}, st, nil
	}
	var rows []contract.Row
	st, err := r.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		rows, st, err = r.s.b.(contract.KeysReader).GetKeys(ctx, keys)
		return st, err
	})
	if err != nil || len(rows) == 0 {
		return nil, st, err
	}
	found := make(map[contract.Key]*KeyValue, len(rows))
	for i := range rows {
		found[rows[i].Key] = keyValue(&rows[i])
	}
	return found, st, nil
}

// Replaced implements reader.
func (r *source) Replaced(ctx context.Context, q contract.ReplacedQuery) ([]contract.Replaced, error) {
	var found []contract.Replaced
	st, err := r.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		found, st, err = r.s.b.Replaced(ctx, q)
		return st, err
	})
	switch {
	case err != nil:
		return nil, err
	case st.Compacted > q.At:
		return nil, contract.ErrCompacted
	}
	slices.SortFunc(found, func(a, b contract.Replaced) int {
		return strings.Compare(string(a.Key), string(b.Key))
	})
	return found, nil
}

// values reads rows of the log, as Backend.Values does, for a snapshot at a revision.
func (r *source) values(ctx context.Context, at contract.Revision, ids []contract.RowID) ([]contract.Row, error) {
	var found []contract.Row
	st, err := r.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		found, st, err = r.s.b.Values(ctx, ids)
		return st, err
	})
	if err == nil && st.Compacted > at {
		err = contract.ErrCompacted
	}
	return found, err
}

// Cached implements reader.
func (r *source) Cached(contract.Key, contract.Key) bool { return false }

func keyValue(r *contract.Row) *KeyValue {
	return &KeyValue{Key: r.Key, Revision: r.Revision, Create: r.Create, Version: r.Version,
		Lease: r.Lease, Value: r.Value}
}
