package storage

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// objectCodec turns objects into stored bytes and back, in two steps: the codec serializes, the
// transformer encrypts.
//
//	object  -- serialize -->  data  -- seal -->  stored
//	object  <-- decode ----   data  <-- open --  stored
//
// The serialized form has neither a resourceVersion nor a selfLink: the revision is the row's.
type objectCodec struct {
	codec       runtime.Codec
	transformer value.Transformer
	versioner   apistorage.Versioner
	resource    schema.GroupResource
	// markCorrupt wraps the errors of open and decode in corruptError.
	markCorrupt bool
}

// keyContext authenticates a value with its key, so that a value that was copied to another key is
// rejected.
type keyContext contract.Key

func (k keyContext) AuthenticatedData() []byte { return []byte(k) }

var _ value.Context = keyContext("")

// serialize clears the object's resourceVersion and selfLink and returns its serialized form.
func (c *objectCodec) serialize(obj runtime.Object) ([]byte, error) {
	if err := c.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("the object cannot be prepared to be stored: %w", err)
	}
	return runtime.Encode(c.codec, obj)
}

func (c *objectCodec) seal(ctx context.Context, key contract.Key, data []byte) ([]byte, error) {
	stored, err := c.transformer.TransformToStorage(ctx, data, keyContext(key))
	if err != nil {
		return nil, apistorage.NewInternalError(err)
	}
	return stored, nil
}

// open returns the serialized form, and whether it is stored in an outdated way (with an old
// encryption key) and should be written again.
func (c *objectCodec) open(ctx context.Context, key contract.Key, revision contract.Revision,
	stored []byte) (data []byte, stale bool, err error) {
	data, stale, err = c.transformer.TransformFromStorage(ctx, stored, keyContext(key))
	if err != nil {
		if c.markCorrupt {
			err = corrupt(untransformable, int64(revision), err)
		}
		return nil, false, err
	}
	return data, stale, nil
}

// decodeInto sets the object, a pointer, to what was serialized.
func (c *objectCodec) decodeInto(data []byte, into runtime.Object, revision contract.Revision) error {
	if _, err := conversion.EnforcePtr(into); err != nil {
		return fmt.Errorf("the object to decode into has to be a pointer: %w", err)
	}
	_, err := c.decode(data, into, revision)
	return err
}

// decode decodes into the object if that is possible, and else into another one. It returns the one
// that it used.
func (c *objectCodec) decode(data []byte, into runtime.Object,
	revision contract.Revision) (runtime.Object, error) {
	obj, _, err := c.codec.Decode(data, nil, into)
	if err != nil {
		return nil, c.decodeError(err, revision)
	}
	// An object without metadata has no place for its revision.
	if err := c.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		klog.ErrorS(err, "An object from the database has no resourceVersion", "resource",
			c.resource, "revision", revision)
	}
	return obj, nil
}

// decodeNew decodes into an object of the type that the data names.
func (c *objectCodec) decodeNew(data []byte, revision contract.Revision) (runtime.Object, error) {
	obj, err := runtime.Decode(c.codec, data)
	if err != nil {
		return nil, c.decodeError(err, revision)
	}
	if err := c.versioner.UpdateObject(obj, uint64(revision)); err != nil {
		return nil, fmt.Errorf("revision %d of %T has no place for its resourceVersion: %w",
			revision, obj, err)
	}
	return obj, nil
}

func (c *objectCodec) decodeError(err error, revision contract.Revision) error {
	etcdmetrics.RecordDecodeError(c.resource)
	if c.markCorrupt {
		return corrupt(undecodable, int64(revision), err)
	}
	return err
}

// decodeItem is decode for an item of a list; it accounts for the time to the request. The times of
// items that are decoded at once are added up.
func (c *objectCodec) decodeItem(ctx context.Context, data []byte, into runtime.Object,
	revision contract.Revision) (runtime.Object, error) {
	began := time.Now()
	obj, err := c.decode(data, into, revision)
	endpointsrequest.TrackDecodeLatency(ctx, time.Since(began))
	return obj, err
}

// newLike returns an empty object of the type that v, a struct, has.
func newLike(v reflect.Value) runtime.Object {
	if u, ok := v.Addr().Interface().(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(v.Type()).Interface().(runtime.Object)
}
