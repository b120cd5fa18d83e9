package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// database is what the stores of a database share. It implements [contract.Database].
type database struct {
	cfg *config
	// commits writes: the committers' connections, and some for what is done beside them. tails
	// reads the heads, the logs, and what expiry and compaction need, and must never have to wait
	// for lists, which use reads.
	commits, tails, reads *pgxpool.Pool
	readTurns, tailTurns  *sqlkit.Turns
	address               contract.Address
	listener              listener
	sender                sender
	// ctx ends when the connections are closed.
	ctx  context.Context
	stop context.CancelFunc
	// holders are the backends, and who has connected.
	holders contract.Holders
}

// backend is a store in PostgreSQL.
type backend struct {
	*database
	sqlkit.KeysReader
	*sqlkit.Member[link]
	// store is the ID of the member, as the statements take it.
	store int32
	// swept is how far this process has swept.
	swept contract.SweptSoFar
}

// It has no Poller: no question is cheaper than the one for the state.
var (
	_ contract.Backend     = (*backend)(nil)
	_ contract.KeysReader  = (*backend)(nil)
	_ contract.Notifier    = (*backend)(nil)
	_ contract.Shared      = (*backend)(nil)
	_ contract.Reconnector = (*backend)(nil)
	_ contract.Pooled      = (*backend)(nil)
	_ contract.Opened      = (*backend)(nil)
	_ contract.Database    = (*database)(nil)
)

// tailConns is how many connections read the heads, the logs, and what expiry and compaction need.
// Connections are made when they are needed, and handed out in the order in which they are asked
// for.
const tailConns = 4

// Close implements [contract.Database], and by that [contract.Backend].
func (d *database) Close() error {
	if d.holders.Release() {
		d.closePools()
	}
	return nil
}

func (d *database) closePools() {
	d.stop()
	for _, p := range []*pgxpool.Pool{d.commits, d.tails, d.reads} {
		if p != nil {
			p.Close()
		}
	}
}

// groupBytes is what a group may have of keys, values and previous values. It is bounded since it
// is in memory several times, here and in the server. 64 writers of 20 KB do not come to it. For
// updates of 200 KB, 2 MiB take twice the processor time, and 32 MiB save none: see "Groups and
// limits" in hack/bench/FINDINGS.md.
const groupBytes = 8 << 20

// Limits implements [contract.Backend]. A key of twice the length would still fit into an entry of
// a B-tree.
func (b *backend) Limits() contract.Limits {
	return contract.Limits{KeyBytes: contract.MaxKeyBytes, ValueBytes: contract.MaxValueBytes,
		GroupMutations: 512, GroupBytes: groupBytes}
}

// Pools implements [contract.Pooled].
func (b *backend) Pools() []contract.Pool {
	var pools []contract.Pool
	for _, p := range []struct {
		name string
		pool *pgxpool.Pool
	}{{"commit", b.commits}, {"tail", b.tails}, {"read", b.reads}} {
		s := p.pool.Stat()
		pools = append(pools, contract.Pool{Name: p.name, InUse: int(s.AcquiredConns()),
			Idle: int(s.IdleConns()), Max: int(s.MaxConns())})
	}
	return pools
}
