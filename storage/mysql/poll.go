package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Poll implements [contract.Shared].
func (d *database) Poll(ctx context.Context, stores []contract.Backend,
	due int) ([]contract.Polled, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	polled, err := sqlkit.Poll(ctx, &d.server.address, (*pool)(d.tails), stores, due,
		func(conn link, ids []int64, due int, each func(sqlkit.Cursor)) error {
			f, err := factsOf(conn.Conn)
			if err != nil {
				return err
			}
			rows, err := conn.QueryContext(ctx, pollOf(ids, due, d.tidb))
			if err != nil {
				return err
			}
			defer rows.Close()
			c := &cursor{}
			return eachRow(rows, stateColumns+7, func(r row) error {
				if err := f.check(r); err != nil {
					return err
				}
				if d.galera {
					r[stateColumns+2].bytes = nil // a cluster has no boot
				}
				c.row, c.own = r, r[stateColumns:]
				each(c)
				return nil
			})
		})
	if err != nil {
		return nil, d.failed("poll the stores", err)
	}
	return polled, nil
}

// pollOf is the statement that polls stores, the first ones with their expiry.
func pollOf(ids []int64, due int, tidb bool) string {
	var parts, rest []string
	for i, n := range ids {
		id := strconv.FormatInt(n, 10)
		if i < due {
			parts = append(parts, ofStore(onServer(selectPollDue, tidb), id))
		} else {
			rest = append(rest, id)
		}
	}
	if len(rest) > 0 {
		parts = append(parts, fmt.Sprintf(onServer(selectPoll, tidb), strings.Join(rest, ",")))
	}
	return strings.Join(parts, "\nUNION ALL")
}
