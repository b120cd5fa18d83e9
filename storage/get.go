package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Get reads one object as it is now.
func (r *objectStore) Get(ctx context.Context, key string, opts apistorage.GetOptions,
	out runtime.Object) error {
	k, err := r.keys.object(key)
	if err != nil {
		return err
	}
	ctx, span := r.trace(ctx, "Rowkeeper Get", key)
	defer span.End(slow)
	kv, head, err := r.read(ctx, k)
	if err != nil {
		return err
	}
	span.AddEvent("read")
	if err := r.notOlderThan(opts.ResourceVersion, head); err != nil {
		return err
	}
	if kv == nil {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return apistorage.NewKeyNotFoundError(string(k), 0)
	}
	err = r.present(ctx, kv, out)
	span.AddEvent("decoded")
	if r.unsafeDeletion {
		return asCorruptObject(key, err)
	}
	return err
}

// present sets out to the stored object.
func (r *objectStore) present(ctx context.Context, kv *mvcc.KeyValue, out runtime.Object) error {
	data, _, err := r.objects.open(ctx, kv.Key, kv.Revision, kv.Value)
	if err != nil {
		return apistorage.NewInternalError(err)
	}
	return r.objects.decodeInto(data, out, kv.Revision)
}
