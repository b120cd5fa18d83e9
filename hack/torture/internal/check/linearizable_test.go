package check

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// TestReplace writes and deletes keys at random, some of which begin as others do: the state is
// that of a list of what is there.
func TestReplace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	objects, state := map[string]history.Object{}, ""
	for rv := range int64(2000) {
		key := fmt.Sprintf("pods/a/%d", r.IntN(13))
		if r.IntN(3) == 0 {
			delete(objects, key)
			state = replace(state, key, "")
		} else {
			objects[key] = history.Object{Key: key, RV: rv}
			state = replace(state, key, fmt.Sprint(rv))
		}
		if want := encode(slices.Collect(maps.Values(objects))); state != want {
			t.Fatalf("after %d writes the state is %q, and a list shows %q", rv+1, state, want)
		}
		if o, there := objects[key]; at(state, key) != "" != there || there &&
			at(state, key) != fmt.Sprint(o.RV) {
			t.Fatalf("%s is at %q in %q, and was written at %d", key, at(state, key), state, o.RV)
		}
	}
}

// TestOrderOfRevisions: writes take place in the order of their revisions, and after a loss of
// history in that of the new one.
func TestOrderOfRevisions(t *testing.T) {
	create := func(rv int64) request {
		return request{Op: &history.Op{Verb: history.Create, Key: fmt.Sprint("pods/a/", rv), RV: rv,
			Outcome: history.Done}}
	}
	s := namespace.Init()
	for _, c := range []struct {
		input any
		fits  bool
	}{
		{create(7), true}, {create(6), false}, {create(7), false}, {create(9), true},
		{rollback{7, "pods/a/7=7;"}, true}, {create(7), false}, {create(8), true},
	} {
		fits, after := namespace.Step(s, c.input, nil)
		if fits != c.fits {
			t.Errorf("in %+v, %+v fits: %t, want %t", s, c.input, fits, c.fits)
		}
		s = after
	}
}
