package directory

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

var (
	moves = flag.Int("moves", 0, "how many moves TestMovedUnderLoad makes (0: 6 on SQLite, 2 elsewhere)")
	seed  = flag.Uint64("seed", 0, "the seed of TestMovedUnderLoad (0: the time)")
)

// errKilled stands for the end of a process.
var errKilled = errors.New("killed")

// process is a process that moves a store. It is ended, or it sleeps, at a step that is drawn.
type process struct {
	d      *Directory
	ctx    context.Context
	cancel context.CancelFunc
	// at is the name of the step, or if it is empty, steps are how many there are until it comes:
	// each key that is copied or compared is one, too.
	at    string
	steps atomic.Int64
	// after is how long after the step it is cut off, in the middle of whatever it does then. If it
	// is 0, the step is not taken.
	after time.Duration
	// wake, if it is not nil, is what it sleeps at the step for, until it goes on.
	wake  chan struct{}
	slept chan struct{}
	dead  atomic.Bool
}

func (p *process) step(name string) error {
	if p.dead.Load() {
		return errKilled
	}
	if p.at != "" && name != p.at || p.steps.Add(-1) != 0 {
		return nil
	}
	switch {
	case p.wake != nil:
		close(p.slept)
		<-p.wake
		return nil
	case p.after == 0:
		p.dead.Store(true)
		return errKilled
	}
	time.AfterFunc(p.after, func() {
		p.dead.Store(true)
		p.cancel()
	})
	return nil
}

// known is what a client knows of a key that nobody else writes.
type known struct {
	value    int
	revision contract.Revision
	// maybe are values that it may have since.
	maybe []int
}

// history is what all clients have seen: which value a revision stands for.
type history struct {
	mu     sync.Mutex
	at     map[contract.Revision]string
	faults []string
}

func (h *history) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.faults) < 20 {
		h.faults = append(h.faults, fmt.Sprintf(format, args...))
	}
}

// saw notes what a revision stands for.
func (h *history) saw(at contract.Revision, key, value string) {
	h.mu.Lock()
	was, seen := h.at[at]
	h.at[at] = key + "=" + value
	h.mu.Unlock()
	if seen && was != key+"="+value {
		h.fault("revision %d stands for %s and for %s=%s", at, was, key, value)
	}
}

// client writes keys of its own, and reads them. It judges each answer.
type client struct {
	*history
	name string
	// use finds the store.
	use  func(context.Context) (*database.Store, func(), error)
	keys map[string]known
	// seen is the greatest revision that an answer has had.
	seen                   contract.Revision
	acked, refused, unsure int
}

// act reads a key and writes it. Nobody else writes it, and this client waits for each answer.
func (c *client) act(ctx context.Context, key string, value int) {
	s, release, err := c.use(ctx)
	if err != nil {
		c.refused++
		return
	}
	defer release()
	e := database.Engine(s)
	now, head, err := e.Get(ctx, contract.Key(key))
	if err != nil {
		c.refused++
		return
	}
	k := c.judge(key, now, head)
	m := contract.Mutation{Key: contract.Key(key), Expect: k.revision,
		Value: []byte(strconv.Itoa(value))}
	if len(k.maybe) > 0 {
		m.Expect = contract.Any // it may be done later, perhaps
	}
	at, err := e.Commit(ctx, m)
	conflict := (*contract.ConflictError)(nil)
	switch {
	case err == nil:
		if at <= c.seen {
			c.fault("%s: %s was written at %d, after %d was seen", c.name, key, at, c.seen)
		}
		c.acked++
		c.seen, c.keys[key] = at, known{value: value, revision: at}
		c.saw(at, key, string(m.Value))
	case errors.As(err, &conflict):
		c.fault("%s: %s was at %d, where nobody else writes: %v", c.name, key, k.revision, err)
	case errors.Is(err, contract.ErrUnknownOutcome):
		c.unsure++
		k.maybe = append(k.maybe, value)
		c.keys[key] = k
	default:
		c.refused++
	}
}

// judge compares what was read with what is known.
func (c *client) judge(key string, now *mvcc.KeyValue, head contract.Revision) known {
	if head < c.seen {
		c.fault("%s: the head is %d, and %d was seen", c.name, head, c.seen)
	}
	c.seen = max(c.seen, head)
	k := c.keys[key]
	if now == nil {
		if k.revision != 0 {
			c.fault("%s: %s is gone, which was written at %d", c.name, key, k.revision)
		}
		return k
	}
	c.saw(now.Revision, key, string(now.Value))
	value, _ := strconv.Atoi(string(now.Value))
	switch {
	case value == k.value && now.Revision == k.revision:
	case slices.Contains(k.maybe, value) && now.Revision > k.revision:
		// What may have been done before it cannot come any more, but what came after it can.
		k.maybe = k.maybe[slices.Index(k.maybe, value)+1:]
		k.value, k.revision = value, now.Revision
		c.keys[key] = k
	default:
		c.fault("%s: %s is %d at %d, and was written as %d at %d, or as one of %v", c.name, key, value,
			now.Revision, k.value, k.revision, k.maybe)
	}
	return k
}

// work acts until the context ends. Some calls have little time, so that their outcome is unknown.
func (c *client) work(ctx context.Context, r *rand.Rand) {
	for value := 1; ctx.Err() == nil; value++ {
		call, cancel := ctx, context.CancelFunc(func() {})
		if r.IntN(20) == 0 {
			call, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Microsecond)
		}
		refused := c.refused
		c.act(call, fmt.Sprintf("%s/%d", c.name, r.IntN(8)), value)
		cancel()
		if c.refused > refused {
			contract.Wait(ctx, time.Millisecond)
		}
	}
}

// informer lists and watches through a front end, as those of Kubernetes do.
type informer struct {
	*history
	use func(context.Context) (*database.Store, func(), error)
	// state is what it believes, by keys.
	state          map[string]contract.Revision
	seen           contract.Revision
	lists, resumed int
}

func (i *informer) work(ctx context.Context) {
	for ctx.Err() == nil {
		_ = i.list(ctx) // what fails is tried again
	}
}

func (i *informer) list(ctx context.Context) error {
	s, release, err := i.use(ctx)
	if err != nil {
		return err
	}
	defer release()
	e := database.Engine(s)
	after := i.seen
	if after > 0 {
		w, err := e.Watch(ctx, mvcc.WatchOptions{After: after, End: "\xff"})
		if err == nil {
			i.resumed++
			return i.watch(ctx, w)
		}
		if !errors.Is(err, contract.ErrCompacted) {
			return err
		}
	}
	list, err := e.Range(ctx, mvcc.RangeOptions{Start: "", End: "\xff"})
	if err != nil {
		return err
	}
	i.lists++
	if list.Revision < i.seen {
		i.fault("an informer lists revision %d, and has seen %d", list.Revision, i.seen)
	}
	i.seen = list.Revision
	for _, kv := range list.KVs {
		i.at(string(kv.Key), kv.Revision, string(kv.Value))
	}
	w, err := e.Watch(ctx, mvcc.WatchOptions{After: list.Revision, End: "\xff"})
	if err != nil {
		return err
	}
	return i.watch(ctx, w)
}

func (i *informer) at(key string, at contract.Revision, value string) {
	if was := i.state[key]; at < was {
		i.fault("an informer sees %s go back from %d to %d", key, was, at)
	}
	i.state[key] = at
	i.saw(at, key, value)
}

func (i *informer) watch(ctx context.Context, w *mvcc.Watcher) error {
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			if e.Revision <= i.seen {
				i.fault("an informer gets an event of %d after %d", e.Revision, i.seen)
			}
			i.seen = e.Revision
			i.at(string(e.Key), e.Revision, string(e.Value))
		}
	}
}

// stale is a front end with an old directory: it believes one of the last rows, and keeps stores
// open wherever they were.
type stale struct {
	pool *Pool
	mu   sync.Mutex
	r    *rand.Rand
	rows []Row
	// places are what the front end knows of the stores that it has opened, by generations.
	places map[int64]*place
}

// told tells the front end of a row, of which it remembers the last ones.
func (s *stale) told(row Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.rows); n == 0 || s.rows[n-1].Generation != row.Generation {
		s.rows = append(s.rows[max(0, n-3):], row)
	}
}

func (s *stale) use(ctx context.Context) (*database.Store, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rows) == 0 {
		return nil, nil, contract.ErrDropped
	}
	row := s.rows[s.r.IntN(len(s.rows))]
	store, release, err := s.pool.useAt(ctx, row, s.places[row.Generation])
	if err == nil {
		s.places[row.Generation] = s.pool.places[row.Name]
	}
	return store, release, err
}

// TestMovedUnderLoad: a store moves again and again between three databases. Each process that
// moves it is killed at a step that is drawn, or in the middle of one, or sleeps until others have
// gone on with its move or have undone it. Meanwhile a client writes and an informer watches
// through a front end that follows, and a client writes through one with an old directory. Nothing
// that was acknowledged is lost, no revision stands for two values, and nobody sees one go back.
//
// With -moves N it is the torture of moves: storage/directory/doc.go says what has to hold.
func TestMovedUnderLoad(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it waits most of the time
			n := cmp.Or(*moves, 2)
			if *moves == 0 && kind == dbtest.SQLite {
				n = 6
			}
			moveUnderLoad(t, newWorld(t, of(kind)...), n)
		})
	}
}

func moveUnderLoad(t *testing.T, w *world, rounds int) {
	start := *seed
	if start == 0 {
		start = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", start)
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(start, stream)) }
	r := random(0)
	_, err := w.d.Create(w.ctx, "blue", "a")
	w.must(err)
	h := &history{at: map[contract.Revision]string{}}
	follows := w.pool()
	use := func(ctx context.Context) (*database.Store, func(), error) { return follows.Use(ctx, "blue") }
	fresh := &client{history: h, name: "fresh", use: use, keys: map[string]known{}}
	behind := &stale{pool: w.pool(), r: random(9), places: map[int64]*place{}}
	old := &client{history: h, name: "old", use: behind.use, keys: map[string]known{}}
	watches := &informer{history: h, use: use, state: map[string]contract.Revision{}}
	ctx, stop := context.WithCancel(w.ctx)
	var working, sleeping sync.WaitGroup
	working.Go(func() { fresh.work(ctx, random(1)) })
	working.Go(func() { old.work(ctx, random(2)) })
	working.Go(func() { watches.work(ctx) })
	var sleepers []*process
	wake := func(chance int) {
		sleepers = slices.DeleteFunc(sleepers, func(p *process) bool {
			wakes := r.IntN(chance) == 0
			if wakes {
				close(p.wake)
			}
			return wakes
		})
	}
	var moved, stayed, killed, slept int
	all := append(slices.Clone(moveSteps), undoSteps...)
	directories := []*Directory{w.open()}
	for n := range rounds {
		row, err := w.d.Get(w.ctx, "blue")
		w.must(err)
		from := row.Database
		others := slices.DeleteFunc([]string{"a", "b", "c"}, func(in string) bool { return in == from })
		to := others[r.IntN(len(others))]
		for turn := 0; turn == 0 || row.State != Open; turn++ {
			if len(directories) == 0 { // the others are asleep
				directories = append(directories, w.open())
			}
			p := &process{d: directories[0]}
			p.ctx, p.cancel = context.WithCancel(w.ctx)
			if turn < 6 {
				if p.steps.Store(1); r.IntN(3) > 0 {
					p.at = all[r.IntN(len(all))]
				} else {
					p.steps.Store(1 + r.Int64N(60))
				}
				if r.IntN(2) > 0 {
					p.after = time.Duration(1+r.IntN(10_000)) * time.Microsecond
				}
				if turn < 3 && len(sleepers) < 4 && r.IntN(3) == 0 {
					p.wake, p.slept = make(chan struct{}), make(chan struct{})
				}
			}
			p.d.at = p.step
			undo := row.State == Undoing || turn > 0 && row.State == Moving && r.IntN(6) == 0
			ended := make(chan error, 1)
			sleeping.Go(func() {
				defer p.cancel()
				if undo {
					_, err := p.d.Undo(p.ctx, "blue")
					ended <- err
					return
				}
				_, err := p.d.MoveTo(p.ctx, "blue", to, MoveOptions{Progress: func(string, int64, int64) {
					if p.step("") != nil {
						p.cancel()
					}
				}})
				ended <- err
			})
			select {
			case err = <-ended:
			case <-p.slept:
				slept++
				sleepers, directories = append(sleepers, p), directories[1:]
			}
			if p.dead.Load() {
				killed++
			} else if err != nil && turn > 12 {
				t.Fatalf("move %d, turn %d: %v", n, turn, err)
			}
			wake(6)
			row, err = w.d.Get(w.ctx, "blue")
			w.must(err)
			behind.told(row)
		}
		if moved++; row.Database == from {
			moved--
			stayed++
		}
		w.oneOpen("blue")
	}
	wake(1)
	sleeping.Wait()
	w.oneOpen("blue")
	stop()
	working.Wait()
	t.Logf("moved %d times, stayed %d times, %d processes killed, %d slept; acknowledged %d and %d writes, refused "+
		"%d and %d, unknown %d and %d; %d lists, %d watches resumed", moved, stayed, killed, slept,
		fresh.acked, old.acked, fresh.refused, old.refused, fresh.unsure, old.unsure, watches.lists,
		watches.resumed)
	last := w.pool()
	for _, c := range []*client{fresh, old} {
		s, release, err := last.Use(w.ctx, "blue")
		w.must(err)
		for key := range c.keys {
			now, head, err := database.Engine(s).Get(w.ctx, contract.Key(key))
			w.must(err)
			c.judge(key, now, head)
		}
		release()
		if c.acked == 0 {
			t.Errorf("%s has written nothing", c.name)
		}
	}
	for _, fault := range h.faults {
		t.Error(fault)
	}
}

// oneOpen checks that one database has the store open, which is the one of the directory.
func (w *world) oneOpen(name string) {
	w.Helper()
	row, err := w.d.Get(w.ctx, name)
	w.must(err)
	names, err := w.databases.Names()
	w.must(err)
	var open []string
	for _, in := range names {
		c, err := w.databases.Config(in, name)
		w.must(err)
		stores, err := database.Stores(w.ctx, c)
		w.must(err)
		if slices.Contains(stores, name) {
			open = append(open, in)
		}
	}
	if row.State != Open || len(open) != 1 || open[0] != row.Database {
		w.Fatalf("the row is %+v, and the store is open in %v", row, open)
	}
}
