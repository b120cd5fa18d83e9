package storage

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Delete removes an object and sets out to its last state, at the deletion's revision. The
// validation runs before every attempt; without its consent nothing is deleted. With
// opts.ExpectTransformOrDecodeError, only an object that cannot be read is deleted; out is not set
// then.
func (r *objectStore) Delete(ctx context.Context, key string, out runtime.Object,
	preconditions *apistorage.Preconditions, validate apistorage.ValidateObjectFunc,
	suggestion runtime.Object, opts apistorage.DeleteOptions) error {
	k, err := r.keys.object(key)
	if err != nil {
		return err
	}
	ctx, span := r.trace(ctx, "Rowkeeper Delete", key)
	defer span.End(slow)
	c, err := r.newChange(k, out)
	if err != nil {
		return err
	}
	defer c.end()
	c.onlyCorrupt = opts.ExpectTransformOrDecodeError && r.unsafeDeletion
	if err := c.begin(ctx, suggestion); err != nil {
		return err
	}
	for {
		span.AddEvent("trying")
		err := preconditions.Check(string(k), c.state.object)
		if err == nil {
			err = validate(ctx, c.state.object)
		}
		if err != nil {
			if err := c.judged(ctx, err); err != nil {
				return err
			}
			continue
		}
		revision, err := r.commit(ctx, "delete", contract.Mutation{Key: k, Expect: c.state.revision,
			Era: c.state.era, Delete: true,
			PrevValue: c.state.stored, HasPrev: c.state.stored != nil})
		var conflict *contract.ConflictError
		switch {
		case err == nil:
			span.AddEvent("committed")
			c.turn.leave(nil)
			if c.onlyCorrupt {
				return nil
			}
			return r.objects.decodeInto(c.state.data, out, revision)
		case errors.As(err, &conflict):
			if err := c.lost(ctx, conflict); err != nil {
				return err
			}
		default:
			return err
		}
	}
}
