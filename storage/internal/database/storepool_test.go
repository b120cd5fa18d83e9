package database

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// openPool opens the stores of a new database, of which it creates some, with a clock.
func openPool(t *testing.T, d dbtest.DB, names ...string) (*StorePool, *clocktesting.FakeClock) {
	t.Helper()
	c := Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Migrate: true}
	for _, c.Store = range names {
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	clock := clocktesting.NewFakeClock(time.Now())
	return openAt(t, c, clock), clock
}

func openAt(t *testing.T, c Config, clock *clocktesting.FakeClock) *StorePool {
	t.Helper()
	p, err := OpenStores(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	p.after = func(d time.Duration, f func()) timer { return clock.AfterFunc(d, f) }
	p.now = clock.Now
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// openNow is how many stores are open.
func (p *StorePool) openNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.stores)
}

// TestStorePool: a store is opened once for all who use it, and closed a minute after the last one
// has released it; then the next one opens it anew.
func TestStorePool(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, clock := openPool(t, d, "team-a", "team-b")
		if p.openNow() != 0 {
			t.Error("a store is open that nobody uses")
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		var found []*Store
		var releases []func()
		for range 8 {
			wg.Go(func() {
				store, release, err := p.Use(t.Context(), "team-a")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				found, releases = append(found, store), append(releases, release)
			})
		}
		wg.Wait()
		for _, store := range found {
			if store != found[0] {
				t.Error("a store was opened twice")
			}
		}
		write := func(store *Store, key contract.Key) {
			t.Helper()
			if _, err := store.mvcc.Commit(t.Context(), contract.Mutation{Key: key,
				Value: []byte("v")}); err != nil {
				t.Error(err)
			}
		}
		write(found[0], "/a")
		b, releaseB, err := p.Use(t.Context(), "team-b")
		if err != nil {
			t.Fatal(err)
		}
		write(b, "/b")
		for _, release := range releases[1:] {
			release()
			release() // which does nothing
		}
		clock.Step(2 * unusedFor)
		write(found[0], "/used")
		releases[0]()
		again, release, err := p.Use(t.Context(), "team-a")
		if err != nil || again != found[0] {
			t.Fatalf("a store was closed at once: %v", err)
		}
		clock.Step(2 * unusedFor)
		write(again, "/used-again")
		release()
		clock.Step(unusedFor)
		again, release, err = p.Use(t.Context(), "team-a")
		if err != nil || again == found[0] {
			t.Fatalf("a store that nobody used was not closed: %v", err)
		}
		if _, err := found[0].mvcc.Head(t.Context()); !errors.Is(err, contract.ErrClosed) {
			t.Errorf("the closed store: %v", err)
		}
		write(again, "/anew")
		release()
		write(b, "/b-goes-on")
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.mvcc.Head(t.Context()); !errors.Is(err, contract.ErrClosed) {
			t.Errorf("after the pool was closed: %v", err)
		}
		releaseB()
		if _, _, err := p.Use(t.Context(), "team-a"); !errors.Is(err, errPoolClosed) {
			t.Errorf("after the pool was closed: %v", err)
		}
	})
}

// TestStorePoolWakes: a closed store is opened again when something expires in it, and when its
// history may be compacted, and else stays closed.
func TestStorePoolWakes(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, clock := openPool(t, d, "team-a")
		ownClock := d.Kind == dbtest.SQLite // the others expire by the server's
		if ownClock {
			p = openAt(t, Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Clock: clock.Now}, clock)
		}
		p.config.Compaction = CompactionPolicy{Keep: 1}
		use := func(f func(*mvcc.Engine)) {
			t.Helper()
			store, release, err := p.Use(t.Context(), "team-a")
			if err != nil {
				t.Fatal(err)
			}
			f(store.mvcc)
			release()
			p.closes(t, clock)
		}
		commit := func(s *mvcc.Engine, m contract.Mutation) {
			t.Helper()
			if _, err := s.Commit(t.Context(), m); err != nil {
				t.Error(err)
			}
		}
		use(func(*mvcc.Engine) {})
		p.sleeps(t, clock, 24*time.Hour)
		use(func(s *mvcc.Engine) {
			commit(s, contract.Mutation{Key: "/stays", Value: []byte("v")})
			commit(s, contract.Mutation{Key: "/goes", Value: []byte("v"), TTL: 9 * time.Minute})
		})
		p.sleeps(t, clock, 8*time.Minute)
		p.wakes(t, clock, time.Minute)
		p.closes(t, clock)
		if !ownClock {
			return // by the server's clock, nothing has expired yet, and nothing is old
		}
		is := func(goes bool, swept contract.Revision) {
			t.Helper()
			b := aDatabase{t, p.config}.backend("team-a")
			row, st, err := b.Get(t.Context(), "/goes")
			if err != nil || row != nil != goes || st.Swept != swept {
				t.Errorf("%+v is there, and the store is swept up to %d, %v", row, st.Swept, err)
			}
		}
		is(false, 3) // the fourth row is the deletion
		p.sleeps(t, clock, 24*time.Hour)
		use(func(s *mvcc.Engine) {
			for range 3 {
				commit(s, contract.Mutation{Key: "/goes", Expect: contract.Any, Value: []byte("v")})
			}
		})
		is(true, 4)
		p.sleeps(t, clock, 9*time.Minute)
		p.wakes(t, clock, time.Minute)
		p.closes(t, clock)
		is(true, 6)
		p.sleeps(t, clock, 24*time.Hour)
	})
}

// TestStorePoolRests: what can be done at once is done before a store is closed, and so it stays
// closed.
func TestStorePoolRests(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, clock := openPool(t, d, "team-a")
		p.config.Compaction = CompactionPolicy{Keep: 1, Window: time.Nanosecond}
		store, release, err := p.Use(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := store.mvcc.Commit(t.Context(), contract.Mutation{Key: "/k", Expect: contract.Any,
				Value: []byte("v")}); err != nil {
				t.Fatal(err)
			}
		}
		release()
		p.closes(t, clock)
		st, err := (aDatabase{t, p.config}).backend("team-a").State(t.Context())
		if err != nil || st.Swept != st.Head.Revision-1 {
			t.Errorf("the store is swept up to %d of %d, %v", st.Swept, st.Head.Revision, err)
		}
		p.sleeps(t, clock, 24*time.Hour)
	})
}

// withLease opens a store in which the lease 7 has nine minutes.
func withLease(t *testing.T) (p *StorePool, clock *clocktesting.FakeClock, store *Store,
	release func()) {
	t.Helper()
	d := dbtest.Open(t, dbtest.SQLite)
	created, clock := openPool(t, d, "team-a")
	if err := created.Close(); err != nil {
		t.Fatal(err)
	}
	p = openAt(t, Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Clock: clock.Now}, clock)
	store, release, err := p.Use(t.Context(), "team-a")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.mvcc.GrantLease(t.Context(), 7, 9*60); err != nil {
		t.Fatal(err)
	}
	return p, clock, store, release
}

// TestStorePoolLeases: a lease lapses in a closed store, too. That nobody had the store open is no
// outage: whoever had asked for it would have got it.
func TestStorePoolLeases(t *testing.T) {
	p, clock, store, release := withLease(t)
	if _, err := store.mvcc.Commit(t.Context(), contract.Mutation{Key: "/k", Lease: 7}); err != nil {
		t.Fatal(err)
	}
	release()
	p.closesNow(t)
	p.sleeps(t, clock, 8*time.Minute)
	p.wakes(t, clock, time.Minute)
	p.closesNow(t)
	b := aDatabase{t, p.config}.backend("team-a")
	row, _, err := b.Get(t.Context(), "/k")
	n, _, countErr := b.CountLeases(t.Context())
	if err := errors.Join(err, countErr); err != nil || row != nil || n != 0 {
		t.Errorf("the key is %+v, and there are %d leases, %v", row, n, err)
	}
	p.sleeps(t, clock, 24*time.Hour)
}

// closes lets the time pass after which an unused store is closed.
func (p *StorePool) closes(t *testing.T, clock *clocktesting.FakeClock) {
	t.Helper()
	clock.Step(unusedFor)
	p.work.Wait()
	if p.openNow() != 0 {
		t.Fatal("a store that nobody uses is open")
	}
}

// closesNow closes the stores that nobody uses, without a minute's passing: what an open store has
// asked the database before would be answered after that.
func (p *StorePool) closesNow(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	open := maps.Clone(p.stores)
	p.mu.Unlock()
	for name, s := range open {
		p.expire(name, s)
	}
	p.work.Wait()
	if p.openNow() != 0 {
		t.Fatal("a store that nobody uses is open")
	}
}

// sleeps lets time pass in which no store is opened.
func (p *StorePool) sleeps(t *testing.T, clock *clocktesting.FakeClock, d time.Duration) {
	t.Helper()
	clock.Step(d)
	p.work.Wait()
	if p.openNow() != 0 {
		t.Fatalf("a store was opened within %v", d)
	}
}

// wakes lets time pass in which a store is opened.
func (p *StorePool) wakes(t *testing.T, clock *clocktesting.FakeClock, d time.Duration) {
	t.Helper()
	clock.Step(d + time.Second)
	p.work.Wait()
	if p.openNow() != 1 {
		t.Fatalf("no store was opened within %v", d)
	}
}

// TestStorePoolErrors: what cannot be opened is tried again by the next one who asks for it, and
// who gives up leaves nothing behind.
func TestStorePoolErrors(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	p, _ := openPool(t, d)
	for _, name := range []string{"", "no_name", "unknown"} {
		if store, _, err := p.Use(t.Context(), name); err == nil || store != nil {
			t.Errorf("the store %q is open", name)
		}
	}
	if n := p.openNow(); n != 0 {
		t.Errorf("%d stores are open", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, release, err := p.Use(ctx, contract.DefaultStore); err == nil {
		release()
	} else if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, release, err := p.Use(t.Context(), contract.DefaultStore); err != nil {
		t.Error(err)
	} else {
		release()
	}
}

// TestStorePoolRace: stores are used, released and closed by many at the same time, and each use
// has an open store.
func TestStorePoolRace(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	names := []string{"team-a", "team-b", "team-c"}
	p, clock := openPool(t, d, names...)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				store, release, err := p.Use(t.Context(), names[(i+j)%len(names)])
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := store.mvcc.Commit(t.Context(), contract.Mutation{
					Key: contract.Key(fmt.Sprint("/", i, "/", j)), Value: []byte("v")}); err != nil {
					t.Error(err)
				}
				release()
				clock.Step(unusedFor)
			}
		})
	}
	wg.Wait()
}

// TestStorePoolDropped: a store that was dropped and created anew is another one for those who use
// it next, also if the old one is still used.
func TestStorePoolDropped(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, _ := openPool(t, d, "team-a")
		old, release, err := p.Use(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		c := Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Store: "team-a"}
		if _, err := DropStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if _, err := old.mvcc.Head(t.Context()); !errors.Is(err, contract.ErrDropped) {
			t.Fatalf("the dropped store: %v", err)
		}
		<-old.mvcc.Dropped()
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		next, releaseNext, err := p.Use(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		defer releaseNext()
		if _, err := next.mvcc.Commit(t.Context(), contract.Mutation{Key: "/a",
			Value: []byte("v")}); err != nil {
			t.Error(err)
		}
	})
}

// TestStorePoolReady: a probe tells whether a store can be used, and neither opens it nor keeps it
// open. Metrics are there while it is open.
func TestStorePoolReady(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		p, clock := openPool(t, d, "team-a")
		metrics := func() int {
			t.Helper()
			n, err := testutil.GatherAndCount(gatherer(t, p.Collector("team-a")))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if err := p.Ready(t.Context(), "team-a"); err != nil {
			t.Error(err)
		}
		if n := p.openNow(); n != 0 || metrics() != 0 {
			t.Errorf("%d stores are open, with %d metrics", n, metrics())
		}
		if err := p.Ready(t.Context(), "team-b"); contract.ClassOf(err) != contract.Invalid {
			t.Errorf("a store that is not there: %v", err)
		}
		_, release, err := p.Use(t.Context(), "team-a")
		if err != nil {
			t.Fatal(err)
		}
		if metrics() == 0 {
			t.Error("an open store has no metrics")
		}
		release()
		clock.Step(unusedFor - time.Second)
		if err := p.Ready(t.Context(), "team-a"); err != nil {
			t.Error(err)
		}
		clock.Step(time.Second)
		p.work.Wait()
		if n := p.openNow(); n != 0 || metrics() != 0 {
			t.Errorf("%d stores are open, with %d metrics", n, metrics())
		}
		if _, err := DropStore(t.Context(), Config{URL: d.URL, Drivers: []contract.Driver{d.Driver},
			Store: "team-a"}); err != nil {
			t.Fatal(err)
		}
		if err := p.Ready(t.Context(), "team-a"); contract.ClassOf(err) != contract.Invalid {
			t.Errorf("a store that was dropped: %v", err)
		}
	})
}

func gatherer(t *testing.T, c prometheus.Collector) prometheus.Gatherer {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestStorePoolInMemory: a store in memory would be gone when it is closed, so it stays open.
func TestStorePoolInMemory(t *testing.T) {
	p, clock := openPool(t, dbtest.Open(t, dbtest.Memory))
	use := func(f func(*mvcc.Engine) error) {
		t.Helper()
		store, release, err := p.Use(t.Context(), contract.DefaultStore)
		if err != nil {
			t.Fatal(err)
		}
		if err := f(store.mvcc); err != nil {
			t.Error(err)
		}
		release()
	}
	use(func(s *mvcc.Engine) error {
		_, err := s.Commit(t.Context(), contract.Mutation{Key: "/a", Value: []byte("v")})
		return err
	})
	clock.Step(2 * unusedFor)
	p.work.Wait()
	use(func(s *mvcc.Engine) error {
		kv, _, err := s.Get(t.Context(), "/a")
		if err == nil && kv == nil {
			err = errors.New("what was written is gone")
		}
		return err
	})
}

// TestStorePoolSlowOpening: stores that take long to open do not keep others from being opened.
func TestStorePoolSlowOpening(t *testing.T) {
	const slow = 2 * opening
	stuck := make(chan struct{})
	d := memdb.New(t.Name(), time.Now)
	p, err := OpenStores(t.Context(), Config{URL: "memdb:", Migrate: true,
		Drivers: []contract.Driver{stuckDriver{d, stuck}}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		close(stuck)
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range slow {
		wg.Go(func() {
			if _, release, err := p.Use(context.Background(), fmt.Sprint("slow-", i)); err == nil {
				release()
			}
		})
	}
	_, release, err := p.Use(t.Context(), contract.DefaultStore)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

// stuckDriver opens stores other than the default one when it may.
type stuckDriver struct {
	*memdb.Database
	may <-chan struct{}
}

func (d stuckDriver) Connect(ctx context.Context, url string,
	o contract.DriverOptions) (contract.Database, error) {
	db, err := d.Database.Connect(ctx, url, o)
	return stuckDatabase{db, d.may}, err
}

type stuckDatabase struct {
	contract.Database
	may <-chan struct{}
}

func (d stuckDatabase) Store(ctx context.Context, name string) (contract.Backend, error) {
	if name != contract.DefaultStore {
		select {
		case <-d.may:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return d.Database.Store(ctx, name)
}

// TestBreaks: how long a store stays closed that has panicked, by how long it was open before.
func TestBreaks(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := breaks{}
	for i, test := range []struct{ open, want time.Duration }{{0, 0}, {0, time.Second},
		{time.Minute, 2 * time.Second}, {0, 4 * time.Second}, {0, 8 * time.Second}, {0, 16 * time.Second},
		{0, 32 * time.Second}, {0, time.Minute}, {0, time.Minute}, {time.Minute + 1, 0},
		{0, time.Second}} {
		b = b.again(now, test.open)
		if got := b.until.Sub(now); got != test.want {
			t.Errorf("panic %d: the store stays closed for %s, want %s", i, got, test.want)
		}
	}
	b.n = 1_000_000
	if got := b.again(now, 0).until.Sub(now); got != longestBroken {
		t.Errorf("in the end it stays closed for %s", got)
	}
}

// panics is a driver whose stores panic while they are opened.
type panics struct {
	*memdb.Database
	armed  *atomic.Bool
	opened *atomic.Int64
}

func (d panics) Connect(ctx context.Context, url string,
	o contract.DriverOptions) (contract.Database, error) {
	db, err := d.Database.Connect(ctx, url, o)
	return throughDatabase{db, func(b contract.Backend) contract.Backend {
		b.(*memdb.Backend).Hook = func(_ context.Context, method string) error {
			if method == "State" && d.armed.Load() {
				d.opened.Add(1)
				panic("planted")
			}
			return nil
		}
		return b
	}}, err
}

// TestStorePoolPanics: a store that panics while it is opened, or soon after, ends neither the
// process nor another store, and is opened again at once, and then ever more rarely.
func TestStorePoolPanics(t *testing.T) {
	var armed atomic.Bool
	var opened atomic.Int64
	d := memdb.New(t.Name(), time.Now)
	clock := clocktesting.NewFakeClock(time.Now())
	p := openAt(t, Config{URL: "memdb:", Migrate: true, Logger: slog.New(slog.DiscardHandler),
		Drivers: []contract.Driver{panics{d, &armed, &opened}}}, clock)
	use := func() (*Store, error) {
		store, release, err := p.Use(t.Context(), contract.DefaultStore)
		if err == nil {
			release()
		}
		return store, err
	}
	fails := func(opens int64, words string) {
		t.Helper()
		before := opened.Load()
		_, err := use()
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
		if n := opened.Load() - before; n != opens {
			t.Errorf("it was opened %d times", n)
		}
	}
	armed.Store(true)
	fails(1, "cannot be opened")
	fails(1, "cannot be opened")
	fails(0, "opened anew in 1s")
	if err := p.Ready(t.Context(), contract.DefaultStore); err == nil {
		t.Error("it is ready")
	}
	clock.Step(time.Second)
	fails(1, "cannot be opened")
	clock.Step(time.Second)
	fails(0, "opened anew in 1s")
	clock.Step(time.Second)
	armed.Store(false)
	store, err := use()
	if err != nil {
		t.Fatal(err)
	}
	store.mvcc.Break()
	fails(0, "opened anew in 4s")
	clock.Step(4 * time.Second)
	if store, err = use(); err != nil {
		t.Fatal(err)
	}
	clock.Step(longestBroken + time.Second)
	store.mvcc.Break()
	if store, err = use(); err != nil || store.mvcc.Broken() {
		t.Errorf("after a long time it is not opened at once: %v", err)
	}
}

// closing is a backend that calls close before it closes.
type closing struct {
	contract.Backend
	close func()
}

func (b closing) Close() error {
	b.close()
	return b.Backend.Close()
}

// TestStorePoolStandsStill: that nobody had a store open is an outage if the process stood still
// meanwhile, or while it closed the store: whoever had asked for the store would not have got it.
func TestStorePoolStandsStill(t *testing.T) {
	for _, whileClosing := range []bool{false, true} {
		p, clock, _, release := withLease(t)
		release()
		p.closesNow(t)
		standStill := func() { p.pulse.Beat(time.Now().Add(time.Hour)) } // as if the last one was an hour ago
		if whileClosing {
			p.db = throughDatabase{p.db, func(b contract.Backend) contract.Backend {
				return closing{b, standStill}
			}}
			if _, release, err := p.Use(t.Context(), "team-a"); err != nil {
				t.Fatal(err)
			} else {
				release()
			}
			p.closesNow(t)
		} else {
			standStill()
		}
		p.wakes(t, clock, 9*time.Minute)
		stillHasLease(t, p)
	}
}

// stillHasLease: the lease of withLease has its whole time again.
func stillHasLease(t *testing.T, p *StorePool) {
	t.Helper()
	store, release, err := p.Use(t.Context(), "team-a")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, left, _, err := store.mvcc.LeaseOf(t.Context(), 7); err != nil || left < 8*time.Minute {
		t.Errorf("the lease lasts %s, %v", left, err)
	}
}

// TestStorePoolStaysClosed: that a store stays closed since it has panicked is an outage, also if
// an answer comes when it is being closed: whoever asks for the store does not get it.
func TestStorePoolStaysClosed(t *testing.T) {
	p, clock, store, release := withLease(t)
	store.mvcc.Break()
	p.mu.Lock()
	p.broken["team-a"] = breaks{n: 10}
	p.served["team-a"].Answered(clock.Now())
	p.mu.Unlock()
	release()
	p.closesNow(t)
	if _, _, err := p.Use(t.Context(), "team-a"); err == nil {
		t.Fatal("a store that has panicked again and again is open")
	}
	clock.Step(9*time.Minute + time.Second)
	p.work.Wait()
	stillHasLease(t, p)
}
