package mvcc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Config says how an Engine behaves. The zero value of each field means its default.
type Config struct {
	// Logger takes what nobody is left to be told. Default: nothing is logged.
	Logger *slog.Logger
	// Metrics are counted into. Default: metrics that nobody collects.
	Metrics *Metrics
	// Timeout bounds each operation on the database. Default 30 s.
	Timeout time.Duration
	// RetryFor is how long a write is tried again while the database is away, how long it waits
	// behind a group whose outcome is not known yet, and how long a read is tried again while its
	// connection breaks. Default 5 s.
	RetryFor time.Duration
	// ResolveFor is how long an unknown outcome is looked into before the writers are told that it
	// is unknown. Default 30 s.
	ResolveFor time.Duration
	// CloseFor is how long Close goes on committing what is queued. Default 10 s.
	CloseFor time.Duration
	// QueueMutations and QueueBytes bound what waits for the committer. Default 10,000 and 64 MiB.
	QueueMutations, QueueBytes int
	// Ring bounds the events that are kept in memory. Default 16,384 and 64 MiB.
	Ring RingLimits
	// CacheBytes bounds the rows that are kept in memory to answer reads. Default: none are kept.
	CacheBytes int
	// TailRows is the number of rows that a read of the log takes at a time. Default 1,000.
	TailRows int
	// PollActive is the interval of asking for other processes' writes while events flow, PollIdle
	// after QuietAfter without one. PollListening is the interval while notifications work, as a
	// safety net. Defaults 7 ms, 250 ms, 10 s, 2 s.
	PollActive, PollIdle, QuietAfter, PollListening time.Duration
	// ProgressInterval is how often watchers with WatchOptions.Progress hear how far they are,
	// besides when it is asked for. Default 25 s.
	ProgressInterval time.Duration
	// ExpiryIdle is how often expired keys are looked for when this process knows of none. Default
	// 60 s.
	ExpiryIdle time.Duration
	// QuotaInterval is how often a store that has a quota is measured, and how often one that has
	// none is asked for a quota. Default 5 s.
	QuotaInterval time.Duration
	// Compaction says what history is kept.
	Compaction CompactionPolicy
	// Scheduler is shared with the other stores of the process. Default: none.
	Scheduler *Scheduler
	// Polls is shared with the other stores of the [contract.Database], whose backends are
	// [contract.Shared]. Default: one for this store alone.
	Polls *Polls
	// Reopened: whoever has opened the Engine opens another one if it breaks. Then a panic of what
	// it does in the background breaks it, and else ends the process.
	Reopened bool
	// Served outlives the Engine where that is closed while nobody uses it. Default: a new one.
	Served *contract.Served
}

// NewServed makes a Served whose gap is longer than the longest pause between two polls.
func (c Config) NewServed(clock func() time.Time) *contract.Served {
	return contract.NewServed(c.gap(), clock)
}

// NewPulse makes a Pulse with the same gap.
func (c Config) NewPulse() *contract.Pulse { return contract.NewPulse(c.gap()) }

func (c Config) gap() time.Duration {
	c = c.withDefaults()
	return 2 * max(c.PollIdle, c.PollListening)
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
	set(&c.Timeout, 30*time.Second)
	set(&c.RetryFor, 5*time.Second)
	set(&c.ResolveFor, 30*time.Second)
	set(&c.CloseFor, 10*time.Second)
	set(&c.QueueMutations, 10_000)
	set(&c.QueueBytes, 64<<20)
	set(&c.Ring.Events, 16_384)
	set(&c.Ring.Bytes, 64<<20)
	set(&c.TailRows, 1_000)
	set(&c.PollActive, 7*time.Millisecond)
	set(&c.PollIdle, 250*time.Millisecond)
	set(&c.QuietAfter, 10*time.Second)
	set(&c.PollListening, 2*time.Second)
	set(&c.ProgressInterval, 25*time.Second)
	set(&c.ExpiryIdle, time.Minute)
	set(&c.QuotaInterval, 5*time.Second)
	if c.Polls == nil {
		c.Polls = &Polls{}
	}
	c.Compaction = c.Compaction.withDefaults()
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Engine is the history of one store of a database, as one process uses it.
type Engine struct {
	b       contract.Backend
	cfg     Config
	log     *slog.Logger
	metrics *Metrics
	limits  contract.Limits

	hub       *hub
	queue     *queue
	heads     coalescer[contract.Key, *KeyValue]
	gets      coalescer[contract.Key, *KeyValue]
	renewals  coalescer[contract.Lease, contract.LeaseRow]
	grants    coalescer[*contract.LeaseRow, granted]
	sizes     coalescer[struct{}, contract.Size]
	tailer    *tailer
	announcer *announcer
	// reads is the chain of the readers that follow it; see reader.go.
	reads  reader
	source *source
	rows   *rows
	deltas *deltas
	undo   *undo
	ahead  *ahead
	left   *left
	// indexes are the declarations that the process knows, nil for none. indexesMu protects
	// indexesChanged, which is closed when their generation is another one.
	indexes        atomic.Pointer[knownIndexes]
	indexesMu      sync.Mutex
	indexesChanged chan struct{}
	// directories are those that are to be recorded.
	directories directories
	// identity is that of the store when it was opened.
	identity string
	// importing counts the imports of this process that are under way.
	importing atomic.Int32
	// fencing is held while the history is looked into or changed: only its holder calls adopt.
	fencing lock
	// beforeAdopting is what BeforeAdopting has set, nil if nothing is.
	beforeAdopting atomic.Pointer[func(context.Context) error]

	reapSoon chan time.Duration
	// served says since when this process serves the store, by which leases end.
	served *contract.Served
	// reaping is held while expired keys are deleted. It protects damaged, the expired keys that
	// cannot be deleted; ended, the leases that have ended and when this process sees to them; and
	// bounded, in which service it has seen that none lapses too late.
	reaping   lock
	damaged   map[contract.Key]damaged
	ended     map[contract.Lease]time.Time
	bounded   service
	sweepSoon chan struct{}
	// excess is what was reached of the quota, nil if nothing was.
	excess atomic.Pointer[contract.Excess]
	// leasesMoved: leases were granted, or removed, since they were counted for the quota.
	leasesMoved atomic.Bool
	// replays is taken by the watchers that read the log.
	replays chan struct{}
	// dropped is closed when the store is known to have been dropped, or is broken.
	dropped     chan struct{}
	droppedOnce sync.Once
	broken      atomic.Bool

	// ctx ends when the store closes; everything in the background but the committer, which drains
	// its queue first, ends with it.
	ctx    context.Context
	cancel context.CancelFunc
	// commitCtx ends when the committer has to stop, too.
	commitCtx    context.Context
	commitCancel context.CancelFunc
	background   sync.WaitGroup
	committer    sync.WaitGroup
	closeOnce    sync.Once
	closeErr     error
}

// Open starts a store over a backend, which it owns from then on. If the database's fingerprint is
// another than the recorded one, it was restored or copied while nobody looked, and is fenced; so
// it is if its last commits may not have reached the disk, see [contract.Durability]. The context
// bounds the opening only.
func Open(ctx context.Context, b contract.Backend, cfg Config) (*Engine, error) {
	if cfg = cfg.withDefaults(); cfg.Served == nil {
		cfg.Served = cfg.NewServed(time.Now)
	}
	s := &Engine{b: b, cfg: cfg, log: cfg.Logger, metrics: cfg.Metrics, limits: b.Limits(),
		reapSoon: make(chan time.Duration, 1), damaged: map[contract.Key]damaged{},
		ended: map[contract.Lease]time.Time{}, served: cfg.Served, sweepSoon: make(chan struct{}, 1),
		replays: make(chan struct{}, 2), dropped: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.commitCtx, s.commitCancel = context.WithCancel(context.Background())
	cache := newRowCache(cfg.CacheBytes)
	s.hub = newHub(cfg.Ring, cfg.Metrics, cache)
	s.queue = newQueue(cfg.QueueMutations, cfg.QueueBytes, s.limits)
	s.heads = coalescer[contract.Key, *KeyValue]{query: s.queryHead, size: 1, guard: s.guarded}
	s.gets = coalescer[contract.Key, *KeyValue]{query: s.queryKeys, size: 64, guard: s.guarded}
	s.renewals = coalescer[contract.Lease, contract.LeaseRow]{query: s.queryRenewals, size: 256,
		guard: s.guarded}
	s.grants = coalescer[*contract.LeaseRow, granted]{query: s.queryGrants, size: 256,
		guard: s.guarded}
	s.sizes = coalescer[struct{}, contract.Size]{query: s.querySize, size: 1, guard: s.guarded}
	s.tailer = newTailer(s)
	s.announcer = announcerOf(b, cfg.Polls)
	s.source = &source{s}
	s.rows = &rows{cache: cache, hub: s.hub, tailer: s.tailer, state: s.source.State}
	s.deltas = newDeltas()
	s.undo = &undo{values: s.source.values}
	s.ahead = newAhead(s.ctx, s.source.State, s.guarded)
	s.left = newLeft()
	s.compose()

	begin := s.beginInTime
	if cfg.Reopened { // who opens it again goes on after a panic
		begin = func(ctx context.Context) error {
			return contract.Recovered(func() error { return s.beginInTime(ctx) })
		}
	}
	if err := begin(ctx); err != nil {
		s.cancel()
		s.commitCancel()
		s.announcer.close(s)
		return nil, errors.Join(err, b.Close())
	}
	s.committer.Go(s.guarded(s.commitLoop))
	for _, loop := range []func(context.Context){s.tailer.run, s.compactLoop, s.reapLoop,
		s.progressLoop, s.quotaLoop} {
		s.background.Go(s.guarded(func() { loop(s.ctx) }))
	}
	if n, ok := b.(contract.Notifier); ok {
		s.background.Go(s.guarded(func() {
			n.Listen(s.ctx, s.tailer.notified, s.tailer.listening)
		}))
	}
	return s, nil
}

// beginInTime begins, again if other processes were in the way, which may begin at the same time.
func (s *Engine) beginInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	again := false
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := s.begin(ctx, again)
		again = true
		if err != nil && contract.ClassOf(err) != contract.Transient {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(contract.RetryPolicy()))
	return err
}

// begin reads where the history stands, and fences if the database is not the one that the history
// was written in. When it is called again, what the backend has found is old.
func (s *Engine) begin(ctx context.Context, again bool) error {
	st, err := s.b.State(ctx)
	if err != nil {
		return err
	}
	if !st.Writable {
		return contract.Errorf(contract.ReadOnly, "the database is read-only: if it "+
			"is a standby, point the server to the primary, or promote it; if it is set so, end that")
	}
	id, settled := s.opened()
	if settled = settled && !again; !settled {
		if id, err = s.b.Identity(ctx); err != nil {
			return err
		}
	}
	if st.Dropped() || id.Epoch < 0 {
		return contract.ErrDropped
	}
	s.identity = id.Store
	if id.Recorded == "" {
		err = contract.RecordFingerprint(ctx, s.b, id.Actual)
	} else if id.Moved() {
		s.log.Warn("the database is not the one in which this store was last written: it was "+
			"restored, copied or failed over; fencing", "recorded", id.Recorded,
			"actual", id.Actual)
		s.metrics.fenced()
		st, err = s.startEpoch(ctx, contract.NewFence(st.Head, id))
	}
	if err != nil {
		return err
	}
	if !settled {
		if st, err = s.beginBoot(ctx, st); err != nil {
			return err
		}
	}
	s.hub.reset(st)
	s.metrics.compacted(st)
	s.metrics.observe(s.b)
	return nil
}

// opened tells what the backend found when it was opened. settled: there is nothing to fence and no
// boot to record, so nothing has to be asked anew. A first fingerprint is recorded only where there
// is still none.
func (s *Engine) opened() (id contract.Identity, settled bool) {
	o, ok := s.b.(contract.Opened)
	if !ok {
		return id, false
	}
	id, d := o.Opened()
	return id, (id.Recorded == "" || !id.Moved()) && d.Settled()
}

// Close stops taking writes, commits what is queued as far as its time allows, fails the rest with
// ErrClosed, ends the watches and closes the backend. It is idempotent.
func (s *Engine) Close() error {
	s.closeOnce.Do(func() {
		s.queue.close()
		timer := time.AfterFunc(s.cfg.CloseFor, s.commitCancel)
		s.committer.Wait()
		for group := s.queue.take(0); group != nil; group = s.queue.take(0) {
			answerAll(group, contract.ErrClosed) // the committer has panicked
		}
		s.announcer.close(s)
		timer.Stop()
		s.commitCancel()
		s.hub.close(contract.ErrClosed)
		s.directories.close()
		s.cancel()
		s.background.Wait()
		s.heads.close()
		s.gets.close()
		s.renewals.close()
		s.grants.close()
		s.sizes.close()
		s.ahead.close()
		// All that have begun to look into the history end now, and nobody begins to.
		_ = s.fencing.acquire(context.Background())
		s.metrics.observe(nil)
		s.closeErr = s.b.Close()
	})
	return s.closeErr
}

// guarded is f for a goroutine of the store. The other stores of the process go on if it panics. A
// call that waits for what it was doing gives up when the time for that is over.
func (s *Engine) guarded(f func()) func() {
	if !s.cfg.Reopened {
		return f
	}
	return func() {
		err := contract.Recovered(func() error { f(); return nil })
		if p := (*contract.PanicError)(nil); errors.As(err, &p) {
			s.panicked(p)
		}
	}
}

// panicked closes the store after a panic.
func (s *Engine) panicked(p *contract.PanicError) {
	s.log.Error("a store has panicked and is closed", "panic", fmt.Sprint(p.Value), "stack", p.Stack)
	s.Break()
}

// Break closes the store after a call of it has panicked, which may hold locks. It does not wait
// for the end of that, which may not come.
func (s *Engine) Break() {
	if s.broken.Swap(true) {
		return
	}
	s.served.Lost() // nobody is answered until the store is opened again
	s.droppedOnce.Do(func() { close(s.dropped) })
	go s.guarded(func() {
		if err := s.Close(); err != nil {
			s.log.Warn("a store was not closed in order", "err", err)
		}
	})()
}

// Broken tells whether Break was called.
func (s *Engine) Broken() bool { return s.broken.Load() }

// Limits returns the largest keys and values that can be stored.
func (s *Engine) Limits() contract.Limits { return s.limits }

// observe compares what a read says of the history with what this process had seen before the read
// began, and has learnt since. It returns an error if the answer must not be used.
func (s *Engine) observe(ctx context.Context, seen contract.Position, st contract.State) error {
	suspect, err := s.compare(seen, st)
	if errors.Is(err, errUnproven) {
		var holds bool
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		if holds, err = s.holds(opCtx, suspect); err == nil && !holds {
			err = errOtherHistory
		}
	}
	if !errors.Is(err, errOtherHistory) {
		return err
	}
	err = s.refence(ctx, suspect,
		fmt.Sprintf("head %d of epoch %d was read, after %d of epoch %d was seen", st.Head.Revision,
			st.Head.Epoch, seen.Revision, seen.Epoch))
	if err != nil {
		return err
	}
	return contract.Errorf(contract.Unavailable,
		"the database's history was looked into while it was read: try again")
}

// errOtherHistory says that an answer may be of another history than what this process has seen.
var errOtherHistory = errors.New("the history has changed")

// errUnproven says it of an answer that took so long that it cannot be compared with what was seen.
var errUnproven = fmt.Errorf("%w, or the answer took long", errOtherHistory)

// compare is observe without asking the database. If it returns errOtherHistory, suspect is the
// position to look for.
func (s *Engine) compare(seen contract.Position, st contract.State) (suspect contract.Position, err error) {
	if st.Dropped() {
		return suspect, s.gone(contract.ErrDropped)
	}
	if !st.Writable {
		s.metrics.notReady()
		return suspect, contract.Errorf(contract.ReadOnly, "the database answers as a read-only server (a standby, "+
			"or demoted): its answers may be late and are not used")
	}
	// Another epoch, or a lower head.
	if st.Head.Epoch != seen.Epoch || st.Head.Revision < seen.Revision {
		return seen, errOtherHistory
	}
	switch known, sight := s.hub.saw(st.Head); sight {
	case agrees:
		s.hub.sawCompacted(st.Compacted)
		s.metrics.head(st.Head.Revision)
		s.tailer.wakeFor(st.Head.Revision)
		return suspect, nil
	case crowded:
		return suspect, errCrowded
	case unproven:
		return st.Head, errUnproven
	default: // another group at the same revision
		return known, errOtherHistory
	}
}

// errCrowded refuses what could not be compared with the log later.
var errCrowded = contract.Errorf(contract.Unavailable, "the database's log cannot be followed at the moment: try "+
	"again later")

// read runs a read: it bounds its time, tries again what is safe to try again (every read), and
// checks the history. No answer of a read that fails the check is used.
func (s *Engine) read(ctx context.Context, f func(context.Context) (contract.State, error)) (contract.State, error) {
	st, err := s.attempt(ctx, f)
	if err == nil {
		return st, nil
	}
	return s.again(ctx, f, err)
}

// attempt does a read once. Errors that are not to be tried again are of the type
// *backoff.PermanentError.
func (s *Engine) attempt(ctx context.Context, f func(context.Context) (contract.State, error)) (contract.State,
	error) {
	if s.ctx.Err() != nil || s.Broken() {
		return contract.State{}, backoff.Permanent(contract.ErrClosed)
	}
	seen := s.hub.newestSeen()
	opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	st, err := f(opCtx)
	return s.judge(ctx, seen, st, err)
}

// judge checks the history that a read has found, after this process had seen a position, and does
// what the read's error asks for. It returns errors as attempt does.
func (s *Engine) judge(ctx context.Context, seen contract.Position, st contract.State, err error) (contract.State, error) {
	if err == nil {
		err = s.observe(ctx, seen, st)
	}
	if err == nil {
		s.served.Told(st)
		return st, nil
	}
	if ctx.Err() != nil {
		return contract.State{}, backoff.Permanent(ctx.Err())
	}
	switch contract.ClassOf(err) {
	case contract.Transient, contract.Unavailable, contract.Unknown:
		return contract.State{}, err
	case contract.Fenced:
		if err := s.refence(ctx, seen, err.Error()); err != nil {
			return contract.State{}, backoff.Permanent(err)
		}
		return contract.State{}, err
	default:
		return contract.State{}, backoff.Permanent(err)
	}
}

// again tries a read again, of which the first attempt has returned an error.
func (s *Engine) again(ctx context.Context, f func(context.Context) (contract.State, error),
	err error) (contract.State, error) {
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) {
		return contract.State{}, permanent.Err
	}
	s.metrics.readRetried()
	return backoff.Retry(ctx, func() (contract.State, error) { return s.attempt(ctx, f) },
		backoff.WithBackOff(contract.RetryPolicy()), backoff.WithMaxElapsedTime(s.cfg.RetryFor))
}

// tail reads the log from a revision on, for who has seen everything up to a revision: at most
// limit revisions, with all rows of each; see parts.go. More tells whether there may be others.
func (s *Engine) tail(ctx context.Context, seen, from contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	var t *contract.Tail
	_, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		if t, err = s.b.Tail(ctx, from, limit, prev); err != nil {
			return st, err
		}
		t.More = t.More || len(t.Rows) == limit
		st = t.State
		return st, s.addParts(ctx, t, seen, prev)
	})
	return t, err
}

// KeyValue is a key that exists.
type KeyValue struct {
	Key              contract.Key
	Revision, Create contract.Revision
	// Version counts the writes since the key's creation, which is 1. Lease is what the key is
	// attached to.
	Version int64
	Lease   contract.Lease
	// Value is shared: nobody modifies it.
	Value []byte
}

// Count counts the keys in [start, end) that exist now.
func (s *Engine) Count(ctx context.Context, start, end contract.Key) (int64, error) {
	n, _, err := s.CountAt(ctx, start, end, 0)
	return n, err
}

// Epoch is that of the history that this process is in.
func (s *Engine) Epoch() contract.Epoch { return s.hub.position().Epoch }

// State reads where the history stands, linearizably.
func (s *Engine) State(ctx context.Context) (contract.State, error) { return s.source.State(ctx) }

// Home reads the store's home; see [contract.Home].
func (s *Engine) Home(ctx context.Context) (contract.Home, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	h, st, err := contract.ReadHome(ctx, s.b)
	if err == nil && st.Dropped() {
		err = contract.ErrDropped
	}
	return h, err
}

// Everywhere reads a key, linearizably, in all stores of the database that were not dropped. It
// returns the values by the names of the stores that have it.
func (s *Engine) Everywhere(ctx context.Context, key contract.Key) (values map[string][]byte, err error) {
	_, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		values, st, err = s.b.Everywhere(ctx, key)
		return st, err
	})
	return values, err
}

// Size reads the database's size. Callers at the same time share a query: clients ask for it as
// often as they like, and it takes a connection with which all stores follow the log.
func (s *Engine) Size(ctx context.Context) (contract.Size, error) {
	q, err := s.sizes.ask(ctx)
	if err != nil {
		return contract.Size{}, err
	}
	return q.found[struct{}{}], nil
}

// querySize is the query of coalesced reads of the size.
func (s *Engine) querySize([]struct{}) (map[struct{}]contract.Size, contract.Revision, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Timeout)
	defer cancel()
	size, err := s.b.Size(ctx)
	return map[struct{}]contract.Size{{}: size}, 0, s.unlessClosed(err)
}

// Metrics are the metrics that the store is counted in.
func (s *Engine) Metrics() *Metrics { return s.metrics }

// Away tells whether the log could not be read when that was last tried.
func (s *Engine) Away() bool { return s.metrics.failingFor() > 0 }

// Ready returns nil if the database answers, takes writes, and this process has delivered all
// events that there were when it was called. ctx bounds the waiting.
func (s *Engine) Ready(ctx context.Context) error {
	head, err := s.Head(ctx)
	if err != nil {
		return err
	}
	if err := s.hub.arrive(ctx, head); err != nil {
		return fmt.Errorf("the watch is behind the database: delivered %d of %d: %w",
			s.hub.position().Revision, head, err)
	}
	return nil
}

// Listening returns nil if other processes' writes are notified (or the backend has no
// notifications and is polled by design), else why they are polled.
func (s *Engine) Listening() error { return s.tailer.status() }

// progressLoop tells idle watchers how far they are.
func (s *Engine) progressLoop(ctx context.Context) {
	ticker := time.NewTicker(s.cfg.ProgressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.hub.requestProgress()
		case <-ctx.Done():
			return
		}
	}
}
