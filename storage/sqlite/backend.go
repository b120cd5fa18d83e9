package sqlite

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// backend implements [mvcc.Backend] and [mvcc.Poller] on a file or in memory.
type backend struct {
	cfg  config
	opts mvcc.DriverOptions
	// vfs and dbName are what connections open: the file, or a name in SQLite's file system in memory.
	vfs, dbName string
	// wal is the file of the write-ahead log.
	wal string

	// mu is held for reading by every operation, and for writing to close all connections when the file was replaced.
	mu sync.RWMutex
	// file is the identity of the file that is open. The memory has none.
	file fileID
	// moved is set when the open file is no longer under its name; no operation is done until one was opened again.
	moved bool
	// closed is set by Close: no connection is opened after it.
	closed bool
	// fenced is set when another file was opened in the place of the first. Operations answer Fenced until the history was fenced.
	fenced atomic.Bool
	// walLimit bounds the write-ahead log, in bytes.
	walLimit int64
	// walRetry is the length of the write-ahead log at which it is tried again to empty it. Only the writing connection's holder uses it.
	walRetry int64
	// store is the identity that the store had when it was opened first.
	store string

	commits, heads, tails, reads *pool
	// long are the exports and imports.
	long operations
	// onWait, if not nil, is called when a write finds the commit lock taken. For tests.
	onWait func()

	// polls has the connection that asks for data_version, and lastVersion is its last answer, 0 at first.
	polls       *pool
	lastVersion int64
}

var (
	_ mvcc.Backend = (*backend)(nil)
	_ mvcc.Poller  = (*backend)(nil)
	_ mvcc.Pooled  = (*backend)(nil)
)

// Limits of one group: one of some megabytes is as fast per write as greater ones.
const (
	groupMutations = 1024
	groupBytes     = 8 << 20
)

func (b *backend) Limits() mvcc.Limits {
	return mvcc.Limits{KeyBytes: mvcc.MaxKeyBytes, ValueBytes: mvcc.MaxValueBytes, GroupMutations: groupMutations, GroupBytes: groupBytes}
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
	if deadline, ok := ctx.Deadline(); b.opts.Timeout <= 0 || ok && time.Until(deadline) <= b.opts.Timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.opts.Timeout)
}

// read runs an operation that only reads, on a connection of the pool.
func (b *backend) read(ctx context.Context, p *pool, fn func(*conn) error) error {
	return b.readDespiteFence(ctx, p, func(c *conn) error {
		if err := b.checkFence(); err != nil {
			return err
		}
		return fn(c)
	})
}

func (b *backend) readDespiteFence(ctx context.Context, p *pool, fn func(*conn) error) error {
	ctx, cancel := b.timeout(ctx)
	defer cancel()
	return b.on(ctx, p, fn)
}

// on runs an operation on a connection of the pool, and makes sure that it was done on the file that has the database's name; see replaced.go.
func (b *backend) on(ctx context.Context, p *pool, fn func(*conn) error) error {
	b.mu.RLock()
	for b.moved {
		b.mu.RUnlock()
		if err := b.reopen(ctx); err != nil {
			return b.classify(ctx, err)
		}
		b.mu.RLock()
	}
	if b.closed {
		b.mu.RUnlock()
		return b.errClosed()
	}
	c, err := p.get(ctx)
	if err == nil {
		err = fn(c)
		p.put(c)
	}
	moved := b.hasMoved()
	b.mu.RUnlock()
	if moved {
		return b.replaced(err)
	}
	return b.classify(ctx, err)
}

// errClosed answers an operation that comes after Close, as one does that began before it and has waited for its turn.
func (b *backend) errClosed() error {
	return mvcc.Errorf(mvcc.Unavailable, "the database %s was closed", b.name())
}

// snapshot steps the statement of the state. Until done is called, the connection's other statements read the same snapshot.
func (b *backend) snapshot(c *conn, st *mvcc.State) (done func(), err error) {
	s, err := c.prepare(selectState)
	if err != nil {
		return nil, err
	}
	row, err := s.step()
	if err == nil && !row {
		err = b.noStore()
	}
	if err != nil {
		return nil, err
	}
	b.scanState(s, st)
	return s.reset, nil
}

// noStore is for a database that lost its store row, or its whole log.
func (b *backend) noStore() error {
	return mvcc.Errorf(mvcc.Invalid, "the database %s has lost its store row or its log: restore a backup", b.name())
}

// scanState reads the first five columns of a statement that begins with the state.
func (b *backend) scanState(s *stmt, st *mvcc.State) {
	*st = mvcc.State{
		Head:      mvcc.Position{Epoch: mvcc.Epoch(s.colInt(0)), Revision: s.colRevision(3), Token: s.colToken(4)},
		Compacted: s.colRevision(1),
		Swept:     s.colRevision(2),
		Writable:  true,
		Now:       b.now(),
	}
}

// readRows runs one statement in the snapshot of the state.
func (b *backend) readRows(ctx context.Context, p *pool, text string, st *mvcc.State, bind func(*stmt), row func(*stmt)) error {
	return b.read(ctx, p, func(c *conn) error {
		// A read of single rows is over before it could be interrupted; this one may walk over many.
		defer c.interruptible(ctx)()
		done, err := b.snapshot(c, st)
		if err != nil {
			return err
		}
		defer done()
		s, err := c.prepare(text)
		if err != nil {
			return err
		}
		bind(s)
		for {
			more, err := s.step()
			if err != nil || !more {
				return err
			}
			row(s)
			if err := ctx.Err(); err != nil {
				s.reset()
				return err
			}
		}
	})
}

func (b *backend) Identity(ctx context.Context) (id mvcc.Identity, err error) {
	err = b.readDespiteFence(ctx, b.heads, func(c *conn) error {
		store, recorded, err := b.identity(c)
		id = mvcc.Identity{Store: store, Recorded: recorded, Actual: b.fingerprint()}
		return err
	})
	return id, err
}

// fingerprint tells this database from a copy of it. A store in memory has no copies.
func (b *backend) fingerprint() string {
	if b.cfg.memory() {
		return b.dbName
	}
	return b.file.String()
}

func (b *backend) State(ctx context.Context) (st mvcc.State, err error) {
	err = b.read(ctx, b.heads, func(c *conn) error {
		done, err := b.snapshot(c, &st)
		if err != nil {
			return err
		}
		done()
		return nil
	})
	return st, err
}

func (b *backend) Tail(ctx context.Context, from mvcc.Revision, limit int, prev mvcc.Prev) (*mvcc.Tail, error) {
	t := &mvcc.Tail{}
	err := b.readRows(ctx, b.tails, selectTail, &t.State,
		func(s *stmt) { s.int(int64(from)).int(int64(limit)).bool(prev == mvcc.PrevOfAll) },
		func(s *stmt) {
			r := mvcc.Row{
				Revision: s.colRevision(0), Key: s.colKey(1), Prev: s.colRevision(2), Create: s.colRevision(3), Token: s.colToken(4),
				Time: time.UnixMicro(s.colInt(5)).UTC(), Deleted: s.colInt(6) != 0, HasPrev: !s.colNull(8),
			}
			if !r.Deleted {
				r.Value = s.colBytes(7)
			}
			if r.HasPrev {
				r.PrevValue = s.colBytes(9)
			}
			t.Rows = append(t.Rows, r)
		})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (b *backend) Get(ctx context.Context, key mvcc.Key) (r *mvcc.Row, st mvcc.State, err error) {
	err = b.read(ctx, b.reads, func(c *conn) error {
		s, err := c.prepare(selectGet)
		if err != nil {
			return err
		}
		row, err := s.key(key).step()
		if err != nil {
			return err
		}
		if !row {
			return b.noStore()
		}
		defer s.reset()
		b.scanState(s, &st)
		switch {
		case s.colNull(5):
			return nil
		case s.colNull(9):
			return b.noRow(key, s.colRevision(5))
		}
		r = &mvcc.Row{
			Key: key, Revision: s.colRevision(5), Create: s.colRevision(6), Prev: s.colRevision(7), Token: s.colToken(8),
			Time: time.UnixMicro(s.colInt(9)).UTC(), Value: s.colBytes(10),
		}
		return nil
	})
	return r, st, err
}

// noRow is for a live key whose row in the log is missing.
func (b *backend) noRow(key mvcc.Key, r mvcc.Revision) error {
	return mvcc.Errorf(mvcc.Invalid, "the database %s has lost the value of key %q at revision %d: restore a backup", b.name(), string(key), r)
}

func (b *backend) Page(ctx context.Context, q mvcc.PageQuery) (*mvcc.Page, error) {
	text := selectPage
	if q.KeysOnly {
		text = selectPageOfKeys
	}
	p := &mvcc.Page{}
	err := b.readRows(ctx, b.reads, text, &p.State,
		func(s *stmt) { s.key(q.Start).key(q.End).int(upTo(q.At)).int(int64(q.Limit)) },
		func(s *stmt) {
			r := mvcc.Row{Key: s.colKey(0), Revision: s.colRevision(1), Create: s.colRevision(2)}
			if !q.KeysOnly {
				r.Value = s.colBytes(3)
			}
			p.Rows = append(p.Rows, r)
		})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// upTo is the bound of a snapshot's revisions; 0 stands for all.
func upTo(at mvcc.Revision) int64 {
	if at == 0 {
		return math.MaxInt64
	}
	return int64(at)
}

func (b *backend) Replaced(ctx context.Context, q mvcc.ReplacedQuery) (found []mvcc.Replaced, st mvcc.State, err error) {
	err = b.readRows(ctx, b.reads, selectReplaced, &st,
		func(s *stmt) { s.int(int64(q.After)).int(int64(q.Upto)).int(int64(q.At)).key(q.Start).key(q.End) },
		func(s *stmt) { found = append(found, mvcc.Replaced{Key: s.colKey(0), Revision: s.colRevision(1)}) })
	return found, st, err
}

func (b *backend) Values(ctx context.Context, revisions []mvcc.Revision) (rows []mvcc.Row, st mvcc.State, err error) {
	array := append(make([]byte, 0, 2+12*len(revisions)), '[')
	for i, r := range revisions {
		if i > 0 {
			array = append(array, ',')
		}
		array = strconv.AppendInt(array, int64(r), 10)
	}
	array = append(array, ']')
	err = b.readRows(ctx, b.reads, selectValues, &st,
		func(s *stmt) { s.text(string(array)) },
		func(s *stmt) {
			r := mvcc.Row{Revision: s.colRevision(0), Key: s.colKey(1), Create: s.colRevision(2), Deleted: s.colInt(3) != 0}
			if !r.Deleted {
				r.Value = s.colBytes(4)
			}
			rows = append(rows, r)
		})
	return rows, st, err
}

func (b *backend) Count(ctx context.Context, start, end mvcc.Key, at mvcc.Revision, limit int64) (n int64, st mvcc.State, err error) {
	if limit == 0 {
		limit = -1
	}
	err = b.readRows(ctx, b.reads, countLive, &st,
		func(s *stmt) { s.key(start).key(end).int(upTo(at)).int(limit) },
		func(s *stmt) { n = s.colInt(0) })
	return n, st, err
}

func (b *backend) Expired(ctx context.Context, limit int) (expired []mvcc.Expired, next time.Duration, err error) {
	var st mvcc.State
	err = b.readRows(ctx, b.tails, selectExpiring, &st,
		// One more than asked for tells when the next one expires.
		func(s *stmt) { s.int(int64(limit) + 1) },
		func(s *stmt) {
			if left := s.colInt(2) - st.Now.UnixMicro(); next == 0 && left <= 0 && len(expired) < limit {
				expired = append(expired, mvcc.Expired{Key: s.colKey(0), Revision: s.colRevision(1)})
			} else if next == 0 {
				next = max(time.Duration(left)*time.Microsecond, time.Microsecond)
			}
		})
	return expired, next, err
}

func (b *backend) FirstAt(ctx context.Context, revision mvcc.Revision) (row *mvcc.Row, err error) {
	var st mvcc.State
	err = b.readRows(ctx, b.tails, selectFirstAt, &st,
		func(s *stmt) { s.int(int64(revision)) },
		func(s *stmt) { row = &mvcc.Row{Revision: s.colRevision(0), Time: time.UnixMicro(s.colInt(1)).UTC()} })
	return row, err
}

func (b *backend) Size(ctx context.Context) (size mvcc.Size, err error) {
	var st mvcc.State
	err = b.readRows(ctx, b.tails, selectSize, &st,
		func(*stmt) {},
		func(s *stmt) {
			size.Total = s.colInt(0) * s.colInt(1)
			size.Live = s.colInt(0) * (s.colInt(1) - s.colInt(2))
		})
	size.Total += b.walSize()
	return size, err
}

// walSize is the length of the write-ahead log's file.
func (b *backend) walSize() int64 {
	if b.cfg.memory() {
		return 0
	}
	fi, err := os.Stat(b.wal)
	if err != nil {
		return 0 // there is none yet
	}
	return fi.Size()
}

// Changed asks a connection that never writes, so that writes of this process's other connection count, too: to be told
// of them costs the tailer a read and no more.
func (b *backend) Changed(ctx context.Context) (changed bool, err error) {
	if b.cfg.memory() {
		return false, nil
	}
	err = b.read(ctx, b.polls, func(c *conn) error {
		s, err := c.prepare(dataVersion)
		if err != nil {
			return err
		}
		if _, err := s.step(); err != nil {
			return err
		}
		version := s.colInt(0)
		s.reset()
		changed = version != b.lastVersion
		b.lastVersion = version
		return nil
	})
	return changed || err != nil, err
}

func (b *backend) Pools() []mvcc.Pool {
	var pools []mvcc.Pool
	for _, p := range b.pools() {
		pools = append(pools, p.usage())
	}
	return pools
}

// pools are the backend's pools, each once: a store in memory has only one connection.
func (b *backend) pools() []*pool {
	if b.cfg.memory() {
		return []*pool{b.commits}
	}
	return []*pool{b.commits, b.heads, b.tails, b.reads, b.polls}
}

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
		if err := pools[i].close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
