package sqlkit

import (
	"context"
	"slices"
	"sync"
)

// Lists bounds how many lists are read at the same time, by all stores that share connections. Some
// connections are left for reads of single keys, which would wait in the same line. The stores take
// turns, so that one whose clients list and count without an end delays the lists of another by no
// more than the first of its own that ends. Beside another store, a store never has all.
type Lists struct {
	mu sync.Mutex
	// all is how many lists may be read at the same time, and free how many more may be now.
	all, free int
	// lines is how many stores there have been. Closed ones count, which costs the last one a list.
	lines int
	// waiting has the stores with lists that wait, in the order of their turns.
	waiting []*line
}

// keptForSingle is how many of the connections that read are kept from lists, if there are so many.
const keptForSingle = 2

// NewLists makes the bound for conns connections for the classes Single and List together.
func NewLists(conns int) *Lists {
	n := max(1, conns-keptForSingle)
	return &Lists{all: n, free: n}
}

// line is one store's part of [Lists]. The mutex of its Lists protects it.
type line struct {
	lists *Lists
	// reads is how many lists of the store are being read, and queue has the lists that wait.
	reads int
	queue []chan struct{}
}

func (l *Lists) line() *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines++
	return &line{lists: l}
}

// begin waits until the store may read another list. Every call that returns nil needs an end.
func (s *line) begin(ctx context.Context) error {
	l := s.lists
	l.mu.Lock()
	if len(l.waiting) == 0 && l.free > 0 && s.reads < l.most() {
		s.reads++
		l.free--
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if len(s.queue) == 0 {
		l.waiting = append(l.waiting, s)
	}
	s.queue = append(s.queue, turn)
	l.next()
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(s.queue, turn); at >= 0 {
		if s.queue = slices.Delete(s.queue, at, at+1); len(s.queue) == 0 {
			l.waiting = slices.DeleteFunc(l.waiting, func(w *line) bool { return w == s })
		}
	} else { // its turn came at the same time
		s.ended()
	}
	return ctx.Err()
}

// end makes room for the next list.
func (s *line) end() {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	s.ended()
}

func (s *line) ended() {
	s.reads--
	s.lists.free++
	s.lists.next()
}

// next begins lists while there is room. The first store that may begin one does, and goes to the
// end of the line.
func (l *Lists) next() {
	for l.free > 0 {
		at := slices.IndexFunc(l.waiting, func(s *line) bool { return s.reads < l.most() })
		if at < 0 {
			return
		}
		s := l.waiting[at]
		l.waiting = slices.Delete(l.waiting, at, at+1)
		close(s.queue[0])
		s.queue = s.queue[1:]
		s.reads++
		l.free--
		if len(s.queue) > 0 {
			l.waiting = append(l.waiting, s)
		}
	}
}

// most is how many lists one store may read at the same time.
func (l *Lists) most() int {
	if l.lines > 1 {
		return max(1, l.all-1)
	}
	return l.all
}
