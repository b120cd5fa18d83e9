package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// world is a control database and the databases "a", "b" and "c".
type world struct {
	*testing.T
	ctx       context.Context
	control   Config
	databases *Databases
	d         *Directory
}

// newWorld makes databases of the kinds: the control database, and then the others.
func newWorld(t *testing.T, kinds ...dbtest.Kind) *world {
	t.Helper()
	w := &world{T: t, ctx: t.Context()}
	drivers := map[string]contract.Driver{}
	var lines strings.Builder
	for i, kind := range kinds {
		db := dbtest.Open(t, kind)
		drivers[db.Driver.Name()] = db.Driver
		if i == 0 {
			w.control.URL = db.URL
		} else {
			fmt.Fprintf(&lines, "%c %s\n", 'a'+i-1, db.URL)
		}
	}
	base := Config{Migrate: true, Logger: slog.New(slog.DiscardHandler),
		Compaction: database.CompactionPolicy{Window: -1}}
	for _, driver := range drivers {
		base.Drivers = append(base.Drivers, driver)
	}
	base.URL, w.control = w.control.URL, base
	w.control.URL = base.URL
	file := filepath.Join(t.TempDir(), "databases")
	w.must(os.WriteFile(file, []byte("# a comment\n\n"+lines.String()), 0o600))
	var err error
	w.databases, err = ReadDatabases(file, base)
	w.must(err)
	names, err := w.databases.Names()
	w.must(err)
	for _, name := range names {
		c, err := w.databases.Config(name, "")
		w.must(err)
		_, err = database.Migrate(w.ctx, c)
		w.must(err)
	}
	w.d = w.open()
	return w
}

// of are a control database and three others of a kind.
func of(kind dbtest.Kind) []dbtest.Kind { return []dbtest.Kind{kind, kind, kind, kind} }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// open opens the directory once more, as another process does.
func (w *world) open() *Directory {
	w.Helper()
	d, err := OpenDirectory(w.ctx, w.control, w.databases)
	w.must(err)
	w.Cleanup(func() {
		if err := d.Close(); err != nil {
			w.Error(err)
		}
	})
	return d
}

// pool is a front end.
func (w *world) pool() *Pool {
	w.Helper()
	p := NewPool(w.open())
	w.Cleanup(func() {
		if err := p.Close(); err != nil {
			w.Error(err)
		}
	})
	return p
}

// put writes a key that is at a revision, and returns the new one.
func (w *world) put(p *Pool, store, key, value string, expect contract.Revision) contract.Revision {
	w.Helper()
	var at contract.Revision
	w.must(tried(w.ctx, func() (err error) {
		at, err = put(w.ctx, p, store, key, value, expect)
		return err
	}))
	return at
}

// tried does something again as clients do, which a front end refuses that has just found out that
// a store has left a database.
func tried(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, contract.ErrDropped) || ctx.Err() != nil {
			return err
		}
	}
}

func put(ctx context.Context, p *Pool, store, key, value string,
	expect contract.Revision) (contract.Revision, error) {
	s, release, err := p.Use(ctx, store)
	if err != nil {
		return 0, err
	}
	defer release()
	return database.Engine(s).Commit(ctx, contract.Mutation{Key: contract.Key(key), Expect: expect,
		Value: []byte(value)})
}

func (w *world) get(p *Pool, store, key string) *mvcc.KeyValue {
	w.Helper()
	var kv *mvcc.KeyValue
	w.must(tried(w.ctx, func() error {
		s, release, err := p.Use(w.ctx, store)
		if err != nil {
			return err
		}
		defer release()
		kv, _, err = database.Engine(s).Get(w.ctx, contract.Key(key))
		return err
	}))
	return kv
}

// row checks the row of a store.
func (w *world) row(name string, state State, database string, generation int64) Row {
	w.Helper()
	r, err := w.d.Get(w.ctx, name)
	w.must(err)
	if r.State != state || r.Database != database || r.Generation != generation {
		w.Fatalf("the row is %+v, want %s in %s with generation %d", r, state, database, generation)
	}
	return r
}

// backend is a store of a database, below all that heeds the directory.
func (w *world) backend(in, store string) contract.Backend {
	w.Helper()
	c, err := w.databases.Config(in, store)
	w.must(err)
	b, err := database.OpenBackend(w.ctx, c)
	w.must(err)
	w.Cleanup(func() { b.Close() })
	return b
}

// TestMove: a store moves with all that it has, there and back, and a front end that has it open
// follows.
func TestMove(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t, of(kind)...)
			_, err := w.d.Create(w.ctx, "blue", "a")
			w.must(err)
			w.row("blue", Open, "a", 1)
			p := w.pool()
			first := w.put(p, "blue", "k", "one", 0)
			other := w.put(p, "blue", "gone", "x", 0)
			s, release, err := p.Use(w.ctx, "blue")
			w.must(err)
			e := database.Engine(s)
			_, err = e.Commit(w.ctx, contract.Mutation{Key: "gone", Expect: other, Delete: true})
			w.must(err)
			_, _, err = e.GrantLease(w.ctx, 7, 3600)
			w.must(err)
			leased, err := e.Commit(w.ctx, contract.Mutation{Key: "leased", Lease: 7, Value: []byte("l")})
			w.must(err)
			watcher, err := e.Watch(w.ctx, mvcc.WatchOptions{Key: "k", After: leased})
			w.must(err)
			defer watcher.Close()
			id, err := e.Identity(w.ctx)
			w.must(err)
			shelf := contract.Directory{Path: "/shelf/", Group: "g", Resource: "shelves", Scope: "Namespaced"}
			declare := func(name string) func(x *contract.Indexes) (bool, error) {
				return func(x *contract.Indexes) (bool, error) { return true, x.Add(shelf, name) }
			}
			_, err = contract.ChangeIndexes(w.ctx, w.backend("a", "blue"), declare("label:color"))
			w.must(err)
			w.must(contract.SetQuota(w.ctx, w.backend("a", "blue"), contract.Quota{Objects: 1000}))

			m, err := w.d.MoveTo(w.ctx, "blue", "b", MoveOptions{})
			w.must(err)
			w.row("blue", Open, "b", 2)
			if m.Keys != 2 || contract.Revision(m.Head) <= leased {
				t.Errorf("moved %+v", m)
			}
			if _, err := watcher.Next(w.ctx); !errors.Is(err, contract.ErrDropped) {
				t.Errorf("the watch ends with %v", err)
			}
			if _, _, err := e.Get(w.ctx, "k"); !errors.Is(err, contract.ErrDropped) {
				t.Errorf("a read at the source: %v", err)
			}
			release()
			kv := w.get(p, "blue", "k")
			if kv == nil || kv.Revision != first || string(kv.Value) != "one" {
				t.Fatalf("the key is %+v, want revision %d", kv, first)
			}
			if kv := w.get(p, "blue", "leased"); kv == nil || kv.Lease != 7 || kv.Revision != leased {
				t.Errorf("the key of the lease is %+v", kv)
			}
			if kv := w.get(p, "blue", "gone"); kv != nil {
				t.Errorf("a deleted key is there: %+v", kv)
			}
			s, release, err = p.Use(w.ctx, "blue")
			w.must(err)
			e = database.Engine(s)
			if now, err := e.Identity(w.ctx); err != nil || now.Store != id.Store {
				t.Errorf("the identity is %+v, was %+v, %v", now, id, err)
			}
			if _, err := e.Watch(w.ctx, mvcc.WatchOptions{Key: "k", After: leased}); !errors.Is(err,
				contract.ErrCompacted) {
				t.Errorf("a watch that resumes: %v", err)
			}
			release()
			q, _, _, err := w.backend("b", "blue").Quota(w.ctx)
			if err != nil || q.Objects != 1000 {
				t.Errorf("the quota is %+v, %v", q, err)
			}
			x, _, err := w.backend("b", "blue").Indexes(w.ctx)
			if err != nil || len(x.All) != 1 || x.All[0].State != contract.IndexBuilding {
				t.Errorf("the indexes are %+v, %v", x, err)
			}
			lease, _, err := w.backend("b", "blue").Leases(w.ctx, 0, 10)
			if err != nil || len(lease) != 1 || lease[0].TTL != 3600 {
				t.Errorf("the leases are %+v, %v", lease, err)
			}
			// What is left of it.
			b := w.backend("a", "blue")
			h, st, err := contract.ReadHome(w.ctx, b)
			if err != nil || !st.Dropped() || h.Generation != 1 || h.To != "b" {
				t.Errorf("the source's home is %+v at %+v, %v", h, st, err)
			}
			if u, _, err := b.Usage(w.ctx); err != nil || u.Objects != 0 {
				t.Errorf("the source holds %+v, %v", u, err)
			}
			c, err := w.databases.Config("a", "blue")
			w.must(err)
			if _, err := database.CreateStore(w.ctx, c); !errors.Is(err, contract.ErrOfDirectory) {
				t.Errorf("a store in the place of a tombstone: %v", err)
			}

			second := w.put(p, "blue", "k", "two", first)
			if second <= contract.Revision(m.Head) {
				t.Errorf("the revision is %d, and the history begins at %d", second, m.Head)
			}
			back, err := w.d.MoveTo(w.ctx, "blue", "a", MoveOptions{})
			w.must(err)
			w.row("blue", Open, "a", 3)
			if kv := w.get(p, "blue", "k"); kv == nil || kv.Revision != second || string(kv.Value) != "two" {
				t.Errorf("the key is %+v, want revision %d", kv, second)
			}
			if back.Head <= m.Head || contract.Revision(back.Head) <= second {
				t.Errorf("the history begins at %d after %d", back.Head, second)
			}
			if m, err := w.d.MoveTo(w.ctx, "blue", "a", MoveOptions{}); err != nil || m.Head != 0 {
				t.Errorf("a move to where it is: %+v, %v", m, err)
			}
			dropped, err := w.d.Drop(w.ctx, "blue")
			w.must(err)
			if r := w.row("blue", Dropped, "a", 3); !dropped || r.Floor <= back.Head {
				t.Errorf("dropped %t, %+v", dropped, r)
			}
			if at, err := put(w.ctx, p, "blue", "k", "late", 0); err == nil {
				t.Errorf("a dropped store was written at %d", at)
			}
			r, err := w.d.Create(w.ctx, "blue", "b")
			w.must(err)
			w.row("blue", Open, "b", 4)
			if kv := w.get(p, "blue", "k"); kv != nil {
				t.Errorf("a new store has %+v", kv)
			}
			if at := w.put(p, "blue", "k", "new", 0); at <= contract.Revision(back.Head) ||
				int64(at) <= r.Floor-1 {
				t.Errorf("a new store begins at %d", at)
			}
		})
	}
}
