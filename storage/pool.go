package storage

import (
	"context"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// StorePool has the stores of a database, for a program that serves many of them. A store is opened
// when it is first used, and closed when nobody has used it for a minute. The stores share
// connections.
//
// A key that expires in a closed store is deleted soon after its time, and history is compacted
// once that may be: the pool opens the store again then, for a minute. It knows what is due from
// the time when it closed the store. A store that it has not opened yet costs nothing, and nothing
// of it is deleted. A store in memory stays open, since it would be gone.
type StorePool struct {
	pool  *database.StorePool
	log   *slog.Logger
	users func(schema.GroupResource) bool

	mu sync.Mutex
	// used are the stores that somebody uses: all who use one share what it keeps for resources.
	used map[*database.Store]*usedStore
}

type usedStore struct {
	store *Store
	users int
}

// OpenStores connects to a database, of which it opens no store yet. Config.Store and
// Config.StoreFor are not used.
func OpenStores(ctx context.Context, c Config) (*StorePool, error) {
	below := c.Database()
	pool, err := database.OpenStores(ctx, below)
	if err != nil {
		return nil, err
	}
	return &StorePool{pool: pool, log: below.Logger, users: c.Users,
		used: map[*database.Store]*usedStore{}}, nil
}

// Use returns a store. It stays open until the caller and all others who use it have released it,
// or the pool is closed. The caller does not close it. To release it twice does nothing.
func (p *StorePool) Use(ctx context.Context, name string) (store *Store, release func(), err error) {
	db, leave, err := p.pool.Use(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.used[db]
	if s == nil {
		s = &usedStore{store: newStore(db, p.log, p.users)}
		p.used[db] = s
	}
	s.users++
	return s.store, sync.OnceFunc(func() {
		p.mu.Lock()
		if s.users--; s.users == 0 {
			delete(p.used, db)
		}
		p.mu.Unlock()
		leave()
	}), nil
}

// Ready is [Store.Ready] for a store, which need not be open. It neither opens it nor keeps it
// open: of a store that is closed it finds out whether it is there and can be read.
func (p *StorePool) Ready(ctx context.Context, name string) error { return p.pool.Ready(ctx, name) }

// IsOpen tells whether a store is open.
func (p *StorePool) IsOpen(name string) bool { return p.pool.IsOpen(name) }

// Collector returns the metrics of a store, with the label store. There are none while it is
// closed, and counters begin at 0 when it is opened.
func (p *StorePool) Collector(name string) prometheus.Collector { return p.pool.Collector(name) }

// Close closes all stores, whoever uses them, and the connections. It may be called more than once.
func (p *StorePool) Close() error { return p.pool.Close() }
