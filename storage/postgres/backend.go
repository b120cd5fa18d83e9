package postgres

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// backend is a store in PostgreSQL.
type backend struct {
	sqlread.KeysReader
	cfg *config
	// opened is what the database was when the backend was opened.
	opened mvcc.Identity
	// durable is what could undo its commits then.
	durable mvcc.Durability
	// commits writes: the committer's connection, and some for what is done beside it. tails reads the head, the log, and what
	// expiry and compaction need, and must never have to wait for lists, which use reads.
	commits, tails, reads *pgxpool.Pool
	// sweeps is how far this process has swept, and how many batches ago that was recorded; see sqlSweep.
	sweeps struct {
		mu         sync.Mutex
		at         mvcc.Position
		unrecorded int
	}
}

// recordSweeps is after how many batches of a sweep it is recorded how far it came.
const recordSweeps = 64

var (
	_ mvcc.Backend     = (*backend)(nil)
	_ mvcc.KeysReader  = (*backend)(nil)
	_ mvcc.Notifier    = (*backend)(nil)
	_ mvcc.Reconnector = (*backend)(nil)
	_ mvcc.Pooled      = (*backend)(nil)
)

const (
	commitConns = 4
	tailConns   = 4
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

func open(ctx context.Context, cfg *config) (*backend, error) {
	b := &backend{cfg: cfg}
	b.Reader = sqlread.NewReader(b, &reads, int(cfg.pool.MaxConns))
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	if b.opened, err = b.identify(ctx, conn); err == nil {
		b.durable, err = b.durability(ctx, conn)
	}
	conn.Close(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range []struct {
		pool   **pgxpool.Pool
		conns  int32
		writes bool
	}{
		{&b.commits, commitConns, true},
		{&b.tails, tailConns, false},
		{&b.reads, cfg.pool.MaxConns, false},
	} {
		pc := cfg.pool.Copy()
		pc.MaxConns = p.conns
		if p.pool != &b.reads {
			pc.MinConns, pc.MinIdleConns = 0, 0
		}
		pc.ConnConfig.ConnectTimeout = cmp.Or(pc.ConnConfig.ConnectTimeout, cfg.timeout/3)
		pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error { return cfg.refresh(cc) }
		pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return b.greet(ctx, conn, p.writes) }
		if *p.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
			b.Close()
			return nil, cfg.connectError(err)
		}
	}
	return b, nil
}

// Close implements [mvcc.Backend].
func (b *backend) Close() error {
	for _, p := range []*pgxpool.Pool{b.commits, b.tails, b.reads} {
		if p != nil {
			p.Close()
		}
	}
	return nil
}

// Limits implements [mvcc.Backend]. A key of twice the length would still fit into an entry of a B-tree. What bounds a group is that it is held in memory several
// times, here and in the server.
func (b *backend) Limits() mvcc.Limits {
	return mvcc.Limits{KeyBytes: mvcc.MaxKeyBytes, ValueBytes: mvcc.MaxValueBytes, GroupMutations: 512, GroupBytes: 8 << 20}
}

// Reconnect implements [mvcc.Reconnector].
func (b *backend) Reconnect() {
	for _, p := range []*pgxpool.Pool{b.commits, b.tails, b.reads} {
		p.Reset()
	}
}

// Pools implements [mvcc.Pooled].
func (b *backend) Pools() []mvcc.Pool {
	var pools []mvcc.Pool
	for _, p := range []struct {
		name string
		pool *pgxpool.Pool
	}{{"commit", b.commits}, {"tail", b.tails}, {"read", b.reads}} {
		s := p.pool.Stat()
		pools = append(pools, mvcc.Pool{Name: p.name, InUse: int(s.AcquiredConns()), Idle: int(s.IdleConns()), Max: int(s.MaxConns())})
	}
	return pools
}

// channel is where commits are notified: one per store, since channels are the database's and stores may share one.
func (b *backend) channel() string { return "rowkeeper_" + b.opened.Store }

// beside runs f on a connection of its own, which may lead to another database than the one that was opened: to find that out, and to fence.
func (b *backend) beside(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(ctx, conn)
}
