// Package registry_test tests what the registries of the group have in common.
package registry_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/logchunk"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipeline"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipelinerun"
)

// watchCache stands for the watch cache, and keeps what it was told to index by. Nothing is stored.
type watchCache struct {
	triggers apistorage.IndexerFuncs
	indexers cache.Indexers
}

func (c *watchCache) GetRESTOptions(resource schema.GroupResource,
	_ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{
		ResourcePrefix: resource.Resource,
		StorageConfig:  &storagebackend.ConfigForResource{GroupResource: resource},
		Decorator: func(_ *storagebackend.ConfigForResource, _ string,
			_ func(runtime.Object) (string, error), _, _ func() runtime.Object,
			_ apistorage.AttrFunc, triggers apistorage.IndexerFuncs, indexers *cache.Indexers,
		) (apistorage.Interface, factory.DestroyFunc, error) {
			c.triggers = triggers
			if indexers != nil {
				c.indexers = *indexers
			}
			return nil, func() {}, nil
		},
	}, nil
}

// A client that selects by these fields finds its objects without all others being looked at: lists
// by an index, for which the predicate has to ask, and watches by a trigger. Without them
// everything would still be right, and slow.
func TestFieldsThatTheWatchCacheIndexes(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	for _, c := range []struct {
		field string
		value string
		obj   runtime.Object
		store func(generic.RESTOptionsGetter) (*genericregistry.Store, error)
	}{
		{"status.phase", "Ready", &ci.Pipeline{Status: ci.PipelineStatus{Phase: ci.PipelineReady}},
			func(g generic.RESTOptionsGetter) (*genericregistry.Store, error) {
				s, err := pipeline.NewStorage(scheme, g)
				if err != nil {
					return nil, err
				}
				return s.Pipeline.Store, nil
			}},
		{"spec.pipelineName", "build",
			&ci.PipelineRun{Spec: ci.PipelineRunSpec{PipelineName: "build"}},
			func(g generic.RESTOptionsGetter) (*genericregistry.Store, error) {
				s, err := pipelinerun.NewStorage(scheme, g, nil, nil, nil)
				if err != nil {
					return nil, err
				}
				return s.Run.Store, nil
			}},
		{"spec.runName", "build-1", &ci.LogChunk{Spec: ci.LogChunkSpec{RunName: "build-1"}},
			func(g generic.RESTOptionsGetter) (*genericregistry.Store, error) {
				s, err := logchunk.NewStorage(scheme, g)
				if err != nil {
					return nil, err
				}
				return s.Store, nil
			}},
	} {
		t.Run(c.field, func(t *testing.T) {
			cached := &watchCache{}
			store, err := c.store(cached)
			if err != nil {
				t.Fatal(err)
			}
			p := store.PredicateFunc(labels.Everything(),
				fields.OneTermEqualSelector(c.field, c.value))
			asked := p.MatcherIndex(t.Context())
			if len(asked) != 1 ||
				asked[0] != (apistorage.MatchValue{IndexName: apistorage.FieldIndex(c.field),
					Value: c.value}) {
				t.Fatalf("a selection by the field asks for %+v, want its index and %q",
					asked, c.value)
			}
			index := cached.indexers[asked[0].IndexName]
			if index == nil {
				t.Fatal("the watch cache has no index of the field: lists look at all objects")
			}
			if values, err := index(c.obj); err != nil || len(values) != 1 || values[0] != c.value {
				t.Errorf("the object is indexed by %q, %v", values, err)
			}
			// A wrong type is an error, not a panic.
			if values, err := index(&runtime.Unknown{}); err == nil {
				t.Errorf("an object of another type is indexed by %q", values)
			}
			trigger := cached.triggers[c.field]
			if trigger == nil {
				t.Fatal("the watch cache has no trigger for the field: each event is offered to " +
					"all watches")
			}
			if value := trigger(c.obj); value != c.value {
				t.Errorf("the object triggers the watches of %q", value)
			}
			if matches, err := p.Matches(c.obj); err != nil || !matches {
				t.Errorf("the object is not selected: %v", err)
			}
		})
	}
}
