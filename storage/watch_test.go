package storage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// noTicks is a store that reports progress only when it is asked.
var noTicks = mvcc.Config{ProgressInterval: time.Hour}

func TestWatchRejectsBadRequestsAtOnce(t *testing.T) {
	r := pods(t, memory(t))
	noBookmarks := podConfig()
	noBookmarks.NewFunc = nil
	for name, test := range map[string]struct {
		r    *objectStore
		key  string
		opts apistorage.ListOptions
	}{
		"foreign key":        {r, "/nodes", apistorage.ListOptions{}},
		"malformed revision": {r, "/pods", apistorage.ListOptions{ResourceVersion: "abc"}},
		"revision too large": {r, "/pods",
			apistorage.ListOptions{ResourceVersion: strconv.FormatUint(math.MaxInt64+1, 10)}},
		"progress without new": {open(t, r.store, noBookmarks), "/pods",
			apistorage.ListOptions{ProgressNotify: true}},
	} {
		t.Run(name, func(t *testing.T) {
			test.opts.Predicate = apistorage.Everything
			w, err := test.r.Watch(t.Context(), test.key, test.opts)
			if err == nil {
				w.Stop()
				t.Fatal("no error")
			}
		})
	}
}

func TestWatchListOfAFutureRevision(t *testing.T) {
	r := pods(t, memory(t))
	w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1000000",
		SendInitialEvents: ptr.To(true),
		Predicate:         apistorage.SelectionPredicate{AllowWatchBookmarks: true}})
	e := next(t, w)
	status, ok := e.Object.(*metav1.Status)
	if e.Type != watch.Error || !ok {
		t.Fatalf("got %s %v", e.Type, e.Object)
	}
	if !apistorage.IsTooLargeResourceVersion(&apierrors.StatusError{ErrStatus: *status}) ||
		status.Details.RetryAfterSeconds < 1 {
		t.Errorf("got %v", status)
	}
	ended(t, w)
}

func TestWatchEndsSilently(t *testing.T) {
	t.Run("with its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := pods(t, memory(t)).Watch(ctx, "/pods", everything("1"))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		ended(t, w)
	})
	t.Run("with its store", func(t *testing.T) {
		s, destroy, err := memory(t).Resource(podConfig())
		if err != nil {
			t.Fatal(err)
		}
		w := startWatch(t, s, apistorage.ListOptions{ResourceVersion: "1"})
		destroy()
		destroy()
		ended(t, w)
	})
	t.Run("with the database", func(t *testing.T) {
		store := memory(t)
		w := startWatch(t, pods(t, store), apistorage.ListOptions{ResourceVersion: "1"})
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		ended(t, w)
	})
}

// TestSelectingWatch has the transitions of objects into and out of a selection, for two watches
// that share what is decoded. Nothing is seen of an object that never matches.
func TestSelectingWatch(t *testing.T) {
	r := pods(t, memory(t))
	attrs := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		return obj.(*example.Pod).Labels, nil, nil
	}
	selecting := apistorage.ListOptions{ResourceVersion: "1",
		Predicate: apistorage.SelectionPredicate{
			Label: labels.SelectorFromSet(labels.Set{"value": "yes"}), Field: fields.Everything(),
			GetAttrs: attrs}}
	watches := []watch.Interface{startWatch(t, r, selecting), startWatch(t, r, selecting)}
	create(t, r, pod("b"))
	remove(t, r, "b")
	create(t, r, pod("a"))
	var revisions []uint64
	for _, value := range []string{"yes", "no", "no again", "yes"} {
		out, err := label(t.Context(), r, "a", value)
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, revisionOf(t, out))
	}
	revisions = append(revisions, revisionOf(t, remove(t, r, "a")))
	for i, want := range []struct {
		event    string
		revision uint64
	}{
		{"ADDED a yes", revisions[0]},
		{"DELETED a yes", revisions[1]}, // as it was when it matched, at the revision of the event
		{"ADDED a yes", revisions[3]},
		{"DELETED a yes", revisions[4]},
	} {
		for _, w := range watches {
			e := next(t, w)
			if got := brief(t, e); got != want.event || revisionOf(t, e.Object) != want.revision {
				t.Errorf("event %d is %s at %d, want %s at %d", i, got, revisionOf(t, e.Object),
					want.event, want.revision)
			}
		}
	}
}

// countingCodec counts what is decoded.
type countingCodec struct {
	runtime.Codec
	decoded atomic.Int64
}

func (c *countingCodec) Decode(data []byte, defaults *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decoded.Add(1)
	return c.Codec.Decode(data, defaults, into)
}

// TestWatchersShareDecodedObjects lets the watches of two stores watch the same writes: each event
// is decoded once, and every reader has an object of its own.
func TestWatchersShareDecodedObjects(t *testing.T) {
	// A shared object is shared until it is collected.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	store := memory(t)
	decoder := &countingCodec{Codec: codec}
	c := podConfig()
	c.Codec = decoder
	writer := pods(t, store)
	stores := []*objectStore{open(t, store, c), open(t, store, c)}
	var watches []watch.Interface
	for i := range 8 {
		watches = append(watches,
			startWatch(t, stores[i%2], apistorage.ListOptions{ResourceVersion: "1"}))
	}
	const writes = 20
	for i := range writes {
		create(t, writer, pod(numbered(i)))
	}
	for i := range writes {
		for _, w := range watches {
			p := next(t, w).Object.(*example.Pod)
			if p.Name != numbered(i) {
				t.Fatalf("event %d is of %q: it was changed by another reader, or is out of order",
					i, p.Name)
			}
			p.Name = "changed by its reader"
		}
	}
	if n := decoder.decoded.Load(); n != writes {
		t.Errorf("%d events for %d watches took %d decodings", writes, len(watches), n)
	}
}

// TestProgressWhenAsked asks for the newest revision, as the watch cache does before a consistent
// read, and gets a bookmark for it, without having asked for that, and though nothing else would
// send one.
func TestProgressWhenAsked(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.Memory), noTicks)
	r := pods(t, store)
	other := podConfig()
	other.ResourcePrefix = "/others"
	o := open(t, store, other)
	w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1", ProgressNotify: true})
	silent := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1"})
	for i := range 5 {
		if err := o.Create(t.Context(), "/others/"+strconv.Itoa(i), pod("other"), nil, 0); err != nil {
			t.Fatal(err)
		}
		head, err := r.GetCurrentResourceVersion(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := brief(t, next(t, w)), "BOOKMARK "+itoa(head); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if err := o.Create(t.Context(), "/others/last", pod("other"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.RequestWatchProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := brief(t, next(t, w)); got != "BOOKMARK 7" {
		t.Errorf("got %s", got)
	}
	// A watch that begins after the question is asked, too.
	late := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1", ProgressNotify: true})
	if got := brief(t, next(t, late)); got != "BOOKMARK 7" {
		t.Errorf("got %s", got)
	}
	// Others get no bookmarks.
	create(t, r, pod("a"))
	if got := brief(t, next(t, silent)); got != "ADDED a " {
		t.Errorf("got %s", got)
	}
}

// TestBookmarksFollowEvents asks for progress all the time while others write. A bookmark must
// never come before an event that is not newer than it, and one must come for what was asked.
func TestBookmarksFollowEvents(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noTicks)
		r := pods(t, store)
		const writers, writes = 4, 50
		w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1", ProgressNotify: true,
			RecordTimestamps: true})

		var mu sync.Mutex
		acknowledged := map[uint64]bool{}
		var writing sync.WaitGroup
		for n := range writers {
			writing.Go(func() {
				for i := range writes {
					out := &example.Pod{}
					name := fmt.Sprintf("%d-%d", n, i)
					if err := r.Create(t.Context(), podKey(name), pod(name), out, 0); err != nil {
						t.Error(err)
						return
					}
					revision, err := strconv.ParseUint(out.ResourceVersion, 10, 64)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					acknowledged[revision] = true
					mu.Unlock()
				}
			})
		}
		asking, stopAsking := context.WithCancel(t.Context())
		var askers sync.WaitGroup
		askers.Go(func() {
			for asking.Err() == nil {
				if _, err := r.GetCurrentResourceVersion(asking); err != nil && asking.Err() == nil {
					t.Error(err)
				}
			}
		})
		defer askers.Wait()
		defer stopAsking()

		var last, head uint64
		seen := map[uint64]bool{}
		done := make(chan struct{})
		go func() { writing.Wait(); close(done) }()
		for finished := false; !finished || last < head; {
			select {
			case <-done:
				finished, done = true, nil
				var err error
				if head, err = r.GetCurrentResourceVersion(t.Context()); err != nil {
					t.Fatal(err)
				}
			case e := <-w.ResultChan():
				if timed, ok := e.Object.(apistorage.WatchEventWithRecordTime); ok {
					e.Object = timed.Unwrap()
				}
				revision := revisionOf(t, e.Object)
				if revision <= last && (e.Type != watch.Bookmark || revision < last) {
					t.Fatalf("%s at %d after %d", e.Type, revision, last)
				}
				last = revision
				if e.Type != watch.Bookmark {
					seen[revision] = true
				}
			case <-time.After(time.Minute):
				t.Fatalf("nothing came after revision %d, of %d", last, head)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for revision := range acknowledged {
			if !seen[revision] {
				t.Errorf("a bookmark said %d, but the event of revision %d had not come",
					last, revision)
			}
		}
	})
}

// TestWatchOfManyEvents replays a long history to a slow reader: every event once, in order.
func TestWatchOfManyEvents(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.SQLite),
		mvcc.Config{Ring: mvcc.RingLimits{Events: 100, Bytes: 1 << 20}, TailRows: 37})
	r := pods(t, store)
	w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: "1"})
	const writes = 1000
	var names []string
	for i := range writes {
		create(t, r, pod(numbered(i)))
		names = append(names, numbered(i))
	}
	var got []string
	for range writes {
		got = append(got, next(t, w).Object.(*example.Pod).Name)
	}
	if !slices.Equal(got, names) {
		t.Error("the events are not the writes, in their order")
	}
}

func TestCorruptDeletion(t *testing.T) {
	store := memory(t)
	for name, c := range map[string]ResourceConfig{
		"transformer": func() ResourceConfig {
			c := podConfig()
			c.Transformer = brokenTransformer{}
			return c
		}(),
		"codec": func() ResourceConfig {
			c := podConfig()
			c.Codec = brokenCodec{codec}
			return c
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			good, bad := pods(t, store), open(t, store, c)
			created := create(t, good, pod(name))
			w := startWatch(t, bad,
				apistorage.ListOptions{ResourceVersion: created.ResourceVersion})
			remove(t, good, name)
			if got, want := brief(t, next(t, w)), "ERROR 500 "+
				string(metav1.StatusReasonStoreReadError); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			ended(t, w)
		})
	}
}

type brokenTransformer struct{}

func (brokenTransformer) TransformFromStorage(context.Context, []byte,
	value.Context) ([]byte, bool, error) {
	return nil, false, errors.New("the key is lost")
}

func (brokenTransformer) TransformToStorage(context.Context, []byte,
	value.Context) ([]byte, error) {
	return nil, errors.New("the key is lost")
}

type brokenCodec struct{ runtime.Codec }

func (brokenCodec) Decode([]byte, *schema.GroupVersionKind,
	runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, errors.New("not an object")
}

// failingValues is a backend that cannot read values by revision for a while.
type failingValues struct {
	contract.Backend
	failures atomic.Int64
}

func (f *failingValues) Values(ctx context.Context,
	revisions []contract.Revision) ([]contract.Row, contract.State, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, contract.State{}, contract.Errorf(contract.Unavailable, "away")
	}
	return f.Backend.Values(ctx, revisions)
}

// TestWatchOutlivesTheDatabase: a watch that needs a value while the database is away waits for it.
func TestWatchOutlivesTheDatabase(t *testing.T) {
	d := dbtest.Open(t, dbtest.Memory)
	var failing *failingValues
	store := openDatabaseThrough(t, d, mvcc.Config{RetryFor: time.Nanosecond},
		func(b contract.Backend) contract.Backend {
			failing = &failingValues{Backend: b}
			return failing
		})
	failing.failures.Store(3)
	r := pods(t, store)
	created := create(t, r, pod("a"))
	w := startWatch(t, r, apistorage.ListOptions{ResourceVersion: created.ResourceVersion,
		Predicate: apistorage.SelectionPredicate{
			Label: labels.SelectorFromSet(labels.Set{"value": "yes"}), Field: fields.Everything(),
			GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
				return obj.(*example.Pod).Labels, nil, nil
			}}})
	// The update has the suggestion of a cache, so that nobody has read the previous value.
	err := r.GuaranteedUpdate(t.Context(), podKey("a"), &example.Pod{}, false, nil,
		changing(func(p *example.Pod) error {
			p.Labels = map[string]string{"value": "yes"}
			return nil
		}), created.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if got := brief(t, next(t, w)); got != "ADDED a yes" {
		t.Errorf("got %s", got)
	}
	if n := failing.failures.Load(); n >= 0 {
		t.Errorf("the value was read without %d of the failures", n)
	}
}
