package storage

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func TestRestoreIsNewHistory(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		db := openDatabase(t, d, mvcc.Config{})
		s := pods(t, db)
		kept, changed, deleted, again := create(t, s, pod("kept")), create(t, s, pod("changed")), create(t, s, pod("deleted")), create(t, s, pod("again"))
		contents, err := db.Capture(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the same contents serve any number of times
			if _, err := label(t.Context(), s, "changed", "yes"); err != nil {
				t.Fatal(err)
			}
			remove(t, s, "deleted")
			remove(t, s, "again")
			create(t, s, pod("again"))
			create(t, s, pod("new"))
			before, err := db.CurrentRevision(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			w := startWatch(t, s, everything(itoa(before)))
			if err := db.Restore(t.Context(), contents); err != nil {
				t.Fatal(err)
			}
			for _, was := range []*example.Pod{kept, changed, deleted, again} {
				is := &example.Pod{}
				if err := s.Get(t.Context(), podKey(was.Name), apistorage.GetOptions{}, is); err != nil {
					t.Fatal(err)
				}
				if (is.ResourceVersion == was.ResourceVersion) != (was == kept) {
					t.Errorf("%s has resourceVersion %s, and had %s", was.Name, is.ResourceVersion, was.ResourceVersion)
				}
				is.ResourceVersion = was.ResourceVersion
				if !apiequality.Semantic.DeepEqual(is, was) {
					t.Errorf("restored %+v, want %+v", is, was)
				}
			}
			if err := s.Get(t.Context(), podKey("new"), apistorage.GetOptions{}, &example.Pod{}); !apistorage.IsNotFound(err) {
				t.Errorf("what was created after the capture: %v, want not found", err)
			}
			seen := map[string][]watch.EventType{}
			for range 5 {
				event := next(t, w)
				name := event.Object.(*example.Pod).Name
				seen[name] = append(seen[name], event.Type)
			}
			w.Stop()
			want := map[string][]watch.EventType{"changed": {watch.Modified}, "deleted": {watch.Added}, "again": {watch.Deleted, watch.Added}, "new": {watch.Deleted}}
			if !apiequality.Semantic.DeepEqual(seen, want) {
				t.Errorf("the watch saw %v, want %v", seen, want)
			}
		}
		unchanged, err := db.CurrentRevision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Restore(t.Context(), contents); err != nil {
			t.Fatal(err)
		}
		if after, err := db.CurrentRevision(t.Context()); err != nil || after != unchanged {
			t.Errorf("restoring what is there moved the revision from %d to %d, %v", unchanged, after, err)
		}
	})
}

func TestRestoreKeepsToItsPrefix(t *testing.T) {
	db := memory(t)
	elsewhere := podConfig()
	elsewhere.Prefix = "/registry0"
	here, there := pods(t, db), open(t, db, elsewhere)
	contents, err := db.Capture(t.Context(), "/registry")
	if err != nil {
		t.Fatal(err)
	}
	create(t, here, pod("a"))
	create(t, there, pod("a"))
	if err := db.Restore(t.Context(), contents); err != nil {
		t.Fatal(err)
	}
	if err := here.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, &example.Pod{}); !apistorage.IsNotFound(err) {
		t.Errorf("below the prefix: %v, want not found", err)
	}
	if err := there.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, &example.Pod{}); err != nil {
		t.Errorf("below another prefix: %v", err)
	}
}

func TestDeleteExpired(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Now().UnixMicro())
	db, err := Open(t.Context(), Config{URL: "memory:", Drivers: []Driver{sqlite.Driver}, Clock: func() time.Time { return time.UnixMicro(now.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := pods(t, db)
	if err := s.Create(t.Context(), podKey("a"), pod("a"), nil, 3600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		by    time.Duration
		there bool
	}{{59 * time.Minute, true}, {2 * time.Minute, false}} {
		now.Add(step.by.Microseconds())
		if err := db.DeleteExpired(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := s.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, &example.Pod{})
		if (err == nil) != step.there {
			t.Errorf("after %s more: %v, want it there: %t", step.by, err, step.there)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Capture(t.Context(), ""); !errors.Is(err, mvcc.ErrClosed) {
		t.Errorf("a closed database: %v", err)
	}
}
