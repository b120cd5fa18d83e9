package postgres

import (
	"context"
	"sync"
	"sync/atomic"

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
	lists                 sqlkit.Lists
	// begun is the number of the connection that was begun last.
	begun     atomic.Int64
	listener  listener
	announcer announcer
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
	// store is the id of the store, which the rows of its tables have.
	store int32
	// opened and durable are what was found when the backend was opened.
	opened  contract.Identity
	durable contract.Durability
	// gate decides which connections the store uses.
	gate contract.Gate
	// writing has an element for each of the commit connections that the store has or waits for.
	writing chan struct{}
	// sweeps is how far this process has swept, and how many batches ago that was recorded; see
	// sqlSweep.
	sweeps struct {
		mu         sync.Mutex
		at         contract.Position
		unrecorded int
	}
}

// recordSweeps is the number of batches after which a sweep records how far it came.
const recordSweeps = 64

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

// A store has one commit under way, and some transactions beside it, of leases for one. Of the
// commit connections it has storeConns at most, so that one whose row is locked for long leaves the
// others some. Connections are made when they are needed, and handed out in the order in which they
// are asked for.
const (
	commitConns = 8
	storeConns  = 3
	tailConns   = 4
)

// takeCommit takes a connection for a writing transaction of the store.
func (b *backend) takeCommit(ctx context.Context) (conn *pgxpool.Conn, release func(), err error) {
	select {
	case b.writing <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, b.cfg.connectError(ctx.Err())
	}
	if conn, err = b.take(ctx, b.commits); err != nil {
		<-b.writing
		return nil, nil, err
	}
	return conn, func() { conn.Release(); <-b.writing }, nil
}

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

// Opened implements [contract.Opened].
func (b *backend) Opened() (contract.Identity, contract.Durability) { return b.opened, b.durable }

// Limits implements [contract.Backend]. A key of twice the length would still fit into an entry of
// a B-tree. What bounds a group is that it is held in memory several times, here and in the server.
func (b *backend) Limits() contract.Limits {
	return contract.Limits{KeyBytes: contract.MaxKeyBytes, ValueBytes: contract.MaxValueBytes,
		GroupMutations: 512, GroupBytes: 8 << 20}
}

// Reconnect implements [contract.Reconnector].
func (b *backend) Reconnect() { b.gate.Reconnect(b.begun.Load()) }

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
