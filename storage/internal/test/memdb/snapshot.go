package memdb

import (
	"context"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Snapshot implements [contract.Backend].
func (b *Backend) Snapshot(ctx context.Context,
	f func(context.Context, contract.Snapshot) error) error {
	if err := b.begin(ctx, "Snapshot"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := b.d.version.Load()
	return f(ctx, &view{ctx: ctx, t: t, state: t.state(b.d.now())})
}

// view implements [contract.Snapshot].
type view struct {
	ctx   context.Context
	t     *tables
	state contract.State
}

func (v *view) State() contract.State { return v.state }

func (v *view) Keys() (int64, error) { return int64(len(v.t.live)), ended(v.ctx) }

func (v *view) AllLeases() ([]contract.LeaseRow, error) { return v.t.leases, ended(v.ctx) }

func (v *view) Records(each func(*contract.Record) error) error {
	for _, r := range slices.Concat(v.t.parts, v.t.log) {
		if err := ended(v.ctx); err != nil {
			return err
		}
		l := v.t.current(r.Key)
		if l.id != r.ID() {
			continue
		}
		err := each(&contract.Record{Key: r.Key, Revision: r.Revision, Part: r.Part, Create: r.Create,
			Version: l.version, Lease: l.lease, Expiry: max(l.expiry, 0), Value: r.Value})
		if err != nil {
			return err
		}
	}
	return nil
}
