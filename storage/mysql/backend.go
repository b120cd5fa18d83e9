package mysql

import (
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// How many connections each kind of work has besides those of reads, so that none takes those of
// another: commits (with resolution, compaction and sweep), the head, the tail, identity and
// fences.
const (
	commitConns = 3
	headConns   = 2
	tailConns   = 3
	adminConns  = 1
)

// backend is a store in MySQL or MariaDB.
type backend struct {
	sqlread.KeysReader
	server *server
	// store is the id of the store, which the rows of its tables have, in decimal digits.
	store string

	log     *slog.Logger
	timeout time.Duration
	limits  mvcc.Limits
	// galera: the commit lock of one node is not one of the others; see takeTurn.
	galera bool

	commits, heads, tails, reads *sql.DB
	// admin accepts a server with another fingerprint: Identity and Fence are how this process
	// moves to it.
	admin *sql.DB
}

// It has no Notifier, as the servers have no notifications; no Poller, as nothing is cheaper to ask
// than the state; and no Reconnector, as its pools connect anew by themselves when a server says
// that it is read-only; see server.suspect.
var (
	_ mvcc.Backend    = (*backend)(nil)
	_ mvcc.KeysReader = (*backend)(nil)
	_ mvcc.Pooled     = (*backend)(nil)
)

// newBackend makes the pools. Nothing connects yet.
func newBackend(s *server, timeout time.Duration) *backend {
	return &backend{
		server:  s,
		log:     s.log,
		timeout: timeout,
		commits: s.pool(connector{server: s, transactions: true}, commitConns),
		heads:   s.pool(connector{server: s}, headConns),
		tails:   s.pool(connector{server: s}, tailConns),
		reads:   s.pool(connector{server: s}, s.cfg.readConns),
		admin:   s.pool(connector{server: s, transactions: true, anyServer: true}, adminConns),
	}
}

func (s *server) pool(c connector, size int) *sql.DB {
	db := sql.OpenDB(&c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	if c.anyServer {
		db.SetMaxIdleConns(-1) // each use finds out anew what the server is
	}
	db.SetConnMaxLifetime(s.cfg.connLifetime)
	db.SetConnMaxIdleTime(s.cfg.connIdleTime)
	return db
}

func (b *backend) Limits() mvcc.Limits { return b.limits }

func (b *backend) Close() error {
	var errs []error
	for _, db := range []*sql.DB{b.commits, b.heads, b.tails, b.reads, b.admin} {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// Pools implements mvcc.Pooled.
func (b *backend) Pools() []mvcc.Pool {
	pools := []mvcc.Pool{}
	for _, p := range []struct {
		name string
		db   *sql.DB
	}{{"commit", b.commits}, {"head", b.heads}, {"tail", b.tails}, {"read", b.reads}} {
		s := p.db.Stats()
		pools = append(pools, mvcc.Pool{Name: p.name, InUse: s.InUse, Idle: s.Idle,
			Max: s.MaxOpenConnections})
	}
	return pools
}

const (
	maxGroupMutations = 512
	maxGroupBytes     = 4 << 20
	// minMaxPacket is the smallest max_allowed_packet that is accepted. The servers' defaults are
	// 16 and 64 MiB.
	minMaxPacket = 4 << 20

	// statementBytes is more than the statements of a group need without its rows, rowBytes more
	// than its numbers and its token do in the log and in live.
	statementBytes = 2048
	rowBytes       = 320
)

// limitsFor computes the limits from the server's max_allowed_packet, so that the text of any group
// fits into it.
func limitsFor(maxPacket int) (mvcc.Limits, error) {
	if maxPacket < minMaxPacket {
		return mvcc.Limits{}, mvcc.Errorf(mvcc.Invalid,
			"the server's max_allowed_packet is %d bytes: raise it to %d or more", maxPacket,
			minMaxPacket)
	}
	l := mvcc.Limits{KeyBytes: mvcc.MaxKeyBytes, GroupMutations: maxGroupMutations,
		GroupBytes: min(maxGroupBytes, (maxPacket-packetFor(0))/2)}
	l.ValueBytes = min(mvcc.MaxValueBytes, l.GroupBytes-l.KeyBytes)
	return l, nil
}

// packetFor returns the max_allowed_packet that a group of so many bytes needs: at worst each byte
// is escaped, and the keys are written twice.
func packetFor(groupBytes int) int {
	return statementBytes + maxGroupMutations*(rowBytes+escapedBytes(mvcc.MaxKeyBytes)) + 2*groupBytes
}
