package mysql

import (
	"cmp"
	"context"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

var (
	readOldestToken = sqlread.Read{What: "read the aborted tokens", Class: sqlread.Maintenance, SQL: selectOldestToken, Columns: 1}
	readSweep       = sqlread.Read{What: "read what can be swept", Class: sqlread.Maintenance, SQL: selectSweep, Columns: 3}
)

// Sweepable implements [mvcc.Backend].
func (b *backend) Sweepable(ctx context.Context, limit int) (from mvcc.Sweepable, err error) {
	err = b.Query(ctx, &readOldestToken, func(c sqlread.Cursor) bool {
		if c.More() {
			from.Aborted = mvcc.Revision(c.Int(0))
		}
		return true
	})
	if err != nil {
		return from, err
	}
	found := false
	err = b.Query(ctx, &readSweep, func(c sqlread.Cursor) bool {
		found = c.State(&from.State) || found
		if c.More() {
			from.Rows = append(from.Rows, mvcc.SweepRow{Revision: mvcc.Revision(c.Int(0)), Prev: mvcc.Revision(c.Int(1)), Deleted: c.Bool(2)})
		}
		return true
	}, int64(limit)+1)
	if err == nil && !found {
		err = mvcc.ErrEmptyStore
	}
	slices.SortFunc(from.Rows, func(a, b mvcc.SweepRow) int { return cmp.Compare(a.Revision, b.Revision) })
	return from, err
}

// Sweep implements [mvcc.Backend]. It deletes without the commit lock, which it takes, by updating swept,
// only when it is about to commit: groups add rows after those that it deletes, and wait for its commit at
// most. The check of the plan and the deletion are one transaction: no table can be dropped and restored in
// between. If what is in them was replaced meanwhile, the update of swept fails.
func (b *backend) Sweep(ctx context.Context, p *mvcc.SweepPlan) (deleted int, err error) {
	if p.Empty() {
		return 0, nil
	}
	t := transaction{what: "sweep", pool: b.commits, repeatable: true}
	b.begin(&t.ask)
	t.ask.statement(selectState)
	t.decide = func(a *answers) (*text, error) {
		var s stateRow
		var st mvcc.State
		if err := a.each(func() error { st = s.state(); return nil }, s.columns()...); err != nil {
			return nil, err
		}
		if !s.found {
			return nil, mvcc.ErrEmptyStore
		}
		if !st.Writable {
			b.server.suspect()
		}
		if err := p.Check(st); err != nil {
			return nil, err
		}
		if b.onSweep != nil {
			b.onSweep()
		}
		var second text
		second.statement(deleteSwept, revisionRows(p.Revisions))
		second.statement(selectDeleted)
		b.joinQueue(&second)
		second.statement(updateSwept, int64(p.Epoch), knownSchema, int64(p.Swept))
		if p.Forget != 0 {
			second.statement(deleteAborted, int64(p.Forget))
		}
		b.commit(&second)
		return &second, nil
	}
	t.answered = func(a *answers) error { return a.each(func() error { return nil }, &deleted) }
	err = b.transact(ctx, &t)
	return deleted, err
}
