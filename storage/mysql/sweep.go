package mysql

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Sweep implements [contract.Backend]. It deletes without the commit lock, since groups add rows
// after the rows that it deletes. It takes the lock when it updates swept, just before it commits,
// so groups wait for this commit at most. The check of the plan and the deletion are one
// transaction: no table can be dropped and restored in between. If the content of the tables was
// replaced meanwhile, the update of swept fails.
func (b *backend) Sweep(ctx context.Context, p *contract.SweepPlan) (deleted int, err error) {
	if p.Empty() {
		return 0, nil
	}
	t := b.sweep(p, &deleted)
	err = b.transact(ctx, t)
	return deleted, err
}

// sweep returns the transaction of a sweep, which counts the deleted rows.
func (b *backend) sweep(p *contract.SweepPlan, deleted *int) *transaction {
	t := &transaction{what: "sweep", ask: b.text(), repeatable: true}
	t.ask.statement(setWaitTimeout, b.server.hold)
	t.ask.statement(startTransaction)
	t.ask.statement(selectState)
	t.decide = func(a *answers) (*text, error) {
		var (
			st    contract.State
			found bool
		)
		f, err := a.server()
		if err != nil {
			return nil, err
		}
		if err := a.each(stateColumns, func(r row) error {
			st, found = r.state()
			return f.check(r)
		}); err != nil {
			return nil, err
		}
		if !found {
			return nil, contract.ErrEmptyStore
		}
		if err := p.Check(st); err != nil {
			return nil, err
		}
		second := b.text()
		second.statement(deleteSwept, revisionRows(p.Rows))
		second.statement(selectDeleted)
		if p.Users {
			second.statement(deleteSweptUsers, revisionRows(p.Rows))
		}
		b.joinQueue(&second, b.server.hold)
		second.statement(updateSwept, int64(p.Epoch), knownSchema, int64(p.Swept))
		if p.Forget != 0 {
			second.statement(deleteAborted, int64(p.Forget))
		}
		b.commit(&second)
		return &second, nil
	}
	t.answered = func(a *answers) error {
		return a.each(1, func(r row) error { *deleted = int(r.int(0)); return nil })
	}
	return t
}
