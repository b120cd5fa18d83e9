package mvcc

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// coalescer coalesces concurrent reads: several callers get the answer of one query. A read joins
// only a query that has not started, so that the answer's snapshot was taken after the read began.
// One query runs at a time: reads that come meanwhile wait together for its end, and a moment
// longer for others; see [expected].
type coalescer[K comparable, V any] struct {
	// query reads the keys, which may be none, and the head. It runs under the store's own context,
	// since it serves several callers.
	query func(keys []K) (map[K]V, contract.Revision, error)
	// size is the number of keys of a query.
	size int
	// guard makes a goroutine's function one that may panic. It may be nil.
	guard func(func()) func()

	// mu protects the fields below, and those of the queries until they are done.
	mu sync.Mutex
	// running: a query is under way, or about to begin. Slow ones do not count.
	running, closed bool
	// waiting are the queries that have not started. The last one can be joined if it is not full.
	waiting []*coalesced[K, V]
	// answered is how many callers the last query had, and took how long it took.
	answered int
	took     time.Duration
	// want is how many callers the next query waits for, 0 if it does not, and filled is closed
	// when it has them or is full.
	want   int
	filled chan struct{}
	wg     sync.WaitGroup
}

// coalesced is a query of several callers.
type coalesced[K comparable, V any] struct {
	keys map[K]struct{}
	// callers counts the callers that have not given up. yielded: it is slow, and another query
	// takes its place. ended: it is not under way any more.
	callers        int
	yielded, ended bool

	done  chan struct{}
	found map[K]V
	head  contract.Revision
	err   error
}

// slowQuery is the time after which a query does not count any more: one that hangs on a dead
// connection must not stop the others.
const slowQuery = time.Second

// ask joins a query that reads the keys, and returns it when it is done.
func (s *coalescer[K, V]) ask(ctx context.Context, keys ...K) (*coalesced[K, V], error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, contract.ErrClosed
	}
	if n := len(s.waiting); n == 0 || len(s.waiting[n-1].keys)+len(keys) > s.size {
		s.waiting = append(s.waiting,
			&coalesced[K, V]{keys: map[K]struct{}{}, done: make(chan struct{})})
	}
	q := s.waiting[len(s.waiting)-1]
	for _, k := range keys {
		q.keys[k] = struct{}{}
	}
	q.callers++
	if s.want > 0 && (q.callers >= s.want || q != s.waiting[0]) {
		s.want = 0
		close(s.filled)
	}
	s.startLocked()
	s.mu.Unlock()
	select {
	case <-q.done:
		return q, q.err
	case <-ctx.Done():
		s.mu.Lock()
		q.callers--
		s.mu.Unlock()
		return nil, ctx.Err()
	}
}

// startLocked starts to answer if that is allowed.
func (s *coalescer[K, V]) startLocked() {
	if !s.running && len(s.waiting) > 0 {
		s.running = true
		run := s.run
		if s.guard != nil {
			run = s.guard(run)
		}
		s.wg.Go(run)
	}
}

// run answers until nobody waits.
func (s *coalescer[K, V]) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) > 0 {
		s.gatherLocked()
		q := s.waiting[0]
		s.waiting = slices.Delete(s.waiting, 0, 1)
		if q.callers == 0 {
			continue
		}
		s.answered = q.callers
		began := time.Now()
		s.answer(q)
		s.took = time.Since(began)
		if !s.backLocked(q) {
			return
		}
	}
	s.running = false
}

// answer runs a query, for which it releases mu. If that panics, nobody is answered any more.
func (s *coalescer[K, V]) answer(q *coalesced[K, V]) {
	keys := slices.Collect(maps.Keys(q.keys))
	s.mu.Unlock()
	slow := time.AfterFunc(slowQuery, func() { s.yield(q) })
	done := false
	defer func() {
		slow.Stop()
		s.mu.Lock()
		if done {
			return
		}
		s.closed = true
		for _, q := range append(s.waiting, q) {
			q.err = contract.ErrClosed
			close(q.done)
		}
		s.waiting = nil
	}()
	q.found, q.head, q.err = s.query(keys)
	done = true
	close(q.done)
}

// gatherLocked waits for the callers that may join the next query.
func (s *coalescer[K, V]) gatherLocked() {
	want := expected(s.answered)
	if want <= 1 || s.waiting[0].callers >= want || len(s.waiting) > 1 {
		return
	}
	filled := make(chan struct{})
	s.want, s.filled = want, filled
	s.mu.Unlock()
	timer := time.NewTimer(patience(s.took))
	select {
	case <-filled:
	case <-timer.C:
	}
	timer.Stop()
	s.mu.Lock()
	s.want = 0
}

// backLocked ends a query. It tells whether it is still the one that runs: if it is slow, another
// one may have taken its place.
func (s *coalescer[K, V]) backLocked(q *coalesced[K, V]) bool {
	q.ended = true
	if q.yielded && s.running {
		return false
	}
	s.running = true
	return true
}

// enter begins a read that its caller does itself, and whose end leave tells. It returns nil if a
// query runs. Then the read had better join others.
func (s *coalescer[K, V]) enter() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running {
		return nil
	}
	s.running = true
	s.wg.Add(1)
	q := &coalesced[K, V]{}
	slow := time.AfterFunc(slowQuery, func() { s.yield(q) })
	return func() {
		defer s.wg.Done()
		slow.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.backLocked(q) {
			s.running = false
			s.startLocked()
		}
	}
}

// yield lets another query run beside one that is slow.
func (s *coalescer[K, V]) yield(q *coalesced[K, V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !q.ended {
		q.yielded = true
		s.running = false
		s.startLocked()
	}
}

// close refuses further reads and waits for the reads that are under way.
func (s *coalescer[K, V]) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wg.Wait()
}

// Head returns the newest revision, linearizably: it is not lower than that of any write that any
// replica acknowledged before the call. It is never 0.
func (s *Engine) Head(ctx context.Context) (contract.Revision, error) {
	q, err := s.heads.ask(ctx)
	if err != nil {
		return 0, err
	}
	return q.head, nil
}

// Get reads the current state of one key, linearizably. kv is nil if the key does not exist. head
// is the revision of the snapshot.
func (s *Engine) Get(ctx context.Context, key contract.Key) (kv *KeyValue, head contract.Revision, err error) {
	if _, ok := s.b.(contract.KeysReader); !ok {
		return s.get(ctx, key)
	}
	if s.limits.GetsInPlace {
		if leave := s.gets.enter(); leave != nil {
			defer leave()
			return s.get(ctx, key)
		}
	}
	q, err := s.gets.ask(ctx, key)
	if contract.ClassOf(err) == contract.Invalid {
		return s.get(ctx, key) // the reason may be another key
	}
	if err != nil {
		return nil, 0, err
	}
	kv = q.found[key]
	if kv != nil && kv.Value == nil {
		return s.get(ctx, key) // it is beyond ReadBytes, or damaged, and this says how
	}
	return kv, q.head, nil
}

// get reads one key by a query of its own.
func (s *Engine) get(ctx context.Context, key contract.Key) (*KeyValue, contract.Revision, error) {
	kv, st, err := s.reads.Get(ctx, key)
	return kv, st.Head.Revision, err
}

// Cached tells whether a page of a range most likely reads no more than the head.
func (s *Engine) Cached(start, end contract.Key) bool { return s.reads.Cached(start, end) }

// queryHead is the query of coalesced reads of the head.
func (s *Engine) queryHead([]contract.Key) (map[contract.Key]*KeyValue, contract.Revision, error) {
	st, err := s.source.State(s.ctx)
	return nil, st.Head.Revision, s.unlessClosed(err)
}

// queryKeys is the query of coalesced reads of keys.
func (s *Engine) queryKeys(keys []contract.Key) (map[contract.Key]*KeyValue, contract.Revision, error) {
	found, st, err := s.reads.GetKeys(s.ctx, keys)
	return found, st.Head.Revision, s.unlessClosed(err)
}

// unlessClosed gives the reason of a query that ended with the store.
func (s *Engine) unlessClosed(err error) error {
	if s.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return contract.ErrClosed
	}
	return err
}
