package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Poll implements [contract.Shared].
func (d *database) Poll(ctx context.Context, stores []contract.Backend,
	due int) ([]contract.Polled, error) {
	const what = "poll the stores"
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	conn, f, err := d.takeFor(ctx, stores)
	if err != nil {
		return nil, d.failed(what, err)
	}
	defer conn.Close()
	polled, ids := make([]contract.Polled, len(stores)), make([]string, len(stores))
	places := make(map[string][]int, len(stores)) // a store may be open twice
	for i, b := range stores {
		ids[i] = b.(*backend).store
		places[ids[i]] = append(places[ids[i]], i)
		polled[i].Err = contract.ErrEmptyStore
	}
	rows, err := conn.QueryContext(ctx, pollOf(ids, due))
	if err != nil {
		return nil, d.failed(what, err)
	}
	defer rows.Close()
	if err := eachRow(rows, stateColumns+6, func(r row) error {
		for _, i := range places[r[stateColumns].text()] {
			polled[i] = stores[i].(*backend).polled(f, r)
		}
		return nil
	}); err != nil {
		return nil, d.failed(what, err)
	}
	return polled, nil
}

// pollOf is the statement that polls stores, the first ones with their expiry.
func pollOf(ids []string, due int) string {
	var parts, rest []string
	asked := make(map[string]bool, len(ids)) // a store may be open twice
	for i, id := range ids {
		switch {
		case asked[id]:
		case i < due:
			parts = append(parts, ofStore(selectPollDue, id))
		default:
			rest = append(rest, id)
		}
		asked[id] = true
	}
	if len(rest) > 0 {
		parts = append(parts, fmt.Sprintf(selectPoll, strings.Join(rest, ",")))
	}
	return strings.Join(parts, "\nUNION ALL")
}

// takeFor takes a connection that is not too old for any of the stores; see [contract.Gate]. If
// even one that was begun meanwhile is too old, the stores have to ask by themselves.
func (d *database) takeFor(ctx context.Context, stores []contract.Backend) (*sql.Conn, facts, error) {
	for begun := d.server.begun.Load(); ; {
		c, err := d.tails.Conn(ctx)
		if err != nil {
			return nil, facts{}, err
		}
		f, err := factsOf(c)
		stale := false
		for _, b := range stores {
			stale = stale || b.(*backend).gate.Judge(f.Place, f.number) == contract.Stale
		}
		if err == nil && !stale {
			return c, f, nil
		}
		if err == nil {
			discard(c)
		}
		c.Close()
		switch {
		case err != nil:
			return nil, f, err
		case f.number > begun:
			return nil, f, contract.ErrStaleConnection
		}
	}
}

// polled is the answer to the poll of a store, from its row of selectPoll.
func (b *backend) polled(f facts, r row) contract.Polled {
	own := r[stateColumns+1:]
	d := contract.Durability{Boot: f.Boot, Relaxed: f.Relaxed}
	if !f.galera {
		d.Recorded = string(own[1].bytes)
	}
	if err := b.gate.Let(f.Place, f.number, string(own[0].bytes), d); err != nil {
		return contract.Polled{Err: err}
	}
	p := contract.Polled{Due: contract.Never, Quota: contract.Quota{Objects: own.int(2), Bytes: own.int(3)}}
	found := false
	if p.State, found = r.state(); !found {
		return contract.Polled{Err: contract.ErrEmptyStore}
	}
	if !p.State.Writable {
		b.server.suspect()
	}
	if !own[4].null {
		p.Due = p.State.DueIn(own.int(4))
	}
	return p
}
