package mvcc

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// A database can lose what it had confirmed: an older dump is restored under running servers, a
// replica without the tail is promoted, a file is copied back. From then on the same revisions
// would be given again, for other content, and a watcher that resumes at such a revision would miss
// events without a trace. This file keeps invariant I6 of the package documentation.
//
// # How it is noticed
//
// Three places compare what the database says with what this process has seen:
//
//   - Engine.observe compares the head of each read.
//   - The backend compares the positions of each group (Group.Seen and Earlier).
//   - The tailer compares each position that was seen, when the log is read up to it (see trail).
//
// The rest is noticed by the database's fingerprint, and by the boot that holds its commits (see
// durability.go): when the process starts (Engine.begin), and whenever it opens a connection (the
// backends answer Fenced). After a read of another history the log is read at once. Until it is
// read up to what was seen before, the process does not know, and writes nothing.
//
// # What is done
//
// Either the process goes over to the history that it finds, or it fences: StartEpoch takes the
// commit lock and writes a marker row in a new epoch, a jump beyond the head and everything that
// this process has seen, with compacted at the marker. All watches end with ErrCompacted, as what
// was delivered may not have happened. It goes over only if every revision that it has seen, and
// half a jump more, is below compacted there (Adoptable).
//
// # Why no revision is used twice
//
// Let seen be the newest revision that a process has seen, in any history. After it went over or
// fenced, compacted is beyond seen, and it never becomes lower in that database. So whatever is
// read there at a revision up to seen answers "compacted", and what is written there has a greater
// one.
//
//   - Several processes go over at the same time: each decides by what it has seen itself, so it
//     does not matter what the others do. If one of them had seen more and fences instead, the
//     marker is a jump beyond the head, and so beyond what the others have seen there: they follow.
//   - Two fences at the same time: the second one finds, under the commit lock, another epoch than
//     the one that it replaces. It does nothing if the first one was half a jump beyond what its
//     own process has seen, and else fences beyond both. So processes never fence in turns: each
//     fence is beyond everything that anybody has seen in the database when it is made.
//   - A database that was just fenced loses what was written after the fence: a standby takes its
//     place, or the server with relaxed durability ends. A process that had not heard of the fence
//     finds another epoch, beyond all that it has seen. But the recorded fingerprint and boot are
//     the ones from before. So a process compares them first. If they differ, it fences, unless
//     somebody else has done so since it compared.
//   - A fence of the same database by hand, when it was noticed, or by an import is one like all
//     others.
//   - A process that has seen nothing believes what it finds, unless the fingerprint is another
//     one. It then fences whatever the database holds: its own epoch and compacted are not asked,
//     as they say nothing of what was seen in the database in whose place it is.
//   - A copy that was fenced elsewhere, any number of times, comes under running servers: by the
//     fences' times, its marker is either half a jump beyond what they have seen, and they go over,
//     or they fence beyond both. It does not matter whether the file is another one, nor whether
//     its fingerprint tells, nor what its epoch is. If it is the same epoch as theirs, the head is
//     lower, or their newest row is another one, and they fence; or it is below compacted, and can
//     do no harm.
//   - A process that runs no more, and had seen more than all that run, is covered if that was less
//     than half a jump more. Where no server runs, the fingerprint alone covers it.
//
// Nobody notices a copy from the past with the same fingerprint that takes the place of a database
// while no server runs. The package documentations of the databases say when that can be; then a
// fence by hand is needed.

// refence makes sure that this process is in the database's history: it goes over to another epoch,
// or fences, or finds that the alarm was false. suspect is a position of which somebody says that
// it is not there, or is there; reason says what was noticed. Nothing that was read before may be
// used afterwards, whatever refence returns: the caller asks the database again.
//
// Many notice a loss at the same time, and each look at it takes new connections. So a caller that
// comes when this process has left the suspect's epoch looks at nothing: its next read is compared
// with the new history.
//
// The caller waits no longer than ctx. A look that has begun goes on without it, since others need
// it, too.
func (s *Engine) refence(ctx context.Context, suspect contract.Position, reason string) error {
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	if err := s.fencing.acquire(ctx); err != nil {
		return err
	}
	if s.hub.position().Epoch != suspect.Epoch {
		s.fencing.release()
		return nil
	}
	done := make(chan error, 1)
	go func() {
		defer s.fencing.release()
		err := contract.ErrClosed // if it panics
		defer func() { done <- err }()
		s.guarded(func() { err = s.refenceLocked(suspect, reason) })()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Engine) refenceLocked(suspect contract.Position, reason string) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Timeout)
	defer cancel()
	if r, ok := s.b.(contract.Reconnector); ok {
		// A connection that has outlived a failover would go on to tell of the old server.
		r.Reconnect()
	}
	if err := s.keepBoot(ctx); err != nil {
		return err
	}
	// The identity comes first: what is found from here on is found in its epoch, or somebody else
	// has fenced meanwhile, and the fence that names it finds that out.
	id, err := s.b.Identity(ctx)
	if err != nil {
		return err
	}
	if err := s.sameStore(id); err != nil {
		return err
	}
	positions, _ := s.hub.undecided()
	seen := positions[len(positions)-1]
	st, err := s.b.State(ctx)
	switch {
	case err != nil && contract.ClassOf(err) != contract.Fenced:
		return err
	case err != nil:
		// The backend tells nothing of another database before it is fenced. If it is as somebody
		// has left it who fenced, what has to be replaced is the epoch that is known: the fence
		// finds out that this was done. If not, whatever epoch it has has to be replaced.
		d, err := s.b.Durability(ctx)
		if err != nil {
			return err
		}
		if !id.Moved() && !d.Lost() {
			id.Epoch = seen.Epoch
		}
	case err == nil && !st.Writable:
		return contract.Errorf(contract.ReadOnly, "the database is read-only (a standby, or not promoted yet), and "+
			"cannot be fenced")
	case err == nil && st.Head.Epoch != seen.Epoch && contract.Adoptable(seen.Revision, st) && !id.Moved():
		// Somebody fenced, perhaps by hand or by a restore. The process that noticed a loss has
		// said so. If this process restores, it is nothing to be warned of.
		level := slog.LevelWarn
		if s.importing.Load() > 0 {
			level = slog.LevelInfo
		}
		return s.adopt(ctx, st, level, reason)
	case err == nil && st.Head.Epoch == seen.Epoch && st.Head.Revision >= seen.Revision:
		// Each position has to be in the log: the delivered one, and all that were seen since. The
		// newest of them may belong to the new history already.
		if suspect.Epoch == seen.Epoch {
			// The suspect comes first: there may be thousands of others, each a round trip.
			positions = append([]contract.Position{suspect}, positions...)
		}
		intact := !id.Moved()
		for i := 0; intact && i < len(positions); i++ {
			if intact, err = s.holds(ctx, positions[i]); err != nil {
				return err
			}
		}
		if intact {
			return nil
		}
	}
	return s.fenceLocked(ctx, s.hub.newestSeen(), id, slog.LevelError, reason)
}

// holds tells whether the database's history goes over the position.
func (s *Engine) holds(ctx context.Context, p contract.Position) (bool, error) {
	t, err := s.b.Tail(ctx, p.Revision, 1, contract.PrevOfDeletions)
	return err == nil && contract.Follows(p, t), err
}

// fenceLocked fences the database of this identity beyond what was seen.
func (s *Engine) fenceLocked(ctx context.Context, seen contract.Position, id contract.Identity, level slog.Level,
	reason string) error {
	d, err := s.b.Durability(ctx)
	if err != nil {
		return fmt.Errorf("cannot fence: %w", err)
	}
	st, err := s.startEpoch(ctx, contract.NewFence(seen, id))
	if err != nil {
		return fmt.Errorf("cannot fence: %w", err)
	}
	if err := s.recordBoot(ctx, d); err != nil {
		return fmt.Errorf("cannot record the boot: %w", err)
	}
	s.metrics.fenced()
	return s.adopt(ctx, st, level, reason)
}

// startEpoch is StartEpoch, and tells the other processes.
func (s *Engine) startEpoch(ctx context.Context, f contract.Fence) (contract.State, error) {
	st, err := contract.StartEpoch(ctx, s.b, f)
	if err == nil {
		s.announcer.tell(s, st.Head.Revision)
	}
	return st, err
}

// adopt moves this process to another history, unless what BeforeAdopting has set refuses that. The
// level of the line in the log is Error only if this process noticed that history was lost.
func (s *Engine) adopt(ctx context.Context, st contract.State, level slog.Level,
	reason string) error {
	if f := s.beforeAdopting.Load(); f != nil {
		if err := (*f)(ctx); err != nil {
			return err
		}
	}
	s.log.Log(s.ctx, level, "the database's history has changed; all watches end and caches are "+
		"filled again", "reason", reason, "epoch", int64(st.Head.Epoch), "revision",
		int64(st.Head.Revision))
	s.metrics.adopted()
	s.deltas.forget()
	s.left.forget()
	s.hub.reset(st)
	return nil
}

// BeforeAdopting has f called each time before this process goes over to another epoch. While f
// returns an error, the process stays in the old one. There it reads and writes nothing, since the
// database has left it, and each attempt calls f again. So whoever commits something and then
// fences the store knows: a process writes to the store after that only if its f was called after
// the commit and has not refused. f must not use this store but by Peek.
func (s *Engine) BeforeAdopting(f func(context.Context) error) { s.beforeAdopting.Store(&f) }

// Peek reads a key as the database has it, and the head, whatever history this process is in. Only
// what is called by BeforeAdopting needs that: this process is about to follow the database.
func (s *Engine) Peek(ctx context.Context, key contract.Key) (row *contract.Row,
	head contract.Revision, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	row, st, err := s.b.Get(ctx, key)
	switch {
	case err != nil:
		return nil, 0, err
	case st.Dropped():
		return nil, 0, contract.ErrDropped
	case !st.Writable:
		return nil, 0, contract.Errorf(contract.ReadOnly, "the database answers as a read-only "+
			"server (a standby, or demoted): its answers may be late and are not used")
	}
	return row, st.Head.Revision, nil
}

// Fence starts a new epoch by hand: after a restore that nothing else could notice.
func (s *Engine) Fence(ctx context.Context) (contract.Revision, error) { return s.FenceBeyond(ctx, 0) }

// FenceBeyond is Fence for a history that has to go on beyond a revision of another one, which
// clients may have seen.
func (s *Engine) FenceBeyond(ctx context.Context, beyond contract.Revision) (contract.Revision, error) {
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	if err := s.fencing.acquire(ctx); err != nil {
		return 0, err
	}
	defer s.fencing.release()
	id, err := s.b.Identity(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.sameStore(id); err != nil {
		return 0, err
	}
	seen := s.hub.newestSeen()
	seen.Revision = max(seen.Revision, beyond)
	if err := s.fenceLocked(ctx, seen, id, slog.LevelInfo, "fenced by hand"); err != nil {
		return 0, err
	}
	return s.hub.position().Revision, nil
}
