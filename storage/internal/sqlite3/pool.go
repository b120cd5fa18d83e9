package sqlite3

import (
	"context"
	"sync"
	"sync/atomic"
)

// Pool hands out connections to one goroutine at a time, in the order of asking. It hands out the
// one that was used last, whose cache is the warmest, and opens one only when all open ones are in
// use.
type Pool struct {
	open func() (*Conn, error)
	// slots has an element for each connection that may be handed out.
	slots chan struct{}
	// opened counts the connections that are open.
	opened atomic.Int64

	mu sync.Mutex
	// idle are the open connections that are not in use, the one that was used last at the end.
	idle []*Conn
}

// NewPool makes a pool of at most size connections. It opens none.
func NewPool(size int, open func() (*Conn, error)) *Pool {
	p := &Pool{open: open, slots: make(chan struct{}, size)}
	for range size {
		p.slots <- struct{}{}
	}
	return p
}

// Size is how many connections there are at most.
func (p *Pool) Size() int { return cap(p.slots) }

// Get returns a connection, which the caller gives back by Put.
func (p *Pool) Get(ctx context.Context) (*Conn, error) {
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

// GetOpen is Get, but opens no connection. It returns nil if none is open.
func (p *Pool) GetOpen() *Conn {
	<-p.slots
	c := p.pop()
	if c == nil {
		p.slots <- struct{}{}
	}
	return c
}

// pop takes the connection that was used last, nil if none is open and idle. The caller holds a
// slot.
func (p *Pool) pop() *Conn {
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

// Put gives a connection back. It closes a broken one.
func (p *Pool) Put(c *Conn) {
	if c.Broken {
		_ = c.Close() // it is given up because of an error that was reported
		p.opened.Add(-1)
	} else {
		p.mu.Lock()
		p.idle = append(p.idle, c)
		p.mu.Unlock()
	}
	p.slots <- struct{}{}
}

// Close waits until all connections were given back, and closes them. The pool opens new ones when
// it is asked again.
func (p *Pool) Close() error {
	var first error
	for range cap(p.slots) {
		<-p.slots
	}
	for c := p.pop(); c != nil; c = p.pop() {
		if err := c.Close(); err != nil && first == nil {
			first = err
		}
		p.opened.Add(-1)
	}
	for range cap(p.slots) {
		p.slots <- struct{}{}
	}
	return first
}

// Usage tells how many connections are in use, and how many are open besides.
func (p *Pool) Usage() (inUse, idle int) {
	inUse = cap(p.slots) - len(p.slots)
	return inUse, max(int(p.opened.Load())-inUse, 0)
}
