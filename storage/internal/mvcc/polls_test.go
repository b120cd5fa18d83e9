package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// line is what stores share in these tests.
type line struct {
	polls mvcc.Polls
	// statements counts those of all stores, and rounds the polls.
	statements, rounds atomic.Int64
	// bytes is the size of the tables, 0 for that of the store, and sizes counts who asks for it.
	bytes, sizes atomic.Int64
	// before and beforeLook, if not nil, are called with the stores of a round when it begins, and
	// when it is asked what expires next. An error is that of the statement. They are set before
	// the first use.
	before, beforeLook func(ctx context.Context, stores []contract.Backend) error
}

// shared is a backend in memory on a line. It has no notifications.
type shared struct {
	contract.Backend
	line *line
	// polled is what polls ask.
	polled *memdb.Backend
}

// on opens the store of a database.
func (l *line) on(db *memdb.Database) *shared {
	b := db.Open(contract.DriverOptions{})
	b.Hook = func(context.Context, string) error { l.statements.Add(1); return nil }
	return &shared{b, l, db.Open(contract.DriverOptions{})}
}

func (s *shared) Poll(ctx context.Context, stores []contract.Backend, due int) ([]contract.Polled, error) {
	s.line.statements.Add(1)
	before := s.line.before
	if due > 0 {
		before = s.line.beforeLook
	} else {
		s.line.rounds.Add(1)
	}
	if before != nil {
		if err := before(ctx, stores); err != nil {
			return nil, err
		}
	}
	polled := make([]contract.Polled, len(stores))
	for i, b := range stores {
		p, m := &polled[i], b.(*shared).polled
		if p.Quota, p.Generation, p.State, p.Err = m.Quota(ctx); p.Err != nil || i >= due {
			continue
		}
		expired, next, err := m.Expired(ctx, 1)
		switch p.Err = err; {
		case len(expired) > 0:
		case next > 0:
			p.Due = next
		default:
			p.Due = contract.Never
		}
	}
	return polled, nil
}

func (s *shared) Size(ctx context.Context) (contract.Size, error) {
	s.line.sizes.Add(1)
	if bytes := s.line.bytes.Load(); bytes > 0 {
		return contract.Size{Total: bytes, Live: bytes}, nil
	}
	return s.Backend.Size(ctx)
}

// openOn opens a store on a line.
func openOn(t *testing.T, l *line, db *memdb.Database, cfg mvcc.Config) *mvcc.Engine {
	t.Helper()
	cfg.Polls = &l.polls
	s, err := mvcc.Open(t.Context(), l.on(db), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeAll(t *testing.T, stores ...*mvcc.Engine) {
	t.Helper()
	for _, s := range stores {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSizeOfIdleStores: an idle store tells the size of the tables that it shares, within two
// minutes of a change, and many of them ask as often as one or two.
func TestSizeOfIdleStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{}
		var stores []*mvcc.Engine
		var metrics []*mvcc.Metrics
		for i := range 50 {
			m := mvcc.NewMetrics()
			stores = append(stores, openOn(t, l, memdb.New(fmt.Sprint("store", i), time.Now),
				mvcc.Config{Metrics: m}))
			metrics = append(metrics, m)
		}
		for _, bytes := range []int64{1000, 2000, 500} {
			l.bytes.Store(bytes)
			l.sizes.Store(0)
			<-time.After(3 * time.Minute)
			for i, m := range metrics {
				if got := sizeIn(t, m); got != float64(bytes) {
					t.Errorf("the store %d tells %g bytes, want %d", i, got, bytes)
				}
			}
			if n := l.sizes.Load(); n > 8 {
				t.Errorf("the size was asked for %d times in three minutes", n)
			}
		}
		closeAll(t, stores...)
	})
}

// sizeIn is the size in use as the metrics tell it.
func sizeIn(t *testing.T, m *mvcc.Metrics) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if f.GetName() == "rowkeeper_database_bytes" &&
				metric.GetLabel()[0].GetValue() == "live" {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// TestPollsOfBusyStores: a store with events is polled often, and without the idle ones.
func TestPollsOfBusyStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{}
		var together atomic.Int64
		var watching atomic.Bool
		db := memdb.New("busy", time.Now)
		l.before = func(_ context.Context, stores []contract.Backend) error {
			if watching.Load() && len(stores) > 1 && slices.ContainsFunc(stores,
				func(b contract.Backend) bool {
					id, err := b.(*shared).polled.Identity(t.Context())
					return err == nil && id.Store == "busy"
				}) {
				together.Add(1)
			}
			return nil
		}
		stores := []*mvcc.Engine{openOn(t, l, db, mvcc.Config{})}
		for i := range 20 {
			stores = append(stores, openOn(t, l, memdb.New(fmt.Sprint("idle", i), time.Now),
				mvcc.Config{}))
		}
		<-time.After(time.Minute)
		other, err := mvcc.Open(t.Context(), struct{ contract.Backend }{db.Open(contract.DriverOptions{})},
			mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		put(t, other, "/k", 0, "v")
		<-time.After(time.Second)
		watching.Store(true)
		before := l.rounds.Load()
		<-time.After(5 * time.Second)
		watching.Store(false)
		if n := l.rounds.Load() - before; n < 5000/8 {
			t.Errorf("%d rounds in 5 seconds", n)
		}
		if n := together.Load(); n > 0 {
			t.Errorf("the busy store was polled %d times together with idle ones", n)
		}
		closeAll(t, append(stores, other)...)
	})
}

// TestPollsExpire: what another process has written, and has left, expires though this process does
// not look by itself.
func TestPollsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, db := &line{}, memdb.New("store", time.Now)
		s := openOn(t, l, db, mvcc.Config{})
		<-time.After(5 * time.Minute)
		for round := range 5 {
			other, err := mvcc.Open(t.Context(), db.Open(contract.DriverOptions{}), mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Commit(t.Context(), contract.Mutation{Key: "/k", Value: []byte("v"),
				TTL: 2 * time.Second}); err != nil {
				t.Fatal(round, err)
			}
			closeAll(t, other)
			<-time.After(63 * time.Second)
			if kv, _, err := s.Get(t.Context(), "/k"); err != nil || kv != nil {
				t.Errorf("after a minute: %v, %v", kv, err)
			}
			<-time.After(time.Duration(round) * 13 * time.Second)
		}
		closeAll(t, s)
	})
}

// TestPollHangs: each store of a round that hangs finds what is new when the time limit is over, as
// if it had polled by itself. Meanwhile, stores that come later are polled, and stores that close
// do not wait.
func TestPollHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{}
		var hang, hung atomic.Int64
		ended := make(chan error, 1)
		l.before = func(ctx context.Context, stores []contract.Backend) error {
			if hang.Add(-1) != 0 {
				return nil
			}
			hung.Store(int64(len(stores)))
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return contract.Errorf(contract.Unavailable, "no answer: %w", ctx.Err())
		}
		cfg := mvcc.Config{Timeout: 2 * time.Minute, QuotaInterval: time.Hour,
			Compaction: mvcc.CompactionPolicy{Interval: time.Hour}}
		var dbs []*memdb.Database
		var stores []*mvcc.Engine
		add := func() {
			dbs = append(dbs, memdb.New(fmt.Sprint("store", len(dbs)), time.Now))
			stores = append(stores, openOn(t, l, dbs[len(dbs)-1], cfg))
		}
		elsewhere := func(i int, key contract.Key) {
			t.Helper()
			other, err := mvcc.Open(t.Context(), dbs[i].Open(contract.DriverOptions{}), mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			put(t, other, key, 0, "v")
			closeAll(t, other)
		}
		for range 4 {
			add()
		}
		<-time.After(time.Minute)
		hang.Store(1)
		<-time.After(time.Second)
		if n := hung.Load(); n != 4 {
			t.Fatalf("%d stores are in the round that hangs", n)
		}
		for i := range 3 {
			elsewhere(i, "/k")
		}
		add()
		<-time.After(11 * time.Second) // it polls rarely by now
		elsewhere(4, "/k")
		<-time.After(time.Second)
		for i, want := range []contract.Revision{1, 1, 1, 1, 2} {
			if got := stores[i].Delivered(); got != want {
				t.Errorf("while the round hangs, the store %d has delivered %d, want %d", i, got,
					want)
			}
		}
		began := time.Now()
		closeAll(t, stores[3])
		if took := time.Since(began); took > time.Second {
			t.Errorf("a store of the round took %v to close", took)
		}
		<-time.After(10 * time.Second)
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the round ended by %v", err)
		}
		for i := range 3 {
			if got := stores[i].Delivered(); got != 2 {
				t.Errorf("after the round, the store %d has delivered %d", i, got)
			}
			elsewhere(i, "/l")
		}
		<-time.After(time.Second)
		for i := range 3 {
			if got := stores[i].Delivered(); got != 3 {
				t.Errorf("in later rounds, the store %d has delivered %d", i, got)
			}
		}
		// The last store that closes ends the round.
		<-time.After(time.Minute)
		hang.Store(1)
		<-time.After(time.Second)
		began = time.Now()
		closeAll(t, stores...)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stores took %v to close", took)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the round ended by %v", err)
		}
	})
}

// TestLookHangs: where the statement hangs that asks what expires next, no event waits for it, and
// it is not repeated with every round; and who closes last ends it.
func TestLookHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{}
		var looks atomic.Int64
		ended := make(chan error, 100)
		l.beforeLook = func(ctx context.Context, stores []contract.Backend) error {
			looks.Add(1)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return contract.Errorf(contract.Unavailable, "no answer: %w", ctx.Err())
		}
		var dbs []*memdb.Database
		var stores []*mvcc.Engine
		for i := range 3 {
			dbs = append(dbs, memdb.New(fmt.Sprint("store", i), time.Now))
			stores = append(stores, openOn(t, l, dbs[i], mvcc.Config{QuotaInterval: time.Hour,
				Compaction: mvcc.CompactionPolicy{Interval: time.Hour}}))
		}
		<-time.After(40 * time.Second)
		if n := looks.Load(); n == 0 {
			t.Fatal("nobody has asked what expires next")
		}
		for i, db := range dbs {
			other, err := mvcc.Open(t.Context(), db.Open(contract.DriverOptions{}), mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			put(t, other, "/k", 0, "v")
			closeAll(t, other)
			<-time.After(time.Second)
			if got := stores[i].Delivered(); got != 2 {
				t.Errorf("the store %d has delivered %d, want 2", i, got)
			}
		}
		<-time.After(2 * time.Minute)
		if n := looks.Load(); n > 10 {
			t.Errorf("it was asked %d times within three minutes what expires next", n)
		}
		for before := looks.Load(); looks.Load() == before; {
			<-time.After(time.Second)
		}
		began := time.Now()
		closeAll(t, stores...)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stores took %v to close", took)
		}
		var last error
		for len(ended) > 0 {
			last = <-ended
		}
		if !errors.Is(last, context.Canceled) {
			t.Errorf("the last statement ended by %v", last)
		}
	})
}

// polledOnly is a backend without notifications, which counts the rounds that it begins.
type polledOnly struct {
	contract.Backend
	rounds *atomic.Int64
	// most is the number of stores in the largest round.
	most *atomic.Int64
}

func (p polledOnly) Poll(ctx context.Context, stores []contract.Backend, due int) ([]contract.Polled,
	error) {
	p.rounds.Add(1)
	for n := int64(len(stores)); p.most.Load() < n; {
		p.most.Store(n)
	}
	inner := make([]contract.Backend, len(stores))
	for i, b := range stores {
		inner[i] = b.(polledOnly).Backend
	}
	return p.Backend.(contract.Shared).Poll(ctx, inner, due)
}

// TestPollsOfStores: stores that are polled together see what other processes write, each its own;
// one that is fenced or dropped says so, and the others go on.
func TestPollsOfStores(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		if db.Kind == dbtest.SQLite {
			t.Skip("the stores share no connections")
		}
		names := []string{contract.DefaultStore, "team-a", "team-b", "team-c"}
		for _, name := range names {
			createStore(t, db, name)
		}
		connected, err := db.Driver.Connect(t.Context(), db.URL, ofStore(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer connected.Close()
		var rounds, most atomic.Int64
		var polls mvcc.Polls
		stores, watches := map[string]*mvcc.Engine{}, map[string]*mvcc.Watcher{}
		for _, name := range names {
			b, err := connected.Store(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			s, err := mvcc.Open(t.Context(), polledOnly{b, &rounds, &most},
				mvcc.Config{Logger: testLogger(t), PollActive: 20 * time.Millisecond,
					PollIdle: 20 * time.Millisecond, Polls: &polls})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			stores[name], watches[name] = s, w
		}
		others := map[string]*mvcc.Engine{}
		for _, name := range names {
			others[name] = openStore(t, db, name)
		}
		n := 0
		see := func(names ...string) {
			t.Helper()
			n++
			var wg sync.WaitGroup
			for _, name := range names {
				wg.Go(func() {
					if _, err := others[name].Commit(t.Context(), contract.Mutation{
						Key: contract.Key(fmt.Sprint("/", n)), Value: []byte(name)}); err != nil {
						t.Error(name, err)
					}
				})
			}
			wg.Wait()
			for _, name := range names {
				if e := next(t, watches[name], 1); string(e[0].Value) != name {
					t.Errorf("the watch of %s has an event of %s", name, e[0].Value)
				}
			}
		}
		see(names...)
		see(names...)
		if rounds.Load() == 0 {
			t.Error("there was no round")
		}
		for deadline := time.Now().Add(time.Minute); most.Load() < int64(len(names)); {
			if time.Now().After(deadline) {
				t.Fatalf("the largest round had %d stores", most.Load())
			}
			<-time.After(time.Millisecond)
		}
		if _, err := others["team-a"].Fence(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := watches["team-a"].Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("the watch of the store that was fenced: %v", err)
		}
		see(contract.DefaultStore, "team-b", "team-c")
		b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, "team-b"))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := contract.Drop(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		select {
		case <-stores["team-b"].Dropped():
		case <-time.After(time.Minute):
			t.Error("the drop was not noticed")
		}
		see(contract.DefaultStore, "team-c")
		if r := put(t, stores["team-a"], "/after", 0, "v"); r < 1<<32 {
			t.Errorf("the store that was fenced goes on at %d", r)
		}
	})
}
