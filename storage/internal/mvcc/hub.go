package mvcc

import (
	"context"
	"sort"
	"strings"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Event is one write of one key, as a watcher sees it. Events are shared between watchers: they are
// read only.
type Event struct {
	Key contract.Key
	// Revision is the event's own revision, which all events of a transaction have; Create the one
	// that created the key.
	Revision, Create contract.Revision
	// Prev is the row that it replaced, 0 if it created the key.
	Prev contract.RowID
	// Version counts the writes of the key since its creation, this one included. Lease is what the
	// key is attached to, or was if it was deleted.
	Version int64
	Lease   contract.Lease
	Deleted bool
	// Value is nil if the key was deleted.
	Value []byte

	// bytes is what the event holds in memory. Protected by hub.mu once the hub has the event.
	bytes int

	// prev is held while the previous value is read. It protects the fields below, once the event
	// is shared.
	prev      lock
	prevKnown bool
	prevValue []byte
	prevLease contract.Lease

	// memoMu protects memos, not what is in them: a memo is made without it.
	memoMu sync.Mutex
	memos  []*memo
}

type memo struct {
	key   any
	once  sync.Once
	value any
	err   error
}

// Memo returns what make returns, calling it once per event and key: the watchers of an event share
// what they derive from it. An event has few keys, one per kind of watcher, so a list is enough.
func (e *Event) Memo(key any, make func() (any, error)) (any, error) {
	e.memoMu.Lock()
	var found *memo
	for _, m := range e.memos {
		if m.key == key {
			found = m
			break
		}
	}
	if found == nil {
		found = &memo{key: key}
		e.memos = append(e.memos, found)
	}
	e.memoMu.Unlock()
	found.once.Do(func() { found.value, found.err = make() })
	return found.value, found.err
}

// eventOf makes the event of a log row; nil for a marker.
func eventOf(r *contract.Row) *Event {
	if r.Marker() {
		return nil
	}
	e := &Event{Key: r.Key, Revision: r.Revision, Prev: r.Prev, Create: r.Create,
		Version: r.Version, Lease: r.Lease, Deleted: r.Deleted}
	if !r.Deleted {
		e.Value = r.Value
	}
	if r.HasPrev {
		e.prevKnown, e.prevValue, e.prevLease = true, r.PrevValue, r.PrevLease
	}
	e.bytes = len(e.Key) + len(e.Value) + len(e.prevValue)
	return e
}

// hub holds the newest events and knows who waits for them.
//
// The ring is the events in (ringStart, delivered], in order. It is append-only: eviction re-slices
// it and never overwrites an element, so a piece of it may be read without the lock. It has
// transactions as a whole.
//
// Watchers that keep up are attached: a bucket per watched range finds them by an event's key in a
// few map look-ups, however many watchers there are, and a watcher that nothing concerns is never
// woken, nor does it fall behind. Ranges that are neither a key nor a prefix that ends in '/' are
// few, and each is compared with each event.
type hub struct {
	limits RingLimits
	metric *Metrics
	cache  *rowCache

	// mu protects the fields below, and those of watchers and events that say so. Metrics.mu and
	// rowCache.mu come after it.
	mu        sync.Mutex
	delivered contract.Position
	// trail is what this process knows of the history, which may be ahead of delivered.
	trail trail
	// era is that of delivered and the trail. It began at the revision began.
	era   contract.Era
	began contract.Revision
	// compacted is the newest boundary that this process knows of.
	compacted contract.Revision
	ring      []*Event
	ringStart contract.Revision
	ringBytes int
	buckets   map[watchRange]map[*Watcher]struct{}
	// ranges are those of the buckets that have an end.
	ranges map[watchRange]struct{}
	all    map[*Watcher]struct{}
	// wanting are the attached watchers that wait for progress.
	wanting map[*Watcher]struct{}
	// arrivals are waited for by readers of the delivered position.
	arrivals map[chan struct{}]contract.Revision
	// closed is why no watch begins any more, nil if they do.
	closed error
}

// watchRange names what a watcher watches: a prefix that ends in '/', or one key, or the range from
// a key to an end.
type watchRange struct {
	key    contract.Key
	prefix bool
	end    contract.Key
}

func (r watchRange) contains(k contract.Key) bool {
	switch {
	case r.prefix:
		return strings.HasPrefix(string(k), string(r.key))
	case r.end != "":
		return k >= r.key && k < r.end
	}
	return k == r.key
}

// RingLimits bound the hub's memory. A watcher that falls out of the ring reads the log.
type RingLimits struct {
	Events int
	Bytes  int
}

func newHub(limits RingLimits, metric *Metrics, cache *rowCache) *hub {
	return &hub{
		limits:   limits,
		metric:   metric,
		cache:    cache,
		buckets:  map[watchRange]map[*Watcher]struct{}{},
		ranges:   map[watchRange]struct{}{},
		all:      map[*Watcher]struct{}{},
		wanting:  map[*Watcher]struct{}{},
		arrivals: map[chan struct{}]contract.Revision{},
	}
}

// reset begins a new history at the state's head: all watchers end, the ring is empty.
func (h *hub) reset(st contract.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trail.reset(st.Head)
	h.startLocked(st)
}

// skip leaves out what compaction has removed from the log: all watches end, the ring is empty. It
// does nothing if the hub is in another history by now.
func (h *hub) skip(st contract.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if st.Head.Epoch != h.delivered.Epoch || st.Compacted <= h.delivered.Revision {
		return
	}
	h.trail.skip(st)
	h.startLocked(st)
}

// startLocked starts to deliver after the end of the trail.
func (h *hub) startLocked(st contract.State) {
	h.era++
	h.delivered = h.trail.delivered()
	h.began = h.delivered.Revision
	h.compacted = max(h.compacted, st.Compacted)
	h.cache.reset(h.delivered)
	h.ring, h.ringBytes, h.ringStart = nil, 0, h.delivered.Revision
	for w := range h.all {
		h.endLocked(w, contract.ErrCompacted)
	}
	h.arriveLocked()
	h.metric.delivered(h.delivered)
}

// append delivers events that directly follow the position before and reach the position after, all
// of one group. It refuses, and returns false, if before is not what was delivered last, or if they
// are not what was seen already.
func (h *hub) append(before contract.Position, events []*Event, after contract.Position) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed != nil || before != h.delivered {
		return false
	}
	if _, ok := h.trail.pass([]contract.Position{after}); !ok {
		return false
	}
	h.appendLocked(events, after)
	return true
}

// appendTail delivers the rows that a reader found after the position from. Some of them may have
// been delivered meanwhile: since history is one, what was delivered after from is a prefix of the
// rows. It returns false if it is not, or if the hub is in another history: then the log has to be
// read anew, from what is delivered now. It also returns false if the rows are not what was seen
// already, and that position as known, which is zero otherwise.
func (h *hub) appendTail(from contract.Position, rows []contract.Row) (known contract.Position, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed != nil || from.Epoch != h.delivered.Epoch || from.Revision > h.delivered.Revision {
		return known, false
	}
	skip := sort.Search(len(rows), func(i int) bool {
		return rows[i].Revision > h.delivered.Revision
	})
	if skip == len(rows) {
		return known, true
	}
	if skip > 0 && rows[skip-1].Token != h.delivered.Token {
		return known, false // others are in the place of what was delivered, which was lost
	}
	rows = rows[skip:]
	groups := groupsOf(from.Epoch, rows)
	if known, ok := h.trail.pass(groups); !ok {
		return known, false
	}
	events := make([]*Event, 0, len(rows))
	for i := range rows {
		if e := eventOf(&rows[i]); e != nil {
			events = append(events, e)
		}
	}
	h.appendLocked(events, groups[len(groups)-1])
	return known, true
}

func (h *hub) appendLocked(events []*Event, after contract.Position) {
	h.ring = append(h.ring, events...)
	for _, e := range events {
		h.ringBytes += e.bytes
	}
	h.delivered = after
	h.cache.deliver(events, after)
	h.evictLocked()
	h.wakeLocked(events)
	h.arriveLocked()
	h.metric.delivered(after)
}

// evictLocked keeps the ring within its limits. It drops an eighth at a time, so that the slice is
// not copied for each event.
func (h *hub) evictLocked() {
	if len(h.ring) <= h.limits.Events && h.ringBytes <= h.limits.Bytes {
		return
	}
	n := 0
	for len(h.ring)-n > h.limits.Events*7/8 || h.ringBytes > h.limits.Bytes*7/8 {
		h.ringBytes -= h.ring[n].bytes
		n++
	}
	for whole := wholeTo(h.ring, n); n < whole; n++ {
		h.ringBytes -= h.ring[n].bytes
	}
	h.ringStart = h.ring[n-1].Revision
	// A copy lets go of the evicted events' memory.
	h.ring = append(make([]*Event, 0, h.limits.Events/4+len(h.ring)-n), h.ring[n:]...)
}

// wholeTo returns n, or more if the first n events would end within a transaction.
func wholeTo(events []*Event, n int) int {
	for n > 0 && n < len(events) && events[n].Revision == events[n-1].Revision {
		n++
	}
	return n
}

// grew counts a previous value that was read only now, if the ring holds its event.
func (h *hub) grew(e *Event, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := sort.Search(len(h.ring), func(i int) bool { return h.ring[i].Revision >= e.Revision })
	for i < len(h.ring) && h.ring[i] != e && h.ring[i].Revision == e.Revision {
		i++
	}
	if i < len(h.ring) && h.ring[i] == e {
		e.bytes += bytes
		h.ringBytes += bytes
		h.evictLocked()
	}
}

// wakeLocked tells the watchers that the events concern. Most events of a group share a directory,
// so the buckets are looked up once per directory and once per key.
func (h *hub) wakeLocked(events []*Event) {
	if len(h.buckets) > 0 {
		touched := map[watchRange]struct{}{}
		touch := func(r watchRange, first contract.Revision) {
			bucket, ok := h.buckets[r]
			if !ok {
				return
			}
			if _, done := touched[r]; done {
				return
			}
			touched[r] = struct{}{}
			for w := range bucket {
				if w.first == 0 {
					w.first = first
				}
				w.signal()
			}
		}
		var directory contract.Key
		for i, e := range events {
			touch(watchRange{key: e.Key}, e.Revision)
			for r := range h.ranges {
				if r.contains(e.Key) {
					touch(r, e.Revision)
				}
			}
			d := e.Key[:strings.LastIndexByte(string(e.Key), '/')+1]
			if i > 0 && d == directory {
				continue
			}
			directory = d
			for n := len(d); n > 0; n = strings.LastIndexByte(string(d[:n-1]), '/') + 1 {
				touch(watchRange{key: d[:n], prefix: true}, e.Revision)
			}
		}
	}
	for w := range h.wanting {
		if w.want <= h.delivered.Revision {
			w.signal()
		}
	}
}

func (h *hub) arriveLocked() {
	for c, r := range h.arrivals {
		if r <= h.delivered.Revision {
			close(c)
			delete(h.arrivals, c)
		}
	}
}

// arrive waits until the hub has delivered the revision.
func (h *hub) arrive(ctx context.Context, r contract.Revision) error {
	h.mu.Lock()
	if h.delivered.Revision >= r {
		h.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	h.arrivals[c] = r
	h.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		h.mu.Lock()
		delete(h.arrivals, c)
		h.mu.Unlock()
		return ctx.Err()
	}
}

// attachLocked makes the watcher follow the ring, from its cursor on. The ring begins at or before
// the cursor.
func (h *hub) attachLocked(w *Watcher) {
	bucket := h.buckets[w.rng]
	if bucket == nil {
		bucket = map[*Watcher]struct{}{}
		h.buckets[w.rng] = bucket
		if w.rng.end != "" {
			h.ranges[w.rng] = struct{}{}
		}
	}
	bucket[w] = struct{}{}
	w.attached = true
	if w.want != 0 {
		h.wanting[w] = struct{}{}
	}
	// Whether an event after the cursor concerns it is for Next to find out.
	w.first = 0
	if w.cursor < h.delivered.Revision {
		w.first = w.cursor + 1
	}
}

func (h *hub) detachLocked(w *Watcher) {
	if bucket := h.buckets[w.rng]; bucket != nil {
		delete(bucket, w)
		if len(bucket) == 0 {
			delete(h.buckets, w.rng)
			delete(h.ranges, w.rng)
		}
	}
	delete(h.wanting, w)
	w.attached = false
}

func (h *hub) endLocked(w *Watcher, err error) {
	if w.err == nil {
		w.err = err
	}
	h.detachLocked(w)
	delete(h.all, w)
	h.metric.watchers(len(h.all))
	w.signal()
}

// sinceLocked returns the piece of the ring that begins at the revision.
func (h *hub) sinceLocked(r contract.Revision) []*Event {
	i := sort.Search(len(h.ring), func(i int) bool { return h.ring[i].Revision >= r })
	return h.ring[i:len(h.ring):len(h.ring)]
}

// close ends all watchers, and lets none begin. It returns false if that was so before.
func (h *hub) close(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.closed == nil
	h.closed = err
	for w := range h.all {
		h.endLocked(w, err)
	}
	return first
}

func (h *hub) position() contract.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.delivered
}

// saw takes a position that the database has answered. It is unproven if the hub is in another
// history by now.
func (h *hub) saw(p contract.Position) (known contract.Position, s sight) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.Epoch != h.delivered.Epoch {
		return h.delivered, unproven
	}
	return h.trail.see(p)
}

// has tells whether a position that the database has answered was delivered.
func (h *hub) has(p contract.Position) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.Epoch != h.delivered.Epoch || p.Revision > h.delivered.Revision {
		return false
	}
	_, s := h.trail.see(p)
	return s == agrees
}

// newestSeen is the newest position of this history that this process knows of.
func (h *hub) newestSeen() contract.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trail.newest()
}

// undecided returns the positions that this process has seen and that are not known to be of one
// history: the delivered one and all after it, the newest at the end; and their era.
func (h *hub) undecided() ([]contract.Position, contract.Era) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]contract.Position{h.delivered}, h.trail.ahead...), h.era
}

func (h *hub) presentEra() contract.Era {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.era
}

// eraOf is the era in which something at a revision was read, 0 if that is not known. All that was
// read in earlier eras is at revisions up to that at which this one began, or is compared with the
// log yet. In the first one nothing was read before.
func (h *hub) eraOf(r contract.Revision) contract.Era {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.era > 1 && r <= h.began {
		return 0
	}
	return h.era
}

// sawCompacted remembers the boundary.
func (h *hub) sawCompacted(r contract.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.compacted = max(h.compacted, r)
}

func (h *hub) compactedRevision() contract.Revision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.compacted
}

// requestProgress asks for a batch once everything that is delivered now has been seen, from the
// watchers that want it regularly.
func (h *hub) requestProgress() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.all {
		if w.periodic {
			w.wantLocked(h.delivered.Revision)
		}
	}
}
