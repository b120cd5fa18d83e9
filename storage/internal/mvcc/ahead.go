package mvcc

import (
	"context"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A client that has turned a page of a list, and then the next one, will most likely turn on. So
// the page that follows may be read while the client works on the one it has; see
// [RangeOptions.Ahead].
//
// Such a page is the same as the one that the call that asks for it would read itself (I4, I5). The
// state at a revision is the same whenever it is read, until the revision is compacted. The call
// reads the state of the store when it has begun, as every read does. If the revision is compacted
// by then, the page is dropped. The head of the answer is that of the call's own read. A fence
// compacts every revision before it (I6), so no page of a lost history is answered.

const (
	// aheadPages is how many pages are read ahead at once, and how many are kept. While there are
	// as many, others are read when they are asked for.
	aheadPages = 4
	// aheadBytes is how large a page may be that is kept, and the one before it.
	aheadBytes = 4 << 20
	// aheadFor is how long a page is kept that nobody asks for.
	aheadFor = 2 * time.Second
	// aheadTurns is how many pages are expected at once. When there are as many, all are forgotten.
	aheadTurns = 1_000
)

// ahead is the reader that reads and keeps the pages that may be asked for next.
type ahead struct {
	reader
	// ctx ends when the store closes.
	ctx context.Context
	// state reads the state, which proves a page.
	state func(context.Context) (contract.State, error)
	// guard is Engine.guarded.
	guard func(func()) func()
	// keepFor is how long a page is kept.
	keepFor time.Duration

	// mu protects the fields below, and each page's timer.
	mu sync.Mutex
	// turns are the pages that are expected, since each follows a page that was read. The keys of
	// turns and pages come from pageOf.
	turns map[RangeOptions]struct{}
	// pages are the pages that nobody has taken yet.
	pages map[RangeOptions]*aheadPage
	// reading counts the reads under way, also of pages that were taken or dropped.
	reading int
	closed  bool
	wg      sync.WaitGroup
}

// aheadPage is a page for one caller. res and err are there when done is closed.
type aheadPage struct {
	done   chan struct{}
	cancel context.CancelFunc
	res    *RangeResult
	err    error
	// timer drops the page. It is set when the page was read.
	timer *time.Timer
}

func newAhead(ctx context.Context, state func(context.Context) (contract.State, error),
	guard func(func()) func()) *ahead {
	return &ahead{ctx: ctx, state: state, guard: guard, keepFor: aheadFor,
		turns: map[RangeOptions]struct{}{}, pages: map[RangeOptions]*aheadPage{}}
}

func (a *ahead) link(next reader) reader { a.reader = next; return a }

// Page implements reader. A page that is probably in memory is not read ahead.
func (a *ahead) Page(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	if o.Ahead <= 0 || o.By != nil {
		return a.reader.Page(ctx, o)
	}
	res, err := a.taken(ctx, o)
	if err == nil && res == nil {
		res, err = a.reader.Page(ctx, o)
	}
	if err == nil && !a.Cached(o.From, o.End) {
		a.turned(o, res)
	}
	return res, err
}

// pageOf returns the options that say what is on a page.
func pageOf(o RangeOptions) RangeOptions {
	return RangeOptions{From: o.From, End: o.End, At: o.At, Limit: o.Limit, KeysOnly: o.KeysOnly}
}

// turned notes that a page ends with res, which was read by o. If o was expected as the page after
// another one, the next one is read from now on.
func (a *ahead) turned(o RangeOptions, res *RangeResult) {
	from, more := res.next()
	if !more {
		return
	}
	this := pageOf(o)
	o.From, o.At, o.Limit = from, res.Revision, o.Ahead
	next := pageOf(o)
	a.mu.Lock()
	defer a.mu.Unlock()
	_, again := a.turns[this]
	delete(a.turns, this)
	if len(a.turns) == aheadTurns {
		clear(a.turns)
	}
	a.turns[next] = struct{}{}
	if !again || a.closed || a.reading == aheadPages || len(a.pages) == aheadPages ||
		a.pages[next] != nil || res.Bytes() > aheadBytes {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	p := &aheadPage{done: make(chan struct{}), cancel: cancel}
	a.pages[next] = p
	a.reading++
	a.wg.Go(a.guard(func() {
		defer cancel()
		defer a.wasRead(next, p)
		p.err = contract.ErrClosed // if it panics
		p.res, p.err = a.reader.Page(ctx, o)
	}))
}

// wasRead ends the reading of a page.
func (a *ahead) wasRead(key RangeOptions, p *aheadPage) {
	close(p.done)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reading--
	switch {
	case a.pages[key] != p:
	case p.err != nil || p.res.Bytes() > aheadBytes:
		delete(a.pages, key)
	default:
		p.timer = time.AfterFunc(a.keepFor, func() { a.drop(key, p) })
	}
}

// drop forgets a page that nobody has asked for.
func (a *ahead) drop(key RangeOptions, p *aheadPage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pages[key] == p {
		delete(a.pages, key)
	}
}

// take returns the page that o asks for, nil if there is none.
func (a *ahead) take(o RangeOptions) *aheadPage {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := pageOf(o)
	p := a.pages[key]
	if p != nil {
		delete(a.pages, key)
		if p.timer != nil {
			p.timer.Stop()
		}
	}
	return p
}

// close waits for what is being read. Nothing is read ahead any more.
func (a *ahead) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.wg.Wait()
}

// taken answers a call of Page by a page that was read ahead, nil if there is none for it.
func (a *ahead) taken(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	p := a.take(o)
	if p == nil {
		return nil, nil
	}
	defer p.cancel()
	st, err := a.state(ctx)
	if err != nil {
		return nil, err
	}
	slow := time.NewTimer(slowQuery)
	defer slow.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-slow.C:
		return nil, nil // perhaps it hangs on a dead connection
	}
	if p.err != nil || st.Compacted > o.At {
		return nil, nil // the call's own read tells
	}
	p.res.prove(st)
	return p.res, nil
}
