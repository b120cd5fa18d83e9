package postgres

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Sweepable implements [contract.Backend]. The rows begin where this process has swept to, if that
// is farther than what is recorded.
func (b *backend) Sweepable(ctx context.Context, limit int) (contract.Sweepable, error) {
	epoch, revision := b.swept.From()
	return b.SweepableAfter(ctx, limit, int64(epoch), int64(revision))
}

// Sweep implements [contract.Backend].
func (b *backend) Sweep(ctx context.Context, p *contract.SweepPlan) (int, error) {
	if p.Empty() {
		return 0, nil
	}
	record := b.swept.Records(p)
	o, err := b.transact(ctx, sweepLock, sweepBatch, int64(p.Epoch), numbers(p.Rows),
		int64(p.Swept), int64(p.Forget), record, int64(p.Compacted), p.Users)
	if err != nil {
		return 0, err
	}
	if len(o.work) != 1 {
		return 0, contract.ErrEmptyStore
	}
	if err := p.Check(o.work[0].state()); err != nil {
		return 0, err
	}
	b.swept.Did(p, record)
	return int(o.work[0].int(stateColumns)), nil
}
