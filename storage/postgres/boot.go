package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Durability implements [contract.Backend].
func (b *backend) Durability(ctx context.Context) (d contract.Durability, err error) {
	err = b.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, d, err = b.row(ctx, link{Conn: conn})
		return err
	})
	return d, err
}

// sqlWaitForDisk makes the transaction's commit wait for the disk. It cannot help where fsync=off:
// there the operating system writes the record within its own time, usually half a minute.
const sqlWaitForDisk = `
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'`

// RecordBoot implements [contract.Backend].
func (b *backend) RecordBoot(ctx context.Context, from, boot string) error {
	return b.beside(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return readError(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlWaitForDisk); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sqlRecordBoot, from, boot, b.store)
			return err
		}))
	})
}
