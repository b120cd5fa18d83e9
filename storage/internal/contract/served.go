package contract

import (
	"sync"
	"time"
)

// Served knows since when a process has served a store without a gap. Leases end by it: see
// lease.go. Its times are those of the database's clock, as answers tell them.
type Served struct {
	// gap is how long there may be no answer.
	gap time.Duration
	// clock is the process's own, which nobody sets.
	clock func() time.Time
	// mu protects the fields below.
	mu sync.Mutex
	at service
	// epoch is that of the last state.
	epoch Epoch
	// stops is how often the process had stood still before the store rested.
	stops int
}

// NewServed makes a Served. Where the process serves, answers come in shorter intervals than gap.
// clock is time.Now, or that of a test.
func NewServed(gap time.Duration, clock func() time.Time) *Served {
	return &Served{gap: gap, clock: clock}
}

// service is since when a store was served, zero if it never was.
type service struct {
	since, last time.Time
	// noted is when the process noted the answer of last, by its own clock.
	noted time.Time
	// lost: somebody was refused since the last answer. rests: nobody has asked since then.
	lost, rests bool
}

// answered is the service after an answer of the database at the time now.
//
// Without an answer for a while, nobody knows whether a lease could have been renewed, so the
// service begins anew. It does not if nobody could have been refused: a store that nobody uses is
// closed, and is opened as soon as somebody asks for it. That holds if as much time has passed for
// the process: otherwise the process stood still, or the database's clock was set. Answers may come
// in another order than they were given. So a clock that goes back a little is no gap.
func (v service) answered(now, noted time.Time, gap time.Duration) service {
	between := now.Sub(v.last)
	rested := v.rests && between-noted.Sub(v.noted) <= gap
	switch {
	case v.since.IsZero(), v.lost, between < -gap, between > gap && !rested:
		return service{since: now, last: now, noted: noted}
	case between < 0:
		return service{since: v.since, last: v.last, noted: v.noted}
	}
	return service{since: v.since, last: now, noted: noted}
}

// Answered notes an answer that the database has given at a time of its clock, and returns since
// when it was asked without a gap.
func (s *Served) Answered(now time.Time) (since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = s.at.answered(now, s.clock(), s.gap)
	return s.at.since
}

// Told is Answered for an answer that tells the state. In another history, as a restore brings it,
// nobody could renew a lease before.
func (s *Served) Told(st State) (since time.Time) {
	s.mu.Lock()
	if st.Head.Epoch != s.epoch {
		s.epoch, s.at.lost = st.Head.Epoch, true
	}
	s.mu.Unlock()
	return s.Answered(st.Now)
}

// Lost notes that somebody was refused: the database does not answer, or writes nothing.
func (s *Served) Lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at.lost = true
}

// Waited notes how long somebody has waited for a turn, or for the store to be opened. Others have
// waited as long.
func (s *Served) Waited(d time.Duration) {
	if d > s.gap {
		s.Lost()
	}
}

// Rests notes that the store is closed, and will be opened for whoever asks for it. stops is how
// often the process had stood still when somebody began to close it.
func (s *Served) Rests(stops int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at.rests, s.stops = true, stops
}

// Wakes notes that the store is opened again. If the process has stood still meanwhile, whoever
// asked for it then was not answered.
func (s *Served) Wakes(stops int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at.lost = s.at.lost || s.at.rests && stops != s.stops
}

// Pulse notices that a process stands still: that somebody stops or freezes it, and lets it go on.
// Where stores are open, answers are missing then. Where all are closed, nothing else tells: the
// database's clock and the process's own go on alike.
type Pulse struct {
	gap time.Duration
	// mu protects the fields below.
	mu    sync.Mutex
	last  time.Time
	stops int
}

// NewPulse makes a Pulse. While the process runs, it beats in shorter intervals than gap.
func NewPulse(gap time.Duration) *Pulse { return &Pulse{gap: gap} }

// Beat notes that the process runs, at a time of its own clock, and returns how often it has stood
// still.
func (p *Pulse) Beat(now time.Time) (stops int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() && now.Sub(p.last) > p.gap {
		p.stops++
	}
	p.last = now
	return p.stops
}
