package sqlite

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// pool hands out connections to one goroutine at a time, in the order of asking: the one that was used last, whose cache is the warmest. One is
// opened only when all that are open are in use, since each has a cache of its own.
type pool struct {
	name string
	open func() (*conn, error)
	// slots has an element for each connection that may be handed out.
	slots chan struct{}
	// opened counts the connections that are open.
	opened atomic.Int64

	mu sync.Mutex
	// idle are the open connections that are not in use, the one that was used last at the end.
	idle []*conn
}

func newPool(name string, size int, open func() (*conn, error)) *pool {
	p := &pool{name: name, open: open, slots: make(chan struct{}, size)}
	for range size {
		p.slots <- struct{}{}
	}
	return p
}

func (p *pool) get(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-p.slots:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c := p.pop(); c != nil {
		return c, nil
	}
	c, err := p.open()
	if err != nil {
		p.slots <- struct{}{}
		return nil, err
	}
	p.opened.Add(1)
	return c, nil
}

// getOpen is get, but opens none: it returns nil if none is open.
func (p *pool) getOpen() *conn {
	<-p.slots
	c := p.pop()
	if c == nil {
		p.slots <- struct{}{}
	}
	return c
}

// pop takes the connection that was used last, nil if none is open and idle. The caller has a slot.
func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return c
}

func (p *pool) put(c *conn) {
	if c.broken {
		_ = c.close() // it is given up because of an error that was reported
		p.opened.Add(-1)
	} else {
		p.mu.Lock()
		p.idle = append(p.idle, c)
		p.mu.Unlock()
	}
	p.slots <- struct{}{}
}

// close closes the connections. None may be in use. The pool opens new ones when asked again.
func (p *pool) close() error {
	var first error
	for range cap(p.slots) {
		<-p.slots
	}
	for c := p.pop(); c != nil; c = p.pop() {
		if err := c.close(); err != nil && first == nil {
			first = err
		}
		p.opened.Add(-1)
	}
	for range cap(p.slots) {
		p.slots <- struct{}{}
	}
	return first
}

func (p *pool) usage() mvcc.Pool {
	used := cap(p.slots) - len(p.slots)
	return mvcc.Pool{Name: p.name, InUse: used, Idle: max(int(p.opened.Load())-used, 0), Max: cap(p.slots)}
}
