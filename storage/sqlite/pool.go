package sqlite

import (
	"context"
	"sync/atomic"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// pool hands out connections, which are opened when they are needed first, to one goroutine at a time, in the order of asking.
type pool struct {
	name string
	open func() (*conn, error)
	// slots has an element per connection that is not in use, nil for one that was not opened yet.
	slots chan *conn
	// opened counts the connections that are open.
	opened atomic.Int64
}

func newPool(name string, size int, open func() (*conn, error)) *pool {
	p := &pool{name: name, open: open, slots: make(chan *conn, size)}
	for range size {
		p.slots <- nil
	}
	return p
}

func (p *pool) get(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c := <-p.slots:
		if c != nil {
			return c, nil
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, err := p.open()
	if err != nil {
		p.slots <- nil
		return nil, err
	}
	p.opened.Add(1)
	return c, nil
}

func (p *pool) put(c *conn) {
	if c.broken {
		_ = c.close() // it is given up because of an error that was reported
		p.opened.Add(-1)
		c = nil
	}
	p.slots <- c
}

// close closes the connections. None may be in use. The pool opens new ones when asked again.
func (p *pool) close() error {
	var first error
	for range cap(p.slots) {
		if c := <-p.slots; c != nil {
			if err := c.close(); err != nil && first == nil {
				first = err
			}
			p.opened.Add(-1)
		}
		p.slots <- nil
	}
	return first
}

func (p *pool) usage() mvcc.Pool {
	used := cap(p.slots) - len(p.slots)
	return mvcc.Pool{Name: p.name, InUse: used, Idle: max(int(p.opened.Load())-used, 0), Max: cap(p.slots)}
}
