package postgres

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

var readSweepable = sqlread.Read{What: "read what can be swept", Class: sqlread.Maintenance, SQL: sqlSweepable, Columns: 4}

// Sweepable implements [mvcc.Backend].
func (b *backend) Sweepable(ctx context.Context, limit int) (from mvcc.Sweepable, err error) {
	b.sweeps.mu.Lock()
	at := b.sweeps.at
	b.sweeps.mu.Unlock()
	found := false
	err = b.Query(ctx, &readSweepable, func(c sqlread.Cursor) bool {
		if c.State(&from.State) {
			found = true
			if c.More() {
				from.Aborted = mvcc.Revision(c.Int(0))
			}
			return true
		}
		from.Rows = append(from.Rows, mvcc.SweepRow{Revision: mvcc.Revision(c.Int(1)), Prev: mvcc.Revision(c.Int(2)), Deleted: c.Bool(3)})
		return true
	}, int64(limit)+1, int64(at.Epoch), int64(at.Revision))
	if err == nil && !found {
		err = mvcc.ErrEmptyStore
	}
	return from, err
}

// Sweep implements [mvcc.Backend].
func (b *backend) Sweep(ctx context.Context, p *mvcc.SweepPlan) (int, error) {
	if p.Empty() {
		return 0, nil
	}
	b.sweeps.mu.Lock()
	record := p.Done || b.sweeps.unrecorded+1 >= recordSweeps
	b.sweeps.mu.Unlock()
	revisions := make([]int64, len(p.Revisions))
	for i, r := range p.Revisions {
		revisions[i] = int64(r)
	}
	o, err := b.transact(ctx, sweepLock, sweepBatch, int64(p.Epoch), revisions, int64(p.Swept), int64(p.Forget), record, int64(p.Compacted))
	if err != nil {
		return 0, err
	}
	if len(o.work) != 1 {
		return 0, mvcc.ErrEmptyStore
	}
	if err := p.Check(o.work[0].state()); err != nil {
		return 0, err
	}
	b.sweeps.mu.Lock()
	defer b.sweeps.mu.Unlock()
	b.sweeps.at = mvcc.Position{Epoch: p.Epoch, Revision: p.Swept}
	if b.sweeps.unrecorded++; record {
		b.sweeps.unrecorded = 0
	}
	return int(o.work[0].int(stateColumns)), nil
}
