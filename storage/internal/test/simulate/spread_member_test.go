package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/directory"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// member is a process that uses the directory: one that moves stores, or a front end with clients.
type member struct {
	peer
	w      *spread
	state  state
	killed chan struct{}
	d      *directory.Directory
	pool   *directory.Pool
	// working: it creates, moves or drops something.
	working, rebuilding bool
	// old: it has a directory of before.
	old bool
	// pending is how many requests of clients there are.
	pending int
	// floor is the newest revision that was shown of each name, and known what clients know of the
	// keys.
	floor   map[string]contract.Revision
	known   map[string]map[contract.Key]known
	watches []*follower
}

// start begins a process, whose directory is in a database.
func (m *member) start(control string) {
	if m.state != down {
		return
	}
	w := m.w
	m.life++
	m.state, m.paused, m.old = opening, false, control != databaseNames[0]
	m.working, m.pending, m.killed = false, 0, make(chan struct{})
	m.floor, m.known = map[string]contract.Revision{}, map[string]map[contract.Key]known{}
	base := directory.Config{Drivers: []contract.Driver{driver{w, &m.peer, m.killed}},
		Timeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler), ProgressInterval: time.Second,
		Compaction: database.CompactionPolicy{Window: -1}}
	if w.plan.Window {
		base.Compaction = database.CompactionPolicy{Window: 50 * time.Millisecond, Keep: 4,
			Interval: 400 * time.Millisecond}
	}
	at := base
	at.URL = "sim:" + control
	life := m.life
	w.busy++
	go func() {
		names, err := directory.ReadDatabases(w.file, base)
		var d *directory.Directory
		if err == nil {
			d, err = directory.OpenDirectory(context.Background(), at, names)
		}
		w.later(fmt.Sprintf("member %d %d opened", m.id, life), func() {
			w.busy--
			w.log("member %d opened: %v", m.id, err)
			switch {
			case m.life == life && err == nil:
				m.state, m.d, m.pool = up, d, directory.NewPool(d)
			case err == nil:
				w.close(d, nil) // it was killed meanwhile
			case m.life == life:
				m.state = down
			}
		})
	}()
}

// close closes what a process has that was killed: only its memory is still there.
func (w *spread) close(d *directory.Directory, p *directory.Pool) {
	w.busy++
	go func() {
		if p != nil {
			_ = p.Close()
		}
		_ = d.Close()
		w.later("closed", func() { w.busy-- })
	}()
}

// kill ends a process at once.
func (m *member) kill() {
	if m.state == down {
		return
	}
	close(m.killed)
	for _, f := range m.watches {
		f.cancel()
	}
	m.watches = nil
	if m.state == up {
		m.w.close(m.d, m.pool)
	}
	m.state, m.d, m.pool, m.paused = down, nil, nil, false
	m.life++
}

// admin begins something that a process does with a store.
func (m *member) admin(a *action) {
	if m.state != up || m.working {
		return
	}
	w, d, life := m.w, m.d, m.life
	name, to := nameOf(a.Key), databaseNames[a.N%len(databaseNames)]
	if a.Do == "rebuild" {
		// Nothing should be moved meanwhile.
		for _, o := range w.members[:admins] {
			if o.working {
				return
			}
		}
	}
	for _, o := range w.members[:admins] {
		if o.working && o.rebuilding {
			return
		}
	}
	m.working, m.rebuilding = true, a.Do == "rebuild"
	w.report.Operations++
	w.busy++
	number := w.report.Operations
	go func() {
		err := administer(context.Background(), d, a, name, to)
		w.later(fmt.Sprintf("admin %06d", number), func() {
			w.busy--
			w.log("%s of %s to %s by %d ends: %v", a.Do, name, to, m.id, err)
			if m.life != life {
				return
			}
			m.working = false
			if err == nil {
				w.count("done " + a.Do)
			}
			w.judge.administered(a.Do, name, err)
		})
	}()
}

// administer does what an action says.
func administer(ctx context.Context, d *directory.Directory, a *action,
	name, to string) (err error) {
	switch a.Do {
	case "move":
		_, err = d.MoveTo(ctx, name, to, directory.MoveOptions{})
	case "end":
		var r directory.Row
		if r, err = d.Get(ctx, name); err != nil {
			return err
		}
		switch r.State {
		case directory.Moving:
			_, err = d.MoveTo(ctx, name, r.To, directory.MoveOptions{})
		case directory.Opening:
			_, err = d.MoveTo(ctx, name, r.Database, directory.MoveOptions{})
		case directory.Undoing:
			_, err = d.Undo(ctx, name)
		case directory.Dropping:
			_, err = d.Drop(ctx, name)
		case directory.Creating:
			_, err = d.Create(ctx, name, to)
		default:
		}
	case "undo":
		_, err = d.Undo(ctx, name)
	case "drop":
		_, err = d.Drop(ctx, name)
	case "create":
		_, err = d.Create(ctx, name, to)
	case "drain":
		err = d.Drain(ctx, to, directory.MoveOptions{}, func(string, string, directory.Moved) {})
	case "rebuild":
		err = d.Rebuild(ctx, func(string) {})
	default:
		panic("no such action: " + a.Do)
	}
	return err
}

// task is a request of a client.
type task struct {
	m    *member
	id   int
	verb string
	name string
	key  contract.Key
	life int
	// call and end are the turns in which it began and ended.
	call, end int
	// floor is what its process had shown of the name before.
	floor contract.Revision
	// wrote is what it asked for, once it did.
	wrote *contract.Mutation
	// refused: it was told that nothing was written.
	refused bool
	entries []*entry
}

// client begins a request of a client of a front end.
func (m *member) client(a *action) {
	if m.state != up {
		return
	}
	w, pool := m.w, m.pool
	t := &task{m: m, id: len(w.judge.tasks), verb: a.Do, name: nameOf(a.Key), life: m.life,
		key: allKeys[a.Key/spreadNames%len(allKeys)], call: w.turns.now()}
	t.floor = m.floor[t.name]
	w.judge.tasks = append(w.judge.tasks, t)
	w.report.Operations++
	if a.Do == "unwatch" {
		if n := len(m.watches); n > 0 {
			m.watches[a.N%n].cancel()
		}
		return
	}
	if a.Do == "watch" {
		m.watch(t, a)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	if a.N%10 == 0 {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 200*time.Millisecond)
	}
	was := m.known[t.name][t.key]
	m.pending++
	w.busy++
	go func() {
		defer cancel()
		judge := func() {}
		s, release, err := pool.Use(ctx, t.name)
		if err == nil {
			judge = t.do(ctx, database.Engine(s), was)
			release()
		}
		w.later(fmt.Sprintf("task %06d", t.id), func() {
			w.busy--
			w.log("task %d %s of %s ends: %v", t.id, t.verb, t.name, err)
			t.end = w.turns.now()
			if m.life == t.life {
				m.pending--
				judge()
			}
		})
	}()
}

// do carries out a request, and returns how it is judged.
func (t *task) do(ctx context.Context, e *mvcc.Engine, was known) func() {
	j := &t.m.w.judge
	mu := contract.Mutation{Key: t.key, Expect: contract.Any, Value: []byte(fmt.Sprint(t.id))}
	switch t.verb {
	case "get":
		kv, head, err := e.Get(ctx, t.key)
		return func() { j.get(t, kv, head, err) }
	case "list":
		list, err := e.Range(ctx, mvcc.RangeOptions{Start: "/", End: "0"})
		return func() { j.list(t, list, err) }
	case "create":
		mu.Expect = 0
	case "stale":
		mu.Expect, mu.Era = was.revision, was.era
	case "update", "delete":
		era := e.Era()
		kv, head, err := e.Get(ctx, t.key)
		if err != nil {
			return func() { j.get(t, kv, head, err) }
		}
		mu.Era, mu.Expect, mu.Delete = era, 0, t.verb == "delete" && kv != nil
		if kv != nil {
			mu.Expect = kv.Revision
		}
	}
	t.wrote = &mu
	at, err := e.Commit(ctx, mu)
	return func() { j.written(t, at, err) }
}

// heal writes and reads, when all is repaired.
func (m *member) heal(ctx context.Context, s *database.Store) error {
	e := database.Engine(s)
	if _, err := e.Commit(ctx, contract.Mutation{Key: "/heal", Expect: contract.Any,
		Value: []byte("heal")}); err != nil {
		return err
	}
	kv, _, err := e.Get(ctx, "/heal")
	if err == nil && kv == nil {
		err = errors.New("what was written is not there")
	}
	return err
}

// follower is a watch of all keys of a name.
type follower struct {
	t      *task
	after  contract.Revision
	cancel context.CancelFunc
}

// watch begins a watch from what was shown last.
func (m *member) watch(t *task, a *action) {
	w, pool := m.w, m.pool
	if len(m.watches) > 6 || t.floor == 0 {
		return
	}
	f := &follower{t: t, after: max(t.floor-contract.Revision(a.N/4%4), 1)}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	m.watches = append(m.watches, f)
	w.busy++
	go func() {
		err := f.follow(ctx, pool)
		f.cancel()
		w.later(fmt.Sprintf("watch %06d", t.id), func() {
			w.busy--
			w.log("watch %d of %s ends: %v", t.id, t.name, err)
			for i, o := range m.watches {
				if o == f {
					m.watches = append(m.watches[:i:i], m.watches[i+1:]...)
					break
				}
			}
		})
	}()
}

func (f *follower) follow(ctx context.Context, pool *directory.Pool) error {
	s, release, err := pool.Use(ctx, f.t.name)
	if err != nil {
		return err
	}
	defer release()
	watcher, err := database.Engine(s).Watch(ctx, mvcc.WatchOptions{Prefix: "/", After: f.after})
	if err != nil {
		return err
	}
	w := f.t.m.w
	w.mu.Lock()
	w.report.Watches++
	w.mu.Unlock()
	defer watcher.Close()
	for n := 0; ; n++ {
		batch, err := watcher.Next(ctx)
		if err != nil {
			return err
		}
		w.later(fmt.Sprintf("watch %06d events %06d", f.t.id, n), func() {
			w.judge.events(f, batch.Events)
		})
	}
}
