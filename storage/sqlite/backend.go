package sqlite

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// backend is a store in a file or in memory.
type backend struct {
	sqlkit.KeysReader
	cfg  config
	opts contract.DriverOptions
	// dbName is what connections open: the file, or a name in SQLite's file system in memory.
	dbName string
	// wal is the file of the write-ahead log.
	wal string

	// mu is held for reading by every operation, and for writing to close all connections when the
	// file was replaced.
	mu sync.RWMutex
	// file is the identity of the file that is open, and place is where it was found. The memory
	// has none.
	file  fileID
	place place
	// log is the identity of the open write-ahead log, zero before it is known.
	log fileID
	// moved is set when the open file is no longer under its name; no operation is done until one
	// was opened again.
	moved bool
	// closed is set by Close: no connection is opened after it.
	closed bool
	// fenced is set when another file was opened in the place of the first. Operations answer
	// Fenced until the history was fenced.
	fenced atomic.Bool
	// logCopied and logLimit are lengths of the write-ahead log in bytes; see copyLog.
	logCopied, logLimit int64
	// copyDue tells that the log is to be copied. logEnd is where the last commit has ended in it,
	// and copyRetry and emptyRetry are the ends at which it is tried again to copy it, and to empty
	// it. Only the writing connection's holder uses them.
	copyDue                       bool
	logEnd, copyRetry, emptyRetry int64
	// wrote tells that this backend has committed since the file was opened. The writing
	// connection's holder uses it.
	wrote bool
	// unfenced tells that the file is another one than recorded, and nothing was committed to it.
	// The writing connection's holder uses it.
	unfenced bool
	// lost tells that the file was found without its write-ahead log, and no history was begun
	// since.
	lost atomic.Bool
	// store is the identity that the store had when it was opened first.
	store string

	commits, heads, tails, reads *sqlite3.Pool
	// long are the exports and imports.
	long operations

	// polls has the connection that asks for data_version, and lastVersion is its last answer, 0 at
	// first.
	polls       *sqlite3.Pool
	lastVersion int64
}

// It has no Notifier, as SQLite tells nobody of commits, and no Reconnector, as there is no server.
var (
	_ contract.Backend    = (*backend)(nil)
	_ contract.KeysReader = (*backend)(nil)
	_ contract.Poller     = (*backend)(nil)
	_ contract.Pooled     = (*backend)(nil)
	_ contract.Volatile   = (*backend)(nil)
)

// Limits of one group. 64 writers of 20 KB do not come to groupBytes, and for values of 200 KB more
// gains little: see "Groups and limits" in hack/bench/FINDINGS.md.
const (
	groupMutations = 1024
	groupBytes     = 8 << 20
)

// tailConns is how many connections read the log, and what expiry and compaction need.
const tailConns = 2

func (b *backend) Limits() contract.Limits {
	return contract.Limits{KeyBytes: contract.MaxKeyBytes, ValueBytes: contract.MaxValueBytes,
		GroupMutations: groupMutations, GroupBytes: groupBytes, GetsInPlace: true}
}

// name is what errors call the database.
func (b *backend) name() string { return b.cfg.name() }

func (c config) name() string {
	if c.memory() {
		return "in memory"
	}
	return c.path
}

func (c config) memory() bool { return c.path == "" }

// now is the database's clock. SQLite has none of its own.
func (b *backend) now() time.Time {
	if b.opts.Now != nil {
		return b.opts.Now()
	}
	return time.Now()
}

// timeout bounds an operation.
func (b *backend) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); b.opts.Timeout <= 0 ||
		ok && time.Until(deadline) <= b.opts.Timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.opts.Timeout)
}

// on runs an operation on a connection of the pool, and makes sure that it was done on the file
// that has the database's name; see replaced.go.
func (b *backend) on(ctx context.Context, p *sqlite3.Pool, fn func(*sqlite3.Conn) error) error {
	b.mu.RLock()
	for b.moved {
		b.mu.RUnlock()
		if err := b.reopen(ctx); err != nil {
			return b.classify(ctx, err)
		}
		b.mu.RLock()
	}
	moved, err := b.onFile(ctx, p, fn)
	if moved {
		return b.replaced(err)
	}
	return b.classify(ctx, err)
}

// onFile runs an operation on the file that is open, and gives back mu, which is held for reading,
// and the connection, even if the operation panics: the store is closed then.
func (b *backend) onFile(ctx context.Context, p *sqlite3.Pool,
	fn func(*sqlite3.Conn) error) (moved bool, err error) {
	defer b.mu.RUnlock()
	if b.closed {
		return false, b.errClosed()
	}
	c, err := p.Get(ctx)
	if err == nil {
		err = func() error {
			defer p.Put(c)
			return fn(c)
		}()
	}
	return b.displaced() != nil, err
}

// errClosed answers an operation that comes after Close, as one does that began before it and has
// waited for its turn.
func (b *backend) errClosed() error {
	return contract.Errorf(contract.Unavailable, "the database %s was closed", b.name())
}

// Pools implements [contract.Pooled].
func (b *backend) Pools() (pools []contract.Pool) {
	for _, p := range b.pools() {
		inUse, idle := p.Usage()
		pools = append(pools, contract.Pool{Name: p.name, InUse: inUse, Idle: idle, Max: p.Size()})
	}
	return pools
}

// namedPool is a pool with the name that metrics have for it.
type namedPool struct {
	name string
	*sqlite3.Pool
}

// pools are the backend's pools, each once. A store in memory has only one connection.
func (b *backend) pools() []namedPool {
	if b.cfg.memory() {
		return []namedPool{{"commit", b.commits}}
	}
	return []namedPool{{"commit", b.commits}, {"head", b.heads}, {"tail", b.tails},
		{"read", b.reads}, {"poll", b.polls}}
}

// Volatile implements [contract.Volatile].
func (b *backend) Volatile() bool { return b.cfg.memory() }

func (b *backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if err := b.closeAll(); err != nil {
		return fmt.Errorf("close the database %s: %w", b.name(), err)
	}
	return nil
}

// closeAll closes the connections, the writing one last: it is then the only one and checkpoints.
func (b *backend) closeAll() error {
	var first error
	pools := b.pools()
	for i := len(pools) - 1; i >= 0; i-- {
		if c := b.lastOpen(pools[i].Pool); c != nil {
			b.finish(c)
			pools[i].Put(c)
		}
		if err := pools[i].Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// lastOpen returns the connection of the pool if it is the writing one of a file.
func (b *backend) lastOpen(p *sqlite3.Pool) *sqlite3.Conn {
	if p != b.commits || b.cfg.memory() {
		return nil
	}
	return p.GetOpen()
}

func newBackend(cfg config, opts contract.DriverOptions) *backend {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	b := &backend{cfg: cfg, opts: opts, dbName: cfg.path, wal: cfg.path + "-wal",
		logCopied: logCopied, logLimit: logLimit}
	if cfg.memory() {
		// SQLite keeps it for as long as a connection is open, which is shared by all operations:
		// memory has no readers beside a writer.
		b.dbName = "/rowkeeper-" + rand.Text()
		p := sqlite3.NewPool(1, b.connect)
		b.commits, b.heads, b.tails, b.reads, b.polls = p, p, p, p, p
		b.KeysReader.Reader = sqlkit.NewReader(b, &reads, sqlkit.NewTurns(1), sqlkit.NewTurns(1))
		return b
	}
	b.commits = sqlite3.NewPool(1, b.connectWriter)
	// Reads of the head and of the log have connections of their own, which no number of lists can
	// take.
	b.heads = sqlite3.NewPool(1, b.connectReader)
	b.tails = sqlite3.NewPool(tailConns, b.connectReader)
	b.reads = sqlite3.NewPool(cfg.readers, b.connectReader)
	b.polls = sqlite3.NewPool(1, b.connectReader)
	b.KeysReader.Reader = sqlkit.NewReader(b, &reads, sqlkit.NewTurns(cfg.readers),
		sqlkit.NewTurns(tailConns))
	return b
}
