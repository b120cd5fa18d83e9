package mvcc

import (
	"context"
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A list at a revision is the same whenever it is read. So once the keys from the begin of one page
// on were counted, the number of keys from the begin of each page after it is known: it is less by
// the keys of the pages in between. No fence makes that wrong, since it compacts every revision
// before it (I6), and a compacted one is not read.

// left is the reader that remembers how many keys are left.
type left struct {
	reader
	// mu protects keys, which are how many keys are left from the begins of pages on.
	mu   sync.Mutex
	keys map[leftKey]int64
}

// leftKey is the begin of a page that follows another one.
type leftKey struct {
	from, end contract.Key
	at        contract.Revision
}

// maxLefts bounds what is known of pages that follow. When it is full, all of it is forgotten, and
// counted again.
const maxLefts = 1_000

func newLeft() *left { return &left{keys: map[leftKey]int64{}} }

func (l *left) link(next reader) reader { l.reader = next; return l }

// Page implements reader. If it is known how many keys are left from the page on, it is known for
// the page after it.
func (l *left) Page(ctx context.Context, o RangeOptions) (*RangeResult, error) {
	res, err := l.reader.Page(ctx, o)
	if err != nil || o.By != nil {
		return res, err
	}
	if o.At = res.Revision; res.More {
		if n, known := l.from(o); known {
			l.keep(o, res, n)
		}
	}
	return res, nil
}

// Count implements reader.
func (l *left) Count(ctx context.Context, o RangeOptions, page *RangeResult) (int64, contract.State, error) {
	if page == nil {
		return l.reader.Count(ctx, o, page)
	}
	if n, known := l.from(o); known {
		return n, page.state, nil
	}
	n, st, err := l.reader.Count(ctx, o, page)
	if err == nil && (n <= CountLimit || o.Exact) {
		l.keep(o, page, n)
	}
	return n, st, err
}

// from returns how many keys are left from the begin of a page on, if that is known.
func (l *left) from(o RangeOptions) (n int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known = l.keys[leftKey{from: o.From, end: o.End, at: o.At}]
	return n, known
}

// keep remembers how many keys are left after a page, if n are left from its begin on.
func (l *left) keep(o RangeOptions, page *RangeResult, n int64) {
	next, more := page.next()
	if !more {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.keys) == maxLefts {
		clear(l.keys)
	}
	l.keys[leftKey{from: next, end: o.End, at: o.At}] = n - int64(len(page.KVs))
}

// forget forgets all: the history has changed.
func (l *left) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.keys)
}
