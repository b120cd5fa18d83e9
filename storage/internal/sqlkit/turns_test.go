package sqlkit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// crowd begins reads of stores in the bubble of a test.
type crowd struct {
	t   *testing.T
	ctx context.Context
	// leave ends the waiting of all.
	leave context.CancelFunc
	begun chan string
}

// begin begins a read, or makes it wait, and then tells its name.
func (c *crowd) begin(s *line, class Class, name string) {
	go func() {
		if s.begin(c.ctx, class) == nil {
			c.begun <- name
		}
	}()
	synctest.Wait()
}

// next takes the names of reads that have begun.
func (c *crowd) next(names ...string) {
	c.t.Helper()
	for _, want := range names {
		synctest.Wait()
		if len(c.begun) == 0 {
			c.t.Fatalf("no read begins, want %s", want)
		}
		if got := <-c.begun; got != want {
			c.t.Fatalf("%s begins, want %s", got, want)
		}
	}
}

// none: no other read has begun.
func (c *crowd) none() {
	c.t.Helper()
	synctest.Wait()
	if len(c.begun) > 0 {
		c.t.Fatalf("%s has begun", <-c.begun)
	}
}

// together runs a test with a crowd.
func together(t *testing.T, test func(c *crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		test(&crowd{t, ctx, cancel, make(chan string, 1_000)})
	})
}

// empty: nothing is under way, and nobody waits.
func empty(t *testing.T, turns *Turns) {
	t.Helper()
	if turns.reads.now != 0 || turns.lists.now != 0 || len(turns.waiting) != 0 {
		t.Errorf("at the end %d reads and %d lists are under way, and %d stores wait",
			turns.reads.now, turns.lists.now, len(turns.waiting))
	}
}

// TestStoresTakeTurns: a store with a hundred reads of a class leaves one to another store, and
// takes turns with it. Alone, it has as many as there are.
func TestStoresTakeTurns(t *testing.T) {
	for name, test := range map[string]struct {
		class Class
		conns int
	}{"lists": {List, 4 + keptForSingle}, "single reads": {Single, 4}} {
		t.Run(name, func(t *testing.T) {
			together(t, func(c *crowd) {
				turns := NewTurns(test.conns)
				flood := turns.line()
				for range 100 {
					c.begin(flood, test.class, "flood")
				}
				c.next("flood", "flood", "flood", "flood")
				c.none()
				quiet := turns.line()
				for range 3 {
					c.begin(quiet, test.class, "quiet")
				}
				flood.end(test.class)
				c.next("quiet") // the flood still has three, which is all that it may have
				for range 2 {
					flood.end(test.class)
					c.next("flood")
					flood.end(test.class)
					c.next("quiet")
				}
				for range 3 {
					quiet.end(test.class)
				}
				c.next("flood", "flood")
				c.none()
				if flood.reads != 3 {
					t.Errorf("the flood has %d", flood.reads)
				}
				c.begin(quiet, test.class, "quiet")
				c.next("quiet")
				c.leave()
				synctest.Wait()
				quiet.end(test.class)
				for range 3 {
					flood.end(test.class)
				}
				empty(t, turns)
			})
		})
	}
}

// TestStoreReadsBoth: lists and single reads of a store together leave one connection to others,
// and its lists leave some to its single reads, whichever of them are many.
func TestStoreReadsBoth(t *testing.T) {
	for name, order := range map[string][]Class{"lists first": {List, Single},
		"single reads first": {Single, List}} {
		t.Run(name, func(t *testing.T) {
			together(t, func(c *crowd) {
				turns := NewTurns(8)
				flood, quiet := turns.line(), turns.line()
				for _, class := range order {
					for range 100 {
						c.begin(flood, class, "flood")
					}
				}
				for range 7 {
					c.next("flood")
				}
				c.none()
				c.begin(quiet, List, "quiet") // for which nobody waits
				c.next("quiet")
				// As they end, the lists come to their turn, and no more of them than may.
				for range 50 {
					if flood.lists == flood.reads {
						t.Fatalf("all of %d reads are lists", flood.reads)
					}
					flood.end(Single)
					c.next("flood")
				}
				if flood.reads != 7 || flood.lists != 5 || turns.reads.now != 8 {
					t.Errorf("the flood has %d reads, %d of them lists, of %d", flood.reads,
						flood.lists, turns.reads.now)
				}
			})
		})
	}
}

// TestFewConnections: with few connections, each read comes to its turn, and of two a store has
// both, so that its single reads do not wait for its lists.
func TestFewConnections(t *testing.T) {
	for conns, both := range map[int]bool{1: false, 2: true, 3: true} {
		together(t, func(c *crowd) {
			turns := NewTurns(conns)
			store, other := turns.line(), turns.line()
			c.begin(store, List, "list")
			c.next("list")
			c.begin(store, Single, "single")
			if both {
				c.next("single")
				store.end(Single)
			} else {
				c.none()
			}
			store.end(List)
			if !both {
				c.next("single")
				store.end(Single)
			}
			c.begin(other, Single, "other")
			c.next("other")
			other.end(Single)
			empty(t, turns)
		})
	}
}

// TestTurnsCanceled: a read that gives up leaves its place, whether its turn has come or not.
func TestTurnsCanceled(t *testing.T) {
	for _, class := range []Class{List, Single} {
		turns := NewTurns(1)
		s, other := turns.line(), turns.line()
		if err := s.begin(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 3 {
			if err := other.begin(ctx, class); !errors.Is(err, context.Canceled) {
				t.Errorf("a read beyond the bound gets %v", err)
			}
		}
		if len(turns.waiting) != 0 {
			t.Errorf("%d stores wait", len(turns.waiting))
		}
		s.end(class)
		for range 50 { // a turn and the end of the wait come at the same time
			if err := other.begin(ctx, class); err == nil {
				other.end(class)
			}
		}
		empty(t, turns)
	}
}
