package feed_test

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/storage/internal/feed"
)

// empty is a storage without objects, whose watches last as long as their contexts.
type empty struct {
	apistorage.Interface
	watched chan struct{}
}

func (e empty) GetList(_ context.Context, _ string, _ apistorage.ListOptions,
	list runtime.Object) error {
	list.(*metav1.PartialObjectMetadataList).ResourceVersion = "1"
	return nil
}

func (e empty) Watch(ctx context.Context, _ string,
	_ apistorage.ListOptions) (watch.Interface, error) {
	events := watch.NewFake()
	context.AfterFunc(ctx, events.Stop)
	e.watched <- struct{}{}
	return events, nil
}

// A cache that is stopped as it is to be, first the feed and then the cache, reports no error:
// upstream logs one for each cache otherwise.
func TestStopIsNoError(t *testing.T) {
	storage := empty{watched: make(chan struct{}, 1)}
	f := feed.New(storage, nil)
	list := func() runtime.Object { return &metav1.PartialObjectMetadataList{} }
	reader := cache.NewReflector(cacher.NewListerWatcher(f, "/things", list, nil),
		&metav1.PartialObjectMetadata{}, cache.NewStore(cache.MetaNamespaceKeyFunc), 0)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- reader.ListAndWatch(stop) }()
	<-storage.watched
	f.Stop()
	// Nothing is watched any more, and the reader waits until it may try again.
	if _, err := f.Watch(t.Context(), "/things", apistorage.ListOptions{}); err == nil {
		t.Error("a watch begins after the end")
	}
	select {
	case err := <-ended:
		t.Fatalf("the reader has given up: %v", err)
	default:
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("the reader ends with: %v", err)
	}
}

// timed is an object as a storage wraps it for a watch cache.
type timed struct{ runtime.Object }

func (timed) RecordTime() time.Time    { return time.Time{} }
func (t timed) Unwrap() runtime.Object { return t.Object }

// pairs are what a sharer was given.
type pairs [][2]runtime.Object

func (p *pairs) Share(previous, next runtime.Object) {
	*p = append(*p, [2]runtime.Object{previous, next})
}

// one is a storage with one watch.
type one struct {
	apistorage.Interface
	events *watch.FakeWatcher
}

func (o one) Watch(context.Context, string, apistorage.ListOptions) (watch.Interface, error) {
	return o.events, nil
}

// TestShare: an object shares with its previous version, until it is deleted, and with no other.
func TestShare(t *testing.T) {
	object := func(uid types.UID) runtime.Object {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	}
	a1, a2, a3, a4, b1, b2 := object("a"), object("a"), object("a"), object("a"), object("b"),
		object("b")
	sent := []watch.Event{{Type: watch.Added, Object: timed{a1}}, {Type: watch.Added, Object: b1},
		{Type: watch.Bookmark, Object: object("")}, {Type: watch.Modified, Object: timed{a2}},
		{Type: watch.Deleted, Object: timed{a3}}, {Type: watch.Added, Object: timed{a4}},
		{Type: watch.Modified, Object: b2}, {Type: watch.Error, Object: &metav1.Status{}}}
	storage := one{events: watch.NewFakeWithChanSize(len(sent), false)}
	var shared pairs
	f := feed.New(storage, &shared)
	w, err := f.Watch(t.Context(), "/things", apistorage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range sent {
		storage.events.Action(e.Type, e.Object)
	}
	for _, e := range sent {
		if got := <-w.ResultChan(); got != e {
			t.Errorf("got %v, want %v", got, e)
		}
	}
	if want := (pairs{{a1, a2}, {a2, a3}, {b1, b2}}); !slices.Equal(shared, want) {
		t.Errorf("these share: %v, want %v", shared, want)
	}
	storage.events.Modify(b1) // which nobody reads
	w.Stop()
	f.Stop()
	for range w.ResultChan() {
	}
}
