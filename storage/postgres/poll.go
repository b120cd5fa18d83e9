package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Poll implements [contract.Shared].
func (d *database) Poll(ctx context.Context, stores []contract.Backend,
	due int) ([]contract.Polled, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.timeout)
	defer cancel()
	conn, err := d.takeFor(ctx, stores)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	ids, polled := make([]int32, len(stores)), make([]contract.Polled, len(stores))
	for i, b := range stores {
		ids[i], polled[i].Err = b.(*backend).store, contract.ErrEmptyStore
	}
	rows, err := conn.Query(ctx, sqlPoll, ids, due)
	if err != nil {
		return nil, readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		r := row(rows.RawValues())
		i := r.int(stateColumns) - 1
		polled[i] = stores[i].(*backend).polled(conn.Conn(), r)
	}
	return polled, readError(rows.Err())
}

// takeFor takes a connection that is not too old for any of the stores; see [contract.Gate]. If
// even one that was begun meanwhile is too old, the stores have to ask by themselves.
func (d *database) takeFor(ctx context.Context, stores []contract.Backend) (*pgxpool.Conn, error) {
	for begun := d.begun.Load(); ; {
		conn, err := d.tails.Acquire(ctx)
		if err != nil {
			return nil, d.cfg.connectError(err)
		}
		g, stale := greetingOf(conn.Conn()), false
		for _, b := range stores {
			stale = stale || b.(*backend).gate.Judge(g.Place, g.number) == contract.Stale
		}
		if !stale {
			return conn, nil
		}
		conn.Conn().Close(ctx)
		conn.Release()
		if g.number > begun {
			return nil, contract.ErrStaleConnection
		}
	}
}

// polled is the answer to the poll of a store, from its row of sqlPoll.
func (b *backend) polled(conn *pgx.Conn, r row) contract.Polled {
	g, own := greetingOf(conn), r[stateColumns+1:]
	err := b.gate.Let(g.Place, g.number, string(own[0]),
		contract.Durability{Boot: g.Boot, Relaxed: g.Relaxed, Recorded: string(own[1])})
	if err != nil {
		return contract.Polled{Err: err}
	}
	p := contract.Polled{State: r.state(), Due: contract.Never,
		Quota: contract.Quota{Objects: own.int(2), Bytes: own.int(3)}}
	if own[4] != nil {
		p.Due = p.State.DueIn(own.int(4))
	}
	return p
}
