package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Resolve looks for the group under the commit lock. What it finds there stays: a sweep, which would remove rows, has to lock the
// store row, too, before it commits.
func (b *backend) Resolve(ctx context.Context, token mvcc.Token, after mvcc.Position) (*mvcc.Resolution, error) {
	t := transaction{what: "resolve a commit", pool: b.commits, repeatable: true}
	b.askGuard(&t.ask, after.Revision, token)
	t.ask.statement(selectByToken, int64(after.Revision), token[:])
	var r mvcc.Resolution
	t.decide = func(a *answers) (*text, error) {
		guard, err := b.guard(a)
		if err != nil {
			return nil, err
		}
		r = mvcc.Resolution{State: guard.state}
		var row logRow
		if err := a.each(func() error { r.Rows = append(r.Rows, row.row()); return nil }, row.columns()...); err != nil {
			return nil, err
		}
		var second text
		switch {
		case len(r.Rows) > 0:
			r.Committed = true
		case guard.aborted:
			r.Aborted = true
		case guard.state.Head.Epoch == after.Epoch && guard.state.Swept <= after.Revision:
			// It is the same history, and all its rows after that position are still there.
			r.Aborted = true
			second.statement(insertAborted, token[:], guard.state.Now.UnixMicro())
			b.takeTurn(&second)
		}
		second.commit()
		return &second, nil
	}
	if err := b.transact(ctx, &t); err != nil {
		return nil, err
	}
	return &r, nil
}

func (b *backend) Compact(ctx context.Context, revision mvcc.Revision) (mvcc.State, error) {
	t := transaction{what: "compact", pool: b.commits, repeatable: true}
	b.askGuard(&t.ask, 0, mvcc.Token{})
	var st mvcc.State
	t.decide = func(a *answers) (*text, error) {
		guard, err := b.guard(a)
		if err != nil {
			return nil, err
		}
		st = guard.state
		var second text
		if to := min(revision, st.Head.Revision); to > st.Compacted {
			st.Compacted = to
			second.statement(updateCompacted, int64(to))
		}
		second.commit()
		return &second, nil
	}
	err := b.transact(ctx, &t)
	return st, err
}

// abortedFor is how long an aborted token is remembered: much longer than a group can wait for the commit lock.
const abortedFor = time.Hour

// Sweep deletes without the commit lock, which it takes, by updating swept, only when it is about to commit: groups add rows
// after those that it deletes, and wait for its commit at most. Reading the list and deleting by it are one transaction: no table
// can be dropped and restored in between. If what is in them was replaced meanwhile, the update of swept fails.
//
// The row at swept is looked at once more: it was kept if it was the head when swept reached it.
func (b *backend) Sweep(ctx context.Context, limit int) (int, mvcc.State, error) {
	t := transaction{what: "sweep", pool: b.commits, repeatable: true}
	b.begin(&t.ask)
	t.ask.statement(selectSweep, limit+1)
	var (
		st      mvcc.State
		deleted int
	)
	t.decide = func(a *answers) (*text, error) {
		var (
			revision, prev int64
			dead           bool
			gone           []int64
			rows           int
			last           mvcc.Revision
		)
		m := newManyRows([]any{&revision, &prev, &dead}, nil)
		m.row = func() error {
			if mvcc.Revision(revision) > m.state.Swept {
				if rows++; rows > limit {
					return nil // the row at swept was not there
				}
				last = mvcc.Revision(revision)
			}
			if prev > 0 {
				gone = append(gone, prev)
			}
			if dead && mvcc.Revision(revision) != m.state.Head.Revision {
				gone = append(gone, revision)
			}
			return nil
		}
		if err := a.scan(m); err != nil {
			return nil, err
		}
		st = m.state
		if !st.Writable {
			b.server.suspect()
			return nil, errReadOnly
		}
		if rows < limit {
			last = st.Compacted
		}
		st.Swept = max(st.Swept, last)
		if b.onSweep != nil {
			b.onSweep()
		}
		var second text
		second.statement(deleteSwept, revisionRows(gone))
		second.statement(selectDeleted)
		second.statement(updateSwept, int64(st.Head.Epoch), int64(st.Swept))
		second.statement(deleteAborted, st.Now.Add(-abortedFor).UnixMicro())
		second.commit()
		return &second, nil
	}
	t.answered = func(a *answers) error { return a.each(func() error { return nil }, &deleted) }
	err := b.transact(ctx, &t)
	return deleted, st, err
}

// Fence begins a new epoch, on whatever server the address leads to. Afterwards this process works with that one, and only with it.
func (b *backend) Fence(ctx context.Context, f mvcc.Fence) (mvcc.State, error) {
	t := transaction{what: "fence", pool: b.admin, repeatable: true}
	b.askGuard(&t.ask, 0, mvcc.Token{})
	var (
		st          mvcc.State
		fingerprint string
	)
	t.decide = func(a *answers) (*text, error) {
		guard, err := b.guard(a)
		if err != nil {
			return nil, err
		}
		server, err := a.server()
		if err != nil {
			return nil, err
		}
		st, fingerprint = guard.state, server.fingerprint
		var second text
		if st.Head.Epoch <= f.Seen.Epoch {
			st.Head = mvcc.Position{Epoch: f.Seen.Epoch + 1, Revision: f.Marker(st), Token: f.Token}
			st.Compacted = st.Head.Revision
			second.fence(st, f.Fingerprint)
		}
		second.commit()
		return &second, nil
	}
	if err := b.transact(ctx, &t); err != nil {
		return st, err
	}
	b.server.fingerprint.Store(&fingerprint)
	return st, nil
}

// fence writes the marker and the epoch of a fence, after which the state is st. An empty fingerprint leaves the recorded one.
func (t *text) fence(st mvcc.State, fingerprint string) {
	var recorded text
	if fingerprint == "" {
		recorded.WriteString("NULL")
	} else {
		recorded.binary([]byte(fingerprint))
	}
	t.statement(insertMarker, int64(st.Head.Revision), st.Head.Token[:], st.Now.UnixMicro())
	t.statement(updateEpoch, int64(st.Head.Epoch), int64(st.Compacted), recorded.String())
}

// Identity asks on a connection of its own, which finds out anew what the server is.
func (b *backend) Identity(ctx context.Context) (mvcc.Identity, error) {
	const what = "read the store's identity"
	var id mvcc.Identity
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.admin.Conn(ctx)
	if err != nil {
		return id, b.failed(what, err)
	}
	defer c.Close()
	err = c.Raw(func(c any) error { id.Actual = c.(*conn).facts.fingerprint; return nil })
	if err == nil {
		err = c.QueryRowContext(ctx, selectIdentity).Scan(&id.Store, &id.Recorded)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return id, errNoState
	case err != nil:
		return id, b.failed(what, err)
	}
	return id, nil
}

func (b *backend) RecordFingerprint(ctx context.Context, fingerprint string) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if _, err := b.admin.ExecContext(ctx, updateFingerprint, fingerprint); err != nil {
		return b.failed("record the database's fingerprint", err)
	}
	return nil
}
