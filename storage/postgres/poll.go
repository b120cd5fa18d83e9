package postgres

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Poll implements [contract.Shared].
func (d *database) Poll(ctx context.Context, stores []contract.Backend,
	due int) ([]contract.Polled, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.timeout)
	defer cancel()
	polled, err := sqlkit.Poll(ctx, &d.address, (*pool)(d.tails), stores, due,
		func(conn link, ids []int64, due int, each func(sqlkit.Cursor)) error {
			numbers := make([]int32, len(ids))
			for i, id := range ids {
				numbers[i] = int32(id)
			}
			rows, err := conn.Query(ctx, sqlPoll, numbers, due)
			if err != nil {
				return readError(err)
			}
			defer rows.Close()
			c, g := &cursor{}, greetingOf(conn.Conn)
			for rows.Next() {
				c.row = rows.RawValues()
				c.own = c.row[stateColumns:]
				if err := g.check(c.row); err != nil {
					return err
				}
				each(c)
			}
			return readError(rows.Err())
		})
	if err != nil {
		return nil, d.cfg.connectError(err)
	}
	return polled, nil
}
