package mvcc

import (
	"context"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// WatchOptions say what to watch.
type WatchOptions struct {
	// Prefix, Key, or Start and End: exactly one. A prefix ends in '/'. Start (inclusive) and End
	// (exclusive) bound any range of keys.
	Prefix, Key contract.Key
	Start, End  contract.Key
	// After is the revision up to which the watcher knows everything already, > 0. A future one
	// waits silently. The least is the one before the compacted revision: the row there is kept.
	After contract.Revision
	// AllPrev says that PrevValue will be asked for updates, too, so that reads of the log bring
	// these values along.
	AllPrev bool
	// Progress requests progress regularly, so that the revision of a watcher that nothing concerns
	// moves on.
	Progress bool
	// Turn, of capacity 1, is shared by watchers whose events leave by one way, one after another.
	// A watcher that reads the log puts an element in before it does, and takes one out when Next
	// is called again. So one of them at a time has a piece of the log, which nothing else bounds.
	// It may be nil.
	Turn chan struct{}
	// Pieces is like Turn for watchers of several ways, of which as many as its capacity have a
	// piece of the log. It is waited for after Turn.
	Pieces chan struct{}
}

// Batch is what a watcher saw.
type Batch struct {
	// Events are in order. They are shared: read only.
	Events []*Event
	// Progress: with these events, the watcher has seen everything up to this revision.
	Progress contract.Revision
	// Requested: progress was requested, and this is it.
	Requested bool
}

// Watcher hands out the events of a range, once and in order. It has a cursor and no queue.
type Watcher struct {
	s        *Engine
	rng      watchRange
	epoch    contract.Epoch
	prev     contract.Prev
	periodic bool
	after    contract.Revision
	piece    pieceSize
	wake     chan struct{} // capacity 1
	turns    []chan struct{}
	// held is how many of turns, from the first on, have an element of this watcher. Next uses it.
	held int

	// Protected by hub.mu:

	// cursor: everything up to it was handed out or does not concern the range.
	cursor   contract.Revision
	attached bool
	// first is a lower bound of the first event after the cursor that may concern the range, 0 if
	// there is none.
	first contract.Revision
	// want is the revision for which progress is wanted, 0 if none is; told the newest progress
	// that was requested and handed out.
	want, told contract.Revision
	err        error
}

// Watch begins a watch. Its errors are ErrCompacted, ErrClosed, ErrDropped and what a Backend says.
func (s *Engine) Watch(ctx context.Context, o WatchOptions) (*Watcher, error) {
	w := &Watcher{s: s, after: o.After, cursor: o.After, periodic: o.Progress,
		wake: make(chan struct{}, 1), piece: pieceSize{watched: true}}
	for _, turn := range []chan struct{}{o.Turn, o.Pieces} {
		if turn != nil {
			w.turns = append(w.turns, turn)
		}
	}
	switch {
	case o.After <= 0:
		return nil, fmt.Errorf("a watch begins after a revision > 0, not %d", o.After)
	case o.Prefix != "" && o.Key == "" && o.End == "" && o.Prefix[len(o.Prefix)-1] == '/':
		w.rng = watchRange{key: o.Prefix, prefix: true}
	case o.Key != "" && o.Prefix == "" && o.End == "":
		w.rng = watchRange{key: o.Key}
	case o.Start < o.End && o.Prefix == "" && o.Key == "":
		w.rng = watchRange{key: o.Start, end: o.End}
	default:
		return nil, fmt.Errorf("a watch needs a prefix that ends in '/', or a key, or a range")
	}
	if o.AllPrev {
		w.prev = contract.PrevOfAll
	}
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed != nil {
		return nil, h.closed
	}
	if o.After+1 < h.compacted {
		return nil, contract.ErrCompacted
	}
	w.epoch = h.delivered.Epoch
	h.all[w] = struct{}{}
	if w.cursor >= h.ringStart {
		h.attachLocked(w)
	}
	h.metric.watchers(len(h.all))
	return w, nil
}

// maxBatch and maxBatchBytes bound what a watcher holds of the ring, but for the rest of a
// transaction.
const (
	maxBatch      = 1_000
	maxBatchBytes = 1 << 20
)

// Next returns the next events, or the progress that was requested. It blocks until there are any,
// ctx ends, or the watch ended: ErrCompacted when compaction passed its cursor or the history
// changed, ErrClosed, ErrDropped. One goroutine at a time calls it.
func (w *Watcher) Next(ctx context.Context) (Batch, error) {
	h := w.s.hub
	for {
		w.EndTurn()
		h.mu.Lock()
		switch {
		case w.err != nil:
			defer h.mu.Unlock()
			return Batch{}, w.err
		case !w.attached && w.cursor >= h.ringStart:
			h.attachLocked(w)
			h.mu.Unlock()
		case !w.attached:
			cursor := w.cursor
			h.mu.Unlock()
			if ok, err := w.takeTurn(ctx); err != nil {
				return Batch{}, err
			} else if !ok {
				continue
			}
			b, err := w.replay(ctx, cursor)
			if err != nil {
				w.EndTurn()
			}
			if err != nil || len(b.Events) > 0 {
				return b, err
			}
		case w.first != 0 && w.first <= h.ringStart:
			// Too slow for the ring: from now on it reads the log at its own pace. Nothing before
			// first concerns it.
			w.cursor = max(w.cursor, w.first-1)
			h.detachLocked(w)
			h.mu.Unlock()
			h.metric.demoted()
		case w.first != 0:
			// Events that were replayed from the log may come to the ring only now.
			piece, to := h.sinceLocked(max(w.first, w.cursor+1)), h.delivered.Revision
			w.first = 0
			if n := batchOf(piece); n < len(piece) {
				w.first, to, piece = piece[n].Revision, piece[n-1].Revision, piece[:n]
			}
			b := w.advanceLocked(to)
			h.mu.Unlock()
			b.Events = w.selectEvents(piece)
			if len(b.Events) > 0 || b.Requested {
				return b, nil
			}
		case w.want != 0 && w.want <= h.delivered.Revision && h.delivered.Revision >= w.after:
			b := w.advanceLocked(h.delivered.Revision)
			h.mu.Unlock()
			return b, nil
		default:
			w.cursor = max(w.cursor, h.delivered.Revision)
			h.mu.Unlock()
			select {
			case <-w.wake:
			case <-ctx.Done():
				return Batch{}, ctx.Err()
			}
		}
	}
}

// takeTurn waits until the watcher may read the log. It returns false if the watcher may have ended
// meanwhile.
func (w *Watcher) takeTurn(ctx context.Context) (ok bool, err error) {
	for _, turn := range w.turns {
		select {
		case turn <- struct{}{}:
			w.held++
		case <-w.wake:
			return false, nil
		case <-ctx.Done():
			w.EndTurn()
			return false, ctx.Err()
		}
	}
	return true, nil
}

// EndTurn gives back what Next has taken of the turns, for a caller that does not call it again.
func (w *Watcher) EndTurn() {
	for ; w.held > 0; w.held-- {
		<-w.turns[w.held-1]
	}
}

// batchOf is how many of the events a watcher takes of the ring at a time: what it holds stays in
// memory, also when the ring has let go of it. The hub is locked.
func batchOf(piece []*Event) int {
	bytes := 0
	for i, e := range piece {
		if bytes += e.bytes; i == maxBatch || i > 0 && bytes > maxBatchBytes {
			return wholeTo(piece, i)
		}
	}
	return len(piece)
}

// advanceLocked moves the cursor, and answers a request for progress if it was reached.
func (w *Watcher) advanceLocked(to contract.Revision) Batch {
	w.cursor = max(w.cursor, to)
	b := Batch{Progress: w.cursor}
	if w.want != 0 && w.want <= to && to >= w.after {
		b.Requested = true
		w.want, w.told = 0, to
		delete(w.s.hub.wanting, w)
	}
	return b
}

func (w *Watcher) selectEvents(piece []*Event) []*Event {
	var events []*Event
	for _, e := range piece {
		if e.Revision > w.after && w.rng.contains(e.Key) {
			if events == nil {
				events = make([]*Event, 0, min(len(piece), 64))
			}
			events = append(events, e)
		}
	}
	return events
}

// replay reads one piece of the log after the cursor. Rows newer than the cursor are complete as
// long as the boundary, which is read in the same snapshot, has not passed the first of them: the
// sweep keeps the row at the boundary (see [contract.PlanSweep]).
func (w *Watcher) replay(ctx context.Context, cursor contract.Revision) (Batch, error) {
	s := w.s
	tail, err := w.readLog(ctx, cursor)
	if err != nil {
		return Batch{}, err
	}
	w.piece.saw(tail.Rows)
	s.metrics.replayed(len(tail.Rows))
	if tail.State.Head.Epoch != w.epoch || tail.State.Compacted > cursor+1 {
		return Batch{}, contract.ErrCompacted
	}
	if gap := missing(cursor, tail, tail.Rows); gap != 0 {
		return Batch{}, contract.Damaged("the log has no row %d, though it is neither compacted nor "+
			"the newest", gap)
	}
	var events []*Event
	for i := range tail.Rows {
		r := &tail.Rows[i]
		cursor = r.Revision
		if e := eventOf(r); e != nil && w.rng.contains(e.Key) {
			events = append(events, e)
		}
	}
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.err != nil {
		return Batch{}, w.err
	}
	w.cursor = cursor
	return Batch{Events: events, Progress: cursor}, nil
}

// readLog reads the rows after the cursor. Watchers that catch up wait for each other, those of
// other stores, too, and the tailer does not wait for them.
func (w *Watcher) readLog(ctx context.Context, cursor contract.Revision) (*contract.Tail, error) {
	s := w.s
	select {
	case s.replays <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.replays }()
	end, err := s.cfg.Scheduler.replay(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return s.tail(ctx, cursor, cursor+1, w.piece.rows(s.cfg.TailRows), w.prev)
}

// RequestProgress makes Next return, perhaps without events, as soon as everything up to the
// revision was seen. It does nothing if a requested batch has already said so.
func (w *Watcher) RequestProgress(at contract.Revision) {
	h := w.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.err == nil {
		w.wantLocked(at)
	}
}

func (w *Watcher) wantLocked(at contract.Revision) {
	if at <= w.told {
		return
	}
	h := w.s.hub
	w.want = max(w.want, at)
	if w.attached {
		h.wanting[w] = struct{}{}
		if w.want <= h.delivered.Revision {
			w.signal()
		}
	}
}

// Close ends the watch. It may be called at any time, by anybody, again.
func (w *Watcher) Close() {
	h := w.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked(w, contract.ErrClosed)
}

func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// PrevValue returns the value before the event, nil for a creation; see [Engine.Previous].
func (s *Engine) PrevValue(ctx context.Context, e *Event) ([]byte, error) {
	value, _, err := s.previous(ctx, e)
	return value, err
}

// Previous returns the key as it was before the event, nil for a creation. It reads the log at most
// once per event, whoever asks. The error is ErrCompacted if the value is gone.
func (s *Engine) Previous(ctx context.Context, e *Event) (*KeyValue, error) {
	if e.Prev == 0 {
		return nil, nil
	}
	value, lease, err := s.previous(ctx, e)
	if err != nil {
		return nil, err
	}
	return &KeyValue{Key: e.Key, Revision: e.Prev.Revision(), Create: e.Create, Version: e.Version - 1,
		Lease: lease, Value: value}, nil
}

// LoadPrevious reads, at once, what Previous will ask for of several events. Values that it cannot
// find are left to Previous.
func (s *Engine) LoadPrevious(ctx context.Context, events []*Event) error {
	var asked []contract.RowID
	by := map[contract.RowID]*Event{}
	for _, e := range events {
		if e.Prev == 0 {
			continue
		}
		if err := e.prev.acquire(ctx); err != nil {
			return err
		}
		known := e.prevKnown
		e.prev.release()
		if !known {
			asked = append(asked, e.Prev)
			by[e.Prev] = e
		}
	}
	if len(asked) < 2 {
		return nil // Previous does it
	}
	var rows []contract.Row
	_, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		rows, st, err = s.b.Values(ctx, asked)
		return st, err
	})
	for i := range rows {
		e := by[rows[i].ID()]
		if err := e.prev.acquire(ctx); err != nil {
			return err
		}
		if !e.prevKnown {
			e.prevKnown, e.prevValue, e.prevLease = true, rows[i].Value, rows[i].Lease
			s.hub.grew(e, len(e.prevValue))
		}
		e.prev.release()
	}
	return err
}

func (s *Engine) previous(ctx context.Context, e *Event) ([]byte, contract.Lease, error) {
	if e.Prev == 0 {
		return nil, 0, nil
	}
	if err := e.prev.acquire(ctx); err != nil {
		return nil, 0, err
	}
	defer e.prev.release()
	if e.prevKnown {
		return e.prevValue, e.prevLease, nil
	}
	var rows []contract.Row
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		rows, st, err = s.b.Values(ctx, []contract.RowID{e.Prev})
		return st, err
	})
	switch {
	case err != nil:
		return nil, 0, err
	case len(rows) == 1:
		e.prevKnown, e.prevValue, e.prevLease = true, rows[0].Value, rows[0].Lease
		s.hub.grew(e, len(e.prevValue))
		return e.prevValue, e.prevLease, nil
	case st.Compacted >= e.Revision:
		return nil, 0, contract.ErrCompacted
	}
	return nil, 0, fmt.Errorf("the log has no row %d, which the event %d of %q replaced", e.Prev,
		e.Revision, string(e.Key))
}
