package move

import (
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestNext: each phase with each event that can happen in it, and what is recorded before the step.
func TestNext(t *testing.T) {
	for _, c := range []struct {
		phase  phase
		event  event
		finish bool
		then   phase
		step   step
	}{
		{copying, begun, false, copying, stepCopy},
		{copying, begun, true, copying, stepCopy}, // so that the source stands still for a short time
		{copying, copied, false, following, stepFollow},
		{copying, copied, true, ending, stepFence},
		{copying, passed, false, copying, stepCopy},
		{copying, passed, true, copying, stepCopy},
		{following, begun, false, following, stepFollow},
		{following, begun, true, ending, stepFence},
		{following, passed, false, copying, stepCopy},
		{following, stopped, false, following, stepStop},
		{ending, begun, false, ending, stepFence}, // the source serves nobody any more
		{ending, begun, true, ending, stepFence},
		{ending, fenced, true, ending, stepLast},
		{ending, verified, true, ending, stepOpen},
	} {
		r, s := next(record{Phase: c.phase, Source: "x", At: position{3, 7}}, c.event, c.finish)
		if r != (record{Phase: c.then, Source: "x", At: position{3, 7}}) || s != c.step {
			t.Errorf("%+v became %+v, step %d", c, r, s)
		}
	}
}

// TestReadRecord: a record is that of a program that this one understands, and of the same source.
func TestReadRecord(t *testing.T) {
	r := record{Version: recordVersion, Source: "a", Phase: ending, At: position{1, 2}}
	if got, err := readRecord(r.content(), "a"); err != nil || got != r {
		t.Errorf("%+v, %v", got, err)
	}
	newer := r
	newer.Version++
	for _, c := range []struct{ content, source string }{
		{string(r.content()), "b"}, {string(newer.content()), "a"}, {"{", "a"},
	} {
		if _, err := readRecord([]byte(c.content), c.source); err == nil {
			t.Errorf("the record %s of %s was taken", c.content, c.source)
		}
	}
}

// TestOrder: that of a snapshot.
func TestOrder(t *testing.T) {
	ids := []contract.RowID{contract.IDOf(5, 1), contract.IDOf(5, 2), contract.IDOf(9, 1), 1, 5, 9}
	for i, a := range ids {
		for j, b := range ids {
			if got := order(a, b); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("order(%d, %d) = %d", a, b, got)
			}
			if a != b {
				follows := (&contract.Record{Revision: b.Revision(), Part: b.Part()}).Follows(a)
				if follows != (i < j) {
					t.Errorf("%d follows %d: %t, and the order is another one", b, a, follows)
				}
			}
		}
	}
}

// TestBeyondGap: a gap stops the follower, until all that lacks is settled.
func TestBeyondGap(t *testing.T) {
	for _, c := range []struct {
		after   contract.Revision
		ids     []contract.Revision
		settled contract.Revision
		want    int
	}{
		{5, nil, 0, 0},
		{5, []contract.Revision{6, 7}, 0, 2},
		{5, []contract.Revision{7, 8}, 0, 0},
		{5, []contract.Revision{6, 8}, 0, 1},
		{5, []contract.Revision{6, 8}, 6, 1},
		{5, []contract.Revision{6, 8}, 7, 2},
		{5, []contract.Revision{8, 9, 12}, 10, 2},
		{5, []contract.Revision{8, 9, 12}, 11, 3},
	} {
		if got := beyondGap(c.after, c.ids, c.settled); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestLast: of each key the last change is written.
func TestLast(t *testing.T) {
	a, b := &contract.Record{Key: "a", Revision: 1}, &contract.Record{Key: "b", Revision: 2}
	again := &contract.Record{Key: "a", Revision: 4}
	remove, records := last([]change{{"a", a}, {"b", b}, {"b", nil}, {"a", again}, {"c", nil}})
	if !slices.Equal(remove, []contract.Key{"b", "c"}) || len(records) != 1 || records[0].Revision != 4 {
		t.Errorf("%v, %+v", remove, records)
	}
}

// TestKineNames: a database is named without secrets, whatever form the URL has, and no error shows
// what is in it.
func TestKineNames(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://u:secret@h:7/Db?sslmode=disable": "postgres://h:7/db",
		"postgres://u:secret@h":                      "postgres://h:5432/kubernetes",
		"mysql://u:secret@tcp(h:7)/db":               "mysql://h:7/db",
		"mysql://u:secret@h/db":                      "mysql://h:3306/db",
		"mysql://u:secret@h:7":                       "mysql://h:7/kubernetes",
		"mysql://u:sec%40ret@h:7/db?timeout=5s":      "mysql://h:7/db",
		"sqlite:///dev/null":                         "sqlite:/dev/null",
		"sqlite:/dev/null?cache=shared":              "sqlite:/dev/null",
	} {
		k, err := openKine(url, nil)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if k.name != want {
			t.Errorf("%s is named %s, want %s", url, k.name, want)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, url := range []string{"secret", "postgres://u:sec%ret@h", "postgres://u:secret@h/d?sslmode=x",
		"mysql://u:secret@tcp(h/db", "mysql://u:secret", "nats://u:secret@h", "sqlite:/no/such/file"} {
		k, err := openKine(url, nil)
		if err == nil {
			t.Errorf("%s was opened as %s", url, k.name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
