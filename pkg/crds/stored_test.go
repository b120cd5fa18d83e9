package crds

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// fakeKeys are sorted.
type fakeKeys struct {
	keys  []string
	asked int
}

func (f *fakeKeys) FirstKey(_ context.Context, from, before string) (string, error) {
	f.asked++
	if i, _ := slices.BinarySearch(f.keys, from); i < len(f.keys) && f.keys[i] < before {
		return f.keys[i], nil
	}
	return "", nil
}

func (f *fakeKeys) CountKeys(_ context.Context, from, before string) (int64, error) {
	first, _ := slices.BinarySearch(f.keys, from)
	end, _ := slices.BinarySearch(f.keys, before)
	return int64(end - first), nil
}

// Objects that are stored in a namespace are found by their keys, and keys that look like them are
// not.
func TestStoredIn(t *testing.T) {
	f := &fakeKeys{keys: []string{
		"/other/configmaps/team/a",
		"/r/configmaps/default/a",
		"/r/configmaps/team/a",
		"/r/apps/team/default/a",
		"/r/example.com/gadgets/team/a",
		"/r/example.com/gadgets/team/b",
		"/r/example.com/widgets/team", // in no namespace
		"/r/example.com/wings/team2/a",
		"/r/go.example.com/notes/team/a",
		"/r/namespaces/team",
		"/r/secrets/tea/team",
		"/r/x.example.com/team/default/a",
		"/r0/configmaps/team/a",
	}}
	for i := range 1000 {
		f.keys = append(f.keys, fmt.Sprintf("/r/secrets/n%d/a", i))
	}
	slices.Sort(f.keys)
	s := storedIn{db: f, prefix: "/r", core: sets.New("configmaps", "namespaces", "secrets")}
	found, err := s.resources(t.Context(), "team")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range found {
		names = append(names, r.String())
	}
	if got, want := strings.Join(names, " "),
		"configmaps gadgets.example.com notes.go.example.com"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	// Two for each of nine resources, and one that finds the end.
	if f.asked != 19 {
		t.Errorf("the database was asked %d times", f.asked)
	}
	for of, want := range map[string]int64{"configmaps": 1, "gadgets.example.com": 2,
		"widgets.example.com": 0, "wings.example.com": 0, "nothing": 0,
		"apps": 0, // a group, whose resource looks like the namespace
	} {
		n, err := s.count(t.Context(), schema.ParseGroupResource(of), "team")
		if err != nil || n != want {
			t.Errorf("%d %s were counted, %v, want %d", n, of, err, want)
		}
	}
}
