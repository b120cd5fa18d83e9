package mvcc

import (
	"context"
	"fmt"
	"sync"
)

// A database can lose what it had confirmed: an older dump is restored under running servers, a replica without the tail is
// promoted, a file is copied back. From then on the same revisions would be given again, for other content, and a watcher
// that resumes at such a revision would miss events without a trace.
//
// So this process compares every answer with what it has seen (Store.observe, Group.Seen, tailer.read). If the epoch changed, somebody has
// fenced already, and this process moves to the new history. If the head is lower, or the last row that was seen has another token or is missing
// though it was not compacted, this process fences: Backend.Fence takes the commit lock, and writes a marker row
// a jump beyond everything that was seen, in a new epoch, with compacted at the jump. No replica can have seen that
// far, so no revision is reused; every older revision answers "compacted", in every replica and for ever. All watches end with ErrCompacted, as
// what was delivered may not have happened.
//
// What a process cannot notice by what it has seen, it notices by the database's fingerprint: when it starts
// (Store.begin) and whenever it opens a connection (the backends answer Fenced).

// minJump is how far a fence moves the revision at least: at a million writes per second, another replica is more than an hour
// away from having seen a revision that is used again.
const minJump Revision = 1 << 32

// perSecond makes the revision to which a fence moves rise with time. To be beyond what this process has seen is not enough: if the same backup were restored
// twice, both fences would come to the same revision. No history can have come as far that began earlier and takes fewer writes than 2^30 a second. Until the year 2242 it fits.
const perSecond Revision = 1 << 30

// newFence is a fence of a database of which a process has seen the position.
func newFence(seen Position, fingerprint string) Fence {
	return Fence{Seen: seen, Token: newToken(), Jump: minJump, PerSecond: perSecond, Fingerprint: fingerprint}
}

type fencing struct {
	mu sync.Mutex
}

// refence makes sure that this process is in the database's history: it moves to a newer epoch, or fences, or finds that the alarm
// was false. reason says what was noticed.
func (s *Store) refence(ctx context.Context, reason string) error {
	s.fencing.mu.Lock()
	defer s.fencing.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if r, ok := s.b.(Reconnector); ok {
		// A connection that has outlived a failover would go on to tell of the old server.
		r.Reconnect()
	}
	seen, delivered := s.hub.newestSeen(), s.hub.position()
	st, err := s.b.State(ctx)
	switch {
	case err != nil && ClassOf(err) != Fenced:
		return err
	case err == nil && !st.Writable:
		return Errorf(ReadOnly, "the database is read-only (a standby, or not promoted yet), and cannot be fenced")
	case err == nil && st.Head.Epoch > seen.Epoch:
		s.adopt(st, reason)
		return nil
	case err == nil && st.Head.Epoch == seen.Epoch && st.Head.Revision >= seen.Revision:
		// What was delivered has to be there as well as what was heard of since, which may be of the new history already.
		intact, err := s.intact(ctx, seen)
		if err == nil && intact {
			intact, err = s.intact(ctx, delivered)
		}
		if err != nil || intact {
			return err
		}
	}
	return s.fenceLocked(ctx, seen, reason)
}

// intact tells whether the database is still the one that holds the row at this position.
func (s *Store) intact(ctx context.Context, seen Position) (bool, error) {
	id, err := s.b.Identity(ctx)
	if err != nil {
		return false, err
	}
	if id.Recorded != id.Actual {
		return false, nil
	}
	t, err := s.b.Tail(ctx, seen.Revision, 1, PrevOfDeletions)
	if err != nil {
		return false, err
	}
	return follows(seen, t), nil
}

// follows tells whether a piece of the log, read from the position on, is of the same history: its first row is the one at the position, or
// that row has been compacted.
func follows(p Position, t *Tail) bool {
	if t.State.Head.Epoch != p.Epoch || t.State.Head.Revision < p.Revision {
		return false
	}
	if len(t.Rows) > 0 && t.Rows[0].Revision == p.Revision {
		return t.Rows[0].Token == p.Token
	}
	return p.Revision <= t.State.Compacted
}

func (s *Store) fenceLocked(ctx context.Context, seen Position, reason string) error {
	id, err := s.b.Identity(ctx)
	if err != nil {
		return fmt.Errorf("cannot fence: %w", err)
	}
	st, err := s.b.Fence(ctx, newFence(seen, id.Actual))
	if err != nil {
		return fmt.Errorf("cannot fence: %w", err)
	}
	s.metrics.fenced()
	s.adopt(st, reason)
	return nil
}

// adopt moves this process to another history.
func (s *Store) adopt(st State, reason string) {
	s.log.Error("the database's history has changed; all watches end and caches are filled again", "reason", reason,
		"epoch", int64(st.Head.Epoch), "revision", int64(st.Head.Revision))
	s.metrics.adopted()
	s.snapshots.forget()
	s.hub.reset(st)
}

// Fence starts a new epoch by hand: after a restore that nothing else could notice.
func (s *Store) Fence(ctx context.Context) (Revision, error) {
	s.fencing.mu.Lock()
	defer s.fencing.mu.Unlock()
	if s.ctx.Err() != nil {
		return 0, ErrClosed
	}
	st, err := s.b.State(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.fenceLocked(ctx, st.Head, "fenced by hand"); err != nil {
		return 0, err
	}
	return s.hub.position().Revision, nil
}
