package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// The stores of a process that share connections are polled together, in rounds. A round is one
// statement. It begins when the poll of one store is due, and takes along the others that have
// waited for at least half of their time. So stores that are open and idle cost as many statements
// as one of them, and a store that is alone costs what it would cost without rounds.
//
// # What a poll tells
//
// The state, by which the tailer knows whether to read the log; and the quota, so that the loop
// that looks for it needs no statement of its own while a store is idle. A store that writes all
// the time proves by its commits that it is up to date. It is not polled then, and its loops ask by
// themselves.
//
// Now and then a statement beside the rounds asks for many stores what expires next. No event waits
// for that: it reads other tables, and may take long.
//
// # Why the invariants hold
//
// A round is no more than the read of the state that each of its stores would have done by itself:
//
//   - The positions with which the answers are compared are taken before the statement begins (I4,
//     I6). From there on, a store does with its answer, or with the error in its place, what it
//     does with those of a read of its own (Engine.judge): it compares, fences, goes over to
//     another epoch, finds that it was dropped, or tries again by itself. So no store depends on
//     another one for what it believes.
//   - The connection passes the gate of each store. One that is too old for a store is not used.
//     Where a gate asks for the store's row, the same statement brings it, and the answer is used
//     only if the gate lets the store in by that row. The row and the state come from one snapshot,
//     so this proves no less than reading the one before the other. If the gate says no, that is
//     the answer of this store alone; see gate.go (I6).
//   - A poll begins no later than it would by itself. A store whose poll is due begins a round, if
//     it is in none. Only a round that is under way keeps it from that, as its own poll would.
//   - A round that fails or hangs is nobody's answer. It ends after a part of the time that a read
//     has, and then each of its stores asks by itself. Stores that are not in it begin others
//     meanwhile, and the stores in it heed notifications.
//   - A round that panics is nobody's answer, either. Since nobody knows which store it was about,
//     each is polled by itself from then on. The one whose own poll panics is closed.
//   - The stores of a round poll at the same interval. So a store with events, which is polled
//     often, does not wait for a statement about a thousand idle ones.
//
// A store that closes leaves its round. The last one to leave ends it. The last store of all ends
// the look for what expires next.

// dueStores is for how many stores one statement asks what expires next.
const dueStores = 128

// roundShare is the part of a read's time limit that a round has.
const roundShare = 6

// Polls makes the polls of the stores of one [contract.Database], which share connections. The zero
// value has none.
type Polls struct {
	// announcer tells of the heads of these stores.
	announcer announcer
	// mu protects the fields below. It is held while a round is made, so that stores which are due
	// at the same time are in the same one. It comes before tailer.mu.
	mu      sync.Mutex
	tailers map[*tailer]struct{}
	// looking asks what expires next, nil if nothing does. There is one at a time, so that it takes
	// one connection, however long it takes.
	looking *round
	// apart: a poll of several stores has panicked, and nobody knows for which one. Each is polled
	// by itself since then.
	apart bool
	// size is the last one that was read of the tables, and measured is when somebody began to read
	// it.
	size     contract.Size
	measured time.Time
}

// lastSize returns the last size of the tables, zero if there is none. The caller has to read it if
// nobody has begun to for a time, or if there are no polls.
func (p *Polls) lastSize(within time.Duration) (size contract.Size, asks bool) {
	if p == nil {
		return size, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if asks = time.Since(p.measured) >= within; asks {
		p.measured = time.Now()
	}
	return p.size, asks
}

// sized takes a size that was read.
func (p *Polls) sized(size contract.Size) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.size = size
	}
}

// round is a statement that polls several stores.
type round struct {
	tailers []*tailer
	// waiting counts the stores that have not left.
	waiting atomic.Int64
	// cancel gives it up, and ended is closed when it has ended.
	cancel context.CancelFunc
	ended  chan struct{}
}

// pollAnswer is the answer of a round to one store.
type pollAnswer struct {
	contract.Polled
	// began is when the round began, and seen the newest position that was known then.
	began time.Time
	seen  contract.Position
}

func (p *Polls) join(t *tailer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tailers == nil {
		p.tailers = map[*tailer]struct{}{}
	}
	p.tailers[t] = struct{}{}
}

// leave returns when nothing is asked for the store any more, unless others ask with it.
func (p *Polls) leave(t *tailer) {
	p.mu.Lock()
	delete(p.tailers, t)
	looking := p.looking
	if len(p.tailers) > 0 {
		looking = nil
	}
	p.mu.Unlock()
	if r := t.leaves(); r != nil && r.waiting.Add(-1) == 0 {
		r.cancel()
		<-r.ended
	}
	if looking != nil {
		looking.cancel()
		<-looking.ended
	}
}

// begin begins a round for a store, unless it is in one.
func (p *Polls) begin(t *tailer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &round{ended: make(chan struct{})}
	interval, entered := t.enters(r, 0)
	if !entered {
		return
	}
	r.tailers = append(r.tailers, t)
	for other := range p.tailers {
		if p.apart {
			break
		}
		if _, enters := other.enters(r, interval); enters {
			r.tailers = append(r.tailers, other)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.s.cfg.Timeout/roundShare)
	r.cancel = cancel
	go p.run(ctx, r)
	if p.looking == nil {
		p.look(r.tailers, t)
	}
}

// run asks, and hands out the answers.
func (p *Polls) run(ctx context.Context, r *round) {
	defer close(r.ended)
	defer r.cancel()
	answers := make([]pollAnswer, len(r.tailers))
	began := time.Now()
	for i, t := range r.tailers {
		answers[i].began, answers[i].seen = began, t.s.hub.newestSeen()
	}
	polled, err := p.ask(ctx, r, 0)
	for i, t := range r.tailers {
		a := &answers[i]
		if err != nil {
			// It may be the fault of one of them. Each one asks by itself.
			a.Err = contract.Errorf(contract.Transient, "poll the stores: %w", err)
		} else {
			a.Polled = polled[i]
		}
		t.answers <- *a // it has room: a tailer is in one round at a time
	}
}

// ask runs the statement. A panic of it closes the store, if it is one. Of several, nobody knows
// which one it is about, so all of them ask by themselves.
func (p *Polls) ask(ctx context.Context, r *round, due int) (polled []contract.Polled, err error) {
	by := r.tailers[0]
	do := func() (err error) {
		polled, err = by.shared.Poll(ctx, r.stores(), due)
		return err
	}
	if !by.s.cfg.Reopened {
		err = do()
		return polled, err
	}
	err = contract.Recovered(do)
	if panicked := (*contract.PanicError)(nil); errors.As(err, &panicked) {
		if len(r.tailers) == 1 {
			by.s.panicked(panicked)
			return nil, err
		}
		by.s.log.Error("a poll of several stores has panicked: each of them is polled by itself from "+
			"now on", "panic", fmt.Sprint(panicked.Value), "stack", panicked.Stack)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.apart = true
	}
	return polled, err
}

func (r *round) stores() []contract.Backend {
	stores := make([]contract.Backend, len(r.tailers))
	for i, t := range r.tailers {
		stores[i] = t.s.b
	}
	return stores
}

// look asks what expires next, if one of the stores that are polled has not known it for half of
// its time. It takes along the others that have not for a quarter. The answer says when the reapers
// look, which check everything by themselves. So an error does no harm: they look when their own
// time has come. mu is held.
func (p *Polls) look(tailers []*tailer, by *tailer) {
	began := time.Now()
	r := &round{ended: make(chan struct{})}
	asks := false
	for _, t := range tailers { // each is looked at once: its reaper may look meanwhile
		half, quarter := t.wonders(began)
		if quarter && len(r.tailers) < dueStores {
			r.tailers = append(r.tailers, t)
		}
		asks = asks || half
	}
	if !asks {
		return
	}
	for _, t := range r.tailers {
		t.wondersFrom(began)
	}
	ctx, cancel := context.WithTimeout(context.Background(), by.s.cfg.Timeout)
	r.cancel, p.looking = cancel, r
	go func() {
		defer close(r.ended)
		defer cancel()
		polled, err := p.ask(ctx, r, len(r.tailers))
		p.mu.Lock()
		p.looking = nil
		p.mu.Unlock()
		if err != nil {
			return
		}
		for i, t := range r.tailers {
			if polled[i].Err == nil {
				t.expects(polled[i].Due, began)
			}
		}
	}()
}

// pollState is what a tailer knows of its polls. tailer.mu protects it.
type pollState struct {
	// round is the one that the store is in, nil if it is in none.
	round *round
	// left: it enters no other one.
	left bool
	// last is the last answer that was good.
	last pollAnswer
	// wondered is when it was last asked what expires next, and looked when it was last known.
	wondered, looked time.Time
}

// enters lets the store take part in a round, unless it is in one. If the interval of the round is
// not 0, it does so only if it polls at the same one, and has waited for half of it. It returns the
// interval of the store.
func (t *tailer) enters(r *round, of time.Duration) (interval time.Duration, entered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	interval, pause := t.pauseLocked()
	if t.poll.round != nil || t.poll.left || of != 0 && (interval != of || pause > of/2) {
		return interval, false
	}
	t.poll.round = r
	r.waiting.Add(1)
	return interval, true
}

// leaves keeps the store out of rounds, and returns the one that it is in.
func (t *tailer) leaves() *round {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.poll.left = true
	return t.poll.round
}

// wonders tells whether half and a quarter of the store's time have passed since it was asked what
// expires next.
func (t *tailer) wonders(now time.Time) (half, quarter bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since := min(now.Sub(t.poll.looked), now.Sub(t.poll.wondered))
	return since >= t.s.cfg.ExpiryIdle/2, since >= t.s.cfg.ExpiryIdle/4
}

// wondersFrom notes when it is asked what expires next.
func (t *tailer) wondersFrom(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.poll.wondered = now
}

// expects takes what was known at a time: how long it is until something expires.
func (t *tailer) expects(due time.Duration, at time.Time) {
	t.looked(at)
	if due < t.s.cfg.ExpiryIdle {
		t.s.reapIn(max(due-time.Since(at), 0) + clockSkew)
	}
}

// looked notes that it was known at a time what expires next.
func (t *tailer) looked(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.After(t.poll.looked) {
		t.poll.looked = at
	}
}

// lookedAt is when it was last known what expires next.
func (t *tailer) lookedAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.poll.looked
}

// lastPoll returns the last answer to a poll, if it is not older than that.
func (t *tailer) lastPoll(within time.Duration) (contract.Polled, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.poll.last.Polled, time.Since(t.poll.last.began) < within
}

// takes takes the answer to a poll, and tells whether the log has new rows.
func (t *tailer) takes(ctx context.Context, a pollAnswer) (newer bool, err error) {
	s := t.s
	defer func() {
		t.mu.Lock()
		t.poll.round = nil
		t.mu.Unlock()
	}()
	st, err := s.judge(ctx, a.seen, a.State, a.Err)
	if err != nil {
		st, err = s.again(ctx, s.b.State, err)
		return err == nil && t.behind(st), err
	}
	t.mu.Lock()
	t.poll.last = a
	t.mu.Unlock()
	return t.behind(st), nil
}

func (t *tailer) behind(st contract.State) bool {
	return st.Head.Revision > t.s.hub.position().Revision
}
