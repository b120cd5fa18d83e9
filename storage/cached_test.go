package storage

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

var cachedResource = schema.GroupResource{Group: "example.com", Resource: "pods"}

const cachedPrefix = "/example.com/pods"

// watchCached begins a watch of all pods behind a watch cache.
func watchCached(t *testing.T, s apistorage.Interface,
	opts apistorage.ListOptions) watch.Interface {
	t.Helper()
	w, err := s.Watch(t.Context(), cachedPrefix, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// nextCached describes the next event of a watch behind a watch cache, which may have been encoded.
func nextCached(t *testing.T, w watch.Interface) string {
	t.Helper()
	e := next(t, w)
	if shared, ok := e.Object.(runtime.CacheableObject); ok {
		e.Object = shared.GetObject()
	}
	return brief(t, e)
}

// history writes objects, and returns the revisions of the writes and what a watch sees of them.
func history(t *testing.T, s apistorage.Interface) (revisions []uint64, seen []string) {
	t.Helper()
	for i := range 5 {
		p := pod(numbered(i))
		if err := s.Create(t.Context(), cachedPrefix+"/ns/"+p.Name, pod(p.Name), p, 0); err != nil {
			t.Fatal(err)
		}
		revisions, seen = append(revisions, revisionOf(t, p)), append(seen, "ADDED "+p.Name+" ")
	}
	for _, name := range []string{numbered(1), numbered(3)} {
		p := pod("")
		err := s.GuaranteedUpdate(t.Context(), cachedPrefix+"/ns/"+name, p, false, nil,
			changing(counting), nil)
		if err != nil {
			t.Fatal(err)
		}
		revisions, seen = append(revisions, revisionOf(t, p)), append(seen, "MODIFIED "+name+" ")
		err = s.Delete(t.Context(), cachedPrefix+"/ns/"+name, p, nil,
			apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		revisions, seen = append(revisions, revisionOf(t, p)), append(seen, "DELETED "+name+" ")
	}
	return revisions, seen
}

// TestWatchResumesAfterARestart watches a server whose cache is younger than the client's revision:
// the client misses nothing, and sees nothing twice, from the log and from the cache.
func TestWatchResumesAfterARestart(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		before := cachedPods(t, getter(t, openDatabase(t, d, noTicks), RESTOptions{}),
			cachedResource)
		revisions, seen := history(t, before)
		after := cachedPods(t, getter(t, openDatabase(t, d, noTicks), RESTOptions{}),
			cachedResource)
		for i, from := range revisions {
			w := watchCached(t, after, everything(itoa(from)))
			more := pod("more-" + numbered(i))
			if err := after.Create(t.Context(), cachedPrefix+"/ns/"+more.Name, more, nil, 0); err != nil {
				t.Fatal(err)
			}
			want := append(slices.Clone(seen[i+1:]), "ADDED "+more.Name+" ")
			for n, e := range want {
				if got := nextCached(t, w); got != e {
					t.Fatalf("after revision %d, event %d of the watch is %q, want %q",
						from, n, got, e)
				}
			}
			seen = append(seen, "ADDED "+more.Name+" ")
			w.Stop()
		}
	})
}

// TestResumedWatchSelects: a resumed watch has the selectors and the scope of its client.
func TestResumedWatchSelects(t *testing.T) {
	db := dbtest.Open(t, dbtest.SQLite)
	before := cachedPods(t, getter(t, openDatabase(t, db, noTicks), RESTOptions{}), cachedResource)
	revisions, _ := history(t, before)
	after := cachedPods(t, getter(t, openDatabase(t, db, noTicks), RESTOptions{}), cachedResource)
	opts := everything(itoa(revisions[0]))
	opts.Recursive = false
	w, err := after.Watch(t.Context(), cachedPrefix+"/ns/"+numbered(3), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, want := range []string{"ADDED", "MODIFIED", "DELETED"} {
		if got := nextCached(t, w); got != want+" "+numbered(3)+" " {
			t.Errorf("the watch of one pod sees %q, want it %s", got, want)
		}
	}
}

// TestResumeEndsWithTheLog: what the log no longer has, and what is too much to be read for one
// watch, is answered by 410, as by upstream's cache.
func TestResumeEndsWithTheLog(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		revisions, _ := history(t,
			cachedPods(t, getter(t, openDatabase(t, d, noTicks), RESTOptions{}), cachedResource))
		store := openDatabase(t, d, noTicks)
		s := cachedPods(t, getter(t, store, RESTOptions{}), cachedResource)
		refuses := func(from uint64) {
			t.Helper()
			w := watchCached(t, s, everything(itoa(from)))
			if got := nextCached(t, w); got != "ERROR 410 Expired" {
				t.Errorf("a watch from revision %d gets %s", from, got)
			}
			ended(t, w)
		}
		s.(badRequests).Interface.(*cachedStore).mostReplayed = 3
		refuses(revisions[len(revisions)-5])
		if got := nextCached(t, watchCached(t, s,
			everything(itoa(revisions[len(revisions)-4])))); got != "DELETED "+numbered(1)+" " {
			t.Errorf("the watch that is not too far behind gets %s", got)
		}
		if err := store.Compact(t.Context(), int64(revisions[len(revisions)-2])); err != nil {
			t.Fatal(err)
		}
		refuses(revisions[len(revisions)-3])
	})
}

// TestRequestsWaitForTheCache: while the cache is filled again, since the history has changed,
// lists and watches wait for it. Nobody is told to come back later.
func TestRequestsWaitForTheCache(t *testing.T) {
	store := memory(t)
	s := cachedPods(t, getter(t, store, RESTOptions{}), cachedResource)
	history(t, s)
	// empty makes the cache begin anew, and returns before it is filled.
	empty := func() {
		var fenced int64
		eventually(t, "the cache to begin anew", func() bool {
			if s.ReadinessCheck() != nil {
				return true
			}
			at, err := s.(badRequests).Interface.(*cachedStore).cache.LastSyncResourceVersion()
			if err == nil && int64(at) >= fenced {
				if fenced, err = store.Fence(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return false
		})
	}
	empty()
	out := &example.PodList{}
	if err := s.GetList(t.Context(), cachedPrefix, everything("0"), out); err != nil ||
		len(out.Items) != 3 {
		t.Errorf("a list gets %d pods, %v", len(out.Items), err)
	}
	empty()
	if got := nextCached(t, watchCached(t, s, everything("0"))); got != "ADDED "+numbered(0)+" " {
		t.Errorf("a watch gets %s", got)
	}
}
