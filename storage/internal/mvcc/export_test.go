package mvcc

import (
	"context"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// WaitQueued waits until n writes wait for the committer.
func WaitQueued(ctx context.Context, s *Engine, n int) error {
	return Poll(ctx, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return s.queue.count == n
	})
}

// CommitStopped ends when the committer's time is over.
func CommitStopped(s *Engine) <-chan struct{} { return s.commitCtx.Done() }

// Poll waits until f holds.
func Poll(ctx context.Context, f func() bool) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !f() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// TailOf reads the log itself.
func TailOf(ctx context.Context, s *Engine, from contract.Revision, limit int) (*contract.Tail, error) {
	return s.tail(ctx, 0, from, limit, contract.PrevOfDeletions)
}

// WaitAttached waits until a watcher follows the ring.
func WaitAttached(ctx context.Context, w *Watcher) error { return waitAttached(ctx, w) }

// Delivered returns the newest revision that was delivered to the watchers.
func (s *Engine) Delivered() contract.Revision { return s.hub.position().Revision }

// Arrived waits until a revision was delivered.
func (s *Engine) Arrived(ctx context.Context, r contract.Revision) error { return s.hub.arrive(ctx, r) }

// CompactionPass is compactionPass.
type CompactionPass = compactionPass

// CompactAgain is compactAgain.
func (s *Engine) CompactAgain(ctx context.Context, last CompactionPass) (CompactionPass, error) {
	return s.compactAgain(ctx, last)
}

// NewestSeen is the newest position that the store has seen.
func (s *Engine) NewestSeen() contract.Position { return s.hub.newestSeen() }

// Refence is refence.
func (s *Engine) Refence(ctx context.Context, suspect contract.Position) error {
	return s.refence(ctx, suspect, "a test")
}

// Limits of what is read ahead.
const (
	AheadPages = aheadPages
	AheadBytes = aheadBytes
	AheadFor   = aheadFor
)

// KeepAhead says how long pages are kept.
func (s *Engine) KeepAhead(d time.Duration) { s.ahead.keepFor = d }

// Ahead is ahead.
type Ahead struct{ *ahead }

// WaitReadAhead waits until no page is being read ahead.
func WaitReadAhead(ctx context.Context, s *Engine) error {
	return Poll(ctx, func() bool {
		s.ahead.mu.Lock()
		defer s.ahead.mu.Unlock()
		return s.ahead.reading == 0
	})
}

// pager is a reader of pages alone.
type pager struct {
	reader
	page func(context.Context, RangeOptions) (*RangeResult, error)
}

func (p pager) Page(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	return p.page(ctx, o)
}

// NewAhead makes an ahead, which reads pages by a function.
func NewAhead(ctx context.Context,
	page func(context.Context, RangeOptions) (*RangeResult, error)) Ahead {
	a := newAhead(ctx, nil, func(f func()) func() { return f })
	a.link(pager{page: page})
	return Ahead{a}
}

// Turned is turned.
func (a Ahead) Turned(o RangeOptions, res *RangeResult) { a.turned(o, res) }

// Close is close.
func (a Ahead) Close() { a.close() }

// SkippedReads is skippedReads.
const SkippedReads = skippedReads

// Uncache forgets a row that is kept.
func Uncache(s *Engine, key contract.Key) {
	c := s.rows.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	kv, _ := c.rows.Get(key)
	c.evictKeysLocked([]*KeyValue{kv})
}

// CachedBytes measures the rows that are kept, and returns what is counted of them, too.
func CachedBytes(s *Engine) (bytes, counted int) {
	c := s.rows.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows.Scan(func(_ contract.Key, kv *KeyValue) bool { bytes += cachedSize(kv); return true })
	return bytes, c.bytes
}

// readers are the names of Store.links.
var readers = []string{"rows", "deltas", "undo", "ahead", "left"}

// Memories are the readers of the chain that may be left out.
func Memories() []string {
	return slices.DeleteFunc(slices.Clone(readers), func(name string) bool { return name == "undo" })
}

// LeaveOut composes the chain of a store anew, without some readers.
func LeaveOut(s *Engine, without ...string) {
	var links []link
	for i, l := range s.links() {
		if !slices.Contains(without, readers[i]) {
			links = append(links, l)
		}
	}
	s.reads = chained(s.source, links...)
}
