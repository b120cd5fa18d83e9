package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

const (
	maxKeyBytes       = 1024
	maxValueBytes     = 3 << 19 // 1.5 MiB, as etcd's
	maxGroupMutations = 512
	maxGroupBytes     = 4 << 20
	// minMaxPacket is the smallest max_allowed_packet that is accepted. The servers' defaults are 16 and 64 MiB.
	minMaxPacket = 4 << 20

	// statementBytes is more than the statements of a group need without its rows, rowBytes more than its numbers and its token do in the log and
	// in live.
	statementBytes = 2048
	rowBytes       = 320
)

// limitsFor computes the limits from the server's max_allowed_packet, so that the text of any group fits into it.
func limitsFor(maxPacket int) (mvcc.Limits, error) {
	if maxPacket < minMaxPacket {
		return mvcc.Limits{}, mvcc.Errorf(mvcc.Invalid, "the server's max_allowed_packet is %d bytes: raise it to %d or more", maxPacket, minMaxPacket)
	}
	l := mvcc.Limits{KeyBytes: maxKeyBytes, GroupMutations: maxGroupMutations, GroupBytes: min(maxGroupBytes, (maxPacket-packetFor(0))/2)}
	l.ValueBytes = min(maxValueBytes, l.GroupBytes-l.KeyBytes)
	return l, nil
}

// packetFor returns the max_allowed_packet that a group of so many bytes needs: at worst each byte is escaped, and the keys are written twice.
func packetFor(groupBytes int) int {
	return statementBytes + maxGroupMutations*(rowBytes+escapedBytes(maxKeyBytes)) + 2*groupBytes
}

// transaction is a transaction of two round trips. The first text begins it, takes the commit lock if it needs to, and reads; decide reads the
// answers and returns the second text, which writes and commits. In between nobody but this process can end the transaction, so it does
// nothing there but decide. If it stops there, the server rolls back after server.hold.
//
// What an error means follows from this. Until the second text is sent, nothing was committed and nothing will be, however the connection
// ends, as the server rolls back a transaction whose client is gone. Also a client that was cut off while it waited for the lock leaves
// nothing behind: its session gets the lock, finds the connection closed, and releases it. Once the second text was sent, only
// certain errors of the server say that it was not committed; see undone.
//
// Nothing is sent twice: a sql.Conn is one connection, on which database/sql does not try again.
type transaction struct {
	// what it does, for errors.
	what string
	pool *sql.DB
	ask  text
	// decide returns the text that ends the transaction. After an error it is rolled back.
	decide func(*answers) (*text, error)
	// answered, if not nil, reads the answers to that text.
	answered func(*answers) error
	// repeatable: doing it twice is doing it once, so an unknown outcome need not be told apart.
	repeatable bool
}

func (b *backend) transact(ctx context.Context, t *transaction) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	conn, err := t.pool.Conn(ctx)
	if err != nil {
		return b.failed(t.what, err)
	}
	defer conn.Close()

	var second *text
	err = b.answers(ctx, conn, &t.ask, func(a *answers) (err error) {
		second, err = t.decide(a)
		return err
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		b.rollback(ctx, conn)
		return b.failed(t.what, err)
	}
	if t.answered == nil {
		_, err = conn.ExecContext(ctx, second.String())
	} else {
		err = b.answers(ctx, conn, second, t.answered)
	}
	if err != nil {
		b.rollback(ctx, conn)
		if t.repeatable {
			return b.failed(t.what, err)
		}
		return b.failedCommit(t.what, err)
	}
	return nil
}

// begin writes the beginning of a transaction.
func (b *backend) begin(t *text) { fmt.Fprintf(t, beginTransaction, b.server.hold) }

// rollback ends a transaction, so that its lock does not wait for the pool. A connection that cannot say so is closed, upon which the server
// rolls back.
func (b *backend) rollback(ctx context.Context, c *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := c.ExecContext(ctx, rollbackTransaction); err != nil {
		// The error makes the pool drop the connection; that is all it is for.
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// answers are the results of a text of several statements, in order, without those that have no rows.
type answers struct {
	rows  *sql.Rows
	begun bool
	// server is what the connection knows of its server.
	server facts
}

// answers sends a text, lets read take what it wants, and reads the rest. It returns the first error of any of the statements.
func (b *backend) answers(ctx context.Context, c *sql.Conn, t *text, read func(*answers) error) error {
	var server facts
	if err := c.Raw(func(c any) error { server = c.(*conn).facts; return nil }); err != nil {
		return err
	}
	rows, err := c.QueryContext(ctx, t.String())
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := read(&answers{rows: rows, server: server}); err != nil {
		return err
	}
	for rows.NextResultSet() {
	}
	return rows.Err()
}

// each reads the next result and calls f for each of its rows.
func (a *answers) each(f func() error, columns ...any) error {
	if err := a.next(); err != nil {
		return err
	}
	for a.rows.Next() {
		if err := a.rows.Scan(columns...); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
	}
	return a.rows.Err()
}

// scan reads the next result as a state and rows.
func (a *answers) scan(m *manyRows) error {
	if err := a.next(); err != nil {
		return err
	}
	for a.rows.Next() {
		if err := m.scan(a.rows); err != nil {
			return err
		}
	}
	if err := a.rows.Err(); err != nil {
		return err
	}
	return m.complete()
}

// next goes to the next result.
func (a *answers) next() error {
	if a.begun && !a.rows.NextResultSet() {
		if err := a.rows.Err(); err != nil {
			return err
		}
		return mvcc.Errorf(mvcc.Invalid, "the server answered fewer statements than it was sent")
	}
	a.begun = true
	return nil
}

// guard is what is read first under the commit lock.
type guard struct {
	state mvcc.State
	// lockWait is how long the lock was waited for.
	lockWait time.Duration
	// token is that of the row that was asked for, zero if it is not there.
	token mvcc.Token
	// aborted: the token that was asked for is recorded as aborted.
	aborted bool
}

// askGuard writes the beginning of a transaction under the commit lock: the lock; then, in a statement that starts when the lock is held and so
// sees what was committed before, the state, the token of the row at a revision, and whether a token is recorded as aborted.
func (b *backend) askGuard(t *text, at mvcc.Revision, token mvcc.Token) {
	b.begin(t)
	t.WriteString(lockStore)
	fmt.Fprintf(t, selectGuard, int64(at), token[:])
}

// guard reads the answers to askGuard, and refuses a server that is read-only.
func (b *backend) guard(a *answers) (guard, error) {
	var (
		g     guard
		s     stateRow
		asked int64
	)
	if err := a.each(func() error { return nil }, &asked); err != nil {
		return g, err
	}
	err := a.each(func() error {
		g.state = s.state()
		g.lockWait = max(0, time.Duration(s.now-asked)*time.Microsecond)
		return nil
	}, append(s.columns(), (*tokenColumn)(&g.token), &g.aborted)...)
	switch {
	case err != nil:
		return g, err
	case !s.found:
		return g, errNoState
	case !g.state.Writable:
		b.server.suspect()
		return g, errReadOnly
	}
	return g, nil
}

var errReadOnly = mvcc.Errorf(mvcc.ReadOnly, "the server is read-only: a replica, demoted, or not promoted yet")

// gate makes transactions of different Galera nodes exclude each other. There, the commit lock is the node's own, and a transaction fails
// when it commits if another node has committed a row with the same primary key meanwhile. Two groups have such a row, as they number
// theirs from the same head. A group and a fence, or a group and the record that it is aborted, have none: so everything that relies on the commit
// lock writes this row of its own.
func (b *backend) gate(t *text, now time.Time) {
	if b.galera {
		fmt.Fprintf(t, writeGate, now.UnixMicro())
	}
}

func (b *backend) Commit(ctx context.Context, g *mvcc.Group) (*mvcc.GroupResult, error) {
	t := transaction{what: "commit", pool: b.commits}
	b.askGuard(&t.ask, g.Seen.Revision, g.Token)
	t.ask.askLive(g.Mutations)
	var (
		res *mvcc.GroupResult
		// removed are the deletions whose previous values the second text asks for.
		removed map[mvcc.Revision]*mvcc.Outcome
	)
	t.decide = func(a *answers) (*text, error) {
		guard, err := b.guard(a)
		if err != nil {
			return nil, err
		}
		if err := guard.check(g); err != nil {
			return nil, err
		}
		current, err := a.live(len(g.Mutations))
		if err != nil {
			return nil, err
		}
		var n int
		res = &mvcc.GroupResult{Before: guard.state.Head, State: guard.state, Time: guard.state.Now, LockWait: guard.lockWait}
		res.Outcomes, n = mvcc.Decide(g.Mutations, guard.state.Head.Revision, func(k mvcc.Key) (revision, create mvcc.Revision) {
			c := current[k]
			return c.revision, c.create
		})
		var second text
		if n == 0 {
			second.WriteString(commitTransaction)
			return &second, nil
		}
		res.State.Head.Revision += mvcc.Revision(n)
		res.State.Head.Token = g.Token
		removed = removedBy(g, res.Outcomes)
		b.writeGroup(&second, g, res, removed)
		return &second, nil
	}
	t.answered = func(a *answers) error { return a.removedValues(removed) }
	if err := b.transact(ctx, &t); err != nil {
		return nil, err
	}
	return res, nil
}

// check refuses a group that must not be decided in this history.
func (g *guard) check(group *mvcc.Group) error {
	head, seen := g.state.Head, group.Seen
	switch {
	case g.aborted:
		return mvcc.Errorf(mvcc.Aborted, "the commit group was declared not done before it had the commit lock")
	case head.Epoch != seen.Epoch:
		return mvcc.Errorf(mvcc.Fenced, "the database is in epoch %d, and this process has seen epoch %d", head.Epoch, seen.Epoch)
	case head.Revision < seen.Revision:
		return mvcc.Errorf(mvcc.Fenced, "the database is at revision %d, and this process has seen %d", head.Revision, seen.Revision)
	case g.token != mvcc.Token{} && g.token != seen.Token:
		return mvcc.Errorf(mvcc.Fenced, "the database has other content at revision %d than this process has seen", seen.Revision)
	case g.token == mvcc.Token{} && seen.Revision > g.state.Compacted:
		return mvcc.Errorf(mvcc.Fenced, "the database lacks revision %d, which this process has seen", seen.Revision)
	}
	return nil
}

// current is where a key is before a group.
type current struct{ revision, create mvcc.Revision }

// askLive asks for the current revisions of the mutations' keys.
func (t *text) askLive(mutations []*mvcc.Mutation) {
	var keys text
	n := 0
	for _, m := range mutations {
		keys.comma(&n)
		keys.binary([]byte(m.Key))
	}
	if n == 0 {
		keys.WriteString("NULL")
	}
	fmt.Fprintf(t, selectLive, keys.String())
}

func (a *answers) live(n int) (map[mvcc.Key]current, error) {
	var (
		key              sql.RawBytes
		revision, create int64
		found            = make(map[mvcc.Key]current, n)
	)
	err := a.each(func() error {
		found[mvcc.Key(key)] = current{mvcc.Revision(revision), mvcc.Revision(create)}
		return nil
	}, &key, &revision, &create)
	return found, err
}

// accepted are a group's accepted mutations, in the order of their revisions.
func accepted(g *mvcc.Group, outcomes []mvcc.Outcome) iter.Seq2[*mvcc.Mutation, *mvcc.Outcome] {
	return func(yield func(*mvcc.Mutation, *mvcc.Outcome) bool) {
		for i, m := range g.Mutations {
			if outcomes[i].Accepted && !yield(m, &outcomes[i]) {
				return
			}
		}
	}
}

// removedBy finds the accepted deletions whose previous values nobody has at hand, by the values' revisions.
func removedBy(g *mvcc.Group, outcomes []mvcc.Outcome) map[mvcc.Revision]*mvcc.Outcome {
	removed := map[mvcc.Revision]*mvcc.Outcome{}
	for m, o := range accepted(g, outcomes) {
		if m.Delete && !m.HasPrev {
			removed[m.Expect] = o
		}
	}
	return removed
}

// removedValues reads the answer to selectRemoved.
func (a *answers) removedValues(removed map[mvcc.Revision]*mvcc.Outcome) error {
	if len(removed) == 0 {
		return nil
	}
	var (
		revision int64
		value    []byte
		found    int
	)
	err := a.each(func() error {
		if o := removed[mvcc.Revision(revision)]; o != nil {
			o.PrevValue = value
			found++
		}
		return nil
	}, &revision, &value)
	if err == nil && found != len(removed) {
		// The transaction goes on all the same. Whoever resolves the outcome will find it committed.
		err = mvcc.Errorf(mvcc.Unknown, "the log lacks %d of the %d values that a commit group deletes: the store is damaged", len(removed)-found, len(removed))
	}
	return err
}

// writeGroup writes the accepted mutations: their log rows, then the live rows of the keys that exist afterwards, then it deletes those of the
// others. Among the accepted a key occurs once, so the order of the three does not matter.
func (b *backend) writeGroup(t *text, g *mvcc.Group, res *mvcc.GroupResult, removed map[mvcc.Revision]*mvcc.Outcome) {
	size := statementBytes
	for _, m := range g.Mutations {
		size += rowBytes + 2*len(m.Key) + len(m.Value) + len(m.Value)/16
	}
	t.Grow(size)
	if len(removed) > 0 {
		fmt.Fprintf(t, selectRemoved, revisionList(slices.Collect(maps.Keys(removed))))
	}
	b.gate(t, res.Time)
	n := 0
	t.WriteString(insertLog)
	for m, o := range accepted(g, res.Outcomes) {
		t.comma(&n)
		t.logRow(m, o, g.Token, res.Time)
	}
	n = 0
	for m, o := range accepted(g, res.Outcomes) {
		if m.Delete {
			continue
		}
		if n == 0 {
			t.WriteString(";")
			t.WriteString(replaceLive)
		}
		t.comma(&n)
		t.liveRow(m, o, res.Time)
	}
	n = 0
	for m := range accepted(g, res.Outcomes) {
		if !m.Delete {
			continue
		}
		if n == 0 {
			t.WriteString(";")
			t.WriteString(deleteLive)
		}
		t.comma(&n)
		t.binary([]byte(m.Key))
	}
	if n > 0 {
		t.WriteByte(')')
	}
	t.WriteString(";")
	t.WriteString(commitTransaction)
}

// logRow writes the values of insertLog.
func (t *text) logRow(m *mvcc.Mutation, o *mvcc.Outcome, token mvcc.Token, now time.Time) {
	t.WriteByte('(')
	t.int(int64(o.Revision))
	t.WriteByte(',')
	t.binary([]byte(m.Key))
	t.WriteByte(',')
	t.int(int64(m.Expect))
	t.WriteByte(',')
	t.int(int64(o.Create))
	t.WriteByte(',')
	t.hex(token[:])
	t.WriteByte(',')
	t.int(now.UnixMicro())
	if m.Delete {
		t.WriteString(",1,NULL)")
		return
	}
	t.WriteString(",0,")
	t.binary(m.Value)
	t.WriteByte(')')
}

// liveRow writes the values of replaceLive.
func (t *text) liveRow(m *mvcc.Mutation, o *mvcc.Outcome, now time.Time) {
	t.WriteByte('(')
	t.binary([]byte(m.Key))
	t.WriteByte(',')
	t.int(int64(o.Revision))
	t.WriteByte(',')
	t.int(int64(o.Create))
	t.WriteByte(',')
	if m.TTL > 0 {
		t.int(now.Add(m.TTL).UnixMicro())
	} else {
		t.WriteString("NULL")
	}
	t.WriteByte(')')
}
