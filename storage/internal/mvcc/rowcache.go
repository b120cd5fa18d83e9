package mvcc

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Most keys that are read were read or written a short time ago. A process that follows the log has
// them already. So it keeps their rows, and asks the database for no more than how far the history
// has come, and for what it does not have.
//
// Such an answer is what the database would have said itself (I4, I5):
//
//   - A row that is here is the newest one of its key at upto. Either an event has brought it, or a
//     read whose head was upto. The hub delivers every later event, once and in order (I3), and the
//     row of the event takes the place of the one before it.
//   - A call reads the head after it has begun, as every read does, or the head with keys or with a
//     page. It uses a row from here only if the hub has delivered that head. If the row's own
//     revision is not beyond the head either, the row is the newest one of its key at the head.
//   - That head is of the history that the hub delivers: the trail knows its token. When the hub
//     begins anew, all rows are forgotten, and no head from before is taken any more (I6).
//
// If another process has written what the hub has not delivered yet, the database is asked for all.
// The value of a row that is here is right, even if the log has lost it since.

// rowCache keeps the newest rows of keys that were read or written lately.
type rowCache struct {
	// most bounds bytes. If it is 0, nothing is kept.
	most int

	// mu protects the fields below. It is not held for more rows than cachedPiece, or than the hub
	// delivers at once.
	mu sync.Mutex
	// since is where the hub has begun, and upto what it has delivered.
	since, upto Position
	rows        map[Key]KeyValue
	bytes       int
	// skip is how many reads do without the rows, since the hub was behind when one needed them.
	skip int
	// warm are the ends of ranges of which all rows of a page were here when it was read. The pages
	// of a list have the same end.
	warm map[Key]struct{}
}

const (
	// cachedRowBytes is about what a row needs besides its key and value.
	cachedRowBytes = 160
	// cachedPiece is how many rows of a page are looked up at a time, as the hub may wait.
	cachedPiece = 256
	// cachedPageRows is how many rows a page may have that is read without its values.
	cachedPageRows = 10_001
	// maxWarm is how many ranges are remembered. When there are as many, all are forgotten.
	maxWarm = 1_000
	// skippedReads is the value of skip when the hub was behind. If others write all the time, few
	// reads try in vain.
	skippedReads = 16
	// deliveryWait is how long a read waits for the hub to deliver what this process has committed.
	deliveryWait = 500 * time.Microsecond
)

func cachedSize(kv *KeyValue) int { return len(kv.Key) + len(kv.Value) + cachedRowBytes }

func newRowCache(most int) *rowCache {
	return &rowCache{most: most, rows: map[Key]KeyValue{}, warm: map[Key]struct{}{}}
}

// reset forgets all. The hub goes on after the position.
func (c *rowCache) reset(upto Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.rows)
	clear(c.warm)
	c.bytes, c.since, c.upto = 0, upto, upto
}

// deliver takes the events that the hub delivers, up to a position.
func (c *rowCache) deliver(events []*Event, upto Position) {
	if c.most == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upto = upto
	for _, e := range events {
		if e.Deleted {
			c.dropLocked(e.Key)
			continue
		}
		c.putLocked(&KeyValue{Key: e.Key, Revision: e.Revision, Create: e.Create,
			Version: e.Version, Lease: e.Lease, Value: e.Value})
	}
	c.evictLocked()
}

// keep keeps a row that a read has found in a snapshot with this head.
func (c *rowCache) keep(head Position, kv *KeyValue) {
	if c.most == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if head == c.upto {
		c.putLocked(kv)
		c.evictLocked()
	}
}

// putLocked keeps a row in the place of the one before it. It keeps none that is damaged, as it has
// no value, and none in whose place there could be many others.
func (c *rowCache) putLocked(kv *KeyValue) {
	c.dropLocked(kv.Key)
	if size := cachedSize(kv); kv.Value != nil && size <= c.most/16 {
		c.rows[kv.Key] = *kv
		c.bytes += size
	}
}

func (c *rowCache) dropLocked(key Key) {
	if old, ok := c.rows[key]; ok {
		c.bytes -= cachedSize(&old)
		delete(c.rows, key)
	}
}

// evictLocked makes room for more: an eighth of all, whichever rows come first in the map.
func (c *rowCache) evictLocked() {
	if c.bytes <= c.most {
		return
	}
	for key, kv := range c.rows {
		if c.bytes <= c.most*7/8 {
			return
		}
		c.bytes -= cachedSize(&kv)
		delete(c.rows, key)
	}
}

// keepPage keeps the rows of a page of a range with this end, as far as there is room. So a list of
// more than that does not drive out what is read more often.
func (c *rowCache) keepPage(end Key, p *Page) {
	if c.most == 0 {
		return
	}
	all := len(p.Rows) > 0
	for rows := range slices.Chunk(p.Rows, cachedPiece) {
		c.mu.Lock()
		for i := range rows {
			if c.rows[rows[i].Key].Revision == rows[i].Revision {
				continue
			}
			all = false
			if kv := keyValue(&rows[i]); p.State.Head == c.upto &&
				c.bytes+cachedSize(kv) <= c.most {
				c.putLocked(kv)
			}
		}
		c.mu.Unlock()
	}
	c.setWarm(end, all)
}

func (c *rowCache) setWarm(end Key, warm bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !warm {
		delete(c.warm, end)
		return
	}
	if _, known := c.warm[end]; !known && len(c.warm) == maxWarm {
		clear(c.warm)
	}
	c.warm[end] = struct{}{}
}

// skipsLocked tells whether a read has to do without the rows, and counts it.
func (c *rowCache) skipsLocked() bool {
	skips := c.skip > 0
	c.skip = max(c.skip-1, 0)
	return skips
}

// takesPage tells whether a page of a range with this end is read without its values.
func (c *rowCache) takesPage(end Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, warm := c.warm[end]
	return warm && !c.skipsLocked()
}

// takesKeys returns those of the keys that are not read, since their rows are here, and the others.
func (c *rowCache) takesKeys(keys []Key) (known, others []Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skipsLocked() {
		return nil, keys
	}
	for _, k := range keys {
		if _, ok := c.rows[k]; ok {
			known = append(known, k)
		} else {
			others = append(others, k)
		}
	}
	return known, others
}

// skipSome lets the next reads do without the rows.
func (c *rowCache) skipSome() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skip = skippedReads
}

// holdsLocked tells whether the rows tell of a head that the hub has delivered.
func (c *rowCache) holdsLocked(head Position) bool {
	return head.Epoch == c.upto.Epoch && head.Revision >= c.since.Revision &&
		head.Revision <= c.upto.Revision
}

// find puts the rows of keys, as they were at a head that the hub has delivered, into found. It
// returns false if it cannot tell all of them.
func (c *rowCache) find(head Position, keys []Key, found map[Key]*KeyValue) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holdsLocked(head) {
		return false
	}
	for _, k := range keys {
		kv, ok := c.rows[k]
		if !ok || kv.Revision > head.Revision {
			return false
		}
		found[k] = &kv
	}
	return true
}

// fill sets the values of the rows of a page whose head the hub has delivered. It returns false if
// it does not have all of them.
func (c *rowCache) fill(p *Page) bool {
	for rows := range slices.Chunk(p.Rows, cachedPiece) {
		if !c.fillPiece(p.State.Head, rows) {
			return false
		}
	}
	return true
}

func (c *rowCache) fillPiece(head Position, rows []Row) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holdsLocked(head) {
		return false
	}
	for i := range rows {
		kv, ok := c.rows[rows[i].Key]
		if !ok || kv.Revision != rows[i].Revision {
			return false
		}
		rows[i].Value = kv.Value
	}
	return true
}

// Cached tells whether a page of a range with this end is most likely read without its values.
func (s *Store) Cached(end Key) bool {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	_, warm := c.warm[end]
	return warm && c.skip == 0
}

// delivered tells whether the hub has delivered a head that was read. It waits a moment if that may
// be what this process commits just now.
func (s *Store) delivered(ctx context.Context, head Position) bool {
	if s.hub.has(head) {
		return true
	}
	if s.tailer.committing(slowQuery) {
		waitCtx, cancel := context.WithTimeout(ctx, deliveryWait)
		defer cancel()
		if s.hub.arrive(waitCtx, head.Revision) == nil && s.hub.has(head) {
			return true
		}
	}
	if ctx.Err() == nil {
		s.cache.skipSome()
	}
	return false
}

// cachedKeys reads keys of which the cache knows some. It returns nil if they have to be read
// without it.
func (s *Store) cachedKeys(known, others []Key) (found map[Key]*KeyValue, head Revision,
	err error) {
	var rows []Row
	st, err := s.read(s.ctx, func(ctx context.Context) (st State, err error) {
		rows, st, err = s.b.(KeysReader).GetKeys(ctx, others)
		return st, err
	})
	if err != nil {
		return nil, 0, err
	}
	found = make(map[Key]*KeyValue, len(known)+len(rows))
	if !s.delivered(s.ctx, st.Head) || !s.cache.find(st.Head, known, found) {
		return nil, 0, nil
	}
	s.foundKeys(st.Head, rows, found)
	return found, st.Head.Revision, nil
}

// foundKeys puts rows that a read has found into found and into the cache.
func (s *Store) foundKeys(head Position, rows []Row, found map[Key]*KeyValue) {
	for i := range rows {
		kv := keyValue(&rows[i])
		found[kv.Key] = kv
		s.cache.keep(head, kv)
	}
}

// cachedPage reads a page with the values that the cache has, up to ReadBytes. It returns nil if
// the page has to be read without it.
func (s *Store) cachedPage(ctx context.Context, q PageQuery) (*Page, error) {
	q.KeysOnly = true
	p, err := s.livePage(ctx, q)
	if err != nil || !s.delivered(ctx, p.State.Head) || !s.cache.fill(p) {
		return nil, err
	}
	bytes := 0
	for i := range p.Rows {
		if bytes += len(p.Rows[i].Value); bytes >= ReadBytes {
			p.Rows, p.More = p.Rows[:i+1], true
			break
		}
	}
	return p, nil
}
