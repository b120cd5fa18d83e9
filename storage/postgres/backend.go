package postgres

import (
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// backend is a store in PostgreSQL.
type backend struct {
	sqlread.KeysReader
	cfg *config
	// store is the id of the store, which the rows of its tables have.
	store int32
	// opened is what the database was when the backend was opened.
	opened mvcc.Identity
	// durable is what could undo its commits then.
	durable mvcc.Durability
	// commits writes: the committer's connection, and some for what is done beside it. tails reads
	// the head, the log, and what expiry and compaction need, and must never have to wait for
	// lists, which use reads.
	commits, tails, reads *pgxpool.Pool
	// sweeps is how far this process has swept, and how many batches ago that was recorded; see
	// sqlSweep.
	sweeps struct {
		mu         sync.Mutex
		at         mvcc.Position
		unrecorded int
	}
}

// recordSweeps is the number of batches after which a sweep records how far it came.
const recordSweeps = 64

// It has no Poller: no question is cheaper than the one for the state.
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

// Close implements [mvcc.Backend].
func (b *backend) Close() error {
	for _, p := range []*pgxpool.Pool{b.commits, b.tails, b.reads} {
		if p != nil {
			p.Close()
		}
	}
	return nil
}

// Limits implements [mvcc.Backend]. A key of twice the length would still fit into an entry of a
// B-tree. What bounds a group is that it is held in memory several times, here and in the server.
func (b *backend) Limits() mvcc.Limits {
	return mvcc.Limits{KeyBytes: mvcc.MaxKeyBytes, ValueBytes: mvcc.MaxValueBytes,
		GroupMutations: 512, GroupBytes: 8 << 20}
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
		pools = append(pools, mvcc.Pool{Name: p.name, InUse: int(s.AcquiredConns()),
			Idle: int(s.IdleConns()), Max: int(s.MaxConns())})
	}
	return pools
}
