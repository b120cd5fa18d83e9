package mvcc

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// CountLimit is where the counting of a range stops, so that a page costs the same however many
// keys follow it.
const CountLimit = 10_000

// RangeOptions say what to list.
type RangeOptions struct {
	// Start (inclusive) and End (exclusive) bound the keys.
	Start, End contract.Key
	// From, if not empty, is where the page begins within the range. The range as a whole names the
	// list that the page belongs to.
	From contract.Key
	// At is the revision of the snapshot, 0 for the newest.
	At contract.Revision
	// Limit is the number of keys wanted, 0 for all. The values of one call are bounded by about
	// twice ReadBytes besides, so there may be fewer.
	Limit int
	// KeysOnly leaves the values out.
	KeysOnly bool
	// By, if not nil, leaves out the keys of which the index says that they have none of the
	// entries, or the log, if they were replaced since At. The error is
	// [contract.ErrOtherIndexes] if the declarations have changed.
	By *IndexQuery
	// Ahead says, if not 0, that the call ends a page of a client's list, and is the Limit of the
	// list's pages. If the client has asked for the page before it by the same Limit, the next one
	// is read in the background, for the call that will ask for that one.
	Ahead int
	// Count counts what is left, too: up to CountLimit, or all if Exact.
	Count, Exact bool
}

// countLimit is where a database may stop to count, 0 for nowhere.
func (o *RangeOptions) countLimit() int64 {
	if o.Exact {
		return 0
	}
	return CountLimit + 1
}

// RangeResult is a snapshot, or a page of it, in the order of keys.
type RangeResult struct {
	// Revision is that of the snapshot, and Head the newest one when it was read.
	Revision, Head contract.Revision
	KVs            []KeyValue
	// More: the limit, or the bound of the values' bytes, has left out keys.
	More bool
	// Count is the number of keys from the page's begin to the range's end, -1 if it was not asked
	// for, or is more than CountLimit and was not asked for exactly.
	Count int64

	// state is what proves the page, and Head is that of it.
	state contract.State
}

// newResult is a page without keys, as a read at a state answers it.
func newResult(o RangeOptions, st contract.State) *RangeResult {
	r := &RangeResult{Revision: o.At, Count: -1}
	r.prove(st)
	if o.At == 0 {
		r.Revision = r.Head
	}
	return r
}

// prove notes the state that proves the page.
func (r *RangeResult) prove(st contract.State) { r.state, r.Head = st, st.Head.Revision }

// Bytes is the size of the keys and values.
func (r *RangeResult) Bytes() (n int) {
	for i := range r.KVs {
		n += len(r.KVs[i].Key) + len(r.KVs[i].Value)
	}
	return n
}

// next returns where the page after this one begins, if there is one.
func (r *RangeResult) next() (from contract.Key, more bool) {
	if !r.More || len(r.KVs) == 0 {
		return "", false
	}
	return r.KVs[len(r.KVs)-1].Key + "\x00", true
}

// Range lists. Its errors are ErrCompacted, *FutureRevisionError, ErrClosed and those of the
// Backend.
func (s *Engine) Range(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	if o.From == "" {
		o.From = o.Start
	}
	res, err := s.reads.Page(ctx, o)
	switch {
	case err != nil || !o.Count:
		return res, err
	case !res.More:
		res.Count = int64(len(res.KVs))
		return res, nil
	}
	o.At = res.Revision
	n, _, err := s.reads.Count(ctx, o, res)
	if err != nil {
		return nil, err
	}
	if n <= CountLimit || o.Exact {
		res.Count = n
	}
	return res, nil
}

// CountAt counts the keys in [start, end) that existed at a revision, 0 for the newest, and returns
// the head of the read. Its errors are those of Range.
func (s *Engine) CountAt(ctx context.Context, start, end contract.Key, at contract.Revision) (n int64, head contract.Revision,
	err error) {
	n, st, err := s.reads.Count(ctx, RangeOptions{Start: start, End: end, From: start, At: at,
		Exact: true}, nil)
	return n, st.Head.Revision, err
}

// GetAt reads one key as it was at a revision, and returns the head of the read, too. Its errors
// are those of Range. A key that was not written since is found at its live row. Otherwise what was
// written since is looked through, as for a range.
func (s *Engine) GetAt(ctx context.Context, key contract.Key, at contract.Revision) (*KeyValue, contract.Revision, error) {
	kv, st, err := s.source.Get(ctx, key)
	head := st.Head.Revision
	switch {
	case err != nil:
		return nil, 0, err
	case at > head:
		return nil, head, &contract.FutureRevisionError{Revision: at, Head: head}
	case at < st.Compacted:
		return nil, head, contract.ErrCompacted
	case kv != nil && kv.Revision <= at:
		return kv, head, nil
	case kv == nil && at == head:
		return nil, head, nil
	}
	res, err := s.Range(ctx, RangeOptions{Start: key, End: key + "\x00", At: at})
	if err != nil || len(res.KVs) == 0 {
		return nil, head, err
	}
	return &res.KVs[0], head, nil
}
