package mvcc

import (
	"context"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Most of what is read was read or written a short time ago. A process that follows the log has it
// already. So it keeps those rows, and asks the database for no more than how far the history has
// come, and for what it does not have.
//
// Such an answer is what the database would have said itself (I4, I5):
//
//   - A row in the cache is the newest one of its key at upto. Either an event has brought it, or a
//     read whose head was upto. The hub delivers every later event, once and in order (I3), and the
//     row of the event takes the place of the one before it.
//   - All rows of a whole range are in the cache. The range became whole by a page whose head was
//     upto. It stays whole by the events: what is created comes, what is deleted goes. A key whose
//     row has to go, though the key exists, belongs to no whole range any more.
//   - A page at an older revision leaves out newer rows. Those are in the cache, too, if events
//     have brought them, and if no row as new as that has gone since; see lost.
//   - A call reads the head after it has begun, as every read does, or the head together with keys.
//     It uses a row of the cache only if the hub has delivered that head. If the row's own revision
//     is not beyond the head either, the row is the newest one of its key at the head.
//   - It uses a page of the cache only if the head is upto. If the hub has come further, what it
//     has delivered may be a part of a group, and no head.
//   - A count belongs to the revision of a page, whose call has read the head.
//   - That head belongs to the history that the hub delivers: the trail knows its token. When the
//     hub begins anew, the cache forgets everything, and takes no head from before any more (I6).
//
// If another process has written what the hub has not delivered yet, the database is asked for all.
// The value of a row in the cache is right, even if the log has lost it since.

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
	// whole are the ranges of which all rows are in the cache.
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

// keep keeps a row that a read has found in a snapshot with this head. One without its value tells
// nothing that is not known.
func (c *rowCache) keep(head contract.Position, kv *KeyValue) {
	if c.most == 0 || kv.Value == nil {
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
// list of more than that does not drive out what is read more often. As far as they are kept, the
// range is whole.
func (c *rowCache) keepPage(o RangeOptions, p *RangeResult) {
	if c.most == 0 || o.KeysOnly {
		return
	}
	begin := o.From
	for kvs := range slices.Chunk(p.KVs, cachedPiece) {
		end := kvs[len(kvs)-1].Key + "\x00"
		if !c.keepPiece(o.At, p.state.Head, kvs, keyRange{begin, end}) {
			return
		}
		begin = end
	}
	if !p.More && len(p.KVs) < o.Limit {
		c.keepPiece(o.At, p.state.Head, nil, keyRange{begin, o.End})
	}
}

// keepPiece keeps rows of a page at a revision, which are all of a range, and tells whether all of
// them are in the cache.
func (c *rowCache) keepPiece(at contract.Revision, head contract.Position, kvs []KeyValue, r keyRange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if head != c.upto {
		return false
	}
	for i := range kvs {
		kv := &kvs[i]
		if old, ok := c.rows.Get(kv.Key); ok && old.Revision == kv.Revision {
			continue
		}
		size := cachedSize(kv)
		if kv.Value == nil || c.bytes+size > c.most || size > c.most/16 {
			c.addLocked(at, keyRange{r.start, kv.Key})
			return false
		}
		own := *kv // a pointer into the page would keep all of it in memory
		c.putLocked(&own)
	}
	c.addLocked(at, r)
	return true
}

// addLocked notes that a page at a revision had all rows of a range, and that they are in the
// cache. The head of the page is upto.
func (c *rowCache) addLocked(at contract.Revision, r keyRange) {
	older := at != 0 && at < c.upto.Revision
	if older && (at < c.since.Revision || at < c.lost) {
		return // something newer may be missing
	}
	c.whole.add(r)
	c.boundLocked()
}

// removeLocked notes that a row of a range is not in the cache.
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

// takesPage tells whether a page is not read, since its range is in the cache.
func (c *rowCache) takesPage(r keyRange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.whole.contain(r) && !c.skipsLocked()
}

// takesKeys returns the keys that are not read, since their rows are in the cache, and the others.
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
// further, or if not all of the range is in the cache.
func (c *rowCache) page(st contract.State, o RangeOptions) *RangeResult {
	c.mu.Lock()
	if st.Head != c.upto || !c.whole.contain(keyRange{o.From, o.End}) {
		c.mu.Unlock()
		return nil
	}
	rows := c.rows.Copy()
	c.mu.Unlock()
	res, bytes := newResult(o, st), 0
	rows.Ascend(o.From, func(k contract.Key, kv *KeyValue) bool {
		switch {
		case k >= o.End || len(res.KVs) == o.Limit:
			return false
		case o.At != 0 && kv.Revision > o.At:
			return true
		}
		res.KVs = append(res.KVs, *kv)
		if last := &res.KVs[len(res.KVs)-1]; o.KeysOnly {
			last.Value = nil
		} else {
			bytes += len(last.Value)
		}
		res.More = bytes >= contract.ReadBytes
		return !res.More
	})
	return res
}

// count counts the keys of a range at a revision, but for the keys that were written since, and
// returns the head up to which they were. It stops at the limit, if that is not 0. A page at the
// revision was read when the history went up to read. It returns false if the hub has not come so
// far, as the page may belong to another history then, or if the range is not in the cache.
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

// rows is the reader that answers from the cache.
type rows struct {
	reader
	cache  *rowCache
	hub    *hub
	tailer *tailer
	// state reads the state, which proves a page.
	state func(context.Context) (contract.State, error)
}

func (r *rows) link(next reader) reader { r.reader = next; return r }

// Cached implements reader.
func (r *rows) Cached(start, end contract.Key) bool {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skip == 0 && c.whole.contain(keyRange{start, end})
}

// Page implements reader.
func (r *rows) Page(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	if o.By != nil {
		return r.reader.Page(ctx, o)
	}
	if res, err := r.cachedPage(ctx, o); res != nil || err != nil {
		return res, err
	}
	res, err := r.reader.Page(ctx, o)
	if err == nil {
		r.cache.keepPage(o, res)
	}
	return res, err
}

// cachedPage reads a page from the cache. It returns nil if it has to be read without it.
func (r *rows) cachedPage(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	for range cachedTries {
		if !r.cache.takesPage(keyRange{o.From, o.End}) {
			return nil, nil
		}
		st, err := r.state(ctx)
		if err != nil || !r.delivered(ctx, st.Head) {
			return nil, err
		}
		if res := r.cache.page(st, o); res != nil {
			return res, nil
		}
	}
	r.cache.skipSome()
	return nil, nil
}

// Count implements reader. The cached rows are compared with a page alone, so a count without a
// page is not answered.
func (r *rows) Count(ctx context.Context, o RangeOptions, page *RangeResult) (int64, contract.State, error) {
	if page != nil {
		n, head, ok := r.cache.count(o.At, page.Head, keyRange{o.From, o.End}, o.countLimit())
		if ok {
			st := page.state
			st.Head.Revision = head
			return n, st, nil
		}
	}
	return r.reader.Count(ctx, o, page)
}

// Get implements reader.
func (r *rows) Get(ctx context.Context, key contract.Key) (*KeyValue, contract.State, error) {
	kv, st, err := r.reader.Get(ctx, key)
	if err == nil && kv != nil {
		r.cache.keep(st.Head, kv)
	}
	return kv, st, err
}

// GetKeys implements reader.
func (r *rows) GetKeys(ctx context.Context, keys []contract.Key) (map[contract.Key]*KeyValue, contract.State, error) {
	known, others := r.cache.takesKeys(keys)
	if len(known) > 0 {
		read, st, err := r.reader.GetKeys(ctx, others)
		if err != nil {
			return nil, st, err
		}
		found := make(map[contract.Key]*KeyValue, len(keys))
		if r.delivered(ctx, st.Head) && r.cache.find(st.Head, known, found) {
			r.keep(st.Head, read)
			maps.Copy(found, read)
			return found, st, nil
		}
	}
	found, st, err := r.reader.GetKeys(ctx, keys)
	if err == nil {
		r.keep(st.Head, found)
	}
	return found, st, err
}

// keep keeps rows that a read has found in a snapshot with this head.
func (r *rows) keep(head contract.Position, found map[contract.Key]*KeyValue) {
	for _, kv := range found {
		r.cache.keep(head, kv)
	}
}

// delivered tells whether the hub has delivered a head that was read. It waits a moment if this
// process perhaps commits that head just now.
func (r *rows) delivered(ctx context.Context, head contract.Position) bool {
	if r.hub.has(head) {
		return true
	}
	if r.tailer.committing(slowQuery) {
		waitCtx, cancel := context.WithTimeout(ctx, deliveryWait)
		defer cancel()
		if r.hub.arrive(waitCtx, head.Revision) == nil && r.hub.has(head) {
			return true
		}
	}
	if ctx.Err() == nil {
		r.cache.skipSome()
	}
	return false
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
