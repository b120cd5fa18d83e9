package storage

import (
	"bytes"
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// GuaranteedUpdate lets tryUpdate change an object, as often as it takes until nobody has changed
// it meanwhile. An update that changes nothing is not written, unless the stored form is outdated.
// A nil ttl from tryUpdate means for ever.
func (r *objectStore) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object,
	ignoreNotFound bool, preconditions *apistorage.Preconditions, tryUpdate apistorage.UpdateFunc,
	suggestion runtime.Object) error {
	k, err := r.keys.object(key)
	if err != nil {
		return err
	}
	ctx, span := r.trace(ctx, "Rowkeeper GuaranteedUpdate", key)
	defer span.End(slow)
	c, err := r.newChange(k, out)
	if err != nil {
		return err
	}
	defer c.end()
	c.orEmpty = ignoreNotFound
	if err := c.begin(ctx, suggestion); err != nil {
		return err
	}
	for {
		span.AddEvent("trying")
		data, ttl, ends, err := c.update(preconditions, tryUpdate)
		if err != nil {
			if err := c.judged(ctx, err); err != nil {
				return err
			}
			continue
		}
		if !c.state.stale && bytes.Equal(data, c.state.data) {
			if !c.state.confirmed {
				// Only the database can say that nothing has to be written.
				if err := c.read(ctx); err != nil {
					return err
				}
				if !bytes.Equal(data, c.state.data) {
					continue
				}
			}
			if !c.state.stale {
				return r.objects.decodeInto(c.state.data, out, c.state.revision)
			}
		}
		stored, err := r.objects.seal(ctx, k, data)
		if err != nil {
			return err
		}
		span.AddEvent("serialized", traceLen(stored))
		revision, err := r.commit(ctx, "update", contract.Mutation{Key: k, Expect: c.state.revision,
			Era: c.state.era, Value: stored, TTL: ttl, Ends: ends, Known: c.known, Found: c.found,
			PrevValue: c.state.stored, HasPrev: c.state.stored != nil})
		var conflict *contract.ConflictError
		switch {
		case err == nil:
			span.AddEvent("committed")
			c.turn.leave(&written{era: c.state.era,
				kv: mvcc.KeyValue{Key: k, Revision: revision, Value: stored}})
			return r.objects.decodeInto(data, out, revision)
		case errors.As(err, &conflict):
			if err := c.lost(ctx, conflict); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// update runs the caller's function on the state and serializes what it returns. It tells whether
// that is a step on the way to the object's deletion.
func (c *change) update(preconditions *apistorage.Preconditions, tryUpdate apistorage.UpdateFunc,
) (data []byte, ttl time.Duration, ends bool, err error) {
	if err := preconditions.Check(string(c.key), c.state.object); err != nil {
		return nil, 0, false, err
	}
	before := endOf(c.state.object) // the function may change the object in place
	updated, seconds, err := tryUpdate(c.state.object,
		apistorage.ResponseMeta{ResourceVersion: uint64(c.state.revision)})
	if err != nil {
		return nil, 0, false, err
	}
	if seconds != nil {
		ttl = lifetime(*seconds)
	}
	if data, err = c.r.objects.serialize(updated); err == nil {
		c.known, c.found = c.r.entries(updated)
	}
	return data, ttl, endOf(updated).follows(before), err
}

// end is how far an object is on the way to its deletion.
type end struct {
	begun      bool
	finalizers int
}

func endOf(o runtime.Object) end {
	m, err := meta.Accessor(o)
	if err != nil {
		return end{}
	}
	return end{m.GetDeletionTimestamp() != nil, len(m.GetFinalizers())}
}

// follows tells whether an update has brought the object closer to its deletion. Such an update may
// make it larger by a time or by the name of who manages its fields. A client can do so no more
// often than there are finalizers, since nobody adds one to an object that is being deleted.
func (e end) follows(before end) bool {
	return e.begun && (!before.begun || e.finalizers < before.finalizers)
}
