package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Contents are all objects below a prefix as they were at one revision. They are kept in memory as
// they are stored (encrypted, if they are).
type Contents struct {
	directory contract.Key
	mu        sync.Mutex
	// objects are the captured ones. Each has the revisions that it had when it was last known to
	// be what was captured.
	objects map[contract.Key]mvcc.KeyValue
	// others are those in the other stores of [storage.Config].StoreFor.
	others []*Contents
}

// Nothing returns the contents of a prefix below which there is nothing. [Restore] then deletes
// everything there. An empty prefix means [storage.DefaultPrefix].
func Nothing(prefix string) *Contents {
	if prefix == "" {
		prefix = storage.DefaultPrefix
	}
	return &Contents{directory: database.Root(prefix), objects: map[contract.Key]mvcc.KeyValue{}}
}

// Capture reads everything below a prefix, in one snapshot of each store. An empty prefix means
// [storage.DefaultPrefix].
func Capture(ctx context.Context, db *storage.Store, prefix string) (*Contents, error) {
	var all []*Contents
	for _, store := range database.Engines(db.Database()) {
		c := Nothing(prefix)
		current, err := c.read(ctx, store)
		if err != nil {
			return nil, fmt.Errorf("cannot capture the objects below %s: %w", c.directory, err)
		}
		for _, kv := range current {
			c.objects[kv.Key] = kv
		}
		all = append(all, c)
	}
	all[0].others = all[1:]
	return all[0], nil
}

// read reads what is below the prefix now.
func (c *Contents) read(ctx context.Context, store *mvcc.Engine) ([]mvcc.KeyValue, error) {
	var all []mvcc.KeyValue
	o := mvcc.RangeOptions{Start: c.directory, End: contract.PrefixEnd(c.directory)}
	for {
		r, err := store.Range(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, r.KVs...)
		if !r.More {
			return all, nil
		}
		o.From, o.At = database.After(all[len(all)-1].Key), r.Revision
	}
}

// restoreRounds is how often Restore looks at what other writers have changed meanwhile, before it
// gives up.
const restoreRounds = 20

// Restore makes the objects what they were when they were captured. It does so by ordinary writes,
// so that nothing that was promised is broken: revisions go on, each change is an event, and
// watches, caches and other replicas follow without beginning anew. Objects that were created since
// are deleted. An object that was changed or deleted is written again, with its old content and UID
// and a new resourceVersion. If an object was deleted and created again since, watches see it
// deleted and then created.
//
// A time to live is not captured. An object that has one and has to be written again loses it.
//
// Nobody else should write meanwhile. If somebody keeps doing so, Restore returns an error.
func Restore(ctx context.Context, db *storage.Store, c *Contents) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, store := range database.Engines(db.Database()) {
		of := c
		if i > 0 {
			if i > len(c.others) {
				c.others = append(c.others, Nothing(string(c.directory)))
			}
			of = c.others[i-1]
		}
		if err := of.restore(ctx, store); err != nil {
			return err
		}
	}
	return nil
}

// restore is Restore of one store.
func (c *Contents) restore(ctx context.Context, store *mvcc.Engine) error {
	for range restoreRounds {
		changed, err := c.restoreOnce(ctx, store)
		if err != nil {
			return fmt.Errorf("cannot restore the objects below %s: %w", c.directory, err)
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("cannot restore the objects below %s: somebody keeps writing there; "+
		"stop controllers and clients first", c.directory)
}

// restoreOnce brings each key one step nearer to what was captured, and tells whether there was a
// step to make. Its mutations expect the revisions that it has read. So one that loses against
// another writer changes nothing, and the next round sees what there is then.
func (c *Contents) restoreOnce(
	ctx context.Context, store *mvcc.Engine,
) (changed bool, err error) {
	current, err := c.read(ctx, store)
	if err != nil {
		return false, err
	}
	writes, ctx := errgroup.WithContext(ctx)
	writes.SetLimit(256) // a commit group
	var mu sync.Mutex
	write := func(m contract.Mutation, create contract.Revision) {
		changed = true
		writes.Go(func() error {
			revision, err := store.Commit(ctx, m)
			var conflict *contract.ConflictError
			switch {
			case errors.As(err, &conflict):
				return nil
			case err != nil || m.Delete:
				return err
			case create == 0:
				create = revision
			}
			mu.Lock()
			defer mu.Unlock()
			c.objects[m.Key] = mvcc.KeyValue{
				Key: m.Key, Revision: revision, Create: create, Value: m.Value,
			}
			return nil
		})
	}
	captured := maps.Clone(c.objects) // which the writes change while this goes on
	missing := maps.Clone(captured)
	for _, kv := range current {
		was, ok := captured[kv.Key]
		delete(missing, kv.Key)
		switch {
		case !ok || kv.Create != was.Create:
			write(contract.Mutation{
				Key: kv.Key, Expect: kv.Revision, Delete: true, PrevValue: kv.Value, HasPrev: true,
			}, 0)
		case kv.Revision != was.Revision && !bytes.Equal(kv.Value, was.Value):
			write(contract.Mutation{Key: kv.Key, Expect: kv.Revision, Value: was.Value}, was.Create)
		}
	}
	for key, was := range missing {
		write(contract.Mutation{Key: key, Value: was.Value}, 0)
	}
	return changed, writes.Wait()
}
