package simulate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// server is the database: what memdb does not have of a real one. The driver changes it, and calls
// look at it at any time.
type server struct {
	label string
	// database and store are their names, if there are several.
	database, store string

	db *memdb.Database
	// begun, wrote and announce are called for each group that begins or is written, and for each
	// notification.
	begun    func(*contract.Group)
	wrote    func(*contract.Group, *contract.GroupResult)
	announce func(contract.Revision)
	// kind says how commits become durable, and what the backend offers.
	kind string
	// names and boots make the fingerprint, and the run of what holds commits that are not on the
	// disk.
	names, boots atomic.Int64
	// relaxed settings confirm commits that are not durable.
	relaxed atomic.Bool
	// durable is what a power failure leaves.
	durable atomic.Pointer[memdb.Version]
	// life changes when all connections end.
	life atomic.Int64
	// ahead is how far the database's clock is ahead of the world's, in nanoseconds.
	ahead atomic.Int64
	// listeners are the backends that may listen. stage.mu protects them.
	listeners []*backend
	// newest is the greatest time that it has shown. Only the driver looks at it.
	newest time.Time
}

func newServer(label, kind string, relaxed bool) *server {
	s := &server{label: label, kind: kind}
	s.relaxed.Store(relaxed)
	s.db = memdb.New(label, s.now)
	s.rename()
	s.reboot()
	s.flush()
	return s
}

// now is the time of the database's clock.
func (s *server) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// turnClock moves the database's clock.
func (s *server) turnClock(by time.Duration) { s.ahead.Add(int64(by)) }

// newestTime is the greatest time that the database's clock has shown.
func (s *server) newestTime() time.Time {
	if now := s.now(); now.After(s.newest) {
		s.newest = now
	}
	return s.newest
}

func (s *server) rename() { s.names.Add(1) }

func (s *server) name() string { return fmt.Sprintf("%s %d", s.label, s.names.Load()) }

func (s *server) reboot() {
	s.life.Add(1)
	s.boots.Add(1)
}

func (s *server) boot() string { return fmt.Sprintf("boot %d", s.boots.Load()) }

// durability is what a connection finds.
func (s *server) durability() contract.Durability {
	_, boot := s.db.Version().Recorded()
	return contract.Durability{Boot: s.boot(), Relaxed: s.relaxed.Load(), Recorded: boot}
}

// flush makes everything durable that is visible.
func (s *server) flush() {
	v := s.db.Version()
	s.durable.Store(&v)
}

// backend is a process's way to the server. Each of its calls stops where a real one can be late
// or fail: before the server takes it, when it has the commit lock, before it commits, before the
// commit is durable, and before the answer arrives.
type backend struct {
	w    *stage
	s    *server
	p    *peer
	life int // the process's
	mem  *memdb.Backend
	// gate admits connections, which the address numbers. conn is the one that there is.
	gate    contract.Gate
	conn    atomic.Pointer[connection]
	address contract.Address
	killed  chan struct{}
	// polled is the version that Changed has told.
	polled memdb.Version
	// notify and status are the listener's, if it listens. world.mu protects them.
	notify func(contract.Revision)
	status func(error)
}

// newBackend opens a way to a server, which ends when killed is closed.
func (w *stage) newBackend(s *server, p *peer, killed chan struct{}) *backend {
	b := &backend{w: w, s: s, p: p, life: p.life, mem: s.db.Open(contract.DriverOptions{}),
		killed: killed}
	b.gate.Address = &b.address
	c := b.connect()
	b.gate.Open(c.Place, c.number, "")
	b.mem.Held = held
	return b
}

// as returns the backend with the optional interfaces that the kind of database has.
func (b *backend) as(kind string) contract.Backend {
	switch kind {
	case "sqlite":
		return struct {
			*backend
			poller
		}{b, poller{b}}
	case "postgres":
		return struct {
			*backend
			keysReader
			notifier
			*shared
		}{b, keysReader{b}, notifier{b}, &shared{b}}
	}
	return struct {
		*backend
		keysReader
		*shared
	}{b, keysReader{b}, &shared{b}}
}

// call is one call of the backend, which may outlive its caller.
type call struct {
	b      *backend
	method string
	// class is Commit, Locked, Sweep or read.
	class string
	// detail tells it from other calls of the method, as far as that can be said.
	detail string
	// open: the call may have changed something, or may still do so, and the caller cannot tell.
	open atomic.Bool
	// alone: nobody waits for it.
	alone atomic.Bool
	// inside is held while the caller's function of a transaction runs: the caller leaves before it
	// or after it, and sees what it did.
	inside sync.Mutex
	// stale is what a standby has, if the call was led to one; revision that of a notification.
	stale    memdb.Version
	revision contract.Revision
	// wrote: the transaction has changed something, while the settings were relaxed or not.
	wrote, relaxed bool
	// life is the server's when the call was made. No call outlives it.
	life int64
	done chan error
	lost chan error
}

type callKey struct{}

// do runs a call. The server's answer is what run returns.
func (b *backend) do(ctx context.Context, class, method, detail string,
	run func(context.Context, *call) error) error {
	c := &call{b: b, method: method, class: class, detail: detail, life: b.s.life.Load(),
		done: make(chan error, 1), lost: make(chan error, 1)}
	c.open.Store(class == "Commit")
	if ctx.Err() != nil {
		return contract.Errorf(contract.Unavailable, "the context has ended: %w", context.Cause(ctx))
	}
	select {
	case <-b.killed:
		return contract.Errorf(contract.Unavailable, "the process is dead")
	default:
	}
	go c.serve(run)
	var err error
	select {
	case err := <-c.done:
		return err
	case err = <-c.lost:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-b.killed:
		err = fmt.Errorf("the process is dead")
	}
	c.inside.Lock()
	c.alone.Store(true)
	c.inside.Unlock()
	return c.broken(err)
}

// ask runs a call that has an answer besides. A caller that has left does not look at it: the
// server may still write it.
func ask[T any](b *backend, ctx context.Context, class, method, detail string,
	run func(context.Context, *call) (T, error)) (answer T, err error) {
	found := new(T)
	err = b.do(ctx, class, method, detail, func(ctx context.Context, c *call) (err error) {
		*found, err = run(ctx, c)
		return err
	})
	if err != nil {
		return answer, err
	}
	return *found, nil
}

// broken is the error of a call whose connection broke.
func (c *call) broken(err error) error {
	if c.open.Load() {
		return contract.Errorf(contract.Unknown, "the connection broke, and nobody knows more: %w", err)
	}
	return contract.Errorf(contract.Unavailable, "the connection broke: %w", err)
}

func (c *call) serve(run func(context.Context, *call) error) {
	w, s := c.b.w, c.b.s
	if err := w.stop(c, "request"); err != nil {
		c.done <- err
		return
	}
	// The server's side does not end with the caller.
	ctx := context.WithValue(context.Background(), callKey{}, c)
	err := run(ctx, c)
	if err == nil && c.wrote {
		if s.kind == "mysql" && !c.relaxed {
			err = w.stop(c, "flush")
		}
		if err == nil && !c.relaxed {
			s.flush()
		}
	}
	if late := w.stop(c, "answer"); late != nil {
		err = late
	}
	c.done <- err
}

// held stops a transaction that holds the commit lock.
func held(ctx context.Context, _ string, commits bool) error {
	c := ctx.Value(callKey{}).(*call)
	if c.life != c.b.s.life.Load() {
		return c.broken(errors.New("the server's life is over"))
	}
	if !commits {
		return c.b.w.stop(c, "lock")
	}
	c.wrote = true
	if c.class == "Locked" {
		if c.alone.Load() {
			return errGone
		}
		c.open.Store(true)
	}
	err := c.b.w.stop(c, "commit")
	c.relaxed = c.b.s.relaxed.Load()
	return err
}

// errGone undoes a transaction whose client is gone.
var errGone = contract.Errorf(contract.Unavailable, "the client is gone")

// connection ends with the server's life. It knows what it has found when it was made.
type connection struct {
	contract.Place
	life, number int64
}

func (b *backend) dial() *connection {
	s, number := b.s, b.address.Begin()
	life, d := s.life.Load(), s.durability()
	return &connection{contract.Place{Fingerprint: s.name(), Boot: d.Boot, Relaxed: d.Relaxed}, life,
		number}
}

// connect returns the connection, which may have to be made.
func (b *backend) connect() *connection {
	c := b.conn.Load()
	if c == nil || c.life != b.s.life.Load() {
		c = b.dial()
		b.conn.Store(c)
	}
	return c
}

// admit is what a driver does when it takes a connection.
func (b *backend) admit() error {
	for {
		c := b.connect()
		passage := b.gate.Judge(c.Place, c.number)
		if passage == contract.Ask {
			var err error
			passage, err = b.gate.Enter(c.Place, c.number, "", b.s.durability())
			if err != nil {
				return err
			}
		}
		if passage == contract.Pass {
			return nil
		}
		b.conn.CompareAndSwap(c, nil)
	}
}

// read runs a call that reads the state besides other things.
func read[T any](b *backend, ctx context.Context, method, detail string,
	f func(context.Context) (T, error), state func(*T) *contract.State) (T, error) {
	run := func(ctx context.Context, c *call) (found T, err error) {
		if old, ok := b.w.standby(c); ok {
			// A standby that is behind: what it says must not be used.
			if state == nil {
				return found, contract.Errorf(contract.ReadOnly, "this is a standby")
			}
			*state(&found) = old
			return found, nil
		}
		if err := b.admit(); err != nil {
			return found, err
		}
		return f(ctx)
	}
	return ask(b, ctx, "read", method, detail, run)
}

func (b *backend) Limits() contract.Limits {
	l := b.mem.Limits()
	l.GroupMutations = 4
	return l
}

func (b *backend) Identity(ctx context.Context) (contract.Identity, error) {
	return ask(b, ctx, "beside", "Identity", "",
		func(ctx context.Context, _ *call) (contract.Identity, error) {
			id, err := b.mem.Identity(ctx)
			id.Actual = b.s.name()
			return id, err
		})
}

func (b *backend) Durability(ctx context.Context) (contract.Durability, error) {
	return ask(b, ctx, "beside", "Durability", "",
		func(context.Context, *call) (contract.Durability, error) { return b.s.durability(), nil })
}

func (b *backend) RecordBoot(ctx context.Context, from, boot string) error {
	return b.do(ctx, "beside", "RecordBoot", boot, func(ctx context.Context, c *call) error {
		err := b.mem.RecordBoot(ctx, from, boot)
		if err == nil {
			b.s.flush()
		}
		return err
	})
}

func (b *backend) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	run := func(ctx context.Context, _ *call) (*contract.GroupResult, error) {
		err := b.admit()
		for _, m := range g.Mutations {
			if err == nil && string(m.Value) == poison {
				err = contract.Errorf(contract.Data, "the database does not take that value")
			}
		}
		if err != nil {
			return nil, err
		}
		b.s.begun(g)
		r, err := b.mem.Commit(ctx, g)
		if err == nil {
			b.s.wrote(g, r)
		}
		return r, err
	}
	return ask(b, ctx, "Commit", "Commit", "", run)
}

// placedTx knows the server in which it runs.
type placedTx struct {
	contract.Tx
	fingerprint string
}

func (t placedTx) Fingerprint() string { return t.fingerprint }

func (b *backend) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	beside, err := ask(b, ctx, "Locked", "Locked", fmt.Sprint(o.AnyServer),
		func(ctx context.Context, c *call) (*connection, error) {
			if !o.AnyServer {
				if err := b.admit(); err != nil {
					return nil, err
				}
			}
			beside := b.dial()
			return beside, b.mem.Locked(ctx, o, func(tx contract.Tx) error {
				c.inside.Lock()
				defer c.inside.Unlock()
				if c.alone.Load() {
					return errGone
				}
				return f(placedTx{tx, beside.Fingerprint})
			})
		})
	if err == nil && o.AnyServer {
		b.gate.Fenced(beside.Fingerprint, beside.number)
	}
	return err
}

func (b *backend) Sweepable(ctx context.Context, limit int) (contract.Sweepable, error) {
	return read(b, ctx, "Sweepable", "", func(ctx context.Context) (contract.Sweepable, error) {
		return b.mem.Sweepable(ctx, limit)
	}, func(s *contract.Sweepable) *contract.State { return &s.State })
}

func (b *backend) Sweep(ctx context.Context, p *contract.SweepPlan) (int, error) {
	return ask(b, ctx, "Sweep", "Sweep", "", func(ctx context.Context, _ *call) (int, error) {
		if err := b.admit(); err != nil {
			return 0, err
		}
		return b.mem.Sweep(ctx, p)
	})
}

// Snapshot begins with a call that is like any other. What is read in it afterwards is there.
func (b *backend) Snapshot(ctx context.Context, f func(context.Context, contract.Snapshot) error) error {
	_, err := read(b, ctx, "Snapshot", "", func(context.Context) (struct{}, error) {
		return struct{}{}, nil
	}, nil)
	if err != nil {
		return err
	}
	return b.mem.Snapshot(ctx, f)
}

func (b *backend) Usage(context.Context) (contract.Usage, contract.State, error) {
	panic("no store has a quota")
}

func (b *backend) Growth(context.Context, contract.Revision) (contract.Growth, contract.State, error) {
	panic("no store has a quota")
}

func (b *backend) Quota(ctx context.Context) (contract.Quota, int64, contract.State, error) {
	a, err := read(b, ctx, "Quota", "", func(ctx context.Context) (a quotaAnswer, err error) {
		a.q, a.generation, a.st, err = b.mem.Quota(ctx)
		return a, err
	}, func(a *quotaAnswer) *contract.State { return &a.st })
	return a.q, a.generation, a.st, err
}

func (b *backend) Home(ctx context.Context) (string, contract.State, error) {
	a, err := read(b, ctx, "Home", "", func(ctx context.Context) (a homeAnswer, err error) {
		a.home, a.st, err = b.mem.Home(ctx)
		return a, err
	}, func(a *homeAnswer) *contract.State { return &a.st })
	return a.home, a.st, err
}

func (b *backend) Indexes(ctx context.Context) (*contract.Indexes, contract.State, error) {
	a, err := read(b, ctx, "Indexes", "", func(ctx context.Context) (a indexesAnswer, err error) {
		a.x, a.st, err = b.mem.Indexes(ctx)
		return a, err
	}, func(a *indexesAnswer) *contract.State { return &a.st })
	return a.x, a.st, err
}

func (b *backend) CountEntries(context.Context, []contract.Entry, contract.Key, contract.Key,
	int64) (int64, contract.State, error) {
	panic("nobody lists by an index")
}

func (b *backend) IndexRows(context.Context, contract.IndexWalk) (*contract.IndexRows, contract.State,
	error) {
	panic("nobody sorts by an index")
}

// Everywhere finds nothing: no resource has a store of its own.
func (b *backend) Everywhere(ctx context.Context, _ contract.Key) (map[string][]byte, contract.State, error) {
	st, err := b.State(ctx)
	return nil, st, err
}

func (b *backend) State(ctx context.Context) (contract.State, error) {
	return read(b, ctx, "State", "", b.mem.State, func(st *contract.State) *contract.State { return st })
}

func (b *backend) Tail(ctx context.Context, from contract.Revision, limit int, prev contract.Prev) (
	*contract.Tail, error) {
	return b.logged(ctx, "Tail", fmt.Sprint(from, limit),
		func(ctx context.Context) (*contract.Tail, error) {
			return b.mem.Tail(ctx, from, limit, prev)
		})
}

func (b *backend) Parts(ctx context.Context, below contract.RowID, upto contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	return b.logged(ctx, "Parts", fmt.Sprint(below, upto, limit),
		func(ctx context.Context) (*contract.Tail, error) {
			return b.mem.Parts(ctx, below, upto, limit, prev)
		})
}

func (b *backend) logged(ctx context.Context, method, detail string,
	f func(context.Context) (*contract.Tail, error)) (*contract.Tail, error) {
	t, err := read(b, ctx, method, detail,
		func(ctx context.Context) (contract.Tail, error) {
			t, err := f(ctx)
			if err != nil {
				return contract.Tail{}, err
			}
			return *t, nil
		}, func(t *contract.Tail) *contract.State { return &t.State })
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// Answers with their states.
type (
	rowAnswer struct {
		row *contract.Row
		st  contract.State
	}
	rowsAnswer struct {
		rows []contract.Row
		st   contract.State
	}
	usersAnswer struct {
		rows []contract.UserRow
		st   contract.State
	}
	replacedAnswer struct {
		rows []contract.Replaced
		st   contract.State
	}
	countAnswer struct {
		n  int64
		st contract.State
	}
	leasesAnswer struct {
		rows []contract.LeaseRow
		st   contract.State
	}
	attachedAnswer struct {
		rows []contract.Expired
		st   contract.State
	}
	homeAnswer struct {
		home string
		st   contract.State
	}
	quotaAnswer struct {
		q          contract.Quota
		generation int64
		st         contract.State
	}
	indexesAnswer struct {
		x  *contract.Indexes
		st contract.State
	}
	expiredAnswer struct {
		rows []contract.Expired
		next time.Duration
	}
)

func (b *backend) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	a, err := read(b, ctx, "Get", string(key), func(ctx context.Context) (a rowAnswer, err error) {
		a.row, a.st, err = b.mem.Get(ctx, key)
		return a, err
	}, func(a *rowAnswer) *contract.State { return &a.st })
	return a.row, a.st, err
}

func (b *backend) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	p, err := read(b, ctx, "Page", fmt.Sprint(q), func(ctx context.Context) (contract.Page, error) {
		p, err := b.mem.Page(ctx, q)
		if err != nil {
			return contract.Page{}, err
		}
		return *p, nil
	}, func(p *contract.Page) *contract.State { return &p.State })
	if err != nil {
		return nil, err
	}
	return &p, nil
}

func (b *backend) Replaced(ctx context.Context, q contract.ReplacedQuery) (
	[]contract.Replaced, contract.State, error) {
	a, err := read(b, ctx, "Replaced", fmt.Sprint(q),
		func(ctx context.Context) (a replacedAnswer, err error) {
			a.rows, a.st, err = b.mem.Replaced(ctx, q)
			return a, err
		}, func(a *replacedAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Values(ctx context.Context, ids []contract.RowID) (
	[]contract.Row, contract.State, error) {
	a, err := read(b, ctx, "Values", fmt.Sprint(ids),
		func(ctx context.Context) (a rowsAnswer, err error) {
			a.rows, a.st, err = b.mem.Values(ctx, ids)
			return a, err
		}, func(a *rowsAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Chain(ctx context.Context, key contract.Key, id contract.RowID, limit int) (
	[]contract.Row, contract.State, error) {
	a, err := read(b, ctx, "Chain", fmt.Sprint(key, id),
		func(ctx context.Context) (a rowsAnswer, err error) {
			a.rows, a.st, err = b.mem.Chain(ctx, key, id, limit)
			return a, err
		}, func(a *rowsAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Changes(ctx context.Context, q contract.ChangesQuery) (
	[]contract.Row, contract.State, error) {
	a, err := read(b, ctx, "Changes", fmt.Sprint(q),
		func(ctx context.Context) (a rowsAnswer, err error) {
			a.rows, a.st, err = b.mem.Changes(ctx, q)
			return a, err
		}, func(a *rowsAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Users(ctx context.Context, ids []contract.RowID) (
	[]contract.UserRow, contract.State, error) {
	a, err := read(b, ctx, "Users", fmt.Sprint(len(ids)),
		func(ctx context.Context) (a usersAnswer, err error) {
			a.rows, a.st, err = b.mem.Users(ctx, ids)
			return a, err
		}, func(a *usersAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Count(ctx context.Context, start, end contract.Key, at contract.Revision, limit int64) (
	int64, contract.State, error) {
	a, err := read(b, ctx, "Count", fmt.Sprint(start, end, at),
		func(ctx context.Context) (a countAnswer, err error) {
			a.n, a.st, err = b.mem.Count(ctx, start, end, at, limit)
			return a, err
		}, func(a *countAnswer) *contract.State { return &a.st })
	return a.n, a.st, err
}

func (b *backend) Expired(ctx context.Context, limit int) ([]contract.Expired, time.Duration, error) {
	a, err := read(b, ctx, "Expired", "", func(ctx context.Context) (a expiredAnswer, err error) {
		a.rows, a.next, err = b.mem.Expired(ctx, limit)
		return a, err
	}, nil)
	return a.rows, a.next, err
}

func (b *backend) Leases(ctx context.Context, from contract.Lease, limit int) (
	[]contract.LeaseRow, contract.State, error) {
	a, err := read(b, ctx, "Leases", fmt.Sprint(from),
		func(ctx context.Context) (a leasesAnswer, err error) {
			a.rows, a.st, err = b.mem.Leases(ctx, from, limit)
			return a, err
		}, func(a *leasesAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Lapsing(ctx context.Context, from int64, limit int) (
	[]contract.LeaseRow, contract.State, error) {
	a, err := read(b, ctx, "Lapsing", fmt.Sprint(from), func(ctx context.Context) (a leasesAnswer, err error) {
		a.rows, a.st, err = b.mem.Lapsing(ctx, from, limit)
		return a, err
	}, func(a *leasesAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) Attached(ctx context.Context, l contract.Lease, from contract.Key, limit int) (
	[]contract.Expired, contract.State, error) {
	a, err := read(b, ctx, "Attached", fmt.Sprint(l, from),
		func(ctx context.Context) (a attachedAnswer, err error) {
			a.rows, a.st, err = b.mem.Attached(ctx, l, from, limit)
			return a, err
		}, func(a *attachedAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) AttachedTo(ctx context.Context, leases []contract.Lease, limit int) (
	[]contract.Expired, contract.State, error) {
	a, err := read(b, ctx, "AttachedTo", fmt.Sprint(leases),
		func(ctx context.Context) (a attachedAnswer, err error) {
			a.rows, a.st, err = b.mem.AttachedTo(ctx, leases, limit)
			return a, err
		}, func(a *attachedAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

func (b *backend) CountLeases(ctx context.Context) (int64, contract.State, error) {
	a, err := read(b, ctx, "CountLeases", "", func(ctx context.Context) (a countAnswer, err error) {
		a.n, a.st, err = b.mem.CountLeases(ctx)
		return a, err
	}, func(a *countAnswer) *contract.State { return &a.st })
	return a.n, a.st, err
}

func (b *backend) FirstAt(ctx context.Context, revision contract.Revision) (*contract.Row, error) {
	return read(b, ctx, "FirstAt", fmt.Sprint(revision),
		func(ctx context.Context) (*contract.Row, error) { return b.mem.FirstAt(ctx, revision) }, nil)
}

func (b *backend) Size(ctx context.Context) (contract.Size, error) {
	return read(b, ctx, "Size", "", b.mem.Size, nil)
}

func (b *backend) Close() error { return nil }

// Reconnect implements [contract.Reconnector].
func (b *backend) Reconnect() { b.gate.Reconnect() }

// keysReader implements [contract.KeysReader].
type keysReader struct{ b *backend }

func (k keysReader) GetKeys(ctx context.Context, keys []contract.Key) ([]contract.Row, contract.State, error) {
	b := k.b
	a, err := read(b, ctx, "GetKeys", fmt.Sprint(len(keys)),
		func(ctx context.Context) (a rowsAnswer, err error) {
			a.rows, a.st, err = b.mem.GetKeys(ctx, keys)
			return a, err
		}, func(a *rowsAnswer) *contract.State { return &a.st })
	return a.rows, a.st, err
}

// poller implements [contract.Poller].
type poller struct{ b *backend }

func (p poller) Now() time.Time { return p.b.mem.Now() }

func (p poller) Changed(ctx context.Context) (bool, error) {
	b := p.b
	v, err := read(b, ctx, "Changed", "", func(context.Context) (memdb.Version, error) {
		return b.s.db.Version(), nil
	}, nil)
	if err != nil {
		return true, err
	}
	changed := v != b.polled
	b.polled = v
	return changed, nil
}

// base finds the backend in what has its optional interfaces.
func (b *backend) base() *backend { return b }

func baseOf(b contract.Backend) *backend { return b.(interface{ base() *backend }).base() }

// shared implements [contract.Shared].
type shared struct{ b *backend }

func (s *shared) Poll(ctx context.Context, stores []contract.Backend, _ int) ([]contract.Polled, error) {
	return ask(s.b, ctx, "read", "Poll", "",
		func(ctx context.Context, c *call) (polled []contract.Polled, err error) {
			for _, store := range stores {
				p, err := baseOf(store).poll(ctx, c)
				if err != nil {
					return nil, err
				}
				polled = append(polled, p)
			}
			return polled, nil
		})
}

// poll is the answer of one store.
func (b *backend) poll(ctx context.Context, c *call) (p contract.Polled, err error) {
	if old, ok := b.w.standby(c); ok {
		p.State = old
		return p, nil
	}
	conn := b.connect()
	for b.gate.Judge(conn.Place, conn.number) == contract.Stale {
		b.conn.CompareAndSwap(conn, nil)
		conn = b.connect()
	}
	if p.Quota, p.Generation, p.State, err = b.mem.Quota(ctx); err != nil {
		return p, err
	}
	if p.Due, err = b.due(ctx); err != nil {
		return p, err
	}
	p.Err = b.gate.Let(conn.Place, conn.number, "", b.s.durability())
	return p, nil
}

// due is what Polled.Due says.
func (b *backend) due(ctx context.Context) (time.Duration, error) {
	due := contract.Never
	expired, next, err := b.mem.Expired(ctx, 1)
	if err != nil {
		return 0, err
	}
	if len(expired) > 0 {
		due = 0
	} else if next > 0 {
		due = next
	}
	leases, st, err := b.mem.Lapsing(ctx, 0, 1)
	if err == nil && len(leases) > 0 {
		due = min(due, leases[0].Left(st.Now))
	}
	return due, err
}

// notifier implements [contract.Notifier].
type notifier struct{ b *backend }

func (n notifier) Announce(ctx context.Context, heads []contract.Announced) error {
	b := n.b
	return b.do(ctx, "beside", "Announce", fmt.Sprint(heads[0].Revision),
		func(ctx context.Context, c *call) error {
			if err := b.admit(); err != nil {
				return err
			}
			for _, h := range heads {
				baseOf(h.Store).s.announce(h.Revision)
			}
			return nil
		})
}

func (n notifier) Listen(ctx context.Context, notify func(contract.Revision), status func(error)) {
	n.b.w.listen(n.b, notify, status)
	<-ctx.Done()
	n.b.w.listen(n.b, nil, nil)
}
