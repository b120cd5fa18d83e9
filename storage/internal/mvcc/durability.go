package mvcc

import "context"
import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

// recordBoot settles. It comes after the fence if commits may be lost, so that it is the fence that
// is repeated if this process ends in between.
func (s *Engine) recordBoot(ctx context.Context, d contract.Durability) error {
	if d.Settled() {
		return nil
	}
	return s.b.RecordBoot(ctx, d.Recorded, d.AtRisk())
}

// beginBoot settles before the first commit, and fences if commits may be lost. st is the state
// that was read before, and it returns the one after.
func (s *Engine) beginBoot(ctx context.Context, st contract.State) (contract.State, error) {
	d, err := s.b.Durability(ctx)
	if err != nil {
		return st, err
	}
	if d.Lost() {
		s.log.Warn("the newest commits may not have reached the disk before the database or its "+
			"machine ended: they were made with relaxed durability; fencing", "recorded",
			d.Recorded, "actual", d.Boot)
		s.metrics.fenced()
		id, err := s.b.Identity(ctx)
		if err != nil {
			return st, err
		}
		id.Epoch = st.Head.Epoch // others may have fenced since
		if st, err = s.startEpoch(ctx, contract.NewFence(st.Head, id)); err != nil {
			return st, err
		}
	}
	return st, s.recordBoot(ctx, d)
}

// keepBoot records the boot of a database that has turned to relaxed durability while this process
// ran. If commits may be lost, that is left to the fence.
func (s *Engine) keepBoot(ctx context.Context) error {
	d, err := s.b.Durability(ctx)
	if err != nil || d.Lost() {
		return err
	}
	return s.recordBoot(ctx, d)
}
