package contract

import (
	"errors"
	"fmt"
	"testing"
)

// TestHomes: what a move does to each end of it, whatever that is. The move m goes from generation
// 3 to 4.
func TestHomes(t *testing.T) {
	open, closed := State{Head: Position{Epoch: 5}}, State{Head: Position{Epoch: -5}}
	source := Home{Generation: 3, Move: "m", Attempt: 7, To: "b"}
	target := Home{Generation: 4, Move: "m", Attempt: 7, From: "a"}
	other := errors.New("another home")
	homes := map[string]Home{
		"none":         {},
		"source":       {Generation: 3},
		"moved here":   {Generation: 3, Move: "before"},
		"sent":         source,
		"sent before":  {Generation: 2, Move: "before", To: "b"},
		"target":       target,
		"stale target": {Generation: 4, Move: "stale", Attempt: 6, From: "a"},
		"next target":  {Generation: 4, Move: "next", Attempt: 8, From: "a"},
		"next source":  {Generation: 4, Move: "next", Attempt: 8, To: "c"},
		"left":         {Generation: 3, Attempt: 8, Undone: "next"},
		"later":        {Generation: 5, Move: "later"},
		"undone":       {Generation: 3, Undone: "m"},
		"undone there": {Undone: "m"},
	}
	for _, test := range []struct {
		home string
		st   State
		// What each decision is: its answers, or its error.
		closing, reopening, taking, emptying, creating any
	}{
		// fresh is true where there is no home; recorded where the home is that of a target.
		{"none", open, other, other, "keep", "write", "new"},
		{"none", closed, other, other, "clear", "write", "again"},
		{"source", open, "close", "write", ErrNotNew, "leave", ErrNotNew},
		{"source", closed, other, other, "clear", "write", "again"},
		{"moved here", open, "close", "write", ErrNotNew, "leave", ErrNotNew},
		{"moved here", closed, other, other, "clear", "write", "again"},
		{"sent", closed, "done", "open", "clear", "write", "again"},
		{"sent before", closed, other, other, "clear", "write", "again"},
		{"target", open, other, other, ErrOpened, ErrOpened, "done"},
		{"target", closed, other, other, "keep", "write", ErrNotNew},
		{"stale target", open, other, other, ErrNotNew, "leave", ErrNotNew},
		{"stale target", closed, other, other, "clear", "write", ErrNotNew},
		{"next target", open, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"next target", closed, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"next source", closed, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"left", open, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"left", closed, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"later", open, other, other, other, "leave", ErrNotNew},
		{"later", closed, other, other, other, "leave", ErrNotNew},
		{"undone", open, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"undone", closed, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
		{"undone there", closed, ErrUndone, "done", ErrUndone, "leave", ErrNotNew},
	} {
		h, fresh := homes[test.home], test.home == "none" && !test.st.Dropped()
		check := func(what string, want any, got string, err error) {
			t.Helper()
			is := any(got)
			if err != nil {
				is = err
			}
			known := errors.Is(err, ErrUndone) || errors.Is(err, ErrOpened) || errors.Is(err, ErrNotNew)
			if is != want && (want != any(other) || err == nil || known) {
				t.Errorf("%s of %q (%+v): %v, want %v", what, test.home, test.st.Head, is, want)
			}
		}
		write, err := h.closing(test.st, source)
		check("closing", test.closing, map[bool]string{true: "close", false: "done"}[write], err)
		write, opens, err := h.reopening(test.st, source)
		check("reopening", test.reopening, map[string]string{"true true": "open", "true false": "write",
			"false false": "done"}[fmt.Sprint(write, " ", opens)], err)
		clears, err := h.taking(test.st, test.home == "target", fresh, target)
		check("taking", test.taking, map[bool]string{true: "clear", false: "keep"}[clears], err)
		after, write, err := h.emptying(test.st, fresh, target)
		check("emptying", test.emptying, map[bool]string{true: "write", false: "leave"}[write], err)
		if err == nil && write && (after.Undone != "m" || after.Move == "m" && after.Generation == 4) {
			t.Errorf("after emptying %q its home is %+v", test.home, after)
		}
		write, clears, err = h.creating(test.st, fresh, target)
		check("creating", test.creating, map[string]string{"true true": "again", "true false": "new",
			"false false": "done"}[fmt.Sprint(write, " ", clears)], err)
	}
	if _, err := parseHome("{"); ClassOf(err) != Invalid {
		t.Errorf("a damaged home: %v", err)
	}
}
