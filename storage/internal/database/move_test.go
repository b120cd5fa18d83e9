package database

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// through is a driver whose backends are seen by the test.
type through struct {
	contract.Driver
	backend func(contract.Backend) contract.Backend
}

func (d through) Connect(ctx context.Context, url string,
	opts contract.DriverOptions) (contract.Database, error) {
	db, err := d.Driver.Connect(ctx, url, opts)
	return throughDatabase{db, d.backend}, err
}

type throughDatabase struct {
	contract.Database
	backend func(contract.Backend) contract.Backend
}

func (d throughDatabase) Store(ctx context.Context, name string) (contract.Backend, error) {
	b, err := d.Database.Store(ctx, name)
	if err != nil {
		return nil, err
	}
	return d.backend(b), nil
}

// stepping calls step before each transaction, and before each snapshot ends.
type stepping struct {
	contract.Backend
	step func()
}

func (b stepping) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	b.step()
	return b.Backend.Commit(ctx, g)
}

func (b stepping) Locked(ctx context.Context, o contract.LockOptions,
	f func(contract.Tx) error) error {
	b.step()
	return b.Backend.Locked(ctx, o, f)
}

func (b stepping) Snapshot(ctx context.Context,
	f func(context.Context, contract.Snapshot) error) error {
	return b.Backend.Snapshot(ctx, func(ctx context.Context, s contract.Snapshot) error {
		b.step()
		return f(ctx, s)
	})
}

// deaf never hears what others have written, until its store is closed.
type deaf struct{ contract.Backend }

func (deaf) Tail(ctx context.Context, _ contract.Revision, _ int,
	_ contract.Prev) (*contract.Tail, error) {
	<-ctx.Done()
	return nil, contract.Errorf(contract.Unavailable, "the log is not read: %w", ctx.Err())
}

// besideMove is a server that goes on while its objects are moved.
type besideMove struct {
	aDatabase
	server *Store
	// there are the pods that are to be there, by what was confirmed.
	there map[string]bool
	// creates: it does not only delete.
	creates bool
	steps   int
}

// write deletes a pod, and perhaps creates another one. Each is confirmed or refused: nothing is in
// doubt.
func (x *besideMove) write() {
	x.steps++
	s := x.server.mvcc
	if other := x.server.placements.others["fast"]; x.server.placements.asked["pods"] != "" {
		s = other.mvcc
	}
	for name, is := range x.there {
		if is {
			x.tell(name, false, func() error {
				_, err := s.Commit(x.Context(), contract.Mutation{Key: podKey(name),
					Expect: contract.Any, Delete: true})
				return err
			})
			break
		}
	}
	if !x.creates {
		return
	}
	name := fmt.Sprintf("new%d", x.steps)
	x.tell(name, true, func() error {
		_, err := s.Commit(x.Context(), contract.Mutation{Key: podKey(name), Value: []byte(name)})
		return err
	})
}

func (x *besideMove) tell(name string, is bool, commit func() error) {
	x.Helper()
	switch err := commit(); {
	case err == nil:
		x.there[name] = is
	case errors.Is(err, contract.ErrUnknownOutcome):
		x.Errorf("the outcome of a write of %s is unknown: %v", name, err)
	}
}

// TestMoveBesideServer: what a server confirms while its objects are moved is so in the store to
// which they are moved, whenever it hears of the move: at once or never. So it is on the way back.
func TestMoveBesideServer(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		for i := range 4 {
			hears := i%2 == 0
			x := &besideMove{aDatabase: withStores(t, d), there: map[string]bool{}, creates: i >= 2}
			plain := x.config
			for _, way := range []struct{ from, to string }{{"", "fast"}, {"fast", "default"}} {
				x.config = plain
				if !hears {
					x.config.Drivers = []contract.Driver{through{d.Driver,
						func(b contract.Backend) contract.Backend { return deaf{b} }}}
				}
				x.server = x.open(way.from)
				s := pods(t, x.server)
				// Others' watches end, too: the caches that follow them are to begin anew.
				head, err := x.server.mvcc.Head(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				w, err := x.server.mvcc.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: head})
				if err != nil {
					t.Fatal(err)
				}
				for i := range 10 {
					name := fmt.Sprintf("%s%d", way.to, i)
					create(t, s, name)
					x.there[name] = true
				}
				before := x.steps
				x.config = plain
				x.config.Drivers = []contract.Driver{through{d.Driver,
					func(b contract.Backend) contract.Backend { return stepping{b, x.write} }}}
				if _, err := MoveResource(t.Context(), x.config, "", "pods", way.to); err != nil {
					t.Fatalf("to %s, hears %t: %v", way.to, hears, err)
				}
				if x.steps < before+5 {
					t.Errorf("the server was let to write %d times", x.steps-before)
				}
				x.config = plain
				x.is(way.to)
				if _, err := s.Commit(t.Context(), contract.Mutation{Key: podKey("late"),
					Value: []byte("late")}); err == nil {
					t.Fatal("the server goes on to write where the pods were")
				}
				if err := x.server.Ready(t.Context()); err == nil {
					t.Error("the server goes on to say that it is ready")
				}
				for err = nil; err == nil; _, err = w.Next(t.Context()) {
				}
				if !errors.Is(err, contract.ErrClosed) {
					t.Errorf("to %s, hears %t: a watch ends with %v", way.to, hears, err)
				}
				w.Close()
				x.close(x.server)
			}
			d = dbtest.Open(t, d.Kind)
		}
	})
}

// is: the pods that are served from a store are the confirmed ones, and no other store has any.
func (x *besideMove) is(store string) {
	x.Helper()
	db := x.open(store)
	defer x.close(db)
	n := 0
	for _, kv := range list(x.T, pods(x.T, db)) {
		n++
		if name := string(kv.Key[len(podKey("")):]); !x.there[name] {
			x.Errorf("%s is in %s, though its deletion was confirmed", name, store)
		}
	}
	want := 0
	for name, is := range x.there {
		if is {
			want++
			if get(x.T, pods(x.T, db), name) == nil {
				x.Errorf("%s is not in %s, though its creation was confirmed", name, store)
			}
		}
	}
	if n != want || n == 0 {
		x.Errorf("%d pods are served from %s, and %d were confirmed", n, store, want)
	}
	for _, other := range []string{"default", "fast"} {
		if other != store && x.count(other) != 0 {
			x.Errorf("%d pods are left in %s", x.count(other), other)
		}
	}
}
