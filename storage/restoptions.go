package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/feed"
)

// Encodings says how a resource is encoded and where its keys begin. Every
// serverstorage.StorageFactory is one.
type Encodings interface {
	// NewConfig returns the resource's codec and encode versioner, and perhaps a prefix, a
	// transformer and an object count tracker; nothing else of it is used.
	NewConfig(resource schema.GroupResource,
		example runtime.Object) (*storagebackend.ConfigForResource, error)
	// ResourcePrefix returns where the resource's keys begin, such as "ci.example.com/pipelines".
	ResourcePrefix(resource schema.GroupResource) string
}

// RESTOptions says how the registries of an API server are stored.
type RESTOptions struct {
	// Codec encodes all resources, for servers with one storage version for each group, and decodes
	// them.
	Codec runtime.Codec
	// EncodeVersioner is the group versioner that Codec encodes with. It is published as the
	// resources' storage version.
	EncodeVersioner runtime.GroupVersioner
	// Encodings replaces Codec and EncodeVersioner where resources differ.
	Encodings Encodings
	// Prefix begins all keys in the database, where Encodings does not name one. Default
	// "/registry". Servers that share a store differ in it.
	Prefix string
	// Transformers encrypt resources at rest, as
	// k8s.io/apiserver/pkg/server/options/encryptionconfig loads them. It replaces the transformers
	// of Encodings.
	Transformers value.ResourceTransformers

	// DisableWatchCache serves all reads from the database. WatchCacheDisabledFor does so for some
	// resources.
	DisableWatchCache     bool
	WatchCacheDisabledFor []schema.GroupResource
	// MaxUnpagedList is how many objects a list without a limit may have, of resources without a
	// watch cache. One that has more is refused by the status 413, before it takes the memory of
	// the server. Default [DefaultMaxUnpagedList]; with a negative number there is no bound.
	MaxUnpagedList int
	// EventsHistoryWindow is how long a watch cache remembers events at least. Default, and
	// minimum, 75 s.
	EventsHistoryWindow time.Duration

	// EnableGarbageCollection lets deletions leave the dependents to a garbage collector. Without
	// one that runs, such deletions never end.
	EnableGarbageCollection bool
	// DeleteCollectionWorkers is how many objects of a collection are deleted at a time. Default 1.
	DeleteCollectionWorkers int
	// CountMetricPollPeriod is how often the objects of each resource are counted for metrics and
	// flow control. 0 means never.
	CountMetricPollPeriod time.Duration
	// StorageObjectCountTracker takes these counts for flow control. Default: what Encodings name.
	StorageObjectCountTracker flowcontrolrequest.StorageObjectCountTracker
}

// DefaultMaxUnpagedList is how many objects a list without a limit may have that no watch cache
// serves. Of objects of 20 KB, so many take some gigabytes in a server.
const DefaultMaxUnpagedList = 100_000

// RESTOptionsGetter makes the registries of an API server store their objects in a database: it is
// what goes into genericapiserver.Config.RESTOptionsGetter in place of the one for etcd.
type RESTOptionsGetter struct {
	store   *Store
	options RESTOptions
}

var _ generic.RESTOptionsGetter = (*RESTOptionsGetter)(nil)

// NewRESTOptionsGetter checks the options, and compares Config.StoreFor with what is recorded.
func NewRESTOptionsGetter(store *Store, o RESTOptions) (*RESTOptionsGetter, error) {
	switch {
	case store == nil:
		return nil, errors.New("the registries need a database: open one first")
	case o.Encodings == nil && o.Codec == nil:
		return nil, errors.New("the registries need a codec: set RESTOptions.Codec or " +
			"RESTOptions.Encodings")
	case o.EventsHistoryWindow != 0 &&
		o.EventsHistoryWindow < storagebackend.DefaultEventsHistoryWindow:
		return nil, fmt.Errorf("an events history window of %s is too short: watch caches need "+
			"at least %s", o.EventsHistoryWindow, storagebackend.DefaultEventsHistoryWindow)
	}
	if o.Encodings == nil {
		o.Encodings = oneEncoding{o}
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if err := database.Agrees(store.db, o.Prefix); err != nil {
		return nil, err
	}
	if o.EventsHistoryWindow == 0 {
		o.EventsHistoryWindow = storagebackend.DefaultEventsHistoryWindow
	}
	if o.DeleteCollectionWorkers == 0 {
		o.DeleteCollectionWorkers = 1
	}
	if o.MaxUnpagedList == 0 {
		o.MaxUnpagedList = DefaultMaxUnpagedList
	}
	store.large.name(o.WatchCacheDisabledFor)
	return &RESTOptionsGetter{store: store, options: o}, nil
}

// GetRESTOptions returns how a resource is stored. It opens nothing. The storage config is the
// caller's own: it may change it, its codec for instance, before it gives it to the decorator.
func (g *RESTOptionsGetter) GetRESTOptions(resource schema.GroupResource,
	example runtime.Object) (generic.RESTOptions, error) {
	encoding, err := g.options.Encodings.NewConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("how to store %s is not known: %w", resource, err)
	}
	config := *encoding
	config.GroupResource = resource
	config.EventsHistoryWindow = g.options.EventsHistoryWindow
	if config.Prefix == "" {
		config.Prefix = g.options.Prefix
	}
	if g.options.Transformers != nil {
		config.Transformer = g.options.Transformers.TransformerForResource(resource)
	}
	o := generic.RESTOptions{
		StorageConfig:             &config,
		Decorator:                 g.uncached,
		EnableGarbageCollection:   g.options.EnableGarbageCollection,
		DeleteCollectionWorkers:   g.options.DeleteCollectionWorkers,
		ResourcePrefix:            g.options.Encodings.ResourcePrefix(resource),
		CountMetricPollPeriod:     g.options.CountMetricPollPeriod,
		StorageObjectCountTracker: g.options.StorageObjectCountTracker,
	}
	if o.StorageObjectCountTracker == nil {
		o.StorageObjectCountTracker = config.StorageObjectCountTracker
	}
	if !g.options.DisableWatchCache && !slices.Contains(g.options.WatchCacheDisabledFor, resource) {
		o.Decorator = g.store.cached
	}
	return o, nil
}

// oneEncoding encodes all resources with one codec.
type oneEncoding struct{ RESTOptions }

func (e oneEncoding) NewConfig(resource schema.GroupResource,
	_ runtime.Object) (*storagebackend.ConfigForResource, error) {
	config := storagebackend.NewDefaultConfig(e.Prefix, e.Codec)
	config.EncodeVersioner = e.EncodeVersioner
	return config.ForResource(resource), nil
}

func (e oneEncoding) ResourcePrefix(resource schema.GroupResource) string {
	return resource.Group + "/" + resource.Resource
}

// WithIndexes returns a getter for a registry whose server declares indexes of its resource when it
// starts, as [AddIndex] does, if the database lacks them. It declares no index that the resource
// cannot have. Indexes that are not named are left alone, as they may be those of another version
// of the program: to be rid of one, no longer name it, and then drop it. The getter has to be a
// [RESTOptionsGetter], or one that leads to it. Another one ignores the names.
func WithIndexes(getter generic.RESTOptionsGetter, names ...string) generic.RESTOptionsGetter {
	return indexing{getter, names}
}

type indexing struct {
	generic.RESTOptionsGetter
	names []string
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g indexing) GetRESTOptions(resource schema.GroupResource,
	example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	decorate := o.Decorator
	if err != nil || decorate == nil {
		return o, err
	}
	o.Decorator = func(config *storagebackend.ConfigForResource, resourcePrefix string,
		keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attrs apistorage.AttrFunc, triggers apistorage.IndexerFuncs, indexers *cache.Indexers,
	) (apistorage.Interface, factory.DestroyFunc, error) {
		own := *config
		own.Codec = declaring{config.Codec, g.names}
		return decorate(&own, resourcePrefix, keyFunc, newFunc, newListFunc, attrs, triggers,
			indexers)
	}
	return o, nil
}

// declaring is a codec that takes the names of indexes to the decorators of a [Store], which take
// them off.
type declaring struct {
	runtime.Codec
	names []string
}

// declared takes the names of indexes off a configuration.
func declared(config *storagebackend.ConfigForResource) (*storagebackend.ConfigForResource, []string) {
	d, ok := config.Codec.(declaring)
	if !ok {
		return config, nil
	}
	own := *config
	own.Codec = d.Codec
	return &own, d.names
}

// uncached is the generic.StorageDecorator without a watch cache.
func (g *RESTOptionsGetter) uncached(config *storagebackend.ConfigForResource,
	resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, _ func() runtime.Object, attrs apistorage.AttrFunc, _ apistorage.IndexerFuncs,
	_ *cache.Indexers) (apistorage.Interface, factory.DestroyFunc, error) {
	config, indexes := declared(config)
	resource, destroy, err := g.store.below(config, resourcePrefix, keyFunc, newFunc, attrs, indexes)
	if err != nil {
		return nil, nil, err
	}
	resource.maxUnpaged = max(g.options.MaxUnpagedList, 0)
	if slices.Contains(g.options.WatchCacheDisabledFor, config.GroupResource) {
		leave, end := g.store.large.add(resource), destroy
		destroy = func() {
			leave()
			end()
		}
	}
	return fromDatabase{badRequests{resource, resourcePrefix}}, destroy, nil
}

// fromDatabase serves a resource without a watch cache.
type fromDatabase struct{ badRequests }

// Watch sends bookmarks to whoever allows them, as a watch cache does. A client whose objects do
// not change would else have a resourceVersion of long ago, and would list all of them again.
func (d fromDatabase) Watch(ctx context.Context, key string,
	opts apistorage.ListOptions) (watch.Interface, error) {
	opts.ProgressNotify = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	return d.badRequests.Watch(ctx, key, opts)
}

// below is what the watch cache asks.
func (s *Store) below(
	config *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error), newFunc func() runtime.Object,
	attrs apistorage.AttrFunc, indexes []string,
) (*objectStore, factory.DestroyFunc, error) {
	return s.newResource(ResourceConfig{
		Codec:          config.Codec,
		NewFunc:        newFunc,
		Prefix:         config.Prefix,
		ResourcePrefix: resourcePrefix,
		GroupResource:  config.GroupResource,
		Transformer:    config.Transformer,
		Scope:          scopeOf(keyFunc, newFunc),
		Attributes:     attrs,
		Indexes:        indexes,
	})
}

// scopeOf tells the scope of a resource by the key of an object with a namespace, "" if it has
// none.
func scopeOf(keyFunc func(runtime.Object) (string, error), newFunc func() runtime.Object) Scope {
	if keyFunc == nil || newFunc == nil {
		return ""
	}
	object := newFunc()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	const namespace, name = "of-no-object", "none"
	accessor.SetNamespace(namespace)
	accessor.SetName(name)
	key, err := keyFunc(object)
	switch {
	case err != nil:
		return ""
	case strings.HasSuffix(key, "/"+namespace+"/"+name):
		return Namespaced
	case strings.HasSuffix(key, "/"+name):
		return ClusterScoped
	}
	return ""
}

// cached is the generic.StorageDecorator that puts upstream's watch cache over the storage.
func (s *Store) cached(config *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	attrs apistorage.AttrFunc, triggers apistorage.IndexerFuncs, indexers *cache.Indexers,
) (apistorage.Interface, factory.DestroyFunc, error) {
	config, indexes := declared(config)
	resource, destroy, err := s.below(config, resourcePrefix, keyFunc, newFunc, attrs, indexes)
	if err != nil {
		return nil, nil, err
	}
	sharer, _ := config.Codec.(feed.Sharer) // few resources have one
	fed := feed.New(resource, sharer)
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             fed,
		Versioner:           resource.Versioner(),
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        attrs,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               config.Codec,
	})
	if err != nil {
		destroy()
		return nil, nil, fmt.Errorf("no watch cache for %s: %w", config.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(cached, resource)
	whole := &cachedStore{CacheDelegator: delegator, cache: cached, log: resource,
		mostReplayed: mostReplayed}
	return badRequests{whole, resourcePrefix}, sync.OnceFunc(func() {
		delegator.Stop()
		fed.Stop()
		cached.Stop()
		destroy()
	}), nil
}
