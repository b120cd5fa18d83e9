package storagetest_test

import (
	"errors"
	"os"
	"reflect"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/storagetest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func open(t *testing.T, d dbtest.DB, clock func() time.Time) *storage.Store {
	t.Helper()
	store, err := storage.Open(t.Context(), storage.Config{
		URL: d.URL, Drivers: []storage.Driver{d.Driver}, Migrate: true, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// things is a store of things, which have a size.
type things struct {
	*testing.T
	apistorage.Interface
}

func store(t *testing.T, db *storage.Store, prefix string) things {
	t.Helper()
	s, release, err := db.Resource(storage.ResourceConfig{
		Codec:          unstructured.UnstructuredJSONScheme,
		NewFunc:        func() runtime.Object { return &unstructured.Unstructured{} },
		Prefix:         prefix,
		ResourcePrefix: "/things",
		GroupResource:  schema.GroupResource{Group: "example.com", Resource: "things"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return things{t, s}
}

func (s things) create(name string, ttl uint64) *unstructured.Unstructured {
	s.Helper()
	thing, out := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	thing.SetAPIVersion("example.com/v1")
	thing.SetKind("Thing")
	thing.SetName(name)
	if err := s.Create(s.Context(), "/things/"+name, thing, out, ttl); err != nil {
		s.Fatal(err)
	}
	return out
}

func (s things) resize(name, size string) {
	s.Helper()
	err := s.GuaranteedUpdate(s.Context(), "/things/"+name, &unstructured.Unstructured{},
		false, nil, apistorage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*unstructured.Unstructured).Object["size"] = size
			return obj, nil
		}), nil)
	if err != nil {
		s.Fatal(err)
	}
}

func (s things) remove(name string) {
	s.Helper()
	err := s.Delete(s.Context(), "/things/"+name, &unstructured.Unstructured{}, nil,
		apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// get returns nil if there is no such thing.
func (s things) get(name string) *unstructured.Unstructured {
	s.Helper()
	out := &unstructured.Unstructured{}
	err := s.Get(s.Context(), "/things/"+name, apistorage.GetOptions{}, out)
	if apistorage.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// watched returns the types of the next n events after a revision, by the thing's name.
func (s things) watched(after int64, n int) map[string][]watch.EventType {
	s.Helper()
	w, err := s.Watch(s.Context(), "/things", apistorage.ListOptions{
		ResourceVersion: strconv.FormatInt(after, 10), Recursive: true,
		Predicate: apistorage.Everything,
	})
	if err != nil {
		s.Fatal(err)
	}
	defer w.Stop()
	seen := map[string][]watch.EventType{}
	late := time.After(wait.ForeverTestTimeout)
	for range n {
		select {
		case e := <-w.ResultChan():
			thing, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				s.Fatalf("the watch has ended or sent %v", e)
			}
			seen[thing.GetName()] = append(seen[thing.GetName()], e.Type)
		case <-late:
			s.Fatalf("no event came after %v", seen)
		}
	}
	return seen
}

func revision(t *testing.T, store *storage.Store) int64 {
	t.Helper()
	revision, err := store.CurrentRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func restore(t *testing.T, store *storage.Store, c *storagetest.Contents) {
	t.Helper()
	if err := storagetest.Restore(t.Context(), store, c); err != nil {
		t.Fatal(err)
	}
}

func TestRestoreIsNewHistory(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		db := open(t, d, nil)
		s := store(t, db, "")
		kept, changed := s.create("kept", 0), s.create("changed", 0)
		deleted, again := s.create("deleted", 0), s.create("again", 0)
		contents, err := storagetest.Capture(t.Context(), db, "")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the same contents serve any number of times
			s.resize("changed", "large")
			s.remove("deleted")
			s.remove("again")
			s.create("again", 0)
			s.create("new", 0)
			before := revision(t, db)
			restore(t, db, contents)
			for _, was := range []*unstructured.Unstructured{kept, changed, deleted, again} {
				is := s.get(was.GetName())
				if is == nil {
					t.Fatalf("%s was not restored", was.GetName())
				}
				if (is.GetResourceVersion() == was.GetResourceVersion()) != (was == kept) {
					t.Errorf("%s has resourceVersion %s, and had %s",
						was.GetName(), is.GetResourceVersion(), was.GetResourceVersion())
				}
				is.SetResourceVersion(was.GetResourceVersion())
				if !reflect.DeepEqual(is, was) {
					t.Errorf("restored %v, want %v", is, was)
				}
			}
			if s.get("new") != nil {
				t.Error("what was created after the capture is still there")
			}
			want := map[string][]watch.EventType{
				"changed": {watch.Modified},
				"deleted": {watch.Added},
				"again":   {watch.Deleted, watch.Added},
				"new":     {watch.Deleted},
			}
			if seen := s.watched(before, 5); !reflect.DeepEqual(seen, want) {
				t.Errorf("the watch saw %v, want %v", seen, want)
			}
		}
		unchanged := revision(t, db)
		restore(t, db, contents)
		if after := revision(t, db); after != unchanged {
			t.Errorf("restoring what is there moved the revision from %d to %d", unchanged, after)
		}
	})
}

func TestRestoreKeepsToItsPrefix(t *testing.T) {
	db := open(t, dbtest.Open(t, dbtest.Memory), nil)
	here, there := store(t, db, "/registry"), store(t, db, "/registry0")
	contents, err := storagetest.Capture(t.Context(), db, "/registry")
	if err != nil {
		t.Fatal(err)
	}
	here.create("a", 0)
	there.create("a", 0)
	restore(t, db, contents)
	if here.get("a") != nil {
		t.Error("a thing below the prefix is still there")
	}
	if there.get("a") == nil {
		t.Error("a thing below another prefix is gone")
	}
	restore(t, db, storagetest.Nothing("/"))
	if there.get("a") != nil {
		t.Error("there is a thing after everything was deleted")
	}
}

func TestDeleteExpired(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Now().UnixMicro())
	clock := func() time.Time { return time.UnixMicro(now.Load()) }
	db := open(t, dbtest.Open(t, dbtest.Memory), clock)
	s := store(t, db, "")
	s.create("a", 3600)
	for _, step := range []struct {
		by    time.Duration
		there bool
	}{{59 * time.Minute, true}, {2 * time.Minute, false}} {
		now.Add(step.by.Microseconds())
		if err := storagetest.DeleteExpired(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		if is := s.get("a") != nil; is != step.there {
			t.Errorf("after %s more it is there: %t, want %t", step.by, is, step.there)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := storagetest.Capture(t.Context(), db, ""); !errors.Is(err, contract.ErrClosed) {
		t.Errorf("a closed database: %v", err)
	}
}
