package sqlkit

import (
	"context"
	"slices"
	"sync"
)

// Turns bounds how many reads of single keys and lists are under way at the same time, by all
// stores that share connections for them. Lists leave some connections for reads of single keys.
// Reads of the log have Turns of their own, which stand before the connections that they share with
// other reads: so these wait for no more than the first piece of the log that ends, however many
// watches catch up.
// The stores take turns, so that one whose clients read without an end delays the reads of another
// by no more than the first of its own that ends. Beside another store, a store never has all.
type Turns struct {
	mu sync.Mutex
	// reads and lists bound the reads that are under way, and those of them that are lists.
	reads, lists bounded
	// lines is how many stores there have been. Closed ones count, which costs the last one a read.
	lines int
	// waiting has the stores with reads that wait, in the order of their turns.
	waiting []*line
}

// bounded is how many may be under way at the same time, how many of these may belong to one store
// beside others, and how many are.
type bounded struct{ most, beside, now int }

// keptForSingle is how many of the connections that read are kept from lists, if there are so many.
const keptForSingle = 2

// NewTurns makes the bounds for conns connections, for the classes Single and List together, or for
// the class Tail.
//
// Beside others, a store leaves one connection, so that theirs need not wait for its reads at all.
// One that is alone may use all: there is nobody to wait. Of two connections a store may use both,
// as its lists would hold up its reads of single keys otherwise; others have their turns anyhow.
func NewTurns(conns int) *Turns {
	lists := max(1, conns-keptForSingle)
	return &Turns{reads: bounded{most: conns, beside: max(min(2, conns), conns-1)},
		lists: bounded{most: lists, beside: max(1, lists-1)}}
}

// line is one store's part of [Turns]. The mutex of its Turns protects it.
type line struct {
	turns *Turns
	// reads is how many reads of the store are under way, and lists how many of them are lists.
	reads, lists int
	// single and list have the reads that wait.
	single, list []chan struct{}
}

func (t *Turns) line() *line {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines++
	return &line{turns: t}
}

// queue has the reads of a class that wait.
func (s *line) queue(c Class) *[]chan struct{} {
	if c == List {
		return &s.list
	}
	return &s.single
}

func (s *line) waits() bool { return len(s.single)+len(s.list) > 0 }

// may tells whether the store may begin a read of a class.
func (s *line) may(c Class) bool {
	t := s.turns
	return t.fits(t.reads, s.reads) && (c != List || t.fits(t.lists, s.lists))
}

// fits tells whether a store that has some under way may begin one more.
func (t *Turns) fits(b bounded, own int) bool {
	return b.now < b.most && (own < b.beside || t.lines == 1)
}

// next is the class of the store's next read, if it may begin one. Lists go first, since they leave
// room for others, and not the other way round.
func (s *line) next() (c Class, ok bool) {
	for _, c := range []Class{List, Single} {
		if len(*s.queue(c)) > 0 && s.may(c) {
			return c, true
		}
	}
	return 0, false
}

// begun counts a read that begins, or, by -1, one that has ended.
func (s *line) begun(c Class, n int) {
	s.reads += n
	s.turns.reads.now += n
	if c == List {
		s.lists += n
		s.turns.lists.now += n
	}
}

// begin waits until the store may do another read, of the class Single or List, or where its Turns
// are for it, Tail. Every call that returns nil needs an end.
func (s *line) begin(ctx context.Context, c Class) error {
	t := s.turns
	t.mu.Lock()
	if len(t.waiting) == 0 && s.may(c) {
		s.begun(c, 1)
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if !s.waits() {
		t.waiting = append(t.waiting, s)
	}
	queue := s.queue(c)
	*queue = append(*queue, turn)
	t.next()
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(*queue, turn); at >= 0 {
		if *queue = slices.Delete(*queue, at, at+1); !s.waits() {
			t.waiting = slices.DeleteFunc(t.waiting, func(w *line) bool { return w == s })
		}
	} else { // its turn came at the same time
		s.ended(c)
	}
	return ctx.Err()
}

// end makes room for the next read.
func (s *line) end(c Class) {
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	s.ended(c)
}

func (s *line) ended(c Class) {
	s.begun(c, -1)
	s.turns.next()
}

// next begins reads while there is room. The first store that may begin one does, and goes to the
// end of the line.
func (t *Turns) next() {
	for t.reads.now < t.reads.most {
		var c Class
		at := slices.IndexFunc(t.waiting, func(s *line) (ok bool) {
			c, ok = s.next()
			return ok
		})
		if at < 0 {
			return
		}
		s := t.waiting[at]
		t.waiting = slices.Delete(t.waiting, at, at+1)
		queue := s.queue(c)
		close((*queue)[0])
		*queue = (*queue)[1:]
		s.begun(c, 1)
		if s.waits() {
			t.waiting = append(t.waiting, s)
		}
	}
}
