package check

import (
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// TestLeases: each thing that may not happen to a key of a lease is found.
func TestLeases(t *testing.T) {
	due := time.Unix(1000, 0)
	written := history.Row{Key: "k", Time: due.Add(-time.Minute)}
	gone := func(after time.Duration) history.Row {
		return history.Row{Key: "k", Deleted: true, Time: due.Add(after)}
	}
	for name, tc := range map[string]struct {
		rows       []history.Row
		unattached bool
		right      bool
	}{
		"deleted in time":              {rows: []history.Row{written, gone(time.Second)}, right: true},
		"written twice":                {rows: []history.Row{written, written, gone(0)}, right: true},
		"not written":                  {unattached: true, right: true},
		"acknowledged and not written": {},
		"deleted early":                {rows: []history.Row{written, gone(-time.Millisecond)}},
		"left":                         {rows: []history.Row{written}},
		"deleted twice":                {rows: []history.Row{written, gone(0), written, gone(1)}},
		"written again":                {rows: []history.Row{written, gone(0), written}},
	} {
		t.Run(name, func(t *testing.T) {
			_, found := Leases([]history.Epoch{{Rows: tc.rows}},
				[]Leased{{Key: "k", Attached: !tc.unattached, Earliest: due}})
			if tc.right != (len(found) == 0) {
				t.Errorf("found %v", found)
			}
		})
	}
	late, _ := Leases([]history.Epoch{{Rows: []history.Row{written, gone(time.Second)}}},
		[]Leased{{Key: "k", Attached: true, Earliest: due}})
	if late != time.Second {
		t.Errorf("the last one was %s late", late)
	}
}
