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

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// ResourceConfig describes the objects of one resource, as [Store.Resource] reads and writes them.
type ResourceConfig struct {
	// Codec serializes the objects and decodes them. Required.
	Codec runtime.Codec
	// NewFunc makes an empty object. Watches need it for bookmarks.
	NewFunc func() runtime.Object
	// Prefix begins all keys of a server in the database. Default "/registry". Servers with
	// different prefixes do not see each other's objects.
	Prefix string
	// ResourcePrefix begins the keys of requests, such as "/pods" or "/ci.example.com/pipelines".
	// Required.
	ResourcePrefix string
	// GroupResource names the resource in errors, metrics and traces.
	GroupResource schema.GroupResource
	// Transformer encrypts what is stored. Default: nothing is encrypted, and what is encrypted is
	// not read.
	Transformer value.Transformer
	// Scope is [Namespaced] or [ClusterScoped], if it is known, for people who read the database by
	// SQL.
	Scope Scope
	// Attributes tell by which fields an object can be selected, for indexes of fields. Default:
	// there are none.
	Attributes apistorage.AttrFunc
	// Indexes are the names of those that are declared if the database lacks them; see
	// [WithIndexes].
	Indexes []string
	// Versioner sets the resourceVersion of objects and lists. Default storage.APIObjectVersioner.
	Versioner apistorage.Versioner
}

// Scope is that of a resource.
type Scope string

// The scopes.
const (
	Namespaced    Scope = contract.Namespaced
	ClusterScoped Scope = contract.ClusterScoped
)

// DefaultPrefix begins all keys in the database unless another prefix is given: /registry.
const DefaultPrefix = database.DefaultPrefix

// objectStore implements storage.Interface for one objectStore of a store.
type objectStore struct {
	store   *Store
	mvcc    *mvcc.Engine
	keys    keySpace
	objects *objectCodec
	decoder *eventDecoder
	name    schema.GroupResource
	newFunc func() runtime.Object
	// users: who writes is recorded.
	users bool
	// unsafeDeletion: corrupt objects are named as such and may be deleted unread.
	unsafeDeletion bool
	sizes          atomic.Pointer[sizes]
	// rowBytes is how large the rows of the last list's last chunk were.
	rowBytes atomic.Int64
	progress progress
	// maxUnpaged is how many objects a list without a limit may have, 0 for any number.
	maxUnpaged int
	// attributes tell the fields of an object, nil if nothing does.
	attributes apistorage.AttrFunc
	// unindexed tells why the resource cannot have an index, "" if it can, and unindexedFields why
	// it cannot have one of a field. program names the program that finds what indexes have, and
	// declares are the indexes that are still to be declared. Only followIndexes uses it.
	declares []string
	// claimed has the indexes that this store has claimed for it. Only followIndexes uses that.
	unindexed, unindexedFields string
	program                    func() string
	claimed                    map[uint32]bool

	// lifetime ends with destroy, and all watches with it.
	lifetime context.Context
	destroy  context.CancelFunc
}

var _ apistorage.Interface = (*objectStore)(nil)

// Resource returns the storage.Interface of one resource, and a function that releases it and ends
// its watches; it may be called more than once. Any number of them may work on the same keys at a
// time, such as one for each served version.
//
// Objects that cannot be decrypted or decoded are treated as the feature gate
// AllowUnsafeMalformedObjectDeletion says at this moment.
func (s *Store) Resource(c ResourceConfig) (apistorage.Interface, func(), error) {
	r, destroy, err := s.newResource(c)
	if err != nil {
		return nil, nil, err
	}
	return r, destroy, nil
}

func (s *Store) newResource(c ResourceConfig) (*objectStore, func(), error) {
	return s.newResourceOf(c, program)
}

// newResourceOf is newResource in a program; see objectStore.ours.
func (s *Store) newResourceOf(c ResourceConfig, program func() string) (*objectStore, func(), error) {
	if c.Codec == nil {
		return nil, nil, errors.New("a resource needs a codec: set ResourceConfig.Codec")
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	keys, err := newKeySpace(c.Prefix, c.ResourcePrefix)
	if err != nil {
		return nil, nil, err
	}
	if err := checkIndexNames(c.Indexes); err != nil {
		return nil, nil, err
	}
	history, err := database.EngineFor(s.db, resourceName(c.GroupResource), keys.prefix, keys.all())
	if err != nil {
		return nil, nil, err
	}
	if c.Transformer == nil {
		c.Transformer = identity.NewEncryptCheckTransformer()
	}
	if c.Versioner == nil {
		c.Versioner = apistorage.APIObjectVersioner{}
	}
	leave, err := s.directories.take(keys.all(), c.Codec.Identifier())
	if err != nil {
		return nil, nil, err
	}
	history.Serves(contract.Directory{Path: keys.all(), Group: c.GroupResource.Group,
		Resource: c.GroupResource.Resource, Scope: string(c.Scope)})
	unsafeDeletion := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	r := &objectStore{
		store: s,
		mvcc:  history,
		keys:  keys,
		objects: &objectCodec{codec: c.Codec, transformer: c.Transformer, versioner: c.Versioner,
			resource:    c.GroupResource,
			markCorrupt: unsafeDeletion},
		name:           c.GroupResource,
		newFunc:        c.NewFunc,
		users:          s.users != nil && s.users(c.GroupResource),
		unsafeDeletion: unsafeDeletion,
		attributes:     c.Attributes,
		unindexed:      whyUnindexed(c),

		unindexedFields: whyUnindexedFields(c),
		program:         program,
		declares:        c.Indexes,
		claimed:         map[uint32]bool{},
	}
	r.decoder = s.decoders.of(r.objects)
	r.lifetime, r.destroy = context.WithCancel(context.Background())
	if c.NewFunc != nil {
		go r.followIndexes()
	}
	return r, sync.OnceFunc(func() {
		r.destroy()
		s.decoders.release(r.decoder)
		leave()
	}), nil
}

func (r *objectStore) Versioner() apistorage.Versioner { return r.objects.versioner }

// trace begins a span, which the caller ends: it is logged if it took longer than slow.
func (r *objectStore) trace(ctx context.Context, name, key string,
	more ...attribute.KeyValue) (context.Context, *tracing.Span) {
	return tracing.Start(ctx, name, append(more,
		attribute.String("audit-id", audit.GetAuditIDTruncated(ctx)),
		attribute.String("key", key),
		attribute.String("group", r.name.Group),
		attribute.String("resource", r.name.Resource),
	)...)
}

const slow = 500 * time.Millisecond

// ask runs one request to the database and counts it under upstream's names, which dashboards know.
func ask[T any](ctx context.Context, r *objectStore, verb string, request func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := request()
	took := time.Since(began)
	counted := err
	var conflict *contract.ConflictError
	if errors.As(err, &conflict) {
		counted = nil // an answer as good as any
	}
	etcdmetrics.RecordEtcdRequest(verb, r.name, counted, began)
	endpointsrequest.TrackStorageLatency(ctx, took)
	return answer, err
}

// read reads the current state of one key: nil if it does not exist.
func (r *objectStore) read(ctx context.Context,
	key contract.Key) (kv *mvcc.KeyValue, head contract.Revision, err error) {
	kv, err = ask(ctx, r, "get", func() (kv *mvcc.KeyValue, err error) {
		kv, head, err = r.mvcc.Get(ctx, key)
		return kv, err
	})
	return kv, head, r.apiError(ctx, err)
}

// commit writes one mutation. If somebody else was faster, or nothing proves any more that what was
// read belongs to this history, the error is a *contract.ConflictError: it has to be read again.
func (r *objectStore) commit(ctx context.Context, verb string, m contract.Mutation) (contract.Revision, error) {
	if r.users {
		m.By = userOf(ctx)
	}
	revision, err := ask(ctx, r, verb, func() (contract.Revision, error) {
		return r.mvcc.Commit(ctx, m)
	})
	var conflict *contract.ConflictError
	switch {
	case errors.As(err, &conflict):
		return 0, conflict
	case errors.Is(err, mvcc.ErrOtherEra):
		return 0, &contract.ConflictError{Key: m.Key, Current: -1}
	}
	return revision, r.apiError(ctx, err)
}

// userOf is who is recorded with a write of a request, nil if it is none of a user. Of a user that
// is impersonated, it is that one.
func userOf(ctx context.Context) *contract.User {
	user, found := endpointsrequest.UserFrom(ctx)
	if !found {
		return nil
	}
	id, _ := audit.AuditIDFrom(ctx)
	return &contract.User{Name: user.GetName(), AuditID: string(id)}
}

// notOlderThan checks the promise that what is returned is at least as new as the revision that the
// caller names.
func (r *objectStore) notOlderThan(resourceVersion string, head contract.Revision) error {
	if resourceVersion == "" {
		return nil
	}
	wanted, err := r.objects.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if wanted > uint64(head) {
		return apistorage.NewTooLargeResourceVersionError(wanted, uint64(head), 0)
	}
	return nil
}

// GetCurrentResourceVersion returns the newest revision of the database, over all resources; no
// acknowledged write of any replica is newer. The caller is about to wait until the watch cache has
// seen it, so the cache's watch is asked to say when that is.
func (r *objectStore) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	head, err := ask(ctx, r, "getCurrentResourceVersion", func() (contract.Revision, error) {
		return r.mvcc.Head(ctx)
	})
	if err != nil {
		return 0, r.apiError(ctx, err)
	}
	r.progress.request(head)
	return uint64(head), nil
}

// RequestWatchProgress asks the watches with ProgressNotify for a bookmark as soon as they have
// seen everything that is in the database now.
func (r *objectStore) RequestWatchProgress(ctx context.Context) error {
	if r.progress.idle() {
		return nil
	}
	_, err := r.GetCurrentResourceVersion(ctx)
	return err
}

// CompactRevision returns the newest revision below which nothing can be read any more, whichever
// replica compacted, as far as this process knows.
func (r *objectStore) CompactRevision() int64 { return int64(r.mvcc.CompactedRevision()) }

// readinessTimeout bounds ReadinessCheck, which has no context.
const readinessTimeout = 2 * time.Second

// ReadinessCheck returns nil if the database answers and takes writes.
func (r *objectStore) ReadinessCheck() error {
	ctx, cancel := context.WithTimeout(r.lifetime, readinessTimeout)
	defer cancel()
	if err := r.mvcc.Ready(ctx); err != nil {
		return errors.Join(apistorage.ErrStorageNotReady, err)
	}
	return nil
}
