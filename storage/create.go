package storage

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Create writes an object that does not exist yet. ttl is in seconds, 0 for ever.
func (r *objectStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	k, err := r.keys.object(key)
	if err != nil {
		return err
	}
	ctx, span := r.trace(ctx, "Rowkeeper Create", key)
	defer span.End(slow)
	if revision, err := r.objects.versioner.ObjectResourceVersion(obj); err == nil &&
		revision != 0 {
		return apistorage.ErrResourceVersionSetOnCreate
	}
	data, err := r.objects.serialize(obj)
	if err != nil {
		return err
	}
	stored, err := r.objects.seal(ctx, k, data)
	if err != nil {
		return err
	}
	span.AddEvent("serialized", traceLen(stored))
	known, found := r.entries(obj)
	revision, err := r.commit(ctx, "create",
		contract.Mutation{Key: k, Value: stored, TTL: lifetime(ttl), Known: known, Found: found})
	if err != nil {
		var conflict *contract.ConflictError
		if errors.As(err, &conflict) {
			return apistorage.NewKeyExistsError(string(k), 0)
		}
		return err
	}
	span.AddEvent("committed")
	if out == nil {
		return nil
	}
	return r.objects.decodeInto(data, out, revision)
}

// longest is the longest time to live. It keeps absolute times within what every database can
// represent.
const longest = 100 * 365 * 24 * time.Hour

// lifetime converts seconds, where 0 means for ever.
func lifetime(seconds uint64) time.Duration {
	return time.Duration(min(seconds, uint64(longest/time.Second))) * time.Second
}

func traceLen(b []byte) attribute.KeyValue { return attribute.Int("bytes", len(b)) }
