package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// How many connections each kind of work has besides writes and reads, so that none takes those of
// another: the head, the tail, identity and fences. They are made when they are needed.
const (
	headConns  = 2
	tailConns  = 3
	adminConns = 4
)

// database is what the stores of a database share. It implements [contract.Database].
type database struct {
	server *server

	log     *slog.Logger
	timeout time.Duration
	limits  contract.Limits
	// galera: the commit lock of one node is not one of the others; see takeTurn.
	galera bool
	// tidb: it is TiDB; see tidb.go.
	tidb bool

	commits, heads, tails, reads *sql.DB
	// admin has a new connection for each use, which is compared with nothing: Identity and Fence
	// are how a store moves to another server.
	admin                *sql.DB
	readTurns, tailTurns *sqlkit.Turns
	// holders are the backends, and who has connected.
	holders contract.Holders
}

// backend is a store in MySQL or MariaDB.
type backend struct {
	*database
	sqlkit.KeysReader
	*sqlkit.Member[link]
	// store is the ID of the member in decimal digits, as the statements have it.
	store string
}

// It has no Notifier, as the servers have no notifications; and no Poller, as nothing is cheaper to
// ask than the state.
var (
	_ contract.Backend     = (*backend)(nil)
	_ contract.KeysReader  = (*backend)(nil)
	_ contract.Shared      = (*backend)(nil)
	_ contract.Reconnector = (*backend)(nil)
	_ contract.Pooled      = (*backend)(nil)
	_ contract.Opened      = (*backend)(nil)
	_ contract.Database    = (*database)(nil)
)

// newDatabase makes the pools. Nothing connects yet.
func newDatabase(s *server, timeout time.Duration) *database {
	d := &database{
		server:    s,
		log:       s.log,
		timeout:   timeout,
		commits:   s.pool(connector{server: s, transactions: true}, contract.CommitConns),
		heads:     s.pool(connector{server: s}, headConns),
		tails:     s.pool(connector{server: s}, tailConns),
		reads:     s.pool(connector{server: s}, s.cfg.readConns),
		admin:     s.pool(connector{server: s, transactions: true, once: true}, adminConns),
		readTurns: sqlkit.NewTurns(s.cfg.readConns),
		tailTurns: sqlkit.NewTurns(tailConns),
	}
	d.tails.SetConnMaxLifetime(min(s.cfg.connLifetime, contract.PollLifetime))
	d.holders.Hold()
	return d
}

func (s *server) pool(c connector, size int) *sql.DB {
	db := sql.OpenDB(&c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	if c.once {
		db.SetMaxIdleConns(-1)
	}
	db.SetConnMaxLifetime(s.cfg.connLifetime)
	db.SetConnMaxIdleTime(s.cfg.connIdleTime)
	return db
}

func (b *backend) Limits() contract.Limits { return b.limits }

// pool implements [sqlkit.Pool].
type pool sql.DB

func (p *pool) Get(ctx context.Context) (link, error) {
	c, err := (*sql.DB)(p).Conn(ctx)
	return link{c}, err
}

// link implements [sqlkit.Link].
type link struct{ *sql.Conn }

func (l link) Leads() (contract.Place, int64, error) {
	f, err := factsOf(l.Conn)
	return f.Place, f.number, err
}

func (l link) Release() { l.Close() }

func (l link) Discard(context.Context) {
	discard(l.Conn)
	l.Close()
}

// discard makes the pool drop a connection: that is all that the error is for.
func discard(c *sql.Conn) { _ = c.Raw(func(any) error { return driver.ErrBadConn }) }

// Close implements [contract.Database], and by that [contract.Backend].
func (d *database) Close() error {
	if !d.holders.Release() {
		return nil
	}
	var errs []error
	for _, db := range []*sql.DB{d.commits, d.heads, d.tails, d.reads, d.admin} {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// Pools implements contract.Pooled.
func (b *backend) Pools() []contract.Pool {
	pools := []contract.Pool{}
	for _, p := range []struct {
		name string
		db   *sql.DB
	}{{"commit", b.commits}, {"head", b.heads}, {"tail", b.tails}, {"read", b.reads}} {
		s := p.db.Stats()
		pools = append(pools, contract.Pool{Name: p.name, InUse: s.InUse, Idle: s.Idle,
			Max: s.MaxOpenConnections})
	}
	return pools
}

const (
	maxGroupMutations = 512
	// maxGroupBytes are of keys, values and previous values. 64 writers of 20 KB do not come to it,
	// and for values of 200 KB more gains nothing: see "Groups and limits" in
	// hack/bench/FINDINGS.md. Twice as much, which the text of a group may have, fits into the
	// default packets of both servers.
	maxGroupBytes = 4 << 20
	// minMaxPacket is the smallest max_allowed_packet that is accepted. The servers' defaults are
	// 16 and 64 MiB.
	minMaxPacket = 4 << 20

	// statementBytes is more than the statements of a group need without its rows, rowBytes more
	// than its numbers and its token do in the log, in live and beside a user's name.
	statementBytes = 2048
	rowBytes       = 384
)

// limitsFor computes the limits from the server's max_allowed_packet, so that the text of any group
// fits into it.
func limitsFor(maxPacket int) (contract.Limits, error) {
	if maxPacket < minMaxPacket {
		return contract.Limits{}, contract.Errorf(contract.Invalid,
			"the server's max_allowed_packet is %d bytes: raise it to %d or more", maxPacket,
			minMaxPacket)
	}
	l := contract.Limits{KeyBytes: contract.MaxKeyBytes, GroupMutations: maxGroupMutations,
		GroupBytes: min(maxGroupBytes, (maxPacket-packetFor(0))/2)}
	l.ValueBytes = min(contract.MaxValueBytes, l.GroupBytes-l.KeyBytes)
	return l, nil
}

// packetFor returns the max_allowed_packet that a group of so many bytes needs: at worst each byte
// is escaped, and the keys are written twice.
func packetFor(groupBytes int) int {
	return statementBytes + maxGroupMutations*(rowBytes+escapedBytes(contract.MaxKeyBytes)) + 2*groupBytes
}
