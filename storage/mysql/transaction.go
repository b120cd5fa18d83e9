package mysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// transaction is a transaction of two round trips (on Galera, of more). The first text begins it,
// takes the commit lock if it needs to, and reads; decide reads the answers and returns the second
// text, which writes and commits. In between nobody but this process can end the transaction, so it
// does nothing there but decide. If it stops there, the server rolls back after server.hold.
// Large values go before the first text; see held.go.
//
// The meaning of an error follows from this. Until the second text is sent, nothing was committed
// and nothing will be, however the connection ends, as the server rolls back a transaction whose
// client is gone. Also a client that was cut off while it waited for the lock leaves nothing
// behind: its session gets the lock, finds the connection closed, and releases it. Once the second
// text was sent, only certain errors of the server say that it was not committed; see undone.
//
// Nothing is sent twice: a sql.Conn is one connection, on which database/sql does not try again.
type transaction struct {
	// what it does, for errors.
	what string
	// held, if not nil, are values that become variables of the session, and holds tells whether
	// they have.
	held  *heldValues
	holds bool
	ask   text
	// decide returns the text that ends the transaction. After an error it is rolled back.
	decide func(*answers) (*text, error)
	// answered, if not nil, reads the answers to that text.
	answered func(*answers) error
	// repeatable: doing it twice is doing it once, so an unknown outcome need not be told apart.
	repeatable bool
}

func (b *backend) transact(ctx context.Context, t *transaction) (err error) {
	defer func() { err = b.Heard(err) }()
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	l, release, err := b.TakeToWrite(ctx, (*pool)(b.commits))
	if err != nil {
		return b.failed(t.what, err)
	}
	defer release()
	return whole(l.Conn, func() error { return b.transactOn(ctx, l.Conn, t) })
}

// whole calls f, which begins and ends a transaction on a connection. If f panics, the connection
// is closed: the pool would keep the transaction open, and with it the commit lock.
func whole(conn *sql.Conn, f func() error) error {
	ended := false
	defer func() {
		if !ended {
			discard(conn)
		}
	}()
	err := f()
	ended = true
	return err
}

func (b *backend) transactOn(ctx context.Context, conn *sql.Conn, t *transaction) error {
	var second *text
	var err error
	if t.held != nil {
		t.holds, err = t.held.hold(ctx, conn)
	}
	if err == nil {
		_, err = b.send(ctx, conn, &t.ask, func(a *answers) (err error) {
			second, err = t.decide(a)
			return err
		})
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		b.rollback(ctx, conn)
		return b.failed(t.what, err)
	}
	if reached, err := b.send(ctx, conn, second, t.answered); err != nil {
		b.rollback(ctx, conn)
		if t.repeatable || !reached {
			return b.failed(t.what, err)
		}
		return b.failedCommit(t.what, err)
	}
	return nil
}

// commit writes the end of a transaction. COMMIT is the last statement, so that no error is one of
// a statement after it.
func (b *backend) commit(t *text) {
	b.leaveQueue(t)
	t.statement(commit)
}

// joinQueue comes before each statement that may wait for the store row. From there on, the server
// lets this client be silent for hold seconds.
func (b *backend) joinQueue(t *text, hold int) {
	if b.galera || b.tidb {
		t.statement(setWaitTimeout, hold)
	} else {
		t.statement(joinQueue, b.server.lockWait, hold)
	}
}

// leaveQueue undoes joinQueue.
func (b *backend) leaveQueue(t *text) {
	if b.galera || b.tidb {
		t.statement(resetWaitTimeout)
	} else {
		t.statement(leaveQueue)
	}
}

// rollback ends a transaction, so that its lock does not wait for the pool. A connection that
// cannot say so is closed, upon which the server rolls back.
func (b *backend) rollback(ctx context.Context, c *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var t text
	t.statement(rollback)
	b.leaveQueue(&t)
	if _, err := b.send(ctx, c, &t, nil); err != nil {
		discard(c)
	}
}

// send sends a text, lets read take the answers that it wants, and waits for the rest. It returns
// the first error of any of the statements; those after it were not executed. reached tells whether
// the last one was sent.
//
// The statements are sent at once. To a Galera node they are sent one by one: there, a transaction
// can be rolled back at any time, for one that another node has committed, and when that happened
// between two statements of one text, MariaDB (10.11) has been seen to execute the rest outside of
// a transaction, without an error.
func (b *backend) send(ctx context.Context, c *sql.Conn, t *text,
	read func(*answers) error) (reached bool, err error) {
	a := &answers{ctx: ctx, conn: c, texts: []string{t.String()}}
	if b.galera {
		a.texts = t.statements()
	}
	defer a.close()
	if read != nil {
		err = read(a)
	}
	for more := true; more && err == nil; {
		more, err = a.next()
	}
	return len(a.texts) == 0, err
}

// answers are the results of statements, in order, without statements that have no rows.
type answers struct {
	ctx  context.Context
	conn *sql.Conn
	// texts are the texts that are not sent yet.
	texts []string
	// rows are the results of the text before, if there may be more.
	rows *sql.Rows
}

func (a *answers) close() {
	if a.rows != nil {
		a.rows.Close()
	}
}

// next goes to the next result, if there is one.
func (a *answers) next() (more bool, err error) {
	for {
		if a.rows != nil {
			if a.rows.NextResultSet() {
				return true, nil
			}
			if err := a.rows.Err(); err != nil {
				return false, err
			}
			if err := a.rows.Close(); err != nil {
				return false, err
			}
			a.rows = nil
		}
		if len(a.texts) == 0 {
			return false, nil
		}
		next := a.texts[0]
		a.texts = a.texts[1:]
		rows, err := a.conn.QueryContext(a.ctx, next) //nolint:rowserrcheck // done above, when the next result is asked for
		if err != nil {
			return false, err
		}
		a.rows = rows
		// The driver goes on to the first result that has columns.
		if columns, err := a.rows.Columns(); err != nil || len(columns) > 0 {
			return true, err
		}
	}
}

// each goes to the next result, which has to be there, and calls f for each of its rows.
func (a *answers) each(columns int, f func(row) error) error {
	more, err := a.next()
	if err == nil && !more {
		err = contract.Errorf(contract.Invalid, "the server answered fewer statements than it was sent")
	}
	if err != nil {
		return err
	}
	return eachRow(a.rows, columns, f)
}

// server returns what the connection knows of its server.
func (a *answers) server() (f facts, err error) {
	return factsOf(a.conn)
}

// askGuard writes the beginning of a transaction under the commit lock: the lock; then, in a
// statement that starts when the lock is held and so sees what was committed before, the state, the
// token of the row at a revision, and whether a token is recorded as aborted. The server lets this
// client be silent for hold seconds.
func (b *backend) askGuard(t *text, hold int, at contract.Revision, token contract.Token) {
	b.joinQueue(t, hold)
	t.statement(startTransaction)
	asked := askedInQueue
	switch {
	case b.galera:
		asked = askedHere
	case b.tidb:
		asked = tidbNow
	}
	t.statement(lockStore, asked)
	t.statement(selectGuard, int64(at), token[:])
}

// guard reads the answers to askGuard, and how long the lock was waited for.
func (b *backend) guard(a *answers) (g contract.Guard, lockWait time.Duration, err error) {
	var asked time.Time
	err = a.each(1, func(r row) error { asked = r.time(0); return nil })
	if err == nil {
		g, err = b.readGuard(a)
	}
	return g, max(0, g.State.Now.Sub(asked)), err
}

// readGuard reads the answer to selectGuard. It refuses a server that is read-only, one that is not
// the one that the connection was made to, and one whose schema is too new for this program.
func (b *backend) readGuard(a *answers) (g contract.Guard, err error) {
	var (
		found  bool
		oldest int64
	)
	f, err := a.server()
	if err != nil {
		return g, err
	}
	err = a.each(stateColumns+4, func(r row) error {
		g.State, found = r.state()
		g.At, g.Aborted, oldest = r.token(stateColumns), r.int(stateColumns+1) != 0,
			r.int(stateColumns+2)
		g.Generation = r.int(stateColumns + 3)
		return f.check(r)
	})
	switch {
	case err != nil:
		return g, err
	case !found:
		return g, contract.ErrEmptyStore
	case !g.State.Writable:
		return g, errReadOnly
	case f.tidb != b.tidb:
		return g, errOtherKind
	}
	return g, contract.CheckWriter(oldest, knownSchema)
}

// knownSchema is the schema version of this program.
var knownSchema = migrations.MySQL.Newest()

var errOtherKind = contract.Errorf(contract.Invalid, "the address leads to TiDB where it led to "+
	"another server before, or the reverse: restart this program")

var errReadOnly = contract.Errorf(contract.ReadOnly, "the server is read-only: a replica, demoted, or "+
	"not promoted yet")

// takeTurn makes transactions of different Galera nodes exclude each other. There, the commit lock
// is the node's own. But a transaction is rolled back if another node's, which comes before it in
// the cluster's order, has changed a row that it has locked or changed; so all transactions that
// rely on the commit lock change the row that they have locked first, before they have read
// anything. (Two groups would collide in the log, as both number their rows from the same head. A
// group and the record that it is aborted would not.)
func (b *backend) takeTurn(t *text) {
	if b.galera {
		t.statement(updateTurn)
	}
}
