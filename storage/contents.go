package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Contents are all objects below a prefix as they were at one revision, kept in memory as they are stored (encrypted, if they are). Tests
// bring a store back to them.
type Contents struct {
	directory mvcc.Key
	mu        sync.Mutex
	// objects are the captured ones, each with the revisions that it had when it was last known to be what was captured.
	objects map[mvcc.Key]mvcc.KeyValue
}

// Capture reads everything below a prefix, in one snapshot. An empty prefix means [DefaultPrefix].
func (d *Database) Capture(ctx context.Context, prefix string) (*Contents, error) {
	c := Nothing(prefix)
	current, err := d.below(ctx, c.directory)
	if err != nil {
		return nil, fmt.Errorf("cannot capture the objects below %s: %w", c.directory, err)
	}
	for _, kv := range current {
		c.objects[kv.Key] = kv
	}
	return c, nil
}

func (d *Database) below(ctx context.Context, directory mvcc.Key) ([]mvcc.KeyValue, error) {
	var all []mvcc.KeyValue
	o := mvcc.RangeOptions{Start: directory, End: prefixEnd(directory)}
	for {
		r, err := d.mvcc.Range(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, r.KVs...)
		if !r.More {
			return all, nil
		}
		o.From, o.At = after(all[len(all)-1].Key), r.Revision
	}
}

// restoreRounds is how often Restore looks at what other writers have changed meanwhile, before it gives up.
const restoreRounds = 20

// Restore makes the objects what they were when they were captured, by ordinary writes, so that nothing that was promised is broken:
// revisions go on, each change is an event, and watches, caches and other replicas follow without beginning anew. What was created since
// is deleted; what was changed or deleted is written again, with a new resourceVersion and its old content and UID. An object that was
// deleted and created again since is seen to be deleted, and then created.
//
// A time to live is not captured: an object that has one and has to be written again is there without one.
//
// Nobody else should write meanwhile. If somebody keeps doing so, Restore returns an error.
func (d *Database) Restore(ctx context.Context, c *Contents) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range restoreRounds {
		changed, err := d.restoreOnce(ctx, c)
		if err != nil {
			return fmt.Errorf("cannot restore the objects below %s: %w", c.directory, err)
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("cannot restore the objects below %s: somebody keeps writing there; stop controllers and clients first", c.directory)
}

// restoreOnce makes each key one step alike, and tells whether there was one to make. Its mutations expect the revisions that it has read,
// so that one which loses against another writer changes nothing, and the next round sees what there is then.
func (d *Database) restoreOnce(ctx context.Context, c *Contents) (changed bool, err error) {
	current, err := d.below(ctx, c.directory)
	if err != nil {
		return false, err
	}
	writes, ctx := errgroup.WithContext(ctx)
	writes.SetLimit(256) // a commit group
	var mu sync.Mutex
	write := func(m mvcc.Mutation, create mvcc.Revision) {
		changed = true
		writes.Go(func() error {
			revision, err := d.mvcc.Commit(ctx, m)
			var conflict *mvcc.ConflictError
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
			c.objects[m.Key] = mvcc.KeyValue{Key: m.Key, Revision: revision, Create: create, Value: m.Value}
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
			write(mvcc.Mutation{Key: kv.Key, Expect: kv.Revision, Delete: true, PrevValue: kv.Value, HasPrev: true}, 0)
		case kv.Revision != was.Revision && !bytes.Equal(kv.Value, was.Value):
			write(mvcc.Mutation{Key: kv.Key, Expect: kv.Revision, Value: was.Value}, was.Create)
		}
	}
	for key, was := range missing {
		write(mvcc.Mutation{Key: key, Value: was.Value}, 0)
	}
	return changed, writes.Wait()
}

// DeleteExpired deletes the objects whose time to live has passed by the database's clock, as is done in the background otherwise. Tests
// call it after they have moved Config.Clock.
func (d *Database) DeleteExpired(ctx context.Context) error {
	if err := d.mvcc.DeleteExpired(ctx); err != nil {
		return fmt.Errorf("cannot delete what has expired: %w", err)
	}
	return nil
}

// Nothing are the contents of a prefix below which there is nothing. To restore them deletes everything there.
func Nothing(prefix string) *Contents {
	return &Contents{directory: directoryOf(prefix), objects: map[mvcc.Key]mvcc.KeyValue{}}
}

// FirstKey returns the first key from one key on and before another, "" if there is none. It sees
// whatever was acknowledged before the call, by any process.
func (d *Database) FirstKey(ctx context.Context, from, before string) (string, error) {
	r, err := d.mvcc.Range(ctx, mvcc.RangeOptions{
		Start: mvcc.Key(from), End: mvcc.Key(before), Limit: 1, KeysOnly: true,
	})
	if err != nil {
		return "", fmt.Errorf("cannot read the keys from %s on: %w", from, err)
	}
	if len(r.KVs) == 0 {
		return "", nil
	}
	return string(r.KVs[0].Key), nil
}

func directoryOf(prefix string) mvcc.Key {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return mvcc.Key(path.Join("/", prefix) + "/")
}
