package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// open opens a store over a migrated database. Several may be opened over one.
func open(t testing.TB, db dbtest.DB, cfg mvcc.Config) *mvcc.Engine {
	t.Helper()
	s, err := mvcc.Open(t.Context(), openBackend(t, db), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// inMemory is a database in memory, for tests in which it does not matter which one it is.
func inMemory(t testing.TB) dbtest.DB {
	return dbtest.DB{Kind: "memdb", Driver: memdb.New(t.Name(), time.Now)}
}

// everywhere runs a test on a database in memory, and on one of each kind.
func everywhere(t *testing.T, f func(*testing.T, dbtest.DB)) {
	t.Run("memdb", func(t *testing.T) { f(t, inMemory(t)) })
	dbtest.Each(t, f)
}

func openBackend(t testing.TB, db dbtest.DB) contract.Backend {
	t.Helper()
	opts := contract.DriverOptions{Logger: testLogger(t), Timeout: 30 * time.Second}
	if _, err := db.Driver.Migrate(t.Context(), db.URL, opts); err != nil {
		t.Fatal(err)
	}
	b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entry is one write of the model's history.
type entry struct {
	revision contract.Revision
	key      contract.Key
	deleted  bool
	value    string
	prev     contract.Revision
}

// model is what a store should be, as plainly as it can be said: the list of all writes.
type model struct {
	first   contract.Revision // the head before the first entry
	entries []entry
}

func (m *model) head() contract.Revision {
	if len(m.entries) == 0 {
		return m.first
	}
	return m.entries[len(m.entries)-1].revision
}

// state is the newest entry per existing key, at a revision.
func (m *model) state(at contract.Revision) map[contract.Key]entry {
	state := map[contract.Key]entry{}
	for _, e := range m.entries {
		if e.revision > at {
			break
		}
		if e.deleted {
			delete(state, e.key)
		} else {
			state[e.key] = e
		}
	}
	return state
}

func (m *model) list(at contract.Revision, start, end contract.Key) []entry {
	var list []entry
	for k, e := range m.state(at) {
		if k >= start && k < end {
			list = append(list, e)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].key < list[j].key })
	return list
}

// events are the entries after a revision below a prefix, as a watcher should see them.
func (m *model) events(after contract.Revision, prefix string) []string {
	var events []string
	for _, e := range m.entries {
		if e.revision > after && strings.HasPrefix(string(e.key), prefix) {
			events = append(events, e.String())
		}
	}
	return events
}

func (e entry) String() string {
	return fmt.Sprintf("%d %s deleted=%v %q prev=%d", e.revision, e.key, e.deleted, e.value, e.prev)
}

func eventString(e *mvcc.Event) string {
	return entry{revision: e.Revision, key: e.Key, deleted: e.Deleted, value: string(e.Value),
		prev: e.Prev.Revision()}.String()
}

// attempt is a write that was tried in a burst: of one key, or a transaction.
type attempt struct {
	ms       []contract.Mutation
	revision contract.Revision
	err      error
}

// fits tells whether the expectations of the attempt hold in a state, and its condition is met. The
// entries are those since the revision at which it was made.
func (a *attempt) fits(state map[contract.Key]entry, since []entry) (expected, wanted bool) {
	expected = !slices.ContainsFunc(a.ms, func(m contract.Mutation) bool {
		return m.Expect != contract.Any && state[m.Key].revision != m.Expect
	})
	c := a.ms[0].If
	return expected, c == nil || met(c, state) == c.Hold &&
		!slices.ContainsFunc(since, func(e entry) bool { return e.revision > c.Since && c.Touches(e.key) })
}

// TestModel drives two stores over one database with random writes and transactions in concurrent
// bursts, gets, lists, pages, watches, compactions and reopenings, and compares everything with the
// model.
// ROWKEEPER_MODEL_SEED repeats a run.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("ROWKEEPER_MODEL_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		t.Logf("ROWKEEPER_MODEL_SEED=%d", seed)
		r := &modelRun{t: t, db: db, rng: rand.New(rand.NewPCG(seed, 1))}
		r.run(150)
	})
}

type modelRun struct {
	t      *testing.T
	db     dbtest.DB
	rng    *rand.Rand
	stores []*mvcc.Engine
	model  model
	// compacted is the boundary that was set.
	compacted contract.Revision
	watches   []*modelWatch
}

type modelWatch struct {
	after  contract.Revision
	prefix string
	watch  *mvcc.Watcher
	cancel context.CancelFunc
	done   chan struct{}
	// target is the revision up to which the watcher should read before it ends; closed says that
	// it is known.
	mu     sync.Mutex
	events []string
	err    error
}

// config makes rings, tails and batches so small that demotion, replay and paging happen all the
// time. A store may keep no rows, a few, or all.
func (r *modelRun) config() mvcc.Config {
	return mvcc.Config{Logger: testLogger(r.t), Ring: mvcc.RingLimits{Events: 8, Bytes: 1 << 20},
		TailRows:   5,
		CacheBytes: []int{0, 1000, 1 << 20}[r.rng.IntN(3)],
		Compaction: mvcc.CompactionPolicy{Window: -1, SweepRows: 7}}
}

func (r *modelRun) run(steps int) {
	for range 2 {
		r.stores = append(r.stores, open(r.t, r.db, r.config()))
	}
	head, err := r.store().Head(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.model.first, r.compacted = head, 0
	for range steps {
		switch n := r.rng.IntN(20); {
		case n < 8:
			r.burst()
		case n < 11:
			r.get()
		case n < 14:
			r.list()
		case n < 17:
			if len(r.watches) < 30 {
				r.watch()
			}
		case n < 19:
			r.compact()
		default:
			r.reopen()
		}
		if r.t.Failed() {
			return
		}
	}
	r.endWatches()
}

func (r *modelRun) store() *mvcc.Engine { return r.stores[r.rng.IntN(len(r.stores))] }

func (r *modelRun) key() contract.Key {
	return contract.Key(fmt.Sprintf("/%c/%c/%d", 'a'+rune(r.rng.IntN(2)), 'x'+rune(r.rng.IntN(2)),
		r.rng.IntN(6)))
}

// mutation is one that will mostly succeed if nobody else changes the key.
func (r *modelRun) mutation(state map[contract.Key]entry) contract.Mutation {
	m := contract.Mutation{Key: r.key()}
	current := state[m.Key].revision
	switch n := r.rng.IntN(10); {
	case n < 7:
		m.Expect = current
	case n < 9:
		m.Expect = contract.Revision(r.rng.Int64N(int64(r.model.head()) + 2))
	}
	if r.rng.IntN(4) == 0 {
		m.If = r.condition(state)
	}
	if m.Expect != 0 && r.rng.IntN(3) == 0 {
		m.Delete = true
		return m
	}
	if r.rng.IntN(8) > 0 {
		m.Value = []byte(fmt.Sprintf("%d", r.rng.Uint64()))
	}
	return m
}

// transaction is made of mutations of different keys.
func (r *modelRun) transaction(state map[contract.Key]entry) []contract.Mutation {
	ms := []contract.Mutation{r.mutation(state)}
	for range r.rng.IntN(5) {
		m := r.mutation(state)
		if m.If = nil; m.Expect != state[m.Key].revision {
			if m.Expect = contract.Any; m.Delete {
				continue
			}
		}
		if !slices.ContainsFunc(ms, func(o contract.Mutation) bool { return o.Key == m.Key }) {
			ms = append(ms, m)
		}
	}
	return ms
}

// condition is one that mostly is met if nobody else changes the keys: of a key, or of a range.
func (r *modelRun) condition(state map[contract.Key]entry) *contract.Condition {
	c := &contract.Condition{Comparisons: make([]contract.Comparison, 1+r.rng.IntN(2))}
	for i := range c.Comparisons {
		key := r.key()
		p := contract.Comparison{Start: key, End: key + "\x00", Property: contract.CompareRevision,
			Operator: contract.Operator(r.rng.IntN(4)), Number: int64(state[key].revision)}
		if r.rng.IntN(3) == 0 {
			p.Property, p.Value = contract.CompareValue, []byte(state[key].value)
		}
		if r.rng.IntN(3) == 0 {
			p.Start, p.End = "/a/y/", "/b/x/3"
		}
		c.Comparisons[i] = p
	}
	c.Hold = met(c, state)
	if r.rng.IntN(4) == 0 {
		c.Hold = !c.Hold
	}
	if r.rng.IntN(3) == 0 {
		key := r.key()
		c.Since = max(r.compacted, r.model.head()-contract.Revision(r.rng.IntN(3)), 1)
		c.Untouched = []contract.Span{{Start: key, End: key + "\x00"}, {Start: "/a/y/", End: "/b/x/3"}}
	}
	return c
}

// met tells whether all comparisons of a condition hold in a state.
func met(c *contract.Condition, state map[contract.Key]entry) bool {
	return !slices.ContainsFunc(c.Comparisons, func(c contract.Comparison) bool {
		some, misfit := false, false
		for key, e := range state {
			if key >= c.Start && key < c.End {
				some, misfit = true, misfit || !c.Fits(contract.Current{ID: e.revision},
					[]byte(e.value))
			}
		}
		return !c.Holds(some, misfit)
	})
}

func (r *modelRun) burst() {
	state := r.model.state(r.model.head())
	attempts := make([]attempt, 1+r.rng.IntN(12))
	var wg sync.WaitGroup
	for i := range attempts {
		a, s := &attempts[i], r.store()
		if a.ms = []contract.Mutation{r.mutation(state)}; r.rng.IntN(4) == 0 {
			a.ms = r.transaction(state)
		}
		wg.Go(func() {
			if len(a.ms) == 1 {
				a.revision, a.err = s.Commit(r.t.Context(), a.ms[0])
			} else {
				a.revision, a.err = s.Transact(r.t.Context(), a.ms)
			}
		})
	}
	wg.Wait()
	slices.SortStableFunc(attempts, func(a, b attempt) int { return int(a.revision - b.revision) })
	before := r.model.head()
	states := []map[contract.Key]entry{state}
	for _, a := range attempts {
		if a.err != nil {
			continue
		}
		state := r.model.state(r.model.head())
		if a.revision != r.model.head()+1 {
			r.t.Fatalf("a write has revision %d after the head %d: not dense", a.revision,
				r.model.head())
		}
		expected, wanted := a.fits(state, r.model.entries)
		if !expected {
			r.t.Fatalf("%+v was written at %d where its expectation does not hold", a.ms, a.revision)
		}
		if !wanted {
			r.t.Fatalf("%+v was written at %d although its condition was not met: %+v", a.ms,
				a.revision, a.ms[0].If)
		}
		for _, m := range a.ms {
			r.model.entries = append(r.model.entries, entry{revision: a.revision, key: m.Key,
				deleted: m.Delete, value: string(m.Value), prev: state[m.Key].revision})
		}
		states = append(states, r.model.state(r.model.head()))
	}
	// holds tells whether something was so all the time.
	holds := func(f func(state map[contract.Key]entry) bool) bool {
		return !slices.ContainsFunc(states, func(s map[contract.Key]entry) bool { return !f(s) })
	}
	for _, a := range attempts {
		if a.err == nil {
			continue
		}
		if errors.Is(a.err, mvcc.ErrOtherEra) || errors.Is(a.err, contract.ErrOvertaken) {
			continue // compaction has overtaken its process
		}
		if errors.Is(a.err, contract.ErrCondition) {
			if holds(func(s map[contract.Key]entry) bool {
				_, wanted := a.fits(s, r.model.entries)
				return wanted
			}) && a.ms[0].If.Since >= r.compacted {
				r.t.Fatalf("%+v was refused though its condition was met all the time since %d: %+v",
					a.ms, before, a.ms[0].If)
			}
			continue
		}
		var conflict *contract.ConflictError
		if !errors.As(a.err, &conflict) {
			r.t.Fatalf("write of %+v: %v", a.ms, a.err)
		}
		// A refusal is right if there was a moment in the burst when the expectation did not hold.
		if holds(func(s map[contract.Key]entry) bool {
			expected, _ := a.fits(s, nil)
			return expected
		}) {
			r.t.Fatalf("%+v was refused though it was at the expected revision all the time since %d",
				a.ms, before)
		}
	}
}

// get reads several keys at the same time.
func (r *modelRun) get() {
	var wg sync.WaitGroup
	state := r.model.state(r.model.head())
	for range 1 + r.rng.IntN(8) {
		s, key := r.store(), r.key()
		wg.Go(func() {
			kv, head, err := s.Get(r.t.Context(), key)
			want, ok := state[key]
			switch {
			case err != nil:
				r.t.Errorf("get of %s: %v", key, err)
			case head != r.model.head():
				r.t.Errorf("get of %s says that the head is %d, not %d", key, head, r.model.head())
			case !ok && kv != nil:
				r.t.Errorf("%s is deleted, and %+v was read", key, kv)
			case ok && (kv == nil || kv.Revision != want.revision ||
				string(kv.Value) != want.value):
				r.t.Errorf("get of %s: %+v, want %v", key, kv, want)
			}
		})
	}
	wg.Wait()
}

func (r *modelRun) list() {
	ctx, s := r.t.Context(), r.store()
	ranges := [][2]contract.Key{{"/", "0"}, {"/a/", "/a0"}, {"/b/x/", "/b/x0"}, {"/a/x/3", "/b/y/2"}}
	span := ranges[r.rng.IntN(len(ranges))]
	o := mvcc.RangeOptions{Start: span[0], End: span[1], Limit: r.rng.IntN(5), Count: true,
		KeysOnly: r.rng.IntN(4) == 0}
	if r.rng.IntN(2) == 0 {
		o.At = 1 + contract.Revision(r.rng.Int64N(int64(r.model.head())+2))
	}
	var got []string
	var want []entry
	pages := 0
	for {
		res, err := s.Range(ctx, o)
		at := o.At
		if at == 0 {
			at = r.model.head()
		}
		var future *contract.FutureRevisionError
		switch {
		case at > r.model.head():
			if !errors.As(err, &future) {
				r.t.Fatalf("list at %d beyond the head %d: %v", at, r.model.head(), err)
			}
			return
		case at < r.compacted:
			if !errors.Is(err, contract.ErrCompacted) {
				r.t.Fatalf("list at %d below the boundary %d: %v", at, r.compacted, err)
			}
			return
		case err != nil:
			r.t.Fatalf("list at %d: %v", at, err)
		case res.Revision != at:
			r.t.Fatalf("list at %d says %d", at, res.Revision)
		}
		if pages == 0 {
			want = r.model.list(at, span[0], span[1])
			o.At = res.Revision
		}
		pages++
		if left := len(want) - len(got); int(res.Count) != left ||
			res.More != (left > len(res.KVs)) {
			r.t.Fatalf("list at %d says %d left, more %v; %d are left, %d are here", at, res.Count,
				res.More, left, len(res.KVs))
		}
		for _, kv := range res.KVs {
			got = append(got, fmt.Sprintf("%s@%d %s", kv.Key, kv.Revision, kv.Value))
		}
		if !res.More {
			break
		}
		o.From = res.KVs[len(res.KVs)-1].Key + "\x00"
		if r.rng.IntN(3) == 0 {
			r.burst() // between two pages
		}
		if r.rng.IntN(10) == 0 {
			s = r.store() // the next page from another replica
		}
	}
	expect := make([]string, len(want))
	for i, e := range want {
		if o.KeysOnly {
			e.value = ""
		}
		expect[i] = fmt.Sprintf("%s@%d %s", e.key, e.revision, e.value)
	}
	if !slices.Equal(got, expect) {
		r.t.Fatalf("list of [%s, %s) at %d in %d pages of %d:\n got %v\nwant %v", span[0], span[1],
			o.At, pages, o.Limit, got, expect)
	}
}

func (r *modelRun) watch() {
	prefixes := []string{"/", "/a/", "/b/x/", "/a/y/"}
	w := &modelWatch{after: 1 + contract.Revision(r.rng.Int64N(int64(r.model.head()))),
		prefix: prefixes[r.rng.IntN(len(prefixes))], done: make(chan struct{})}
	watch, err := r.store().Watch(r.t.Context(), mvcc.WatchOptions{Prefix: contract.Key(w.prefix),
		After: w.after})
	if err != nil {
		if w.after >= r.compacted-1 || !errors.Is(err, contract.ErrCompacted) {
			r.t.Fatalf("watch after %d with the boundary %d: %v", w.after, r.compacted, err)
		}
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.watch, w.cancel = watch, cancel
	r.watches = append(r.watches, w)
	go func() {
		defer close(w.done)
		told := w.after
		for {
			b, err := watch.Next(ctx)
			w.mu.Lock()
			if w.err = err; err == nil && len(b.Events) > 0 {
				if b.Events[0].Revision <= told {
					w.err = fmt.Errorf("a batch begins at %d after one that ends at %d",
						b.Events[0].Revision, told)
				}
				told = max(told, b.Progress)
			}
			for _, e := range b.Events {
				w.events = append(w.events, eventString(e))
			}
			reached, failed := b.Requested, w.err != nil
			w.mu.Unlock()
			if failed || reached {
				return
			}
		}
	}()
}

// endWatches asks every watcher to go as far as the head, and compares.
func (r *modelRun) endWatches() {
	for _, w := range r.watches {
		w.watch.RequestProgress(r.model.head())
		select {
		case <-w.done:
		case <-time.After(time.Minute):
			r.t.Fatalf("a watcher of %s after %d does not reach the head %d", w.prefix, w.after,
				r.model.head())
		}
		w.cancel()
		w.watch.Close()
		want := r.model.events(w.after, w.prefix)
		switch {
		case errors.Is(w.err, contract.ErrCompacted):
			// The events that it saw before are complete and in order all the same.
			if len(w.events) > len(want) || !slices.Equal(w.events, want[:len(w.events)]) {
				r.t.Fatalf("watch of %s after %d, ended by compaction:\n got %v\nwant %v", w.prefix,
					w.after, w.events, want)
			}
		case w.err != nil:
			r.t.Fatalf("watch of %s after %d: %v", w.prefix, w.after, w.err)
		case !slices.Equal(w.events, want):
			r.t.Fatalf("watch of %s after %d:\n got %v\nwant %v", w.prefix, w.after, w.events, want)
		}
	}
	r.watches = nil
}

func (r *modelRun) compact() {
	ctx := r.t.Context()
	to := 1 + contract.Revision(r.rng.Int64N(int64(r.model.head())))
	if r.rng.IntN(2) == 0 {
		r.endWatches()
	}
	if err := r.store().Compact(ctx, to); err != nil {
		r.t.Fatal(err)
	}
	r.compacted = max(r.compacted, to)
	for _, s := range r.stores {
		// A replica that did not compact itself hears of it by its next read.
		if _, err := s.Head(ctx); err != nil {
			r.t.Fatal(err)
		}
		if got := s.CompactedRevision(); got != r.compacted {
			r.t.Fatalf("the boundary is %d, not %d", got, r.compacted)
		}
	}
	var wg sync.WaitGroup
	for _, s := range r.stores {
		if r.rng.IntN(2) == 0 {
			wg.Go(func() {
				if err := s.Sweep(ctx); err != nil {
					r.t.Error(err)
				}
			})
		}
	}
	if r.rng.IntN(2) == 0 {
		r.burst()
	}
	wg.Wait()
}

func (r *modelRun) reopen() {
	r.endWatches()
	i := r.rng.IntN(len(r.stores))
	if err := r.stores[i].Close(); err != nil {
		r.t.Fatal(err)
	}
	r.stores[i] = open(r.t, r.db, r.config())
}
