package storage

import (
	"context"
	"errors"
	"strings"
	"sync"

	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// sizes estimates how large the objects of a resource are as they are stored, by what lists and
// watches happen to read. A key's newest revision counts.
//
// Keys whose deletion nobody saw are forgotten when the sizes are asked for, or when they have
// become twice as many as there were keys then.
type sizes struct {
	ctx     context.Context // ends with the store
	prefix  string
	getKeys apistorage.KeysFunc

	mu       sync.Mutex
	keys     map[contract.Key]size
	expected int
	cleaning bool
}

type size struct {
	bytes    int64
	revision contract.Revision
}

// spareKeys is how many keys a resource may have more than when they were last counted before they
// are counted again.
const spareKeys = 1024

// EnableResourceSizeEstimation begins to estimate, with the help of the watch cache, which knows
// the keys.
func (r *objectStore) EnableResourceSizeEstimation(getKeys apistorage.KeysFunc) error {
	if getKeys == nil {
		return errors.New("the sizes of objects cannot be estimated without a function that " +
			"lists the keys")
	}
	n := &sizes{ctx: r.lifetime, prefix: r.keys.prefix, getKeys: getKeys, keys: map[contract.Key]size{}}
	if !r.sizes.CompareAndSwap(nil, n) {
		return errors.New("the sizes of objects are estimated already")
	}
	return nil
}

// Stats counts the objects. Their average size is known only while it is estimated.
func (r *objectStore) Stats(ctx context.Context) (apistorage.Stats, error) {
	if n := r.sizes.Load(); n != nil {
		return n.stats(ctx)
	}
	all := r.keys.all()
	count, err := ask(ctx, r, "listWithCount", func() (int64, error) {
		return r.mvcc.Count(ctx, all, contract.PrefixEnd(all))
	})
	return apistorage.Stats{ObjectCount: count}, r.apiError(ctx, err)
}

func (n *sizes) stats(ctx context.Context) (apistorage.Stats, error) {
	count, err := n.clean(ctx)
	if err != nil {
		return apistorage.Stats{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	stats := apistorage.Stats{ObjectCount: int64(count)}
	if len(n.keys) > 0 {
		var sum int64
		for _, size := range n.keys {
			sum += size.bytes
		}
		stats.EstimatedAverageObjectSizeBytes = sum / int64(len(n.keys))
	}
	return stats, nil
}

// clean forgets the keys that do not exist any more, and returns how many exist.
func (n *sizes) clean(ctx context.Context) (int, error) {
	existing, err := n.getKeys(ctx)
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make(map[contract.Key]size, len(existing))
	for _, key := range existing {
		if !strings.HasPrefix(key, n.prefix) { // the watch cache's keys have no prefix
			key = n.prefix + strings.TrimPrefix(key, "/")
		}
		if size, ok := n.keys[contract.Key(key)]; ok {
			kept[contract.Key(key)] = size
		}
	}
	n.keys, n.expected = kept, len(existing)
	return len(existing), nil
}

// observe takes the sizes of objects that were read.
func (n *sizes) observe(kvs []mvcc.KeyValue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range kvs {
		n.setLocked(kvs[i].Key, kvs[i].Revision, len(kvs[i].Value))
	}
	n.boundLocked()
}

// follow takes what a watch saw.
func (n *sizes) follow(events []*mvcc.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range events {
		switch {
		case !e.Deleted:
			n.setLocked(e.Key, e.Revision, len(e.Value))
		case n.keys[e.Key].revision < e.Revision:
			delete(n.keys, e.Key)
		}
	}
	n.boundLocked()
}

func (n *sizes) setLocked(key contract.Key, revision contract.Revision, bytes int) {
	if n.keys[key].revision < revision {
		n.keys[key] = size{bytes: int64(bytes), revision: revision}
	}
}

func (n *sizes) boundLocked() {
	if n.cleaning || len(n.keys) <= 2*n.expected+spareKeys {
		return
	}
	n.cleaning = true
	go func() {
		_, err := n.clean(n.ctx)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.cleaning = false
		if err != nil {
			n.keys = map[contract.Key]size{} // begin anew rather than grow
		}
	}()
}
