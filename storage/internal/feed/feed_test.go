package feed_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	f := feed.New(storage)
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
