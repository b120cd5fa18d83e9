package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Config names a store; see package storage/etcd.
type Config = database.Config

// Progress is called with what is being done ("copying", "comparing", "reading back"), to how many
// of about how many keys.
type Progress = database.Progress

// Options say what is moved, and how far.
type Options struct {
	From *Source
	// To names a store that was never written, in a database whose schema is the newest one.
	To Config
	// Finish ends the move. Otherwise it follows the source until the context ends.
	Finish bool
	// Progress, if not nil, is told how far a pass is.
	Progress Progress
	// Following, if not nil, is told up to which revision the target has all changes, and which one
	// is the newest of the source.
	Following func(upto, newest int64)
	// Copied, if not nil, is told what a pass has written and removed.
	Copied func(written, removed int64)

	// Home is the target's, if the move is one of a directory. The target may be what an earlier
	// move of the name has left then.
	Home contract.Home
	// Opening, if not nil, is called when the target holds what the source held at last, and before
	// it is opened. It returns what the target gets besides, and a revision beyond which it begins.
	Opening func(context.Context, Moved) (contract.Settled, contract.Revision, error)
}

// Moved describes a move that has ended.
type Moved struct {
	// Keys is how many there are, and Hash the hash of all of them, which source and target have in
	// common.
	Keys int64
	Hash string
	// Revision is the newest one of the source, and Head the first one of the target's history.
	Revision, Head int64
	// Written and Removed are how many keys the last pass had to write and to remove.
	Written, Removed int64
	// Stopped is how long the source stood still for it.
	Stopped time.Duration
}

// ErrFollowed says that the move was stopped while it followed, and goes on when it is run again.
var ErrFollowed = errors.New("the move was stopped, and has not ended")

// Run moves. If it fails or is killed, it goes on when it is run again. Without Options.Finish it
// ends with ErrFollowed when the context does and all has been copied.
func Run(ctx context.Context, o Options) (m Moved, err error) {
	b, err := database.OpenBackend(ctx, o.To)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r := &run{Options: o, target: target{b: b}}
	if err := r.begin(ctx); err != nil {
		return m, err
	}
	for e := begun; ; {
		before := r.record
		var s step
		if r.record, s = next(r.record, e, o.Finish); r.record.Phase != before.Phase {
			if err := r.write(ctx, nil, nil, &r.record); err != nil {
				return m, err
			}
		}
		switch s {
		case stepCopy:
			e, err = r.copy(ctx)
		case stepFollow:
			e, err = r.follow(ctx)
		case stepFence:
			e, err = fenced, o.From.fence(ctx)
			r.since = time.Now()
		case stepLast:
			m, err = r.last(ctx)
			e = verified
		case stepOpen:
			return r.open(ctx, m)
		case stepStop:
			return m, ErrFollowed
		}
		if err != nil {
			return m, err
		}
	}
}

// run is a process's turn at a move.
type run struct {
	Options
	target target
	record record
	// leases are those that the last pass has found, and since is when the source stood still.
	leases []contract.LeaseRow
	since  time.Time
}

// begin takes the turn.
func (r *run) begin(ctx context.Context) error {
	id, err := r.From.identity(ctx)
	if err != nil {
		return err
	}
	found, _, err := contract.FillRecord(ctx, r.target.b)
	if err != nil {
		return err
	}
	r.record = record{Version: recordVersion, Source: id, Phase: copying, Move: r.Home.Move}
	if found != nil {
		was, err := readRecord(found, id)
		switch {
		case was.Move == r.Home.Move && err != nil:
			return err
		case was.Move == r.Home.Move:
			r.record = was
		}
	}
	if r.record.Phase != ending {
		closed, err := r.From.fenced(ctx)
		if err != nil {
			return err
		}
		if closed && r.Home != (contract.Home{}) {
			return errors.New("the source was closed, and the target has lost what was copied: restore " +
				"the target's database, or give the move up by --undo while that can be done")
		}
		if closed {
			return errors.New("the source was dropped, or another move has ended it: name the " +
				"store that has its objects now")
		}
	}
	newest, err := r.From.newest(ctx)
	if err == nil {
		err = r.take(ctx, newest)
	}
	if err != nil {
		return err
	}
	// The process that had the turn may have come further meanwhile.
	if found, _, err = contract.FillRecord(ctx, r.target.b); err == nil && found != nil {
		r.record, err = readRecord(found, id)
	}
	return err
}

// take takes the turn, so that the target's head is beyond a revision.
func (r *run) take(ctx context.Context, seen contract.Revision) (err error) {
	r.target.fill, err = contract.TakeFill(ctx, r.target.b, r.record.content(), seen, r.Home)
	return err
}

// write writes to the target, of which the record, if it is not nil, says how far the move is.
func (r *run) write(ctx context.Context, remove []contract.Key, records []contract.Record,
	rec *record) error {
	var content []byte
	if rec != nil {
		content = rec.content()
	}
	for {
		err := r.target.fill.Write(ctx, remove, records, content)
		if !errors.Is(err, contract.ErrOutgrown) {
			return err
		}
		var newest contract.Revision
		for i := range records {
			newest = max(newest, records[i].Revision)
		}
		if err := r.take(ctx, newest); err != nil {
			return err
		}
	}
}

// clock is the target's.
func (r *run) clock(ctx context.Context) (time.Time, error) {
	st, err := r.target.b.State(ctx)
	return st.Now, err
}

func (r *run) pass(ctx context.Context, doing string) (merged, error) {
	total, err := r.From.count(ctx)
	if err != nil {
		return merged{}, err
	}
	m, err := r.target.pass(ctx, r.From, r.clock,
		func(remove []contract.Key, records []contract.Record) error {
			return r.write(ctx, remove, records, nil)
		}, func(done int64) { r.tell(doing, done, total) })
	if err == nil && r.Copied != nil {
		r.Copied(m.written, m.removed)
	}
	return m, err
}

func (r *run) tell(doing string, done, total int64) {
	if r.Progress != nil {
		r.Progress(doing, done, max(done, total))
	}
}

// copy makes a pass while the source serves. A source that compacts what is being read is read
// again.
func (r *run) copy(ctx context.Context) (event, error) {
	m, err := r.pass(ctx, "copying")
	if errors.Is(err, errPassed) {
		return passed, ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	r.record.At = m.at // which the next phase records
	return copied, nil
}

// follow writes the changes until the context ends.
func (r *run) follow(ctx context.Context) (event, error) {
	err := r.From.follow(ctx, r.record.At, r.clock,
		func(changes []change, upto position, newest contract.Revision) error {
			if len(changes) > 0 {
				at := r.record
				at.At = upto
				remove, records := last(changes)
				if err := r.write(ctx, remove, records, &at); err != nil {
					return err
				}
			}
			if r.record.At = upto; r.Following != nil {
				r.Following(int64(upto.Revision), int64(newest))
			}
			return nil
		})
	switch {
	case errors.Is(err, errPassed):
		return passed, nil
	case ctx.Err() != nil:
		return stopped, nil
	}
	return stopped, err
}

// last makes the last pass, and reads the target back.
func (r *run) last(ctx context.Context) (m Moved, err error) {
	before, err := r.From.newest(ctx)
	if err != nil {
		return m, err
	}
	p, err := r.pass(ctx, "comparing")
	if errors.Is(err, errPassed) {
		return m, errWritten
	}
	if err != nil {
		return m, err
	}
	back, err := r.target.sum(ctx, func(done int64) { r.tell("reading back", done, p.source.keys) })
	if err != nil {
		return m, err
	}
	m = Moved{Keys: p.source.keys, Hash: p.source.String(), Revision: int64(before),
		Written: p.written, Removed: p.removed}
	if back.keys != p.source.keys || back.String() != m.Hash {
		return m, fmt.Errorf("the target holds %d keys with the hash %s, and the source %d with the "+
			"hash %s: somebody else has written to one of them, or the database does not keep what it "+
			"confirms; run the command again, and the doctor if that is of no use",
			back.keys, back, m.Keys, m.Hash)
	}
	after, err := r.From.newest(ctx)
	if err == nil && after != before {
		err = errWritten
	}
	r.leases = p.leases
	return m, err
}

var errWritten = errors.New("the source was written while it was compared: stop all that writes to " +
	"it, and run the command again")

// open opens the target.
func (r *run) open(ctx context.Context, m Moved) (Moved, error) {
	var settled contract.Settled
	seen := contract.Revision(m.Revision)
	if r.Opening != nil {
		var floor contract.Revision
		var err error
		if settled, floor, err = r.Opening(ctx, m); err != nil {
			return m, err
		}
		seen = max(seen, floor)
	}
	st, err := r.target.fill.End(ctx, seen, r.leases, settled)
	if err != nil {
		return m, err
	}
	if n, ok := r.target.b.(contract.Notifier); ok {
		_ = n.Announce(ctx, []contract.Announced{{Store: r.target.b, Revision: st.Head.Revision}})
	}
	m.Head, m.Stopped = int64(st.Head.Revision), time.Since(r.since)
	return m, nil
}

// Undo gives up a move that has not ended: the target is new again, and a source that was fenced is
// used again. It tells what it has done.
func Undo(ctx context.Context, from *Source, to Config) (emptied, opened bool, err error) {
	b, err := database.OpenBackend(ctx, to)
	if err != nil {
		return false, false, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	found, st, err := contract.FillRecord(ctx, b)
	if err != nil {
		return false, false, err
	}
	if found == nil || !st.Dropped() {
		return false, false, errors.New("there is no move to undo: either none has begun, or it " +
			"has ended and the target serves. To go back, move in the other direction")
	}
	id, err := from.identity(ctx)
	if err != nil {
		return false, false, err
	}
	if _, err := readRecord(found, id); err != nil {
		return false, false, err
	}
	// The source comes last: while the target has its record, the move can be undone again.
	if opened, err = from.unfence(ctx); err != nil {
		return false, false, err
	}
	emptied, err = contract.UndoFill(ctx, b)
	return emptied, opened, err
}
