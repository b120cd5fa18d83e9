package sqlite

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/backendtest"
)

func options(t testing.TB) contract.DriverOptions {
	return contract.DriverOptions{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Timeout: 30 * time.Second}
}

// fresh makes a migrated database and returns its URL.
func fresh(t testing.TB) string {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
	migrate(t, url)
	return url
}

func migrate(t testing.TB, url string) {
	t.Helper()
	if _, err := Driver.Migrate(context.Background(), url, options(t)); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, url string) contract.Backend {
	t.Helper()
	b, err := contract.OpenBackend(context.Background(), Driver, url, options(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Run("File", func(t *testing.T) {
		backendtest.Run(t, func(t testing.TB) backendtest.Subject {
			url := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
			return backendtest.OfStore(t, Driver, url, options)
		})
	})
	t.Run("Memory", func(t *testing.T) {
		backendtest.Run(t, func(t testing.TB) backendtest.Subject {
			return backendtest.Subject{Open: func(t testing.TB) contract.Backend {
				return open(t, "memory:")
			}, Private: true}
		})
	})
}

func TestClock(t *testing.T) {
	ctx := context.Background()
	for _, url := range []string{fresh(t), "memory:"} {
		c := &clock{}
		c.now.Store(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC).UnixMicro())
		opts := options(t)
		opts.Now = c.Now
		b, err := contract.OpenBackend(ctx, Driver, url, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		st, err := b.State(ctx)
		if err != nil || !st.Now.Equal(c.Now()) {
			t.Fatalf("now is %v, %v, want %v", st.Now, err, c.Now())
		}
		r, err := b.Commit(ctx, &contract.Group{Token: newToken(), Seen: st.Head,
			Mutations: []*contract.Mutation{
				{Key: "a", TTL: time.Minute}, {Key: "b", TTL: time.Second}, {Key: "c"},
			}})
		if err != nil || !r.Time.Equal(c.Now()) {
			t.Fatalf("the group's time is %+v, %v", r, err)
		}
		for _, step := range []struct {
			advance time.Duration
			expired string
			next    time.Duration
		}{
			{0, "", time.Second},
			{time.Second - time.Microsecond, "", time.Microsecond},
			{time.Microsecond, "b", 59 * time.Second},
			{59*time.Second - time.Microsecond, "b", time.Microsecond},
			{time.Microsecond, "ba", 0},
		} {
			c.advance(step.advance)
			keys, next, err := b.Expired(ctx, 10)
			got := ""
			for _, k := range keys {
				got += string(k.Key)
			}
			if err != nil || got != step.expired || next != step.next {
				t.Errorf("%s: after %v %q have expired and the next does in %v, %v, want %+v", url,
					step.advance, got, next, err, step)
			}
		}
		row, err := b.FirstAt(ctx, r.Before.Revision+1)
		if err != nil || !row.Time.Equal(r.Time) {
			t.Errorf("the row is %+v, %v, want time %v", row, err, r.Time)
		}
	}
}

// TestPools: connections are opened when they are needed, no more than are in use at once, and none
// is lost.
func TestPools(t *testing.T) {
	ctx := context.Background()
	b := open(t, fresh(t)+"?readers=3").(*backend)
	defer b.Close()
	f := filler{store: b, value: []byte("v")}
	f.grow(t, 10)
	f.update(t, 5)
	for range 10 {
		if _, err := b.Page(ctx, contract.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if _, n := b.reads.Usage(); n != 1 {
		t.Errorf("reads one after the other have opened %d connections", n)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := b.Page(ctx, contract.PageQuery{Start: "/", End: "0", Limit: 10}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := map[string]int{"commit": 1, "head": 1, "tail": 2, "read": 3, "poll": 1}
	for _, p := range b.Pools() {
		if p.InUse != 0 || p.Max != want[p.Name] || p.Idle > p.Max ||
			p.Name == "commit" && p.Idle != 1 || p.Name == "poll" && p.Idle != 0 {
			t.Errorf("the pool is %+v", p)
		}
		delete(want, p.Name)
	}
	if len(want) != 0 {
		t.Errorf("there are no pools %v", want)
	}
	c, err := b.reads.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if inUse, _ := b.reads.Usage(); inUse != 1 {
		t.Errorf("%d connections are in use", inUse)
	}
	c.Broken = true
	b.reads.Put(c)
	if inUse, idle := b.reads.Usage(); inUse != 0 || idle > 2 {
		t.Errorf("%d connections are in use, %d idle", inUse, idle)
	}
}

// TestClosed: an operation that comes after Close opens no connection, and so leaves no file of
// SQLite's behind.
func TestClosed(t *testing.T) {
	for _, url := range []string{fresh(t), "memory:"} {
		b := open(t, url).(*backend)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		m := &moving{b: b}
		for name, do := range m.operations() {
			if name == "Changed" && b.cfg.memory() {
				continue // nobody else writes there, so it asks nobody
			}
			if err := do(); contract.ClassOf(err) != contract.Unavailable || err == nil ||
				!strings.Contains(err.Error(), "was closed") {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
		for _, p := range b.pools() {
			if _, n := p.Usage(); n != 0 {
				t.Errorf("%d connections of the pool %s are open after Close", n, p.name)
			}
		}
	}
}

// clock is a clock that stands still until it is moved.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time { return time.UnixMicro(c.now.Load()).UTC() }

func (c *clock) advance(d time.Duration) { c.now.Add(d.Microseconds()) }
