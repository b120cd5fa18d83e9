package storage

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// StoreConfig describes the objects of one resource, as one store reads and writes them.
type StoreConfig struct {
	// Codec serializes the objects and decodes them. Required.
	Codec runtime.Codec
	// NewFunc makes an empty object. Watches need it for bookmarks.
	NewFunc func() runtime.Object
	// Prefix begins all keys of a server in the database. Default "/registry". Servers with
	// different prefixes do not see each other's objects.
	Prefix string
	// ResourcePrefix begins the keys that the store is asked for, such as "/pods" or
	// "/ci.example.com/pipelines". Required.
	ResourcePrefix string
	// GroupResource names the resource in errors, metrics and traces.
	GroupResource schema.GroupResource
	// Transformer encrypts what is stored. Default: nothing is encrypted, and what is encrypted is
	// not read.
	Transformer value.Transformer
	// Versioner sets the resourceVersion of objects and lists. Default storage.APIObjectVersioner.
	Versioner apistorage.Versioner
}

// DefaultPrefix begins all keys in the database unless another prefix is given.
const DefaultPrefix = "/registry"

// store implements storage.Interface for one resource.
type store struct {
	db       *Database
	mvcc     *mvcc.Store
	keys     keySpace
	objects  *objectCodec
	decoder  *eventDecoder
	resource schema.GroupResource
	newFunc  func() runtime.Object
	// unsafeDeletion: corrupt objects are named as such and may be deleted unread.
	unsafeDeletion bool
	sizes          atomic.Pointer[sizes]
	// rowBytes is how large the rows of the last list's last chunk were.
	rowBytes atomic.Int64
	progress progress

	// lifetime ends with destroy, and all watches with it.
	lifetime context.Context
	destroy  context.CancelFunc
}

var _ apistorage.Interface = (*store)(nil)

// NewStore returns a storage.Interface for the objects below a prefix, and a function that releases
// it and ends its watches; it may be called more than once. Any number of stores may work on the
// same keys at a time, such as one for each served version.
//
// Objects that cannot be decrypted or decoded are treated as the feature gate
// AllowUnsafeMalformedObjectDeletion says at this moment.
func (d *Database) NewStore(c StoreConfig) (apistorage.Interface, func(), error) {
	s, destroy, err := d.newStore(c)
	if err != nil {
		return nil, nil, err
	}
	return s, destroy, nil
}

func (d *Database) newStore(c StoreConfig) (*store, func(), error) {
	if c.Codec == nil {
		return nil, nil, errors.New("a store needs a codec: set StoreConfig.Codec")
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	keys, err := newKeySpace(c.Prefix, c.ResourcePrefix)
	if err != nil {
		return nil, nil, err
	}
	if d, err = d.of(c.GroupResource, keys); err != nil {
		return nil, nil, err
	}
	if c.Transformer == nil {
		c.Transformer = identity.NewEncryptCheckTransformer()
	}
	if c.Versioner == nil {
		c.Versioner = apistorage.APIObjectVersioner{}
	}
	leave, err := d.directories.take(keys.all(), c.Codec.Identifier())
	if err != nil {
		return nil, nil, err
	}
	unsafeDeletion := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	s := &store{
		db:   d,
		mvcc: d.mvcc,
		keys: keys,
		objects: &objectCodec{codec: c.Codec, transformer: c.Transformer, versioner: c.Versioner,
			resource:    c.GroupResource,
			markCorrupt: unsafeDeletion},
		resource:       c.GroupResource,
		newFunc:        c.NewFunc,
		unsafeDeletion: unsafeDeletion,
	}
	s.decoder = d.decoders.of(s.objects)
	s.lifetime, s.destroy = context.WithCancel(context.Background())
	return s, sync.OnceFunc(func() {
		s.destroy()
		d.decoders.release(s.decoder)
		leave()
	}), nil
}

func (s *store) Versioner() apistorage.Versioner { return s.objects.versioner }

// trace begins a span, which the caller ends: it is logged if it took longer than slow.
func (s *store) trace(ctx context.Context, name, key string,
	more ...attribute.KeyValue) (context.Context, *tracing.Span) {
	return tracing.Start(ctx, name, append(more,
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)),
		attribute.String("key", key),
		attribute.String("group", s.resource.Group),
		attribute.String("resource", s.resource.Resource),
	)...)
}

const slow = 500 * time.Millisecond

// ask runs one request to the database and counts it under upstream's names, which dashboards know.
func ask[T any](ctx context.Context, s *store, verb string, request func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := request()
	took := time.Since(began)
	counted := err
	var conflict *mvcc.ConflictError
	if errors.As(err, &conflict) {
		counted = nil // an answer as good as any
	}
	etcdmetrics.RecordEtcdRequest(verb, s.resource, counted, began)
	endpointsrequest.TrackStorageLatency(ctx, took)
	return answer, err
}

// read reads the current state of one key: nil if it does not exist.
func (s *store) read(ctx context.Context,
	key mvcc.Key) (kv *mvcc.KeyValue, head mvcc.Revision, err error) {
	kv, err = ask(ctx, s, "get", func() (kv *mvcc.KeyValue, err error) {
		kv, head, err = s.mvcc.Get(ctx, key)
		return kv, err
	})
	return kv, head, apiError(ctx, s.resource, err)
}

// commit writes one mutation. If somebody else was faster, or nothing proves any more that what was
// read is of this history, the error is a *mvcc.ConflictError: it has to be read again.
func (s *store) commit(ctx context.Context, verb string, m mvcc.Mutation) (mvcc.Revision, error) {
	revision, err := ask(ctx, s, verb, func() (mvcc.Revision, error) {
		return s.mvcc.Commit(ctx, m)
	})
	var conflict *mvcc.ConflictError
	switch {
	case errors.As(err, &conflict):
		return 0, conflict
	case errors.Is(err, mvcc.ErrOtherEra):
		return 0, &mvcc.ConflictError{Key: m.Key, Current: -1}
	}
	return revision, apiError(ctx, s.resource, err)
}

// notOlderThan checks the promise that what is returned is at least as new as the revision that the
// caller names.
func (s *store) notOlderThan(resourceVersion string, head mvcc.Revision) error {
	if resourceVersion == "" {
		return nil
	}
	wanted, err := s.objects.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if wanted > uint64(head) {
		return apistorage.NewTooLargeResourceVersionError(wanted, uint64(head), 0)
	}
	return nil
}

// GetCurrentResourceVersion returns the newest revision of the database, over all resources; no
// acknowledged write of any replica is newer. Whoever asks is about to wait until the watch cache
// has seen it, so the cache's watch is asked to say when that is.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	head, err := ask(ctx, s, "getCurrentResourceVersion", func() (mvcc.Revision, error) {
		return s.mvcc.Head(ctx)
	})
	if err != nil {
		return 0, apiError(ctx, s.resource, err)
	}
	s.progress.request(head)
	return uint64(head), nil
}

// RequestWatchProgress asks the watches with ProgressNotify for a bookmark as soon as they have
// seen everything that is in the database now.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	if s.progress.idle() {
		return nil
	}
	_, err := s.GetCurrentResourceVersion(ctx)
	return err
}

// CompactRevision returns the newest revision below which nothing can be read any more, whichever
// replica compacted, as far as this process knows.
func (s *store) CompactRevision() int64 { return int64(s.mvcc.CompactedRevision()) }

// readinessTimeout bounds ReadinessCheck, which has no context.
const readinessTimeout = 2 * time.Second

// ReadinessCheck returns nil if the database answers and takes writes.
func (s *store) ReadinessCheck() error {
	ctx, cancel := context.WithTimeout(s.lifetime, readinessTimeout)
	defer cancel()
	if err := s.mvcc.Ready(ctx); err != nil {
		return errors.Join(apistorage.ErrStorageNotReady, err)
	}
	return nil
}
