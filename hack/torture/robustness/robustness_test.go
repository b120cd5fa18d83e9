package main

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

var rowkeeper = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return "", err
	}
	return server.Build(root)
})

// judged makes a run on SQLite, and returns the verdict.
func judged(t *testing.T, r *run) verdict {
	t.Helper()
	var err error
	if r.program, err = rowkeeper(); err != nil {
		t.Fatal(err)
	}
	r.dir, r.store = t.TempDir(), defaultStore
	r.db = database.NewSQLite(r.dir)
	v, err := r.do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", v)
	return v
}

// TestRuns makes a run with three faults on SQLite. The command makes them on every database.
func TestRuns(t *testing.T) {
	all := faults()
	r := &run{kind: programs.SQLite, fault: all[len(all)-1], load: loads[1], ends: 2}
	v := judged(t, r)
	if v.err != nil {
		t.Errorf("the judge refuses a run with %q: %v\n%s", r.done, v.err, r.log.String())
	}
	if len(r.done) != 3 || v.operations == v.failed || v.events == 0 || v.progress == 0 ||
		v.compactions == 0 {
		t.Errorf("too little was judged: %q, %+v", r.done, v)
	}
}

// TestPlanted puts a proxy with a bug in front of a front end: the judge finds each bug, by the
// guarantee that it breaks. The clients do not do the same in each run, so a bug has three.
func TestPlanted(t *testing.T) {
	for planted, guarantees := range map[bug][]string{
		lostWrite:          {"linearization"},
		hiddenWrite:        {"linearization"},
		decreasingRevision: {"linearization"},
		staleRead:          {"linearization"},
		listHole:           {"serializable"},
		progressAhead:      {"broke Bookmarkable"},
		timeTravel:         {"broke Ordered"},
		reorderEvents:      {"broke Ordered"},
		repeatEvent:        {"broke Unique"},
		splitRevision:      {"broke Atomic"},
		dropFirst:          {"broke Resumable"},
		earlyEvents:        {"broke Resumable", "broke Reliable"},
		dropEvents:         {"broke Reliable"},
		dropDelete:         {"broke Reliable"},
		wrongPrevious:      {"incorrect event prevValue"},
		wrongCreation:      {"incorrect event IsCreate"},
		otherKey:           {"event not matching watch filter"},
	} {
		t.Run(string(planted), func(t *testing.T) {
			var v verdict
			for range 3 {
				r := &run{kind: programs.SQLite, fault: faults()[0], load: loads[1], ends: 1, bug: planted}
				if planted == dropDelete {
					r.load = loads[2]
				}
				v = judged(t, r)
				if v.err != nil && slices.ContainsFunc(guarantees, func(g string) bool {
					return strings.Contains(v.err.Error(), g)
				}) {
					return
				}
			}
			t.Errorf("not found by %q: %v", guarantees, v.err)
		})
	}
}
