package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlread"
)

// How many connections each kind of work has besides those of reads, so that none takes those of another: commits (with resolution,
// compaction and sweep), the head, the tail, identity and fences.
const (
	commitConns = 3
	headConns   = 2
	tailConns   = 3
	adminConns  = 1
)

var (
	_ mvcc.Backend    = (*backend)(nil)
	_ mvcc.KeysReader = (*backend)(nil)
	_ mvcc.Pooled     = (*backend)(nil)
)

type backend struct {
	sqlread.KeysReader
	server  *server
	log     *slog.Logger
	timeout time.Duration
	limits  mvcc.Limits
	// galera: the commit lock of one node is not one of the others; see takeTurn.
	galera bool

	commits, heads, tails, reads *sql.DB
	// admin accepts a server with another fingerprint: Identity and Fence are how this process moves to it.
	admin *sql.DB

	// onSweep, if not nil, is called by a sweep that has read what it will delete. For tests.
	onSweep func()
}

// newBackend makes the pools. Nothing connects yet.
func newBackend(s *server, timeout time.Duration) *backend {
	b := &backend{
		server:  s,
		log:     s.log,
		timeout: timeout,
		commits: s.pool(connector{server: s, transactions: true}, commitConns),
		heads:   s.pool(connector{server: s}, headConns),
		tails:   s.pool(connector{server: s}, tailConns),
		reads:   s.pool(connector{server: s}, s.cfg.readConns),
		admin:   s.pool(connector{server: s, transactions: true, anyServer: true}, adminConns),
	}
	b.Reader = sqlread.NewReader(b, &reads, s.cfg.readConns)
	return b
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
		pools = append(pools, mvcc.Pool{Name: p.name, InUse: s.InUse, Idle: s.Idle, Max: s.MaxOpenConnections})
	}
	return pools
}

// stateColumns is how many columns the state has.
const stateColumns = 7

// tokenColumn receives a token. NULL leaves it as it is.
type tokenColumn mvcc.Token

func (t *tokenColumn) Scan(v any) error {
	if v == nil {
		return nil
	}
	if b, ok := v.([]byte); !ok || copy(t[:], b) != len(t) {
		return fmt.Errorf("a token is %T %v", v, v)
	}
	return nil
}

// numberColumn receives a number. NULL is 0.
type numberColumn int64

func (n *numberColumn) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*n = 0
	case int64:
		*n = numberColumn(v)
	default:
		return fmt.Errorf("a number is %T %v", v, v)
	}
	return nil
}

// stateRow receives a state. All are NULL in a row that is none.
type stateRow struct {
	epoch, head, compacted, swept, now int64
	token                              mvcc.Token
	readOnly                           sql.RawBytes
	found                              bool
}

func (s *stateRow) columns() []any {
	return []any{(*numberColumn)(&s.epoch), (*numberColumn)(&s.head), (*tokenColumn)(&s.token), (*numberColumn)(&s.compacted),
		(*numberColumn)(&s.swept), &s.readOnly, (*numberColumn)(&s.now)}
}

// state returns what was received. It is called before the next row is read.
func (s *stateRow) state() mvcc.State {
	s.found = s.head > 0
	return mvcc.State{
		Head:      mvcc.Position{Epoch: mvcc.Epoch(s.epoch), Revision: mvcc.Revision(s.head), Token: s.token},
		Compacted: mvcc.Revision(s.compacted),
		Swept:     mvcc.Revision(s.swept),
		Writable:  isOff(string(s.readOnly)),
		Now:       time.UnixMicro(s.now),
	}
}

// isOff reads the variable read_only. MySQL says 0, newer MariaDBs say OFF; both know degrees of read-only besides.
func isOff(readOnly string) bool { return readOnly == "0" || strings.EqualFold(readOnly, "OFF") }

// discard receives a column that is not wanted.
type discard struct{}

func (discard) Scan(any) error { return nil }

// logRow receives a row of the log.
type logRow struct {
	revision, prev, create, time int64
	key                          sql.RawBytes
	token                        mvcc.Token
	deleted                      bool
	value                        []byte
}

func (r *logRow) columns() []any {
	return []any{&r.revision, &r.key, &r.prev, &r.create, (*tokenColumn)(&r.token), &r.time, &r.deleted, &r.value}
}

func (r *logRow) row() mvcc.Row {
	return mvcc.Row{
		Key:      mvcc.Key(r.key),
		Revision: mvcc.Revision(r.revision),
		Prev:     mvcc.Revision(r.prev),
		Create:   mvcc.Revision(r.create),
		Token:    r.token,
		Time:     time.UnixMicro(r.time),
		Deleted:  r.deleted,
		Value:    r.value,
	}
}

const (
	maxGroupMutations = 512
	maxGroupBytes     = 4 << 20
	// minMaxPacket is the smallest max_allowed_packet that is accepted. The servers' defaults are 16 and 64 MiB.
	minMaxPacket = 4 << 20

	// statementBytes is more than the statements of a group need without its rows, rowBytes more than its numbers and its token
	// do in the log and in live.
	statementBytes = 2048
	rowBytes       = 320
)

// limitsFor computes the limits from the server's max_allowed_packet, so that the text of any group fits into it.
func limitsFor(maxPacket int) (mvcc.Limits, error) {
	if maxPacket < minMaxPacket {
		return mvcc.Limits{}, mvcc.Errorf(mvcc.Invalid,
			"the server's max_allowed_packet is %d bytes: raise it to %d or more", maxPacket, minMaxPacket)
	}
	l := mvcc.Limits{KeyBytes: mvcc.MaxKeyBytes, GroupMutations: maxGroupMutations, GroupBytes: min(maxGroupBytes, (maxPacket-packetFor(0))/2)}
	l.ValueBytes = min(mvcc.MaxValueBytes, l.GroupBytes-l.KeyBytes)
	return l, nil
}

// packetFor returns the max_allowed_packet that a group of so many bytes needs: at worst each byte is escaped, and the keys are
// written twice.
func packetFor(groupBytes int) int {
	return statementBytes + maxGroupMutations*(rowBytes+escapedBytes(mvcc.MaxKeyBytes)) + 2*groupBytes
}
