package sqlkit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestListsTakeTurns: a store with a hundred lists leaves one to another store, and takes turns
// with it. Alone, it reads as many as there are.
func TestListsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := NewLists(4 + keptForSingle)
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan string, 1_000)
		begin := func(s *line, name string) {
			go func() {
				if s.begin(ctx) == nil {
					begun <- name
				}
			}()
			synctest.Wait()
		}
		next := func(want string) {
			t.Helper()
			synctest.Wait()
			if len(begun) == 0 {
				t.Fatalf("no list begins, want one of %s", want)
			}
			if got := <-begun; got != want {
				t.Fatalf("a list of %s begins, want one of %s", got, want)
			}
		}
		flood := lists.line()
		for range 100 {
			begin(flood, "flood")
		}
		for range 4 {
			next("flood")
		}
		quiet := lists.line()
		for range 3 {
			begin(quiet, "quiet")
		}
		flood.end()
		next("quiet") // the flood still has three, which is all that it may have
		for range 2 {
			flood.end()
			next("flood")
			flood.end()
			next("quiet")
		}
		for range 3 {
			quiet.end()
		}
		for range 2 {
			next("flood")
		}
		synctest.Wait()
		if len(begun) != 0 || flood.reads != 3 || lists.free != 1 {
			t.Errorf("%d lists more have begun, the flood reads %d, and there is room for %d",
				len(begun), flood.reads, lists.free)
		}
		begin(quiet, "quiet")
		next("quiet")
		cancel()
		synctest.Wait()
		quiet.end()
		for range 3 {
			flood.end()
		}
		if lists.free != 4 || len(lists.waiting) != 0 {
			t.Errorf("at the end, there is room for %d lists, and %d stores wait", lists.free,
				len(lists.waiting))
		}
	})
}

// TestListsCanceled: a list that gives up leaves its place, whether its turn has come or not.
func TestListsCanceled(t *testing.T) {
	lists := NewLists(1)
	s, other := lists.line(), lists.line()
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if err := other.begin(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a list beyond the bound gets %v", err)
		}
	}
	if len(lists.waiting) != 0 {
		t.Errorf("%d stores wait", len(lists.waiting))
	}
	s.end()
	for range 50 { // a turn and the end of the wait come at the same time
		if err := other.begin(ctx); err == nil {
			other.end()
		}
	}
	if lists.free != 1 || s.reads != 0 || other.reads != 0 {
		t.Errorf("there is room for %d lists; %d and %d are being read", lists.free, s.reads,
			other.reads)
	}
}
