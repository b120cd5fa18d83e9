package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// state is what a process is doing.
type state int

const (
	down state = iota
	opening
	up
	closing
)

// peer is a process as servers see it.
type peer struct {
	id, life int
	// paused: nothing that it sends or is sent arrives. deaf: it hears no notifications.
	paused, deaf bool
	// cut: it does not reach the first server.
	cut bool
}

// process is one that uses the database, and its clients.
type process struct {
	peer
	w     *world
	state state
	store *mvcc.Engine
	b     *backend
	// memory is what its clients know, and what it has shown to them.
	memory *memory
}

// memory is what a process has shown since it began.
type memory struct {
	// known is what clients know of the keys.
	known map[contract.Key]known
	// floor is the newest revision that was shown, and heads the heads.
	floor contract.Revision
	heads []shown
	// watches are the watches that were begun.
	watches []*watch
	pending int
}

// known is a key as a client has read it.
type known struct {
	revision contract.Revision
	era      contract.Era
	value    string
}

// shown is a head that was shown at a turn.
type shown struct {
	turn int
	n    *node
}

// config makes rings, pieces of the log and batches so small that all of them end all the time.
func (w *world) config() mvcc.Config {
	c := mvcc.Config{Timeout: 3 * time.Second, RetryFor: time.Second, ResolveFor: 4 * time.Second,
		CloseFor: time.Second, Ring: mvcc.RingLimits{Events: 8, Bytes: 1 << 20}, TailRows: 4,
		PollActive: 20 * time.Millisecond, ProgressInterval: time.Second, ExpiryIdle: time.Second,
		CacheBytes: w.plan.Cache,
		Compaction: mvcc.CompactionPolicy{Window: -1, SweepRows: 3}}
	if w.plan.Window {
		c.Compaction = mvcc.CompactionPolicy{Window: 50 * time.Millisecond, Keep: 4,
			Interval: 400 * time.Millisecond, SweepRows: 3}
	}
	return c
}

func (p *process) start() {
	if p.state != down {
		return
	}
	w := p.w
	p.life++
	p.state, p.paused, p.deaf, p.memory = opening, false, false, &memory{known: map[contract.Key]known{}}
	b := w.newBackend(w.s, &p.peer, make(chan struct{}))
	p.b = b
	life := p.life
	w.busy++
	go func() {
		s, err := mvcc.Open(context.Background(), b.as(w.s.kind), w.config())
		w.later(fmt.Sprintf("process %d %d opened", p.id, life), func() {
			w.busy--
			w.log("process %d opened: %v", p.id, err)
			switch {
			case p.life == life && p.state == opening && err == nil:
				p.state, p.store = up, s
			case err == nil:
				w.close(s) // it was killed meanwhile
			case p.life == life:
				w.judge.allowed("open", err)
				p.state = down
			}
		})
	}()
}

// kill ends a process at once. Nobody hears what its clients are told from now on.
func (p *process) kill() {
	if p.state == down {
		return
	}
	close(p.b.killed)
	p.end()
	if s := p.store; s != nil && p.state == up {
		p.w.close(s)
	}
	p.state, p.store, p.paused = down, nil, false
	p.life++
}

// end lets the judge look at what a process that is over has told.
func (p *process) end() {
	for _, x := range p.memory.watches {
		x.cancel()
	}
	p.w.judge.over = append(p.w.judge.over, p.memory.watches...)
	p.memory.watches = nil
}

// stop ends a process in order.
func (p *process) stop() {
	if p.state != up {
		return
	}
	p.state = closing
	s, life := p.store, p.life
	p.w.busy++
	go func() {
		_ = s.Close()
		p.w.later(fmt.Sprintf("process %d %d closed", p.id, life), func() {
			p.w.busy--
			if p.life == life {
				p.end()
				p.state, p.store, p.paused = down, nil, false
				p.life++
			}
		})
	}()
}

// hear makes notifications reach the process, or not.
func (p *process) hear(heard bool) {
	if p.b == nil || p.b.status == nil || p.deaf != heard {
		return
	}
	p.deaf = !heard
	if heard {
		p.b.status(nil)
	} else {
		p.b.status(errors.New("the listener's connection broke"))
	}
}

// allKeys are the keys.
var allKeys = []contract.Key{"/a/0", "/b/0", "/a/1", "/b/1", "/a/2", "/b/2", "/c"}

// poison is a value that the database refuses.
const poison = "poison"

// op is one request of a client.
type op struct {
	w      *world
	p      *process
	life   int
	memory *memory
	id     int
	verb   string
	key    contract.Key
	// call and end are the turns in which it began and ended. floor is what its process had shown
	// before.
	call, end int
	floor     contract.Revision
	gone      bool // its process was killed before it ended
	ended     bool
	m         contract.Mutation
	// rest are the other mutations of a transaction.
	rest []contract.Mutation
	// expected is the value that the client had read at m.Expect.
	expected string
	nodes    []*node      // that it has written
	refused  bool         // and nothing was written
	era      contract.Era // of what it was told
}

// client begins a request.
func (p *process) client(a *action) {
	if p.state != up || p.paused {
		return
	}
	w := p.w
	w.report.Operations++
	o := &op{w: w, p: p, life: p.life, memory: p.memory, id: len(w.judge.ops), verb: a.Do,
		key: allKeys[a.Key%len(allKeys)], call: w.turns.now(), floor: p.memory.floor}
	w.judge.ops = append(w.judge.ops, o)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	if a.N%10 == 0 {
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), 200*time.Millisecond)
	}
	p.memory.pending++
	w.busy++
	s := p.store
	begin := func(f func() func()) {
		go func() {
			defer cancel()
			judge := f()
			w.later(fmt.Sprintf("op %06d", o.id), func() {
				o.memory.pending--
				w.busy--
				o.end, o.ended, o.gone = w.turns.now(), true, p.life != o.life
				w.log("op %d ends", o.id)
				judge()
			})
		}()
	}
	value := []byte(fmt.Sprint(o.id))
	write := func(m contract.Mutation, expected string) {
		m.Value = value
		if a.Do == "expire" {
			m.TTL = time.Duration(1+a.N*a.N/50) * time.Millisecond
		}
		begin(func() func() { return o.write(ctx, s, m, expected) })
	}
	switch a.Do {
	case "create", "expire":
		write(contract.Mutation{Key: o.key}, "")
	case "overwrite":
		write(contract.Mutation{Key: o.key, Expect: contract.Any}, "")
	case "poison":
		value = []byte(poison)
		write(contract.Mutation{Key: o.key, Expect: contract.Any}, "")
	case "condition":
		write(contract.Mutation{Key: o.key, Expect: contract.Any, If: p.condition(a)}, "")
	case "transaction":
		m, rest := p.transaction(a, o)
		begin(func() func() { return o.transact(ctx, s, m, rest) })
	case "stale":
		k := p.memory.known[o.key]
		if k.revision == 0 {
			k = known{} // a creation
		}
		write(contract.Mutation{Key: o.key, Expect: k.revision, Era: k.era}, k.value)
	case "update", "delete":
		begin(func() func() {
			era := s.Era()
			kv, head, err := s.Get(ctx, o.key)
			if err != nil {
				return func() { w.judge.get(o, kv, head, err) }
			}
			get := *o
			get.end = w.turns.now()
			m := contract.Mutation{Key: o.key, Era: era, Value: value}
			expected := ""
			if kv != nil {
				m.Expect, expected = kv.Revision, string(kv.Value)
				if m.Delete = a.Do == "delete"; a.N%2 == 0 {
					m.PrevValue, m.HasPrev, m.PrevLease = kv.Value, true, kv.Lease
				}
			}
			o.call = w.turns.now()
			judge := o.write(ctx, s, m, expected)
			return func() {
				w.judge.get(&get, kv, head, nil)
				judge()
			}
		})
	case "get":
		begin(func() func() {
			era := s.Era()
			kv, head, err := s.Get(ctx, o.key)
			return func() {
				if w.judge.get(o, kv, head, err) {
					k := known{era: era}
					if kv != nil {
						k.revision, k.value = kv.Revision, string(kv.Value)
					}
					o.memory.known[o.key] = k
				}
			}
		})
	case "head":
		begin(func() func() {
			head, err := s.Head(ctx)
			return func() { w.judge.headRead(o, head, err) }
		})
	case "list", "listAt":
		q := mvcc.RangeOptions{Start: "/", End: "0", Limit: a.N % 4, KeysOnly: a.N%7 == 0,
			Count: a.N%5 == 0}
		if a.N%3 == 0 {
			q.Start, q.End = "/a/", "/b/1"
		}
		if a.Do == "listAt" {
			q.At = max(p.memory.floor-contract.Revision(a.N/7%16)+1, 1)
		}
		begin(func() func() { return o.list(ctx, s, q) })
	case "count":
		begin(func() func() {
			n, err := s.Count(ctx, "/a/", "/b/1")
			return func() { w.judge.counted(o, n, err) }
		})
	case "watch":
		p.memory.pending--
		w.busy--
		cancel()
		p.watch(a, o)
	case "unwatch":
		p.memory.pending--
		w.busy--
		cancel()
		if n := len(p.memory.watches); n > 0 {
			x := p.memory.watches[a.N%n]
			x.cancel()
		}
	case "compact":
		to := p.memory.floor - contract.Revision(a.N%12)
		begin(func() func() {
			err := s.Compact(ctx, max(to, 1))
			return func() { w.judge.allowed("compact", err) }
		})
	case "sweep":
		begin(func() func() {
			err := s.Sweep(ctx)
			return func() { w.judge.allowed("sweep", err) }
		})
	case "reap":
		begin(func() func() {
			err := s.DeleteExpired(ctx)
			return func() { w.judge.allowed("reap", err) }
		})
	case "declare":
		begin(func() func() {
			_, err := s.ChangeIndexes(ctx, func(x *contract.Indexes) (bool, error) {
				dropped := x.Drop(indexed, "end")
				if dropped = x.Drop(indexed, "length") || dropped; dropped && a.N%3 == 0 {
					return true, nil
				}
				return true, x.Add(contract.Directory{Path: indexed}, []string{"end", "length"}[a.N%2])
			})
			return func() { w.judge.allowed("declare", err) }
		})
	case "build":
		begin(func() func() {
			_, err := s.BuildIndexes(ctx, indexed, "/a0",
				func(*contract.Index) bool { return true },
				func(x *contract.Indexes, kv *mvcc.KeyValue) ([]contract.Entry, bool) {
					return entriesOf(x, kv.Value), true
				})
			return func() { w.judge.allowed("build", err) }
		})
	case "fence":
		begin(func() func() {
			_, err := s.Fence(ctx)
			return func() { w.judge.allowed("fence", err) }
		})
	default:
		panic("no such action: " + a.Do)
	}
}

// indexed is a directory of keys that may have an index: of how their values end, or how long they
// are.
const indexed contract.Key = "/a/"

// entriesOf are the entries of a value.
func entriesOf(x *contract.Indexes, value []byte) (entries []contract.Entry) {
	for _, d := range x.In(indexed) {
		says := string(value[len(value)-1:])
		if d.Name == "length" {
			says = fmt.Sprint("length ", len(value))
		}
		entries = append(entries, contract.ValueEntry(d.ID, says))
	}
	return entries
}

// says has a mutation say what its value does to the indexes that its process knows. Some clients
// do not know what their values say.
func (o *op) says(s *mvcc.Engine, m contract.Mutation) contract.Mutation {
	if o.w.plan.Indexes && o.id%3 != 0 && !m.Delete {
		m.Known = s.Indexes()
		m.Found = entriesOf(m.Known, m.Value)
	}
	return m
}

// condition is what a write demands of another key, or of a range with its own key in it: mostly
// what its client knows, which may have changed since.
func (p *process) condition(a *action) *contract.Condition {
	key := allKeys[(a.Key+1+a.N%(len(allKeys)-1))%len(allKeys)]
	c := contract.Comparison{Start: key, End: key + "\x00", Property: contract.CompareRevision,
		Operator: contract.Operator(a.N / 6 % 4), Number: int64(p.memory.known[key].revision)}
	switch a.N / 2 % 3 {
	case 0:
		c.Start, c.End = "/a/", "/b/1"
	case 1:
		c.Property, c.Number = contract.CompareVersion, int64(a.N%2)
	}
	return &contract.Condition{Comparisons: []contract.Comparison{c}, Hold: a.N%5 > 1}
}

// transaction are mutations of up to four keys, which mostly expect what their client knows, or any
// state. They may demand that a range is untouched since the newest revision that was shown.
func (p *process) transaction(a *action, o *op) (m contract.Mutation, rest []contract.Mutation) {
	var ms []contract.Mutation
	for i := range 2 + a.N%3 {
		key := allKeys[(a.Key+i*(1+a.N/3%2))%len(allKeys)]
		k := p.memory.known[key]
		m := contract.Mutation{Key: key, Value: []byte(fmt.Sprint(o.id)), Expect: k.revision, Era: k.era}
		switch {
		case k.revision == 0 || a.N/6%3 == 0:
			m.Expect, m.Era = contract.Any, 0
		case (a.N/18+i)%3 == 0:
			m.Delete = true
		}
		ms = append(ms, m)
	}
	if a.N/7%2 == 0 {
		ms[0].If = p.condition(a)
	}
	if a.N/14%3 == 0 && p.memory.floor > 0 {
		if ms[0].If == nil {
			ms[0].If = &contract.Condition{Hold: true}
		}
		ms[0].Era = p.memory.known[ms[0].Key].era
		if ms[0].Era == 0 {
			ms[0].Era = p.store.EraOf(p.memory.floor)
		}
		ms[0].If.Since = p.memory.floor
		ms[0].If.Untouched = []contract.Span{{Start: "/b/", End: "/b/2"}}
	}
	return ms[0], ms[1:]
}

// transact writes a transaction, and returns what has to be judged of it.
func (o *op) transact(ctx context.Context, s *mvcc.Engine, m contract.Mutation,
	rest []contract.Mutation) func() {
	o.m, o.rest, o.era = m, rest, s.Era()
	all := o.all()
	for i := range all {
		all[i] = o.says(s, all[i])
	}
	revision, err := s.Transact(ctx, all)
	return func() {
		o.w.judge.written(o, contract.Outcome{Accepted: true, Revision: revision}, err)
	}
}

// all are the mutations of the request.
func (o *op) all() []contract.Mutation { return append([]contract.Mutation{o.m}, o.rest...) }

// write writes, and returns what has to be judged of it.
func (o *op) write(ctx context.Context, s *mvcc.Engine, m contract.Mutation, expected string) func() {
	o.m, o.expected, o.era = m, expected, s.Era()
	if m.Delete {
		// The database does not look at it. It tells whose deletion it is.
		o.m.Value = []byte(fmt.Sprint(o.id))
	}
	if m.If == nil && o.id%3 > 0 {
		o.m.By = &contract.User{Name: fmt.Sprint("user ", o.id), AuditID: fmt.Sprint(o.id)}
	}
	done, err := s.Apply(ctx, o.says(s, o.m))
	return func() { o.w.judge.written(o, done, err) }
}

// user is who is recorded with what a request has written, zero for nobody.
func (o *op) user() (u contract.User) {
	if o != nil && o.m.By != nil {
		u = *o.m.By
	}
	return u
}

// list reads all pages.
func (o *op) list(ctx context.Context, s *mvcc.Engine, q mvcc.RangeOptions) func() {
	l := &list{q: q}
	for {
		res, err := s.Range(ctx, q)
		if l.err = err; err != nil {
			break
		}
		if len(l.pages) == 0 {
			l.firstEnd = o.w.turns.now()
			q.At = res.Revision
		}
		l.pages = append(l.pages, res)
		if !res.More {
			break
		}
		if len(res.KVs) == 0 {
			l.err = errors.New("a page is empty, and there is more")
			break
		}
		q.From = res.KVs[len(res.KVs)-1].Key + "\x00"
	}
	return func() { o.w.judge.list(o, l) }
}

// list is what a list has answered.
type list struct {
	q        mvcc.RangeOptions
	pages    []*mvcc.RangeResult
	firstEnd int
	err      error
}

// watch is a watch of a client.
type watch struct {
	o      *op
	p      *process
	opts   mvcc.WatchOptions
	after  contract.Revision
	w      *mvcc.Watcher
	ctx    context.Context
	cancel context.CancelFunc
	// Protected by world.mu until it has ended:

	events   []*mvcc.Event
	progress contract.Revision
	told     bool // progress that was requested
	err      error
	ended    bool
	endTurn  int
}

// watch begins a watch.
func (p *process) watch(a *action, o *op) {
	if len(p.memory.watches) > 12 {
		return
	}
	x := &watch{o: o, p: p}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	switch a.N % 4 {
	case 0:
		x.opts.Prefix = "/"
	case 1:
		x.opts.Prefix = "/a/"
	case 2:
		x.opts.Key = o.key
	case 3:
		x.opts.Start, x.opts.End = "/a/1", "/b/1"
	}
	x.opts.Progress, x.opts.AllPrev = a.N%3 == 0, a.N%5 == 0
	x.after = max(p.memory.floor-contract.Revision(a.N/4%10), 1)
	x.opts.After = x.after
	x.progress = x.after
	var err error
	if x.w, err = p.store.Watch(x.ctx, x.opts); err != nil {
		p.w.judge.watchRefused(x, err)
		x.cancel()
		return
	}
	p.w.report.Watches++
	p.memory.watches = append(p.memory.watches, x)
	slow := time.Duration(0)
	if a.N%6 == 0 {
		slow = time.Duration(a.N) * time.Millisecond
	}
	go x.follow(slow)
}

func (x *watch) follow(slow time.Duration) {
	for {
		b, err := x.w.Next(x.ctx)
		x.p.w.mu.Lock()
		x.events = append(x.events, b.Events...)
		x.progress = max(x.progress, b.Progress)
		x.told = x.told || b.Requested
		if x.err = err; err != nil {
			x.ended, x.endTurn = true, x.p.w.turns.now()
		}
		x.p.w.mu.Unlock()
		if err != nil {
			x.w.Close()
			return
		}
		if slow > 0 {
			<-time.After(slow)
		}
	}
}
