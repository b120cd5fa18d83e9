package directory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Pool has the stores of a directory, for a program that serves many of them. It is used like a
// pool of one database ([database.StorePool]). A store that has moved is found where it is, without
// a restart. Each database has a pool of its own, which is opened when a store in it is first used,
// and so has its connections: as many as a process has that serves this database alone.
type Pool struct {
	directory *Directory

	// mu protects the fields below.
	mu     sync.Mutex
	closed bool
	pools  map[string]*opened
	// places are the rows of the directory that were used last, by the names of stores.
	places map[string]*place
}

// opened is the pool of a database, or is being opened.
type opened struct {
	// turn has an element while somebody opens the pool.
	turn chan struct{}
	pool *database.StorePool
}

// place says where a store was found.
type place struct {
	row Row
	// store is the open store whose home was compared with the row.
	store *database.Store
	// asked is when the directory was asked last, because the log could not be read.
	asked time.Time
}

// NewPool makes a pool. The directory is not closed with it.
func NewPool(d *Directory) *Pool {
	return &Pool{directory: d, pools: map[string]*opened{}, places: map[string]*place{}}
}

const (
	// handPause is how long it takes until a store is looked for again that is one end of a move,
	// and handWait how long a call waits for that, since most moves take no longer than that to
	// end.
	handPause = 50 * time.Millisecond
	handWait  = 10 * time.Second
	// doubtPause is how often the directory is asked at most about a store whose database is away.
	doubtPause = time.Second
)

var errPoolClosed = errors.New("the stores of the directory are closed")

// Use returns a store, as [database.StorePool.Use] does. If it is between two databases, Use waits
// for ten seconds.
func (p *Pool) Use(ctx context.Context, name string) (*database.Store, func(), error) {
	deadline := time.Now().Add(handWait)
	for {
		store, release, r, err := p.find(ctx, name)
		if err == nil || !r.InHand() || contract.ClassOf(err) != contract.Invalid ||
			time.Now().After(deadline) {
			return store, release, err
		}
		contract.Wait(ctx, handPause)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
}

// find looks for a store where it was last, and then where the directory says. r is the row that
// was used.
func (p *Pool) find(ctx context.Context, name string) (store *database.Store, release func(), r Row,
	err error) {
	p.mu.Lock()
	at := p.places[name]
	p.mu.Unlock()
	if at != nil {
		store, release, err = p.useAt(ctx, at.row, at)
		if ctx.Err() != nil || err == nil && !p.doubts(at, store) {
			return store, release, at.row, err
		}
	}
	now, readErr := p.directory.Get(ctx, name)
	switch same := at != nil && now.Database == at.row.Database && now.Generation == at.row.Generation; {
	case readErr != nil && at == nil:
		return nil, nil, r, readErr
	case at != nil && err == nil && (readErr != nil || same):
		return store, release, at.row, nil
	case readErr != nil:
		return nil, nil, at.row, errors.Join(err, readErr)
	case release != nil:
		// Its database cannot be reached, and so it was not told that the store has left.
		release()
		if pool := p.known(name); pool != nil {
			pool.Abandon(name)
		}
	}
	switch {
	case now.State == "", now.State == Dropped, now.State == Dropping:
		return nil, nil, now, contract.Errorf(contract.Invalid, "%w", p.directory.busy(now))
	case at != nil && now.Database == at.row.Database && now.Generation == at.row.Generation &&
		err != nil:
		return nil, nil, now, err
	}
	store, release, err = p.useAt(ctx, now, nil)
	return store, release, now, err
}

// doubts tells whether the directory has to be asked about a store that is open: its log cannot be
// read, so that it would not be noticed that the store is closed.
func (p *Pool) doubts(at *place, store *database.Store) bool {
	if !database.Engine(store).Away() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(at.asked) < doubtPause {
		return false
	}
	at.asked = time.Now()
	return true
}

// useAt uses a store in the database of a row. was is what is known of it, nil for nothing.
func (p *Pool) useAt(ctx context.Context, r Row, was *place) (*database.Store, func(), error) {
	pool, err := p.pool(ctx, r.Database)
	if err != nil {
		return nil, nil, err
	}
	store, release, err := pool.Use(ctx, r.Name)
	if err != nil {
		return nil, nil, err
	}
	if was != nil && was.store == store {
		return store, release, nil
	}
	h, err := database.Engine(store).Home(ctx)
	if err == nil {
		err = r.agrees(h)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places[r.Name] = &place{row: r, store: store}
	return store, release, nil
}

// pool returns the pool of a database.
func (p *Pool) pool(ctx context.Context, name string) (*database.StorePool, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errPoolClosed
	}
	o := p.pools[name]
	if o == nil {
		o = &opened{turn: make(chan struct{}, 1)}
		p.pools[name] = o
	}
	p.mu.Unlock()
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if o.pool != nil {
		return o.pool, nil
	}
	c, err := p.directory.databases.Config(name, "")
	if err != nil {
		return nil, err
	}
	pool, err := database.OpenStores(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("database %q: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(errPoolClosed, pool.Close())
	}
	o.pool = pool
	return pool, nil
}

// known is the pool in which a store was last, nil if it was never found.
func (p *Pool) known(name string) *database.StorePool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.places[name]
	if at == nil || p.pools[at.row.Database] == nil {
		return nil
	}
	return p.pools[at.row.Database].pool
}

// Ready is [database.StorePool.Ready], in the database where the store is.
func (p *Pool) Ready(ctx context.Context, name string) error {
	if pool := p.known(name); pool != nil {
		err := pool.Ready(ctx, name)
		if err == nil || ctx.Err() != nil {
			return err
		}
		_, release, _, found := p.find(ctx, name)
		if found == nil {
			release()
		}
		if p.known(name) == pool && contract.ClassOf(err) != contract.Invalid {
			return err
		}
		return found
	}
	_, release, _, err := p.find(ctx, name)
	if err == nil {
		release()
	}
	return err
}

// IsOpen tells whether a store is open.
func (p *Pool) IsOpen(name string) bool {
	pool := p.known(name)
	return pool != nil && pool.IsOpen(name)
}

// Collector returns the metrics of a store, wherever it is.
func (p *Pool) Collector(name string) prometheus.Collector { return collector{p, name} }

type collector struct {
	p    *Pool
	name string
}

// Describe describes nothing, since what is collected is not always there.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	if pool := c.p.known(c.name); pool != nil {
		pool.Collector(c.name).Collect(metrics)
	}
}

// Close closes all stores, whoever uses them, and the connections. It may be called more than once.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	var open []*database.StorePool
	for _, o := range p.pools {
		if o.pool != nil {
			open = append(open, o.pool)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, pool := range open {
		errs = append(errs, pool.Close())
	}
	return errors.Join(errs...)
}
