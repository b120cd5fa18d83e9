package mvcc

import (
	"context"
	"errors"
	"fmt"
)

// Everything that a store holds can be read at one revision, and be put into the place of everything that another one holds, which may be in a
// database of another kind. Revisions, creation revisions and expiries stay what they are. What is not taken along is history: rows that
// were replaced, and deletions.
//
// To put it back is one transaction under the commit lock, so nobody ever reads a half of it: neither a server that runs meanwhile, nor one that starts
// after the process that did it was killed. In the same transaction the history is fenced (see fence.go), as after a restore by the
// database's own tools: the revisions that were read or watched in the database before it stand for nothing any more.

// Record is a key that exists, with all that is kept of it.
type Record struct {
	Key              Key
	Revision, Create Revision
	// Expiry is when it expires, in microseconds since 1970 by the database's clock, 0 for never.
	Expiry int64
	Value  []byte
}

// Import is what replaces a store's content.
type Import struct {
	// Fence is the new epoch. Fence.Seen.Revision is the greatest revision of the database and of the records; the epoch is one more than that of the
	// database under the commit lock, whatever Fence.Seen says.
	Fence Fence
	// Replace removes the keys that exist. Otherwise a database that has some is refused with ErrNotEmpty.
	Replace bool
	// Records calls each for the records, in ascending order of revisions. It may be called again, after an error. The record and what it points to are
	// each's to keep until Records returns.
	Records func(each func(*Record) error) error
	// Check reads before the commit what the database holds then, in ascending order of revisions. Nothing is changed if it
	// returns an error.
	Check func(records func(each func(*Record) error) error) error
}

// ErrNotEmpty refuses to import into a store that has keys.
var ErrNotEmpty = errors.New("the store is not empty")

// Archiver is a Backend whose whole content can be read and replaced. All of them are; what it does takes longer than the time that is given to an operation
// otherwise, so only the context bounds it. Errors of the functions that they call are returned as they are.
type Archiver interface {
	// Export calls begin with the state and the number of live keys, and then each with every one of them in ascending order of revisions, all of one
	// snapshot. It holds no lock that a writer needs, and no more rows in memory than the one that it hands out.
	Export(ctx context.Context, begin func(State, int64) error, each func(*Record) error) error

	// Import replaces all rows of log and live by the records and the marker of a new epoch, in one transaction under the commit lock, which excludes
	// sweeps, too. It returns the state after it.
	Import(ctx context.Context, in *Import) (State, error)
}

// errNoArchiver is for backends of tests.
var errNoArchiver = Errorf(Invalid, "this database can neither be exported nor imported into")

// Export reads everything at one revision; see [Archiver].
func (s *Store) Export(ctx context.Context, begin func(st State, keys int64) error, each func(*Record) error) error {
	a, ok := s.b.(Archiver)
	if !ok {
		return errNoArchiver
	}
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	for {
		seen := s.hub.newestSeen()
		var (
			keys, found int64
			other       State
		)
		err := a.Export(ctx, func(st State, n int64) error {
			if st.Writable && st.Head != seen && (st.Head.Epoch != seen.Epoch || st.Head.Revision <= seen.Revision) {
				other = st
				return errOtherHistory
			}
			if err := s.observe(seen, st); err != nil {
				return err
			}
			keys = n
			return begin(st, n)
		}, func(r *Record) error {
			found++
			return each(r)
		})
		if errors.Is(err, errOtherHistory) {
			// This is looked into now, since it asks the backend, which held a snapshot for the export until here.
			if err = s.observe(seen, other); err == nil {
				continue
			}
		}
		if err == nil && found != keys {
			err = Errorf(Invalid, "the database is damaged: of %d keys, only %d have a row in the log", keys, found)
		}
		return orClosed(ctx, err)
	}
}

// errOtherHistory ends an export whose snapshot is of another history than what this process has seen.
var errOtherHistory = errors.New("the history has changed")

// Import replaces everything by what in holds, whose newest revision was head when it was exported; see [Archiver]. It fills in in.Fence. This process and all
// others move to the new history.
func (s *Store) Import(ctx context.Context, in *Import, head Revision) (State, error) {
	a, ok := s.b.(Archiver)
	if !ok {
		return State{}, errNoArchiver
	}
	ctx, cancel := s.whileOpen(ctx)
	defer cancel()
	s.fencing.mu.Lock()
	defer s.fencing.mu.Unlock()
	st, err := s.b.State(ctx)
	if err == nil && !st.Writable {
		err = Errorf(ReadOnly, "the database is read-only (a standby, or not promoted yet), and nothing can be restored into it")
	}
	var id Identity
	if err == nil {
		id, err = s.b.Identity(ctx)
	}
	if err == nil {
		seen := Position{Epoch: st.Head.Epoch, Revision: max(st.Head.Revision, head)}
		in.Fence = Fence{Seen: seen, Token: newToken(), Jump: jump(seen.Revision, st.Now), Fingerprint: id.Actual}
		st, err = a.Import(ctx, in)
	}
	// A deadlock with another server's maintenance, or a lock that was not to be had in time, is over when it is tried again.
	for try := 1; err != nil && ClassOf(err) == Transient && try < importTries && ctx.Err() == nil; try++ {
		s.log.Warn("the import was undone by the database and is repeated", "err", err)
		st, err = a.Import(ctx, in)
	}
	if ClassOf(err) == Unknown {
		return State{}, err // it may have been done, whatever has ended it
	}
	if err != nil {
		return State{}, orClosed(ctx, err)
	}
	s.metrics.fenced()
	s.adopt(st, "everything was replaced by an import")
	return st, nil
}

// importTries is how often an import is tried that the database undoes for reasons of its own.
const importTries = 5

// whileOpen returns a context that ends with the store, too.
func (s *Store) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// orClosed says of what was ended because the store was closed that it was.
func orClosed(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return err
}

// Valid returns what is wrong with a record that follows one at the given revision, if it could not have been written by a store whose head was at head.
func (r *Record) Valid(after, head Revision, limits Limits) error {
	switch {
	case r.Key == "":
		return errors.New("a key is empty")
	case len(r.Key) > limits.KeyBytes:
		return &LimitError{What: "key", Bytes: len(r.Key), Limit: limits.KeyBytes}
	case len(r.Value) > limits.ValueBytes:
		return fmt.Errorf("key %q: %w", string(r.Key), &LimitError{What: "value", Bytes: len(r.Value), Limit: limits.ValueBytes})
	case r.Revision <= after || r.Revision > head || r.Create < 1 || r.Create > r.Revision || r.Expiry < 0:
		return fmt.Errorf("key %q has the revision %d, the creation revision %d and the expiry %d, after revision %d and up to %d",
			string(r.Key), r.Revision, r.Create, r.Expiry, after, head)
	}
	return nil
}

// Identity reads which store the database holds.
func (s *Store) Identity(ctx context.Context) (Identity, error) {
	if s.ctx.Err() != nil {
		return Identity{}, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.b.Identity(ctx)
}
