package database

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

const (
	// unusedFor is how long a store of a StorePool stays open that nobody uses.
	unusedFor = time.Minute
	// opening is how many stores are opened at a time. One that takes longer than openWait is
	// opened beside these, so that a few slow stores do not keep the others waiting.
	opening  = 8
	openWait = time.Second
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
	config Config
	db     contract.Database
	// after is [time.AfterFunc], or that of a test's clock.
	after func(time.Duration, func()) timer
	// now is [time.Now], or that of a test's clock.
	now func() time.Time
	// ctx bounds what the pool does in the background, and work waits for that.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	// slots has an element for each store that is being opened; see opening.
	slots chan struct{}

	// mu protects the fields below, and those of the stores. A function that begins work holds it.
	mu     sync.Mutex
	stores map[string]*pooledStore
	// due has the closed stores in which there will be something to do.
	due map[string]timer
	// served has the stores that were ever open: leases outlive that.
	served map[string]*contract.Served
	// broken has the stores that have panicked since they were last in order.
	broken map[string]breaks
	closed bool

	// pulse beats by itself, and when a store is closed or opened.
	pulse   *contract.Pulse
	beating sync.WaitGroup

	close sync.Once
	// err is what Close returns.
	err error
}

// pooledStore is a store that is open, or is being opened or closed.
type pooledStore struct {
	// settled is closed when the store is open, or could not be opened; err says why.
	settled chan struct{}
	store   *Store
	err     error
	// opened is when it was opened.
	opened time.Time
	// users are those who use it or wait for it. While they are none, idle is to close it.
	users int
	idle  timer
	// gone is made when the store begins to close, and closed when that has ended.
	gone chan struct{}
	// hurry keeps what is still done before it closes from taking long.
	hurry context.CancelFunc
	// abandoned: nothing is due in it any more.
	abandoned bool
}

// breaks says how often a store has panicked, and how long it stays closed for that.
type breaks struct {
	n     int
	until time.Time
}

const (
	// brokenFor is how long a store stays closed that has panicked twice. It is doubled each time,
	// to longestBroken at most. A store that was open for longer than that is taken for mended.
	brokenFor     = time.Second
	longestBroken = time.Minute
)

// again is after another panic, of a store that was open for a time. What happens once may be the
// fault of a request, and the others who use the store do not wait. What happens again and again
// would cost all processor time there is.
func (b breaks) again(now time.Time, open time.Duration) breaks {
	if open > longestBroken {
		b = breaks{}
	}
	b.n++
	b.until = now
	if b.n > 1 {
		b.until = now.Add(min(brokenFor<<min(b.n-2, 10), longestBroken))
	}
	return b
}

// pulseBeat is how often the pool notes that the process runs.
const pulseBeat = time.Second

// timer is a [time.Timer].
type timer interface{ Stop() bool }

// OpenStores connects to a database, of which it opens no store yet. Config.Store is not used.
func OpenStores(ctx context.Context, c Config) (*StorePool, error) {
	c = c.withDefaults()
	c.Store = ""
	db, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	p := &StorePool{config: c, db: db, stores: map[string]*pooledStore{},
		after: func(d time.Duration, f func()) timer { return time.AfterFunc(d, f) }, now: time.Now,
		due: map[string]timer{}, served: map[string]*contract.Served{}, broken: map[string]breaks{},
		pulse: mvcc.Config{}.NewPulse(), slots: make(chan struct{}, opening)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.beating.Go(p.beat)
	return p, nil
}

// beat notes that the process runs.
func (p *StorePool) beat() {
	ticker := time.NewTicker(pulseBeat)
	defer ticker.Stop()
	for {
		p.pulse.Beat(time.Now())
		select {
		case <-ticker.C:
		case <-p.ctx.Done():
			return
		}
	}
}

// errPoolClosed answers what comes after Close.
var errPoolClosed = errors.New("the stores of the database are closed")

// Use returns a store. It stays open until the caller and all others who use it have released it,
// or the pool is closed. The caller does not close it. To release it twice does nothing.
func (p *StorePool) Use(ctx context.Context, name string) (store *Store, release func(), err error) {
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
	return s.store, release, nil
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
			// Not at each use: the check took a tenth of the processor time of a write
			// through etcd's API.
			err := CheckStoreName(name)
			if err == nil {
				err = p.stillBroken(name)
			}
			if err != nil {
				p.mu.Unlock()
				return nil, err
			}
			s = &pooledStore{settled: make(chan struct{})}
			p.stores[name] = s
			p.wakeIn(name, contract.Never)
			p.work.Go(func() { p.open(name, s) })
		}
		if s.dropped(name) {
			p.shut(name, s)
		}
		if s.gone != nil {
			s.hurry()
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

// stillBroken returns an error if a store is to stay closed, since it has panicked. mu is held.
func (p *StorePool) stillBroken(name string) error {
	left := p.broken[name].until.Sub(p.now())
	if left <= 0 {
		return nil
	}
	return contract.Errorf(contract.Unavailable, "the store %q has failed by a mistake of this program, "+
		"again and again: it is opened anew in %s, and the server's log has the mistake", name,
		max(left.Round(time.Second), time.Second))
}

// breaks notes that a store has panicked. mu is held.
func (p *StorePool) breaks(name string, open time.Duration) {
	p.broken[name] = p.broken[name].again(p.now(), open)
}

// leave counts one less.
func (p *StorePool) leave(name string, s *pooledStore) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	if s.users == 0 && !p.closed && p.stores[name] == s && !s.volatile() {
		s.idle = p.after(unusedFor, func() { p.expire(name, s) })
	}
}

func (p *StorePool) open(name string, s *pooledStore) {
	defer close(s.settled)
	c := p.config
	c.Store = name
	began := p.now()
	p.mu.Lock()
	known := p.served[name] != nil
	if c.served = p.served[name]; c.served == nil {
		c.served = mvcc.Config{}.NewServed(p.now)
	}
	p.mu.Unlock()
	c.served.Wakes(p.pulse.Beat(time.Now()))
	s.err = errPoolClosed
	select {
	case p.slots <- struct{}{}:
		leave := sync.OnceFunc(func() { <-p.slots })
		late := time.AfterFunc(openWait, leave)
		ctx, cancel := context.WithTimeout(p.ctx, 2*c.Timeout)
		s.err = contract.Recovered(func() (err error) {
			s.store, err = c.openAnother(ctx, p.db)
			return err
		})
		cancel()
		late.Stop()
		leave()
	case <-p.ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.served.Waited(p.now().Sub(began))
	if s.err == nil {
		p.served[name], s.opened = c.served, p.now()
		return
	}
	if panicked := (*contract.PanicError)(nil); errors.As(s.err, &panicked) {
		p.config.Logger.Error("a store has panicked while it was opened", "store", name, "panic",
			fmt.Sprint(panicked.Value), "stack", panicked.Stack)
		s.err = contract.Errorf(contract.Unavailable, "the store %q cannot be opened, by a mistake of "+
			"this program: the server's log has it", name)
		p.breaks(name, 0)
	}
	c.served.Lost()
	delete(p.stores, name)
	if known && contract.ClassOf(s.err) != contract.Invalid { // something may be due in it
		p.wakeIn(name, unusedFor)
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

// open is the store if it is open.
func (s *pooledStore) open() *Store {
	if s == nil {
		return nil
	}
	select {
	case <-s.settled:
		return s.store
	default:
		return nil
	}
}

// volatile tells whether the store is open, and gone when it is closed.
func (s *pooledStore) volatile() bool {
	store := s.open()
	return store != nil && store.mvcc.Volatile()
}

// dropped tells whether the store is known to have been dropped, or is broken. Calls that still use
// it get errors, and there may be another one of its name. The default store cannot be dropped:
// another one in its place means another database, and the process is not to serve that unasked.
func (s *pooledStore) dropped(name string) bool {
	store := s.open()
	if store == nil || name == contract.DefaultStore && !store.mvcc.Broken() {
		return false
	}
	select {
	case <-store.mvcc.Dropped():
		return true
	default:
		return false
	}
}

// shut begins to close a store. Work that is due is done before, unless somebody waits for the
// store.
func (p *StorePool) shut(name string, s *pooledStore) {
	if s.gone != nil {
		return
	}
	s.gone = make(chan struct{})
	stops := p.pulse.Beat(time.Now()) // the process may stand still while the store is closed
	ctx, hurry := context.WithTimeout(p.ctx, p.config.Timeout)
	s.hurry = hurry
	p.work.Go(func() {
		defer close(s.gone)
		defer hurry()
		<-s.settled
		next := contract.Never
		if s.err == nil {
			if next = unusedFor; !s.store.mvcc.Broken() {
				next = p.rest(ctx, name, s.store)
			}
			if err := contract.Recovered(s.store.Close); err != nil {
				p.config.Logger.Warn("a store was not closed in order", "store", name, "err", err)
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.err == nil {
			if s.store.mvcc.Broken() {
				p.served[name].Lost() // it may stay closed for whoever asks for it
				p.breaks(name, p.now().Sub(s.opened))
			} else {
				p.served[name].Rests(stops)
				delete(p.broken, name)
			}
		}
		if p.stores[name] == s {
			delete(p.stores, name)
			if s.abandoned {
				next = contract.Never
			}
			p.wakeIn(name, next)
		}
	})
}

// Abandon closes a store, whoever uses it, which is in another database by now.
func (p *StorePool) Abandon(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.stores[name]; s != nil && !p.closed {
		s.abandoned = true
		p.shut(name, s)
		s.hurry()
	}
	p.wakeIn(name, contract.Never)
}

// rest does what is due in a store, and returns the time after which there is more to do. If that
// cannot be done, it is tried again after a while, unless the store is not there any more.
func (p *StorePool) rest(ctx context.Context, name string, store *Store) time.Duration {
	next, err := store.mvcc.Rest(ctx)
	switch {
	case err == nil:
		return max(next, unusedFor)
	case contract.ClassOf(err) == contract.Invalid:
		return contract.Never
	case ctx.Err() == nil:
		p.config.Logger.Warn("what has expired in a store could not be deleted before it was "+
			"closed, or its history not be compacted; trying again later", "store", name, "err", err)
	}
	return unusedFor
}

// wakeIn opens a closed store after a time, and not at the one that was told before. mu is held.
func (p *StorePool) wakeIn(name string, after time.Duration) {
	if due := p.due[name]; due != nil {
		due.Stop()
		delete(p.due, name)
	}
	if p.closed || after == contract.Never {
		return
	}
	p.due[name] = p.after(after, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed {
			p.work.Go(func() { p.wake(name) })
		}
	})
}

// wake opens a store. It does what is due while it is open, and when it is closed again.
func (p *StorePool) wake(name string) {
	_, release, err := p.Use(p.ctx, name)
	if err == nil {
		release()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stores[name] == nil && contract.ClassOf(err) != contract.Invalid {
		p.wakeIn(name, unusedFor)
	}
}

// Ready is [Store.Ready] for a store, which need not be open. It neither opens it nor keeps it
// open: of a store that is closed it finds out whether it is there and can be read.
func (p *StorePool) Ready(ctx context.Context, name string) error {
	p.mu.Lock()
	s, err := p.stores[name], p.stillBroken(name)
	p.mu.Unlock()
	if s == nil && err != nil {
		return err
	}
	if store := s.open(); store != nil {
		if err := store.Ready(ctx); !errors.Is(err, contract.ErrClosed) {
			return err
		}
	}
	b, err := p.db.Store(ctx, name)
	if err != nil {
		return err
	}
	st, err := b.State(ctx)
	if err == nil && st.Dropped() {
		err = contract.NoStore(name)
	}
	return errors.Join(err, b.Close())
}

// IsOpen tells whether a store is open.
func (p *StorePool) IsOpen(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stores[name].open() != nil
}

// Collector returns the metrics of a store, with the label store. There are none while it is
// closed, and counters begin at 0 when it is opened.
func (p *StorePool) Collector(name string) prometheus.Collector { return pooledMetrics{p, name} }

type pooledMetrics struct {
	p    *StorePool
	name string
}

// Describe describes nothing, since what is collected is not always there.
func (m pooledMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (m pooledMetrics) Collect(metrics chan<- prometheus.Metric) {
	m.p.mu.Lock()
	s := m.p.stores[m.name]
	m.p.mu.Unlock()
	if store := s.open(); store != nil {
		prometheus.WrapCollectorWith(prometheus.Labels{"store": m.name}, store.metrics).Collect(metrics)
	}
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
	for _, due := range p.due {
		due.Stop()
	}
	p.mu.Unlock()
	var errs []error
	p.cancel()
	p.work.Wait()
	p.beating.Wait()
	for _, s := range open {
		if s.idle != nil {
			s.idle.Stop()
		}
		if s.store != nil {
			errs = append(errs, s.store.Close())
		}
	}
	return errors.Join(append(errs, p.db.Close())...)
}
