package memdb

import (
	"context"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Sweepable implements [contract.Backend].
func (b *Backend) Sweepable(ctx context.Context, limit int) (from contract.Sweepable, err error) {
	t, st, err := b.read(ctx, "Sweepable")
	if err != nil {
		return from, err
	}
	from.State, from.Users = st, len(t.users) > 0
	for i, a := range t.aborted {
		if i == 0 || a.seen < from.Aborted {
			from.Aborted = a.seen
		}
	}
	for _, r := range t.from(st.Swept) {
		if r.Revision > st.Compacted || len(from.Rows) > limit {
			break
		}
		row := contract.SweepRow{ID: r.Revision, Prev: r.Prev, Deleted: r.Deleted}
		from.Rows = append(from.Rows, row)
	}
	return from, nil
}

// Sweep implements [contract.Backend].
func (b *Backend) Sweep(ctx context.Context, p *contract.SweepPlan) (deleted int, err error) {
	if p.Empty() {
		return 0, nil
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	err = b.transact(ctx, "Sweep", func(t *tables) (bool, error) {
		if err := p.Check(t.state(b.d.now())); err != nil {
			return false, err
		}
		gone := make(map[contract.RowID]bool, len(p.Rows))
		for _, r := range p.Rows {
			gone[r] = true
		}
		deleted = t.keep(func(r *contract.Row) bool { return !gone[r.ID()] })
		if p.Users {
			t.forget()
		}
		t.store.swept = max(t.store.swept, p.Swept)
		forgotten := func(a abortedRow) bool { return a.seen < p.Forget }
		t.aborted = slices.DeleteFunc(slices.Clone(t.aborted), forgotten)
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}
