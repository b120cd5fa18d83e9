package mvcc

import (
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Most of what is read was read or written a short time ago. A process that Follows the log has it
// already. So it keeps those rows, and asks the database for no more than how far the history has
// come, and for what it does not have.
//
// Such an answer is what the database would have said itself (I4, I5):
//
//   - A row that is here is the newest one of its key at upto. Either an event has brought it, or a
//     read whose head was upto. The hub delivers every later event, once and in order (I3), and the
//     row of the event takes the place of the one before it.
//   - A range that is whole has all its rows here. It became whole by a page whose head was upto.
//     It stays so by the events: what is created comes, what is deleted goes. If a row has to go
//     that is not deleted, its key is in no whole range any more.
//   - A page at an older revision leaves out what is newer. That is here, too, if events have
//     brought it, and if no row as new as that has gone since; see lost.
//   - A call reads the head after it has begun, as every read does, or the head together with keys.
//     It uses a row from here only if the hub has delivered that head. If the row's own revision is
//     not beyond the head either, the row is the newest one of its key at the head.
//   - It uses a page from here only if the head is upto. If the hub has come further, what it has
//     delivered may be a part of a group, and no head.
//   - A count is of the revision of a page, whose call has read the head.
//   - That head is of the history that the hub delivers: the trail knows its token. When the hub
//     begins anew, all is forgotten, and no head from before is taken any more (I6).
//
// If another process has written what the hub has not delivered yet, the database is asked for all.
// The value of a row that is here is right, even if the log has lost it since.

// rowCache keeps the newest rows of keys that were read or written lately.
type rowCache struct {
	// most bounds bytes. If it is 0, nothing is kept.
	most int

	// mu protects the fields below. It is not held for more rows than cachedPiece, or than the hub
	// delivers at once, but that then an eighth of all may have to go.
	mu sync.Mutex
	// since is where the hub has begun, and upto what it has delivered.
	since, upto contract.Position
	// rows are never changed. A copy of the tree costs little, and may be read without mu.
	rows  *btree.Map[contract.Key, *KeyValue]
	bytes int
	// whole are the ranges of which all rows are here.
	whole keyRanges
	// lost is the greatest revision of a row that was not kept, or had to go, though its key
	// exists.
	lost contract.Revision
	// hand is the key at which to make room.
	hand contract.Key
	// skip is how many reads do without the rows, since the hub was behind when one needed them.
	skip int
}

const (
	// cachedRowBytes is about what a row needs besides its key and value.
	cachedRowBytes = 160
	// cachedPiece is how many rows of a page are kept at a time, as the hub may wait.
	cachedPiece = 256
	// cachedTries is how often a page reads the head, if the hub comes further meanwhile.
	cachedTries = 3
	// maxWhole is how many ranges are remembered. When there are more, all are forgotten.
	maxWhole = 1_000
	// skippedReads is the value of skip when the hub was behind. If others write all the time, few
	// reads try in vain.
	skippedReads = 16
	// deliveryWait is how long a read waits for the hub to deliver what this process has committed.
	deliveryWait = 500 * time.Microsecond
)

func cachedSize(kv *KeyValue) int { return len(kv.Key) + len(kv.Value) + cachedRowBytes }

func newRowCache(most int) *rowCache {
	return &rowCache{most: max(0, most), rows: &btree.Map[contract.Key, *KeyValue]{}}
}

// reset forgets all. The hub goes on after the position.
func (c *rowCache) reset(upto contract.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows, c.bytes, c.whole = &btree.Map[contract.Key, *KeyValue]{}, 0, nil
	c.since, c.upto, c.lost = upto, upto, 0
}

// deliver takes the events that the hub delivers, up to a position.
func (c *rowCache) deliver(events []*Event, upto contract.Position) {
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
func (c *rowCache) keep(head contract.Position, kv *KeyValue) {
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
	size := cachedSize(kv)
	if kv.Value == nil || size > c.most/16 {
		c.removeLocked(keyRange{kv.Key, kv.Key + "\x00"})
		c.lost = max(c.lost, kv.Revision)
		return
	}
	c.rows.Set(kv.Key, kv)
	c.bytes += size
}

func (c *rowCache) dropLocked(key contract.Key) {
	if old, ok := c.rows.Delete(key); ok {
		c.bytes -= cachedSize(old)
	}
}

// evictLocked makes room for more: an eighth of all, in the order of keys, from where it ended the
// last time. So few ranges are cut.
func (c *rowCache) evictLocked() {
	if c.bytes <= c.most {
		return
	}
	for c.bytes > c.most*7/8 {
		var gone []*KeyValue
		left := c.bytes
		c.rows.Ascend(c.hand, func(_ contract.Key, kv *KeyValue) bool {
			gone = append(gone, kv)
			left -= cachedSize(kv)
			return left > c.most*7/8
		})
		c.hand = "" // from the first key on, if there is none after it
		if len(gone) > 0 {
			c.hand = c.evictKeysLocked(gone)
		}
	}
}

// evictKeysLocked lets rows go that follow each other, and returns the key after the last one.
func (c *rowCache) evictKeysLocked(gone []*KeyValue) contract.Key {
	for _, kv := range gone {
		c.dropLocked(kv.Key)
		c.lost = max(c.lost, kv.Revision)
	}
	after := gone[len(gone)-1].Key + "\x00"
	c.removeLocked(keyRange{gone[0].Key, after})
	return after
}

// keepPage keeps the rows of a page that was read from the database, as far as there is room, so a
// list of more than that does not drive out what is read more often. As far as they are here, the
// range is whole.
func (c *rowCache) keepPage(q contract.PageQuery, p *contract.Page) {
	if c.most == 0 || q.KeysOnly {
		return
	}
	begin := q.Start
	for rows := range slices.Chunk(p.Rows, cachedPiece) {
		end := rows[len(rows)-1].Key + "\x00"
		if !c.keepPiece(q, p.State.Head, rows, keyRange{begin, end}) {
			return
		}
		begin = end
	}
	if !p.More && len(p.Rows) < q.Limit {
		c.keepPiece(q, p.State.Head, nil, keyRange{begin, q.End})
	}
}

// keepPiece keeps rows of a page, which are all of a range, and tells whether all of them are here.
func (c *rowCache) keepPiece(q contract.PageQuery, head contract.Position, rows []contract.Row, r keyRange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if head != c.upto {
		return false
	}
	for i := range rows {
		kv := keyValue(&rows[i])
		if old, ok := c.rows.Get(kv.Key); ok && old.Revision == kv.Revision {
			continue
		}
		size := cachedSize(kv)
		if kv.Value == nil || c.bytes+size > c.most || size > c.most/16 {
			c.addLocked(q, keyRange{r.start, kv.Key})
			return false
		}
		c.putLocked(kv)
	}
	c.addLocked(q, r)
	return true
}

// addLocked notes that all rows of a range are here that a page had, whose head is upto.
func (c *rowCache) addLocked(q contract.PageQuery, r keyRange) {
	older := q.At != 0 && q.At < c.upto.Revision
	if older && (q.At < c.since.Revision || q.At < c.lost) {
		return // something newer may be missing
	}
	c.whole.add(r)
	c.boundLocked()
}

// removeLocked notes that a row of a range is not here.
func (c *rowCache) removeLocked(r keyRange) {
	c.whole.remove(r)
	c.boundLocked()
}

func (c *rowCache) boundLocked() {
	if len(c.whole) > maxWhole {
		c.whole = nil
	}
}

// skipsLocked tells whether a read has to do without the rows, and counts it.
func (c *rowCache) skipsLocked() bool {
	skips := c.skip > 0
	c.skip = max(c.skip-1, 0)
	return skips
}

// takesPage tells whether a page is not read, since its range is here.
func (c *rowCache) takesPage(q contract.PageQuery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.whole.contain(keyRange{q.Start, q.End}) && !c.skipsLocked()
}

// takesKeys returns those of the keys that are not read, since their rows are here, and the others.
func (c *rowCache) takesKeys(keys []contract.Key) (known, others []contract.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skipsLocked() {
		return nil, keys
	}
	for _, k := range keys {
		if _, ok := c.rows.Get(k); ok {
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
func (c *rowCache) holdsLocked(head contract.Position) bool {
	return head.Epoch == c.upto.Epoch && head.Revision >= c.since.Revision &&
		head.Revision <= c.upto.Revision
}

// find puts the rows of keys, as they were at a head that the hub has delivered, into found. It
// returns false if it cannot tell all of them.
func (c *rowCache) find(head contract.Position, keys []contract.Key, found map[contract.Key]*KeyValue) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holdsLocked(head) {
		return false
	}
	for _, k := range keys {
		kv, ok := c.rows.Get(k)
		if !ok || kv.Revision > head.Revision {
			return false
		}
		found[k] = kv
	}
	return true
}

// page reads a page at a state. It returns nil if the hub has not come to its head, or has come
// further, or if not all of the range is here.
func (c *rowCache) page(st contract.State, q contract.PageQuery) *contract.Page {
	c.mu.Lock()
	if st.Head != c.upto || !c.whole.contain(keyRange{q.Start, q.End}) {
		c.mu.Unlock()
		return nil
	}
	rows := c.rows.Copy()
	c.mu.Unlock()
	p, bytes := &contract.Page{State: st}, 0
	rows.Ascend(q.Start, func(k contract.Key, kv *KeyValue) bool {
		switch {
		case k >= q.End || len(p.Rows) == q.Limit:
			return false
		case q.At != 0 && kv.Revision > q.At:
			return true
		}
		row := contract.Row{Key: k, Revision: kv.Revision, Create: kv.Create, Version: kv.Version,
			Lease: kv.Lease}
		if !q.KeysOnly {
			row.Value = kv.Value
		}
		p.Rows = append(p.Rows, row)
		bytes += len(row.Value)
		p.More = bytes >= contract.ReadBytes
		return !p.More
	})
	return p
}

// count counts the keys of a range at a revision, but for those that were written since, and
// returns the head up to which they were. It stops at the limit, if that is not 0. A page at the
// revision was read when the history went up to read. It returns false if the hub has not come so
// far, as the page may be of another history then, or if the range is not here.
func (c *rowCache) count(at, read contract.Revision, r keyRange, limit int64) (n int64, head contract.Revision,
	ok bool) {
	c.mu.Lock()
	if at < c.since.Revision || read > c.upto.Revision || !c.whole.contain(r) {
		c.mu.Unlock()
		return 0, 0, false
	}
	rows, head := c.rows.Copy(), c.upto.Revision
	c.mu.Unlock()
	rows.Ascend(r.start, func(k contract.Key, kv *KeyValue) bool {
		if k < r.end && kv.Revision <= at {
			n++
		}
		return k < r.end && (limit == 0 || n < limit)
	})
	return n, head, true
}

// Cached tells whether a page of a range most likely reads no more than the head.
func (s *Store) Cached(start, end contract.Key) bool {
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skip == 0 && c.whole.contain(keyRange{start, end})
}

// delivered tells whether the hub has delivered a head that was read. It waits a moment if that may
// be what this process commits just now.
func (s *Store) delivered(ctx context.Context, head contract.Position) bool {
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
func (s *Store) cachedKeys(known, others []contract.Key) (found map[contract.Key]*KeyValue, head contract.Revision,
	err error) {
	var rows []contract.Row
	st, err := s.read(s.ctx, func(ctx context.Context) (st contract.State, err error) {
		rows, st, err = s.b.(contract.KeysReader).GetKeys(ctx, others)
		return st, err
	})
	if err != nil {
		return nil, 0, err
	}
	found = make(map[contract.Key]*KeyValue, len(known)+len(rows))
	if !s.delivered(s.ctx, st.Head) || !s.cache.find(st.Head, known, found) {
		return nil, 0, nil
	}
	s.foundKeys(st.Head, rows, found)
	return found, st.Head.Revision, nil
}

// foundKeys puts rows that a read has found into found and into the cache.
func (s *Store) foundKeys(head contract.Position, rows []contract.Row, found map[contract.Key]*KeyValue) {
	for i := range rows {
		kv := keyValue(&rows[i])
		found[kv.Key] = kv
		s.cache.keep(head, kv)
	}
}

// cachedPage reads a page from the cache. It returns nil if it has to be read without it.
func (s *Store) cachedPage(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	for range cachedTries {
		if !s.cache.takesPage(q) {
			return nil, nil
		}
		st, err := s.read(ctx, s.b.State)
		if err != nil || !s.delivered(ctx, st.Head) {
			return nil, err
		}
		if p := s.cache.page(st, q); p != nil {
			return p, nil
		}
	}
	s.cache.skipSome()
	return nil, nil
}

// keyRange is the keys from start to before end.
type keyRange struct{ start, end contract.Key }

// keyRanges are ranges in the order of keys. None overlaps or touches the next.
type keyRanges []keyRange

// touching returns the ranges s[i:j] that overlap or touch r.
func (s keyRanges) touching(r keyRange) (i, j int) {
	i = sort.Search(len(s), func(i int) bool { return s[i].end >= r.start })
	j = sort.Search(len(s), func(i int) bool { return s[i].start > r.end })
	return i, max(i, j)
}

func (s *keyRanges) add(r keyRange) {
	if r.start >= r.end {
		return
	}
	i, j := s.touching(r)
	if i < j {
		r = keyRange{min(r.start, (*s)[i].start), max(r.end, (*s)[j-1].end)}
	}
	*s = slices.Replace(*s, i, j, r)
}

func (s *keyRanges) remove(r keyRange) {
	if r.start >= r.end {
		return
	}
	var left keyRanges
	i, j := s.touching(r)
	for _, old := range (*s)[i:j] {
		for _, part := range []keyRange{{old.start, min(old.end, r.start)},
			{max(old.start, r.end), old.end}} {
			if part.start < part.end {
				left = append(left, part)
			}
		}
	}
	*s = slices.Replace(*s, i, j, left...)
}

// contain tells whether one of the ranges has all keys of r.
func (s keyRanges) contain(r keyRange) bool {
	i, _ := s.touching(r)
	return i < len(s) && s[i].start <= r.start && r.end <= s[i].end
}
