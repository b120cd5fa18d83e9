package mvcc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Commit is Apply for a caller that needs to know no more than the revision.
func (s *Engine) Commit(ctx context.Context, m contract.Mutation) (contract.Revision, error) {
	o, err := s.Apply(ctx, m)
	return o.Revision, err
}

// Apply writes one mutation and returns what it did after the database has committed it durably.
// Its errors are *[contract.ConflictError], [contract.ErrCondition], *[contract.LimitError],
// [contract.ErrClosed], ctx's error if the caller gave up before its group began (nothing was
// written),
// [contract.ErrUnknownOutcome], and *[contract.Error] for what the database or the quota refused
// (nothing was written).
func (s *Engine) Apply(ctx context.Context, m contract.Mutation) (contract.Outcome, error) {
	w, err := s.enqueue(ctx, m)
	if err != nil {
		return contract.Outcome{}, err
	}
	return s.answered(ctx, w)
}

// ApplyAll is Apply for several mutations of different keys, which share commits. It returns what
// came of each.
func (s *Engine) ApplyAll(ctx context.Context, ms []contract.Mutation) (outcomes []contract.Outcome, errs []error) {
	outcomes, errs = make([]contract.Outcome, len(ms)), make([]error, len(ms))
	writes := make([]*write, len(ms))
	for i, m := range ms {
		writes[i], errs[i] = s.enqueue(ctx, m)
	}
	for i, w := range writes {
		if errs[i] == nil {
			outcomes[i], errs[i] = s.answered(ctx, w)
		}
	}
	return outcomes, errs
}

// Transact writes mutations of different keys at one revision, which it returns: all of them, or
// none. They may name one condition, in the first one. Its errors are those of Apply. What does not
// fit into one group is a *[contract.LimitError].
func (s *Engine) Transact(ctx context.Context, ms []contract.Mutation) (contract.Revision, error) {
	w, err := s.enqueue(ctx, ms[0], ms[1:]...)
	if err != nil {
		return 0, err
	}
	o, err := s.answered(ctx, w)
	return o.Revision, err
}

// answered waits until a queued write is done.
func (s *Engine) answered(ctx context.Context, w *write) (contract.Outcome, error) {
	select {
	case <-w.done:
		return w.outcome, w.err
	case <-ctx.Done():
	}
	if s.queue.drop(w) {
		return contract.Outcome{}, ctx.Err()
	}
	// The group has begun. Perhaps it has ended by now.
	select {
	case <-w.done:
		return w.outcome, w.err
	default:
		return contract.Outcome{}, fmt.Errorf("%w (%w)", contract.ErrUnknownOutcome, ctx.Err())
	}
}

// enqueue checks everything that could make a whole group fail, and queues a mutation, or several
// as a transaction.
func (s *Engine) enqueue(ctx context.Context, m contract.Mutation,
	rest ...contract.Mutation) (*write, error) {
	w := &write{m: m, rest: slices.Clone(rest), arrived: time.Now(), done: make(chan struct{})}
	if err := s.prepare(ctx, w, &w.m); err != nil {
		return nil, err
	}
	for i := range w.rest {
		if err := s.prepare(ctx, w, &w.rest[i]); err != nil {
			return nil, err
		}
	}
	if len(rest) > 0 {
		if err := s.checkTransaction(w); err != nil {
			return nil, err
		}
	}
	return w, s.queue.put(ctx, w)
}

// checkTransaction refuses what does not fit into one group, or names a key twice.
func (s *Engine) checkTransaction(w *write) error {
	most := min(s.limits.GroupMutations, contract.MaxParts+1)
	if n := 1 + len(w.rest); n > most {
		return &contract.LimitError{What: "transaction", Bytes: n, Limit: most, Keys: true}
	}
	if w.bytes > s.limits.GroupBytes {
		return &contract.LimitError{What: "transaction", Bytes: w.bytes, Limit: s.limits.GroupBytes}
	}
	keys := map[contract.Key]bool{w.m.Key: true}
	for i := range w.rest {
		if m := &w.rest[i]; keys[m.Key] || m.If != nil {
			return fmt.Errorf("a transaction writes the key %q twice, or has several conditions",
				string(m.Key))
		}
		keys[w.rest[i].Key] = true
	}
	return nil
}

// prepare checks a mutation of a write, and completes it.
func (s *Engine) prepare(ctx context.Context, w *write, m *contract.Mutation) error {
	switch {
	case m.Key == "":
		return errors.New("a key cannot be empty")
	case len(m.Key) > s.limits.KeyBytes:
		return &contract.LimitError{What: "key", Bytes: len(m.Key), Limit: s.limits.KeyBytes}
	case m.If.Bytes() > s.limits.ValueBytes:
		return &contract.LimitError{What: "condition", Bytes: m.If.Bytes(),
			Limit: s.limits.ValueBytes}
	case len(m.Value) > s.limits.ValueBytes:
		return &contract.LimitError{What: "value", Bytes: len(m.Value), Limit: s.limits.ValueBytes}
	case m.Delete && m.Expect == 0:
		return &contract.ConflictError{Key: m.Key}
	case m.Expect < contract.Any || m.TTL < 0 || m.Lease < 0:
		return fmt.Errorf("a revision, a time to live and a lease are not negative: %d, %s, "+
			"%d", m.Expect, m.TTL, m.Lease)
	case m.Lease != 0 && (m.TTL != 0 || m.Delete):
		return errors.New("what is attached to a lease is a key that has no time to live")
	case m.By != nil && (m.If != nil || len(w.rest) > 0):
		return errors.New("a transaction, or a write with a condition, has no user")
	case m.Expect == contract.Any && m.HasPrev:
		return errors.New("nobody knows the previous value of a write that expects any state")
	}
	if m.Value == nil && !m.Delete {
		m.Value = []byte{} // its row and its event say that it exists
	}
	if m.Era == 0 {
		m.Era = s.hub.presentEra()
	}
	m.By = m.By.Stored()
	// A previous value is held as long as the group is, and then by the event.
	w.bytes += len(m.Key) + len(m.Value) + len(m.PrevValue) + m.If.Bytes() + s.indexBytes(m) +
		m.By.Bytes()
	return s.checkQuota(ctx, m)
}

// commitLoop is the committer: one group at a time. While one commits, the next one gathers.
func (s *Engine) commitLoop() {
	took := time.Duration(0)
	var group []*write
	defer func() { // there are some only after a panic
		for _, w := range group {
			if w.pending() {
				w.answer(contract.Outcome{}, contract.ErrUnknownOutcome)
			}
		}
	}()
	for {
		if group = s.queue.take(patience(took)); group == nil {
			return
		}
		if s.commitCtx.Err() != nil {
			answerAll(group, contract.ErrClosed)
			continue
		}
		stop := s.boundQueueing(group)
		began := time.Now()
		s.commitGroup(group)
		took = time.Since(began)
		stop()
	}
}

// boundQueueing answers the writers that have waited for RetryFor behind the group that begins now,
// and the writers that come to wait as long. It may take much longer than that to find out what
// became of the group. Nothing was done for the writers behind it, so they learn in time that
// nothing was written. Writers behind groups that end, however many, are not refused: the queue
// bounds their number. Nor is one that came after the group was answered, however short RetryFor
// is: the time is read before the answers are looked at.
func (s *Engine) boundQueueing(group []*write) (stop func()) {
	ctx, cancel := context.WithCancel(s.commitCtx)
	err := contract.Errorf(contract.Unavailable, "the database has not answered an earlier write for %s, and "+
		"nothing was written", s.cfg.RetryFor)
	timer := time.AfterFunc(s.cfg.RetryFor, func() {
		for ctx.Err() == nil {
			next, came := s.cfg.RetryFor, time.Now().Add(-s.cfg.RetryFor)
			if !slices.ContainsFunc(group, (*write).pending) {
				return
			}
			if oldest := s.queue.refuse(came, err); !oldest.IsZero() {
				next -= time.Since(oldest)
			}
			contract.Wait(ctx, next)
		}
	})
	return func() {
		timer.Stop()
		cancel()
	}
}

func answerAll(group []*write, err error) {
	for _, w := range group {
		w.answer(contract.Outcome{}, err)
	}
}

// commitGroup commits writes as one group, or as several if the database rejects one of them, and
// answers all of them. This is the one place where a failed transaction is judged: what certainly
// was not committed is tried again, what is unknown is resolved first.
func (s *Engine) commitGroup(writes []*write) {
	retry := contract.RetryPolicy()
	// Those that have waited while the group before was tried in vain are tried once, or they would
	// wait until their callers give up.
	deadline := writes[0].arrived.Add(s.cfg.RetryFor)
	overtaken, others := false, 0
	for {
		seen, era := s.hub.undecided()
		if writes = ofEra(writes, era); len(writes) == 0 {
			return
		}
		newest := len(seen) - 1
		g := &contract.Group{Token: contract.NewToken(), Seen: seen[newest], Earlier: seen[:newest],
			Mutations: make([]*contract.Mutation, len(writes))}
		for i, w := range writes {
			g.Mutations[i] = &w.m
		}
		if rest := writes[0].rest; len(rest) > 0 { // it is the only one
			g.Whole, g.Token = true, contract.NewTransactionToken(len(rest))
			for i := range rest {
				g.Mutations = append(g.Mutations, &rest[i])
			}
		}
		index(g, s.indexesIn(era))
		began := time.Now()
		ctx, cancel := context.WithTimeout(s.commitCtx, s.cfg.Timeout)
		s.tailer.groupBegins()
		var res *contract.GroupResult
		err := error(errCrowded)
		if newest <= maxEarlier {
			res, err = s.b.Commit(ctx, g)
		}
		cancel()
		if err == nil {
			s.metrics.committed(len(g.Mutations), time.Since(began), res.LockWait)
			s.finish(g, res, writes)
			return
		}
		s.tailer.groupEnds()
		class := contract.ClassOf(err)
		s.metrics.commitFailed(class)
		if class == contract.Unknown {
			s.log.Warn("the outcome of a commit group is unknown; looking for it", "mutations",
				len(g.Mutations), "err", err)
			if s.resolve(g, writes, err) {
				return
			}
			// It is certain now that nothing was committed.
			class, err = contract.Transient, contract.Errorf(contract.Unavailable, "%w; nothing was written", err)
		}
		switch class {
		case contract.Data:
			if len(writes) == 1 {
				answerAll(writes, err)
				return
			}
			half := len(writes) / 2
			s.commitGroup(writes[:half])
			s.commitGroup(writes[half:])
			return
		case contract.Fenced:
			if fenceErr := s.refence(s.commitCtx, g.Seen, err.Error()); fenceErr != nil {
				answerAll(writes, fenceErr)
				return
			}
			if s.hub.presentEra() != era {
				continue
			}
		case contract.Transient, contract.Unavailable, contract.Aborted:
			if errors.Is(err, contract.ErrOtherIndexes) && others < mostOthers {
				if _, readErr := s.RefreshIndexes(s.commitCtx); readErr == nil {
					others++
					continue
				} else {
					err = readErr
				}
			}
			if errors.Is(err, contract.ErrOvertaken) {
				// The process was paused, or follows late. The next group begins at what is read
				// now, whatever time has passed. If that is refused as well, a row that was seen
				// is gone, and the tailer is about to find that out: a new era begins.
				_, readErr := s.read(s.commitCtx, s.b.State)
				if readErr != nil {
					err = readErr
				} else if !overtaken {
					overtaken = true
					continue
				}
			}
		default:
			answerAll(writes, err)
			return
		}
		pause := retry.NextBackOff()
		if s.commitCtx.Err() != nil {
			answerAll(writes, contract.ErrClosed)
			return
		}
		if time.Now().Add(pause).After(deadline) {
			answerAll(writes, err)
			return
		}
		contract.Wait(s.commitCtx, pause)
	}
}

// mostOthers is how often a group is made anew at once, since the declarations of indexes have
// changed meanwhile. They seldom do.
const mostOthers = 5

// Era returns the present era. A writer that expects what it has read asks for the era before it
// reads.
func (s *Engine) Era() contract.Era { return s.hub.presentEra() }

// EraOf returns the era in which something was read that is at a revision, whenever that was. It is
// 0 if that is not known, so that it has to be read again.
func (s *Engine) EraOf(r contract.Revision) contract.Era { return s.hub.eraOf(r) }

// ErrOtherEra refuses a write whose expectation was read in an era that is over.
var ErrOtherEra = contract.Errorf(contract.Unavailable, "what was read before may be of a history that is lost, and "+
	"nothing was written: read again")

// ofEra returns the writes that can be done in the era, and answers the others: the revision that
// they expect, or since which ranges of keys have to be untouched, may belong to a lost history,
// and another state may have it in this one. A write that names no revision depends on no read:
// what its condition compares is read when it is decided.
func ofEra(writes []*write, era contract.Era) []*write {
	depends := func(m *contract.Mutation) bool {
		return m.Expect > 0 || m.If != nil && m.If.Since > 0
	}
	over := func(w *write) bool {
		return depends(&w.m) && w.m.Era != era || slices.ContainsFunc(w.rest,
			func(m contract.Mutation) bool { return depends(&m) && m.Era != era })
	}
	if !slices.ContainsFunc(writes, over) {
		return writes
	}
	var same, others []*write
	for _, w := range writes {
		if over(w) {
			others = append(others, w)
		} else {
			same = append(same, w)
		}
	}
	answerAll(others, ErrOtherEra)
	return same
}

// answersAtOnce is how many writers are answered before others may run. A flooded store answers
// hundreds at once, and Go runs them in turn before it runs the committers of other stores. With
// the pauses, the others' p99 in SQLite was half as long, and a write took a tenth less processor
// time. The first pause lets the watchers run, who have waited for the same group: 100 of them got
// an event in four fifths of the time after its writer's answer, and no write took longer.
const answersAtOnce = 8

// finish hands the group's events to the hub, then answers the writers.
func (s *Engine) finish(g *contract.Group, res *contract.GroupResult, writes []*write) {
	s.served.Answered(res.Time)
	events := make([]*Event, 0, len(g.Mutations))
	var soonest time.Duration
	for i, m := range g.Mutations {
		o := &res.Outcomes[i]
		if !o.Accepted {
			continue
		}
		e := &Event{Key: m.Key, Revision: o.Revision, Prev: o.Prev, Create: o.Create,
			Version: o.Version, Lease: o.Lease, Deleted: m.Delete}
		switch {
		case m.Delete && !m.HasPrev:
			e.prevKnown, e.prevValue, e.prevLease = o.PrevValue != nil, o.PrevValue, o.Lease
		case m.HasPrev:
			e.prevKnown, e.prevValue, e.prevLease = true, m.PrevValue, m.PrevLease
		}
		if !m.Delete {
			e.Value = m.Value
		}
		if expiry := m.Expiry(res.Time); expiry > 0 {
			left := max(time.UnixMicro(expiry).Sub(res.Time), time.Microsecond)
			if soonest == 0 || left < soonest {
				soonest = left
			}
		}
		e.bytes = len(e.Key) + len(e.Value) + len(e.prevValue)
		events = append(events, e)
	}
	// If that contradicts something, the tailer finds the same.
	if _, sight := s.hub.saw(res.State.Head); sight != agrees {
		s.tailer.kick()
	}
	s.metrics.head(res.State.Head.Revision)
	if len(events) > 0 && s.hub.append(res.Before, events, res.State.Head) {
		s.tailer.proven()
	} else {
		s.tailer.wakeFor(res.State.Head.Revision) // others have written before, or since
	}
	s.tailer.groupEnds()
	if len(events) > 0 {
		s.announcer.tell(s, res.State.Head.Revision)
	}
	for i, w := range writes {
		if i%answersAtOnce == 0 {
			runtime.Gosched()
		}
		o, key := &res.Outcomes[i], w.m.Key
		if g.Whole {
			reason := refusing(g, res.Outcomes)
			o, key = &res.Outcomes[reason], g.Mutations[reason].Key
		}
		switch {
		case o.Accepted:
			w.answer(*o, nil)
		case o.Err != nil:
			w.answer(contract.Outcome{}, o.Err)
		default:
			w.answer(contract.Outcome{}, &contract.ConflictError{Key: key, Current: o.Revision})
		}
	}
	if soonest > 0 {
		s.reapIn(soonest)
	}
}

// refusing returns which mutation of a transaction is the reason to refuse it, 0 if none is. What
// its writer has not found as it is comes before all else: if the writer reads again, perhaps it
// writes something else.
func refusing(g *contract.Group, outcomes []contract.Outcome) (reason int) {
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case errors.Is(o.Err, contract.ErrCondition),
			!o.Accepted && !g.Mutations[i].Expects(o.Revision):
			return i
		case o.Err != nil && outcomes[reason].Err == nil:
			reason = i
		}
	}
	return reason
}

// resolve finds out what became of a group whose commit did not return, and answers the writers,
// unless it is certain that nothing was written and never will be: then it returns false, and the
// group may be tried again with another token.
func (s *Engine) resolve(g *contract.Group, writes []*write, cause error) bool {
	ctx, cancel := context.WithTimeout(s.commitCtx, s.cfg.ResolveFor)
	defer cancel()
	r, err := backoff.Retry(ctx, func() (*contract.Resolution, error) {
		opCtx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		r, err := contract.ResolveGroup(opCtx, s.b, g.Token, g.Seen)
		if err != nil && contract.ClassOf(err) == contract.Fenced {
			// Another history: nobody can look for the token in the lost one.
			return nil, backoff.Permanent(err)
		}
		return r, err
	}, backoff.WithBackOff(contract.RetryPolicy()), backoff.WithMaxElapsedTime(s.cfg.ResolveFor))

	switch {
	case err != nil, !r.Committed && !r.Aborted:
		if err == nil {
			err = contract.ErrCompacted
		}
		s.metrics.resolved("unknown")
		s.log.Error("the outcome of a commit group stays unknown", "mutations", len(g.Mutations),
			"cause", cause, "err", err)
		answerAll(writes, fmt.Errorf("%w: %w", contract.ErrUnknownOutcome, cause))
		return true
	case r.Aborted:
		s.metrics.resolved("aborted")
		return false
	}
	s.metrics.resolved("committed")
	// The writers are told of the group's rows, so these are seen, as in finish. The head does not
	// stand for them: somebody may have fenced since, and the fence may be lost.
	own := contract.Position{Epoch: g.Seen.Epoch, Revision: r.Rows[len(r.Rows)-1].Revision, Token: g.Token}
	for _, p := range []contract.Position{own, r.State.Head} {
		if _, sight := s.hub.saw(p); sight != agrees {
			s.tailer.kick()
		}
	}
	s.tailer.wakeFor(r.State.Head.Revision)
	s.announcer.tell(s, r.State.Head.Revision)
	if g.Whole { // the last row is there, so all were written
		writes[0].answer(contract.Outcome{Accepted: true, Revision: own.Revision}, nil)
		return true
	}
	// The group's rows say which mutations were accepted. Rows that were replaced may have been
	// swept if compaction has come so far.
	complete := r.State.Compacted <= g.Seen.Revision
	accepted := make(map[contract.Key]*contract.Row, len(r.Rows))
	for i := range r.Rows {
		accepted[r.Rows[i].Key] = &r.Rows[i]
	}
	for _, w := range writes {
		row := accepted[w.m.Key]
		switch {
		case row != nil && w.m.Expects(row.Prev) && row.Deleted == w.m.Delete:
			// a second mutation with the same expectation lost to this one
			delete(accepted, w.m.Key)
			w.answer(contract.Outcome{Accepted: true, Revision: row.Revision, Prev: row.Prev,
				Create: row.Create, Version: row.Version, Lease: row.Lease}, nil)
		case row == nil && !complete:
			w.answer(contract.Outcome{}, fmt.Errorf("%w: %w", contract.ErrUnknownOutcome, cause))
		default:
			w.answer(contract.Outcome{}, &contract.ConflictError{Key: w.m.Key, Current: -1})
		}
	}
	return true
}
