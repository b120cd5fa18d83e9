package mvcc

import (
	"container/list"
	"context"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A list at a revision R, in pages or whole, is exactly the state at R. The database keeps the
// current state (live) and the log; the state at R is found by undoing what happened since:
//
//	 the live rows not newer than R
//	+ the rows that were current at R and were replaced by a row in (R, H]   (its Prev is in [1, R])
//
// where H is the head of the snapshot that the live rows were read in. The two parts are disjoint,
// as a key's live row is newer than R if the key was written after R; and complete, as a key that
// existed at R either was not written since, and is live and not newer than R, or was, and its
// first such row names the one current at R. A key has at most one such row, since later ones have
// Prev > R or, after a deletion, Prev = 0.
//
// The second part is the delta of R. Rows of the log are immutable, and those newer than the
// compacted revision are all there, so the delta may be read in other snapshots than the live rows,
// in pieces (R, H1], (H1, H2], …: a paged list keeps its delta, and each page extends it to the
// head of its own snapshot. A key that is updated between two pages is thereby found in the piece
// in between. The replaced rows' values are there as long as R >= compacted, which is checked in
// the snapshot that reads them, after everything else.

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
	// Ahead says, if not 0, that the call ends a page of a client's list, and is the Limit of the
	// list's pages. If the client has asked for the page before it by the same Limit, the next one
	// is read in the background, for the call that will ask for that one.
	Ahead int
	// Count counts what is left, too: up to CountLimit, or all if Exact.
	Count, Exact bool
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
}

// Bytes is the size of the keys and values.
func (r *RangeResult) Bytes() (n int) {
	for i := range r.KVs {
		n += len(r.KVs[i].Key) + len(r.KVs[i].Value)
	}
	return n
}

// Range lists. Its errors are ErrCompacted, *FutureRevisionError, ErrClosed and those of the
// Backend.
func (s *Store) Range(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	if o.From == "" {
		o.From = o.Start
	}
	var res *RangeResult
	var err error
	if o.Ahead > 0 {
		res, err = s.readAhead(ctx, o)
	}
	if err == nil && res == nil {
		res, err = s.readRange(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	if o.Ahead > 0 && !s.Cached(o.From, o.End) {
		s.ahead.turned(s.ctx, o, res)
	}
	left, err := s.left(ctx, o, res)
	if err != nil {
		return nil, err
	}
	if o.Count {
		res.Count = left
	}
	return res, nil
}

// readRange is Range without what the list's other pages have to do with it.
func (s *Store) readRange(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	limit := o.Limit
	if limit <= 0 {
		limit = int(^uint(0)>>1) - 1
	}
	page, err := s.page(ctx, contract.PageQuery{Start: o.From, End: o.End, At: o.At, Limit: limit + 1,
		KeysOnly: o.KeysOnly})
	if err != nil {
		return nil, err
	}
	st := page.State
	res := &RangeResult{Revision: o.At, Head: st.Head.Revision, Count: -1}
	if o.At == 0 {
		res.Revision = st.Head.Revision
	}
	switch {
	case res.Revision > st.Head.Revision:
		return nil, &contract.FutureRevisionError{Revision: o.At, Head: st.Head.Revision}
	case res.Revision < st.Compacted:
		return nil, contract.ErrCompacted
	}
	if res.Revision < st.Head.Revision {
		d, err := s.snapshots.delta(ctx, deltaKey{start: o.Start, end: o.End, at: res.Revision},
			st.Head.Revision)
		if err != nil {
			return nil, err
		}
		i := sort.Search(len(d), func(i int) bool { return d[i].Key >= o.From })
		if page, err = s.merge(ctx, page, d[i:], limit+1, res.Revision, o.KeysOnly); err != nil {
			return nil, err
		}
	}
	rows := page.Rows
	if res.More = page.More; len(rows) > limit {
		rows, res.More = rows[:limit], true
	}
	res.KVs = make([]KeyValue, len(rows))
	for i := range rows {
		res.KVs[i] = *keyValue(&rows[i])
	}
	return res, nil
}

// page reads live rows, from the cache if it has them.
func (s *Store) page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	if p, err := s.cachedPage(ctx, q); p != nil || err != nil {
		return p, err
	}
	var p *contract.Page
	_, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		if p, err = s.b.Page(ctx, q); err != nil {
			return st, err
		}
		return p.State, nil
	})
	if err == nil {
		s.cache.keepPage(q, p)
	}
	return p, err
}

// merge adds the undone rows that belong to the page, with their values, and ends the page at
// ReadBytes.
func (s *Store) merge(ctx context.Context, page *contract.Page, undone []contract.Replaced, limit int, at contract.Revision,
	keysOnly bool) (*contract.Page, error) {
	rows := page.Rows
	if len(rows) == limit || page.More {
		// The page is full: only what sorts before its end can belong to it.
		end := rows[len(rows)-1].Key
		undone = undone[:sort.Search(len(undone), func(i int) bool { return undone[i].Key >= end })]
	}
	undone = undone[:min(len(undone), limit)]
	if len(undone) == 0 {
		return page, nil
	}
	old := oldRows{s: s, at: at, asked: undone, rows: map[contract.Revision]*contract.Row{}}
	merged := &contract.Page{State: page.State, More: page.More,
		Rows: make([]contract.Row, 0, min(len(rows)+len(undone), limit))}
	for i, j := 0, 0; (i < len(rows) || j < len(undone)) && len(merged.Rows) < limit; {
		if j == len(undone) || i < len(rows) && rows[i].Key < undone[j].Key {
			merged.Rows = append(merged.Rows, rows[i])
			i++
			continue
		}
		if keysOnly {
			old.bytes = 0 // nothing of them is kept
		}
		row, err := old.row(ctx, j)
		if err != nil {
			return nil, err
		}
		if row == nil {
			merged.More = true
			return merged, nil
		}
		if keysOnly {
			row.Value = nil
		}
		merged.Rows = append(merged.Rows, *row)
		j++
	}
	return merged, nil
}

// oldRows reads rows of the log as a page comes to need them.
type oldRows struct {
	s  *Store
	at contract.Revision
	// asked are those that may be needed, in this order.
	asked []contract.Replaced
	rows  map[contract.Revision]*contract.Row
	// bytes is the size of the values that were read.
	bytes int
}

// oldPiece is how many revisions every database takes in one statement.
const oldPiece = 1_000

// row returns the asked row j, or nil if it was not read yet and the values have reached ReadBytes.
func (o *oldRows) row(ctx context.Context, j int) (*contract.Row, error) {
	revision := o.asked[j].Revision
	if row := o.rows[revision]; row != nil || o.bytes >= contract.ReadBytes {
		return row, nil
	}
	var piece []contract.Revision
	for _, r := range o.asked[j:min(j+oldPiece, len(o.asked))] {
		if o.rows[r.Revision] == nil {
			piece = append(piece, r.Revision)
		}
	}
	// A read that ends at its bound need not have come to this row.
	for _, piece := range [][]contract.Revision{piece, {revision}} {
		var found []contract.Row
		st, err := o.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			found, st, err = o.s.b.Values(ctx, piece)
			return st, err
		})
		if err != nil {
			return nil, err
		}
		if st.Compacted > o.at {
			return nil, contract.ErrCompacted
		}
		for i := range found {
			o.rows[found[i].Revision] = &found[i]
			o.bytes += len(found[i].Value)
		}
		if row := o.rows[revision]; row != nil {
			return row, nil
		}
	}
	return nil, contract.Damaged("the log has no row %d, which a snapshot at %d needs", revision, o.at)
}

// left returns the number of keys of the range from the page's begin on, -1 if that is more than is
// counted, or neither asked for nor known. A list at a revision is the same whenever it is read: so
// once a page was counted, what is left is known for each page that Follows it. No fence makes that
// wrong, since it compacts every revision before it (I6), and a compacted one is not read.
func (s *Store) left(ctx context.Context, o RangeOptions, res *RangeResult) (n int64, err error) {
	if !res.More {
		return int64(len(res.KVs)), nil
	}
	key := leftKey{from: o.From, end: o.End, at: res.Revision}
	n, known := s.snapshots.leftFrom(key)
	if !known && !o.Count {
		return -1, nil
	}
	if !known {
		if n, err = s.countLeft(ctx, o, res); err != nil {
			return 0, err
		}
	}
	if n > CountLimit && !o.Exact {
		return -1, nil
	}
	if len(res.KVs) > 0 {
		key.from = res.KVs[len(res.KVs)-1].Key + "\x00"
		s.snapshots.keepLeft(key, n-int64(len(res.KVs)))
	}
	return n, nil
}

// countLeft counts at least up to CountLimit + 1. The counting happens in another snapshot than the
// page, so its delta is extended, too: what is counted is the state at the same revision.
func (s *Store) countLeft(ctx context.Context, o RangeOptions, page *RangeResult) (int64, error) {
	at, limit := page.Revision, int64(0)
	if !o.Exact {
		limit = CountLimit + 1
	}
	n, head, cached := s.cache.count(at, page.Head, keyRange{o.From, o.End}, limit)
	if !cached {
		st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			n, st, err = s.b.Count(ctx, o.From, o.End, at, limit)
			return st, err
		})
		switch {
		case err != nil:
			return 0, err
		case st.Compacted > at:
			return 0, contract.ErrCompacted
		}
		head = st.Head.Revision
	}
	if n > CountLimit && !o.Exact || head == at {
		return n, nil
	}
	d, err := s.snapshots.delta(ctx, deltaKey{start: o.Start, end: o.End, at: at}, head)
	if err != nil {
		return 0, err
	}
	return n + int64(len(d)-sort.Search(len(d), func(i int) bool { return d[i].Key >= o.From })), nil
}

// CountAt counts the keys in [start, end) that existed at a revision, 0 for the newest, and returns
// the head of the read. Its errors are those of Range.
func (s *Store) CountAt(ctx context.Context, start, end contract.Key, at contract.Revision) (n int64, head contract.Revision,
	err error) {
	var st contract.State
	st, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		n, st, err = s.b.Count(ctx, start, end, at, 0)
		return st, err
	})
	head = st.Head.Revision
	switch {
	case err != nil || at == 0 || at == head:
		return n, head, err
	case at > head:
		return 0, head, &contract.FutureRevisionError{Revision: at, Head: head}
	case at < st.Compacted:
		return 0, head, contract.ErrCompacted
	}
	d, err := s.snapshots.delta(ctx, deltaKey{start: start, end: end, at: at}, head)
	return n + int64(len(d)), head, err
}

// GetAt reads one key as it was at a revision, and returns the head of the read, too. Its errors
// are those of Range. A key that was not written since is found at its live row. Otherwise what was
// written since is looked through, as for a range.
func (s *Store) GetAt(ctx context.Context, key contract.Key, at contract.Revision) (*KeyValue, contract.Revision, error) {
	var row *contract.Row
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		row, st, err = s.b.Get(ctx, key)
		return st, err
	})
	head := st.Head.Revision
	switch {
	case err != nil:
		return nil, 0, err
	case at > head:
		return nil, head, &contract.FutureRevisionError{Revision: at, Head: head}
	case at < st.Compacted:
		return nil, head, contract.ErrCompacted
	case row != nil && row.Revision <= at:
		return keyValue(row), head, nil
	case row == nil && at == head:
		return nil, head, nil
	}
	res, err := s.Range(ctx, RangeOptions{Start: key, End: key + "\x00", At: at})
	if err != nil || len(res.KVs) == 0 {
		return nil, head, err
	}
	return &res.KVs[0], head, nil
}

// snapshots keeps the deltas of lists that are being paged through.
type snapshots struct {
	s *Store
	// mu protects the fields below, and each delta's held.
	mu sync.Mutex
	// entries and order are a least-recently-used cache, bounded by the number of replaced keys
	// that it holds.
	entries map[deltaKey]*list.Element
	order   *list.List
	held    int
	// left is how many keys are left from the begins of pages on.
	left map[leftKey]int64
}

// leftKey is the begin of a page that Follows another one.
type leftKey struct {
	from, end contract.Key
	at        contract.Revision
}

const (
	// maxDeltas and maxDeltaKeys bound the cache. A delta that is evicted is read again by the next
	// page.
	maxDeltas    = 256
	maxDeltaKeys = 1_000_000
	// maxLefts bounds what is known of pages that follow. When it is full, all of it is forgotten,
	// and counted again.
	maxLefts = 1_000
)

type deltaKey struct {
	start, end contract.Key
	at         contract.Revision
}

type delta struct {
	key deltaKey
	// extending is held while the delta is extended. It protects upto and replaced.
	extending lock
	// upto is the revision that the delta reaches.
	upto contract.Revision
	// replaced is sorted by key. It is never changed in place.
	replaced []contract.Replaced
	held     int // what the cache has counted of it; protected by snapshots.mu
}

func newSnapshots(s *Store) *snapshots {
	return &snapshots{s: s, entries: map[deltaKey]*list.Element{}, order: list.New(),
		left: map[leftKey]int64{}}
}

func (c *snapshots) leftFrom(key leftKey) (n int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, known = c.left[key]
	return n, known
}

func (c *snapshots) keepLeft(key leftKey, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.left) == maxLefts {
		clear(c.left)
	}
	c.left[key] = n
}

// delta returns the keys that were current at key.at and replaced in (key.at, upto].
func (c *snapshots) delta(ctx context.Context, key deltaKey, upto contract.Revision) ([]contract.Replaced, error) {
	d := c.entry(key)
	if err := d.extending.acquire(ctx); err != nil {
		return nil, err
	}
	defer d.extending.release()
	if d.upto > upto {
		// Another page has extended it beyond this page's snapshot. A key that was replaced after
		// that snapshot is among the page's live rows, and would be there twice.
		q := contract.ReplacedQuery{Start: key.start, End: key.end, At: key.at, After: key.at, Upto: upto}
		return c.read(ctx, q)
	}
	if d.upto < upto {
		q := contract.ReplacedQuery{Start: key.start, End: key.end, At: key.at, After: d.upto, Upto: upto}
		more, err := c.read(ctx, q)
		if err != nil {
			return nil, err
		}
		d.replaced, d.upto = mergeReplaced(d.replaced, more), upto
		c.count(d)
	}
	return d.replaced, nil
}

// mergeReplaced merges two lists that are sorted by key and have no key in common. A long list is
// extended by few keys many times, so what lies between two new keys is found by searching and
// copied as a whole.
func mergeReplaced(old, more []contract.Replaced) []contract.Replaced {
	if len(old) == 0 {
		return more
	}
	if len(more) == 0 {
		return old
	}
	merged := make([]contract.Replaced, 0, len(old)+len(more))
	for _, r := range more {
		// The step doubles until it passes the place, so that many new keys cost no more than a
		// walk.
		step := 1
		for step <= len(old) && old[step-1].Key < r.Key {
			step *= 2
		}
		begin, end := step/2, min(step, len(old))
		n := begin + sort.Search(end-begin, func(i int) bool { return old[begin+i].Key > r.Key })
		merged = append(append(merged, old[:n]...), r)
		old = old[n:]
	}
	return append(merged, old...)
}

func sortReplaced(r []contract.Replaced) {
	slices.SortFunc(r, func(a, b contract.Replaced) int {
		return strings.Compare(string(a.Key), string(b.Key))
	})
}

func (c *snapshots) read(ctx context.Context, q contract.ReplacedQuery) ([]contract.Replaced, error) {
	var found []contract.Replaced
	st, err := c.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		found, st, err = c.s.b.Replaced(ctx, q)
		return st, err
	})
	switch {
	case err != nil:
		return nil, err
	case st.Compacted > q.At:
		return nil, contract.ErrCompacted
	}
	sortReplaced(found)
	return found, nil
}

func (c *snapshots) entry(key deltaKey) *delta {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		c.order.MoveToFront(e)
		return e.Value.(*delta)
	}
	d := &delta{key: key, upto: key.at}
	c.entries[key] = c.order.PushFront(d)
	c.evictLocked()
	return d
}

// count takes a delta's growth into account. A delta that was evicted meanwhile counts no more.
func (c *snapshots) count(d *delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[d.key]; ok && e.Value.(*delta) == d {
		c.held += len(d.replaced) - d.held
		d.held = len(d.replaced)
		c.evictLocked()
	}
}

func (c *snapshots) evictLocked() {
	for c.order.Len() > maxDeltas || c.held > maxDeltaKeys && c.order.Len() > 1 {
		c.removeLocked(c.order.Back())
	}
}

func (c *snapshots) removeLocked(e *list.Element) {
	d := c.order.Remove(e).(*delta)
	c.held -= d.held
	delete(c.entries, d.key)
}

// compacted forgets the snapshots that nobody may read any more.
func (c *snapshots) compacted(r contract.Revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		if key.at < r {
			c.removeLocked(e)
		}
	}
}

// forget forgets all: the history has changed.
func (c *snapshots) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	clear(c.left)
	c.order.Init()
	c.held = 0
}
