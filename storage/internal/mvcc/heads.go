package mvcc

import (
	"context"
	"sync"
)

// heads lets concurrent readers of the head share queries. A reader joins only a query that has not started yet, so that
// the answer is of a snapshot taken after it asked.
type heads struct {
	s       *Store
	mu      sync.Mutex
	running bool
	closed  bool
	next    *headRead
	wg      sync.WaitGroup
}

type headRead struct {
	done chan struct{}
	head Revision
	err  error
}

// Head returns the newest revision, linearizably: it is not lower than that of any write that was acknowledged, by any replica, before the call. It is never 0.
func (s *Store) Head(ctx context.Context) (Revision, error) {
	h := &s.heads
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return 0, ErrClosed
	}
	if h.next == nil {
		h.next = &headRead{done: make(chan struct{})}
	}
	r := h.next
	if !h.running {
		h.running = true
		h.wg.Go(h.run)
	}
	h.mu.Unlock()
	select {
	case <-r.done:
		return r.head, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run answers until nobody waits. The queries run under the store's own context, since they serve several callers.
func (h *heads) run() {
	for {
		h.mu.Lock()
		r := h.next
		h.next = nil
		if r == nil {
			h.running = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		st, err := h.s.read(h.s.ctx, h.s.b.State)
		r.head, r.err = st.Head.Revision, err
		close(r.done)
	}
}

// close refuses further readers and waits for the query that is under way.
func (h *heads) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.wg.Wait()
}
