package storage

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// state is an object as an update or a deletion begins with it.
type state struct {
	// object is nil if it could not be read and that was to be expected.
	object runtime.Object
	// revision is 0 if the object does not exist.
	revision contract.Revision
	// data is the serialized form.
	data []byte
	// stored is what the database holds, nil if that was not read.
	stored []byte
	// stale: the stored form is outdated and wants to be written again.
	stale bool
	// confirmed: the database said so. Otherwise it is a suggestion, which may be outdated.
	confirmed bool
	// era is that in which the revision was read, or suggested.
	era contract.Era
}

// change is one run of an update or a deletion. It keeps trying until the database accepts its
// expectation about the object's revision, or somebody's verdict on the confirmed state ends it.
//
// It holds nothing while the caller's functions run: they may use the store themselves.
type change struct {
	r   *objectStore
	key contract.Key
	// kind is a struct value of the object's type.
	kind reflect.Value
	// orEmpty: an object that does not exist is an empty one, not an error.
	orEmpty bool
	// onlyCorrupt: an object that can be read is an error.
	onlyCorrupt bool
	state       state
	// known and found are what the indexes have of the object as it was updated last; see
	// objectStore.entries.
	known *contract.Indexes
	found []contract.Entry
	// turn is the change's place among the writers of the key, nil if it has none.
	turn *turn
}

func (r *objectStore) newChange(key contract.Key, out runtime.Object) (*change, error) {
	kind, err := conversion.EnforcePtr(out)
	if err != nil {
		return nil, fmt.Errorf("the object to return has to be a pointer: %w", err)
	}
	return &change{r: r, key: key, kind: kind}, nil
}

// begin takes the suggestion, or reads if there is none. One without a resourceVersion suggests
// that the object does not exist.
func (c *change) begin(ctx context.Context, suggestion runtime.Object) error {
	if c.onlyCorrupt {
		return c.read(ctx)
	}
	// Where others stand in line for the key, this one would only lose to them.
	if c.turn = c.r.store.turns.join(ctx, c.key); c.takeLeft(ctx) {
		return nil
	}
	if suggestion == nil {
		return c.read(ctx)
	}
	objects := c.r.objects
	revision, err := objects.versioner.ObjectResourceVersion(suggestion)
	if err != nil {
		return fmt.Errorf("the cached object has no usable resourceVersion: %w", err)
	}
	if revision == 0 && !c.orEmpty {
		return c.read(ctx)
	}
	// The suggestion was cached before this was called, and caches end only some time after an era.
	// So its era is not the present one for certain, but where its revision says so.
	era := c.r.mvcc.EraOf(contract.Revision(revision))
	if revision > 0 && era == 0 {
		return c.read(ctx)
	}
	// The caller's function changes the object in place, so it is serialized before.
	data, err := objects.serialize(suggestion)
	if err != nil {
		return err
	}
	if err := objects.versioner.UpdateObject(suggestion, revision); err != nil {
		klog.ErrorS(err, "A cached object does not take its resourceVersion", "key", string(c.key))
	}
	c.state = state{object: suggestion, revision: contract.Revision(revision), data: data, era: era}
	return nil
}

// takeLeft takes what the last one in the line has written, as a suggestion, if it is newer than
// what the change began with.
func (c *change) takeLeft(ctx context.Context) bool {
	left := c.turn.left()
	if left == nil || left.kv.Revision <= c.state.revision {
		return false
	}
	before := c.state
	c.state = state{object: newLike(c.kind), revision: left.kv.Revision, stored: left.kv.Value,
		era: left.era}
	if err := c.decode(ctx, &left.kv); err != nil {
		c.state = before
		return false
	}
	return true
}

// read takes what the database holds.
func (c *change) read(ctx context.Context) error {
	era := c.r.mvcc.Era()
	kv, _, err := c.r.read(ctx, c.key)
	if err != nil {
		return err
	}
	if kv == nil {
		return c.absent()
	}
	c.state = state{object: newLike(c.kind), revision: kv.Revision, stored: kv.Value,
		confirmed: true, era: era}
	err = c.decode(ctx, kv)
	if !c.onlyCorrupt {
		return err
	}
	var corrupt *corruptError
	switch {
	case err == nil:
		return apistorage.NewInvalidObjError(string(c.key),
			"the object can be read, and an unsafe deletion is only for those that cannot")
	case errors.As(err, &corrupt):
		c.state.object, c.state.data = nil, nil
		return nil
	}
	return err
}

func (c *change) decode(ctx context.Context, kv *mvcc.KeyValue) (err error) {
	c.state.data, c.state.stale, err = c.r.objects.open(ctx, kv.Key, kv.Revision, kv.Value)
	if err != nil {
		return apistorage.NewInternalError(err)
	}
	return c.r.objects.decodeInto(c.state.data, c.state.object, kv.Revision)
}

// absent takes that the object does not exist.
func (c *change) absent() error {
	if !c.orEmpty {
		return apistorage.NewKeyNotFoundError(string(c.key), 0)
	}
	c.state = state{object: newLike(c.kind), confirmed: true}
	return runtime.SetZeroValue(c.state.object)
}

// judged deals with an error that the caller, or a precondition, has made of the state. On a
// confirmed state it is final. On a suggestion, it is final if the suggestion turns out to be
// current; otherwise the result is nil, and the newer state has to be judged.
func (c *change) judged(ctx context.Context, verdict error) error {
	if c.state.confirmed {
		return verdict
	}
	suggested := c.state.revision
	if err := c.read(ctx); err != nil {
		return err
	}
	if c.state.revision == suggested {
		return verdict
	}
	return nil
}

// lost deals with a write that was refused since the object was at another revision. The result is
// nil if the newer state can be tried.
func (c *change) lost(ctx context.Context, conflict *contract.ConflictError) error {
	klog.V(4).InfoS("A write lost against another one and is tried again", "key", string(c.key),
		"expected", int64(c.state.revision), "found", int64(conflict.Current))
	if conflict.Current == 0 {
		return c.absent()
	}
	if c.turn == nil {
		c.turn = c.r.store.turns.take(ctx, c.key)
		if c.takeLeft(ctx) {
			return nil
		}
	}
	return c.read(ctx)
}

// end has to be called when the change is done.
func (c *change) end() { c.turn.giveBack() }
