package directory

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// cut is a driver whose databases can be cut off.
type cut struct {
	contract.Driver
	off *sync.Map // of URLs
}

func (d cut) Connect(ctx context.Context, url string, o contract.DriverOptions) (contract.Database, error) {
	db, err := d.Driver.Connect(ctx, url, o)
	return cutDatabase{db, d.off, url}, err
}

type cutDatabase struct {
	contract.Database
	off *sync.Map
	url string
}

func (d cutDatabase) away() error {
	if _, off := d.off.Load(d.url); off {
		return contract.Errorf(contract.Unavailable, "the database is away")
	}
	return nil
}

func (d cutDatabase) Store(ctx context.Context, name string) (contract.Backend, error) {
	if err := d.away(); err != nil {
		return nil, err
	}
	b, err := d.Database.Store(ctx, name)
	return cutBackend{b, d}, err
}

type cutBackend struct {
	contract.Backend
	db cutDatabase
}

func (b cutBackend) State(ctx context.Context) (contract.State, error) {
	if err := b.db.away(); err != nil {
		return contract.State{}, err
	}
	return b.Backend.State(ctx)
}

func (b cutBackend) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	if err := b.db.away(); err != nil {
		return nil, contract.State{}, err
	}
	return b.Backend.Get(ctx, key)
}

func (b cutBackend) Tail(ctx context.Context, from contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	if err := b.db.away(); err != nil {
		return nil, err
	}
	return b.Backend.Tail(ctx, from, limit, prev)
}

// TestCutOff: a front end that cannot reach the database that a store leaves finds the store where
// it is then, whether it had the store open or not, and its watches end.
func TestCutOff(t *testing.T) {
	w := newWorld(t, of(dbtest.SQLite)...)
	off := &sync.Map{}
	p := w.pool()
	for i := range p.directory.databases.base.Drivers {
		d := &p.directory.databases.base.Drivers[i]
		defer func(whole contract.Driver) { *d = whole }(*d)
		*d = cut{*d, off}
	}
	written := map[string]contract.Revision{}
	for _, name := range []string{"open", "closed", "stays"} {
		_, err := w.d.Create(w.ctx, name, "a")
		w.must(err)
		written[name] = w.put(p, name, "k", "v", 0)
	}
	p.known("closed").Abandon("closed")
	s, release, err := p.Use(w.ctx, "open")
	w.must(err)
	defer release()
	watcher, err := database.Engine(s).Watch(w.ctx, mvcc.WatchOptions{Key: "k", After: written["open"]})
	w.must(err)
	defer watcher.Close()
	c, err := w.databases.Config("a", "")
	w.must(err)
	off.Store(c.URL, true)
	mover := w.open() // by another network
	mover.databases = &Databases{file: w.databases.file, base: w.databases.base}
	mover.databases.base.Drivers = []contract.Driver{w.databases.base.Drivers[0].(cut).Driver}
	for _, name := range []string{"open", "closed"} {
		_, err := mover.MoveTo(w.ctx, name, "b", MoveOptions{})
		w.must(err)
	}
	for name, want := range map[string]string{"open": "b", "closed": "b", "stays": "a"} {
		for {
			s, release, err := p.Use(w.ctx, name)
			if err == nil && want == "b" {
				kv, _, getErr := database.Engine(s).Get(w.ctx, "k")
				if err = getErr; err == nil && (kv == nil || kv.Revision != written[name]) {
					t.Errorf("%s has %+v, want revision %d", name, kv, written[name])
				}
			}
			if release != nil {
				release()
			}
			if err == nil || w.ctx.Err() != nil || want == "a" && contract.ClassOf(err) == contract.Unavailable {
				break
			}
		}
		if at := p.places[name].row.Database; at != want {
			t.Errorf("%s is looked for in %s", name, at)
		}
		if err := p.Ready(w.ctx, name); (err == nil) != (want == "b") {
			t.Errorf("%s is ready: %v", name, err)
		}
	}
	for err == nil {
		_, err = watcher.Next(w.ctx)
	}
	if !errors.Is(err, contract.ErrClosed) && !errors.Is(err, contract.ErrDropped) {
		t.Errorf("the watch ends with %v", err)
	}
}
