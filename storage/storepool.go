package storage

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// unusedFor is how long a store of a StorePool stays open that nobody uses.
const unusedFor = time.Minute

// StorePool has the stores of a database, for a program that serves many of them. A store is opened
// when it is first used, and closed when nobody has used it for a minute. The stores share
// connections. What expires in a closed store is deleted when it is opened again.
type StorePool struct {
	config Config
	db     mvcc.Database
	clock  clock.WithDelayedExecution
	// ctx bounds what the pool does in the background, and work waits for that.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	// mu protects the fields below, and those of the stores. What begins work holds it.
	mu     sync.Mutex
	stores map[string]*pooledStore
	closed bool

	close sync.Once
	// err is what Close returns.
	err error
}

// pooledStore is a store that is open, or is being opened or closed.
type pooledStore struct {
	// settled is closed when the store is open, or could not be opened; err says why.
	settled chan struct{}
	db      *Database
	err     error
	// users are those who use it or wait for it. While they are none, idle is to close it.
	users int
	idle  clock.Timer
	// gone is made when the store begins to close, and closed when that has ended.
	gone chan struct{}
}

// OpenStores connects to a database, of which it opens no store yet. Config.Store and
// Config.StoreFor are not used.
func OpenStores(ctx context.Context, c Config) (*StorePool, error) {
	c = c.withDefaults()
	c.Store, c.StoreFor = "", nil
	db, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	p := &StorePool{config: c, db: db, clock: clock.RealClock{}, stores: map[string]*pooledStore{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// errPoolClosed answers what comes after Close.
var errPoolClosed = errors.New("the stores of the database are closed")

// Use returns a store. It stays open until the caller and all others who use it have released it,
// or the pool is closed. The caller does not close it. To release it twice does nothing.
func (p *StorePool) Use(ctx context.Context, name string) (db *Database, release func(), err error) {
	if err := CheckStoreName(name); err != nil {
		return nil, nil, err
	}
	s, err := p.join(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	release = sync.OnceFunc(func() { p.leave(name, s) })
	select {
	case <-s.settled:
	case <-ctx.Done():
		release()
		return nil, nil, ctx.Err()
	}
	if s.err != nil {
		return nil, nil, s.err
	}
	return s.db, release, nil
}

// join counts the caller as one who uses the store, which may have to be opened, after it has been
// closed.
func (p *StorePool) join(ctx context.Context, name string) (*pooledStore, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, errPoolClosed
		}
		s := p.stores[name]
		if s == nil {
			s = &pooledStore{settled: make(chan struct{})}
			p.stores[name] = s
			p.work.Go(func() { p.open(name, s) })
		}
		if s.dropped() {
			p.shut(name, s)
		}
		if s.gone == nil {
			s.users++
			if s.idle != nil {
				s.idle.Stop()
				s.idle = nil
			}
			p.mu.Unlock()
			return s, nil
		}
		p.mu.Unlock()
		select {
		case <-s.gone:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// leave counts one less.
func (p *StorePool) leave(name string, s *pooledStore) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.users--; s.users == 0 && !p.closed && p.stores[name] == s {
		s.idle = p.clock.AfterFunc(unusedFor, func() { p.expire(name, s) })
	}
}

func (p *StorePool) open(name string, s *pooledStore) {
	defer close(s.settled)
	c := p.config
	c.Store = name
	ctx, cancel := context.WithTimeout(p.ctx, 2*c.Timeout)
	defer cancel()
	s.db, s.err = c.openAnother(ctx, p.db)
	if s.err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.stores, name)
	}
}

// expire closes a store that nobody uses.
func (p *StorePool) expire(name string, s *pooledStore) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.users == 0 && !p.closed {
		p.shut(name, s)
	}
}

// dropped tells whether the store is known to have been dropped. Who still uses it gets errors, and
// there may be another one of its name.
func (s *pooledStore) dropped() bool {
	select {
	case <-s.settled:
	default:
		return false
	}
	if s.err != nil {
		return false
	}
	select {
	case <-s.db.mvcc.Dropped():
		return true
	default:
		return false
	}
}

// shut begins to close a store.
func (p *StorePool) shut(name string, s *pooledStore) {
	if s.gone != nil {
		return
	}
	s.gone = make(chan struct{})
	p.work.Go(func() {
		defer close(s.gone)
		<-s.settled
		if s.err == nil {
			if err := s.db.Close(); err != nil {
				p.config.Logger.Warn("a store was not closed in order", "store", name, "err", err)
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stores[name] == s {
			delete(p.stores, name)
		}
	})
}

// Close closes all stores, whoever uses them, and the connections. It may be called more than once.
func (p *StorePool) Close() error {
	p.close.Do(func() { p.err = p.closeAll() })
	return p.err
}

func (p *StorePool) closeAll() error {
	p.mu.Lock()
	p.closed = true
	open := p.stores
	p.stores = nil
	p.mu.Unlock()
	var errs []error
	p.cancel()
	p.work.Wait()
	for _, s := range open {
		if s.idle != nil {
			s.idle.Stop()
		}
		if s.db != nil {
			errs = append(errs, s.db.Close())
		}
	}
	return errors.Join(append(errs, p.db.Close())...)
}
