package mvcc

import (
	"container/list"
	"context"
	"fmt"
	"sort"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A list at a revision needs its delta for each page; see undo.go. deltas keeps the deltas of lists
// that are being paged through, and each page extends the delta of its list to the head of its own
// snapshot, in pieces (R, H1], (H1, H2], … A key that is updated between two pages is thereby found
// in the piece in between.

// deltas is the reader that remembers which rows were replaced.
type deltas struct {
	reader
	// mu protects the fields below, and each delta's held.
	mu sync.Mutex
	// entries and order are a least-recently-used cache, bounded by the number of replaced keys
	// that it holds.
	entries map[deltaKey]*list.Element
	order   *list.List
	held    int
}

const (
	// maxDeltas and maxDeltaKeys bound the cache. A delta that is evicted is read again by the next
	// page.
	maxDeltas    = 256
	maxDeltaKeys = 1_000_000
)

type deltaKey struct {
	start, end contract.Key
	at         contract.Revision
	// by tells which rows are left out, for a list by an index.
	by string
}

type delta struct {
	key deltaKey
	// extending is held while the delta is extended. It protects upto and replaced.
	extending lock
	// upto is the revision that the delta reaches.
	upto contract.Revision
	// replaced is sorted by key. It is never changed in place.
	replaced []contract.Replaced
	held     int // what the cache has counted of it; protected by deltas.mu
}

func newDeltas() *deltas {
	return &deltas{entries: map[deltaKey]*list.Element{}, order: list.New()}
}

func (c *deltas) link(next reader) reader { c.reader = next; return c }

// Replaced implements reader. It remembers what was replaced since the revision itself.
func (c *deltas) Replaced(ctx context.Context, q contract.ReplacedQuery) ([]contract.Replaced, error) {
	if q.After != q.At {
		return c.reader.Replaced(ctx, q)
	}
	key := deltaKey{start: q.Start, end: q.End, at: q.At}
	if len(q.Entries) > 0 {
		key.by = fmt.Sprint(q.Known) + " " + string(contract.PackEntries(q.Entries))
	}
	d := c.entry(key)
	if err := d.extending.acquire(ctx); err != nil {
		return nil, err
	}
	defer d.extending.release()
	if d.upto > q.Upto {
		// Another page has extended it beyond this page's snapshot. A key that was replaced after
		// that snapshot is among the page's live rows, and would be there twice.
		return c.reader.Replaced(ctx, q)
	}
	if d.upto < q.Upto {
		q.After = d.upto
		more, err := c.reader.Replaced(ctx, q)
		if err != nil {
			return nil, err
		}
		d.replaced, d.upto = mergeReplaced(d.replaced, more), q.Upto
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

func (c *deltas) entry(key deltaKey) *delta {
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
func (c *deltas) count(d *delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[d.key]; ok && e.Value.(*delta) == d {
		c.held += len(d.replaced) - d.held
		d.held = len(d.replaced)
		c.evictLocked()
	}
}

func (c *deltas) evictLocked() {
	for c.order.Len() > maxDeltas || c.held > maxDeltaKeys && c.order.Len() > 1 {
		c.removeLocked(c.order.Back())
	}
}

func (c *deltas) removeLocked(e *list.Element) {
	d := c.order.Remove(e).(*delta)
	c.held -= d.held
	delete(c.entries, d.key)
}

// compacted forgets the deltas of revisions that nobody may read any more.
func (c *deltas) compacted(r contract.Revision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		if key.at < r {
			c.removeLocked(e)
		}
	}
}

// forget forgets all: the history has changed.
func (c *deltas) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.order.Init()
	c.held = 0
}
