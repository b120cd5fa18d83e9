package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// statement is a statement of a writing transaction. Sessions prepare it under its name, if they
// prepare at all.
type statement struct {
	name, sql string
	types     []uint32
}

// knownSchema is the schema version of this program.
var knownSchema = migrations.Postgres.Newest()

var (
	begin      = statement{name: "rowkeeper_begin", sql: sqlBegin}
	commit     = statement{name: "rowkeeper_commit", sql: sqlCommit}
	commitLock = statement{name: "rowkeeper_lock", sql: fmt.Sprintf(sqlLock, knownSchema),
		types: []uint32{oidInt, oidStore}}
	commitGroup = statement{name: "rowkeeper_group", sql: sqlGroup,
		types: []uint32{oidBytes, oidIntArray, oidIntArray, oidBytesArray, oidBytesArray, oidIntArray,
			oidBoolArray, oidBytesArray, oidIntArray, oidBoolArray, oidIntArray, oidStore}}
	leasedGroup = statement{name: "rowkeeper_leased_group", sql: sqlLeasedGroup,
		types: commitGroup.types}
	comparedGroup = statement{name: "rowkeeper_compared_group", sql: sqlComparedGroup,
		types: slices.Concat(commitGroup.types[:11], []uint32{oidBytesArray, oidBytesArray,
			oidIntArray, oidIntArray, oidIntArray, oidBytesArray, oidBool, oidBytesArray,
			oidBytesArray, oidInt, oidInt, oidBoolArray, oidStore})}
	wholeGroup = statement{name: "rowkeeper_whole_group", sql: sqlWholeGroup,
		types: comparedGroup.types}
	indexedGroup = statement{name: "rowkeeper_indexed_group", sql: sqlIndexedGroup,
		types: withEntries(commitGroup.types)}
	leasedIndexedGroup = statement{name: "rowkeeper_leased_indexed_group",
		sql: sqlLeasedIndexedGroup, types: indexedGroup.types}
	comparedIndexedGroup = statement{name: "rowkeeper_compared_indexed_group",
		sql: sqlComparedIndexedGroup, types: withEntries(comparedGroup.types)}
	wholeIndexedGroup = statement{name: "rowkeeper_whole_indexed_group", sql: sqlWholeIndexedGroup,
		types: comparedIndexedGroup.types}
	usersGroup = statement{name: "rowkeeper_users_group", sql: sqlUsersGroup,
		types: withUsers(leasedGroup.types)}
	usersIndexedGroup = statement{name: "rowkeeper_users_indexed_group", sql: sqlUsersIndexedGroup,
		types: withUsers(indexedGroup.types)}
	sweepLock = statement{name: "rowkeeper_sweep_lock",
		sql: fmt.Sprintf(sqlSweepLock, knownSchema), types: []uint32{oidInt, oidStore}}
	sweepBatch = statement{name: "rowkeeper_sweep", sql: sqlSweep,
		types: []uint32{oidInt, oidIntArray, oidInt, oidInt, oidBool, oidInt, oidBool, oidStore}}

	writingStatements = []statement{begin, commit, commitLock, commitGroup, leasedGroup,
		comparedGroup, wholeGroup, indexedGroup, leasedIndexedGroup, comparedIndexedGroup,
		wholeIndexedGroup, usersGroup, usersIndexedGroup, sweepLock, sweepBatch}
)

// withEntries are the types of a statement that has entries as well, before the store.
func withEntries(types []uint32) []uint32 {
	return slices.Insert(slices.Clone(types), len(types)-1, uint32(oidTextArray))
}

// withUsers are the types of a statement that has users' names and audit IDs as well, before the
// store.
func withUsers(types []uint32) []uint32 { return withEntries(withEntries(types)) }

// workPortal is the portal in which the work waits for the lock.
const workPortal = "rowkeeper_work"

// outcome is what the two statements of a transaction returned.
type outcome struct {
	lock, work []row
}

// transact runs one writing transaction: BEGIN, the statement that takes the lock, the work,
// COMMIT.
//
// All of it is sent at once, and nothing is awaited in between, so the lock is held for no round
// trip. And the work's parameters, which may be megabytes, are sent before the lock is asked for:
// the message order is
//
//	BEGIN, Bind work, lock, Execute work, COMMIT, Sync
//
// so that neither a slow network nor a process that stops in the middle of sending makes everybody
// wait. That is sound because a statement that modifies data is not started by Bind: Execute takes
// its snapshot, after the lock was granted. (In the server's terms: a portal with a data-modifying
// WITH runs to completion at the first Execute.) The suite's tests of concurrent commits fail if
// that were not so.
//
// An *contract.Error is of class Unknown if the transaction may have been committed, or may still
// be: the server goes on with what it has received when the connection is lost. With any other
// class it is certain that it was rolled back.
func (b *backend) transact(ctx context.Context, lock, work statement,
	args ...any) (o outcome, err error) {
	defer func() { err = b.Heard(err) }()
	ctx, cancel := context.WithTimeout(ctx, b.cfg.timeout)
	defer cancel()
	conn, release, err := b.TakeToWrite(ctx, (*pool)(b.commits))
	if err != nil {
		return outcome{}, b.cfg.connectError(err)
	}
	defer release()
	t := transaction{conn: conn.PgConn(), prepared: b.cfg.prepared}
	if !t.prepared {
		// A pooler gives each transaction another session, so the settings have to come along.
		t.settings = b.cfg.transactionSettings()
	}
	params, err := encodeAll(append(args, b.store))
	if err != nil {
		return o, &contract.Error{Class: contract.Data, Err: err}
	}
	ended := false
	defer func() {
		if !ended { // it has panicked, and answers are left that the next one would take for its own
			t.abandon()
		}
	}()
	err = t.run(ctx, lock, work, params, &o)
	ended = true
	return o, err
}

type transaction struct {
	conn     *pgconn.PgConn
	prepared bool
	settings string
	// done counts the statements that have completed.
	done int
}

func (t *transaction) run(ctx context.Context, lock, work statement, params [][]byte,
	o *outcome) error {
	if err := ctx.Err(); err != nil {
		return contract.Errorf(contract.Unavailable, "the transaction was not begun: %w", err)
	}
	// The connection serves this transaction alone. If the context ends while it is under way, the
	// outcome is unknown and the connection useless. Setting the deadline fails where the
	// connection is gone already, which does no harm.
	stop := context.AfterFunc(ctx, func() { _ = t.conn.Conn().SetDeadline(past) })
	defer func() {
		if !stop() {
			t.abandon()
		}
	}()

	commitAt := t.send(lock, work, params)
	if err := t.conn.Frontend().Flush(); err != nil {
		t.abandon()
		if pgconn.SafeToRetry(err) {
			return contract.Errorf(contract.Unavailable, "the connection to PostgreSQL was lost before "+
				"the transaction was sent: %w", cause(ctx, err))
		}
		return contract.Errorf(contract.Unknown, "the connection to PostgreSQL was lost while the "+
			"transaction was sent: %w", cause(ctx, err))
	}

	var (
		refused *pgconn.PgError
		ending  string // what the server answered to COMMIT
	)
	confirmed := greetingFrom(t.conn).watch()
	for {
		// The deadline above stands in for a context, which would be watched anew for every
		// message.
		msg, err := t.conn.ReceiveMessage(context.Background())
		if err != nil {
			t.abandon()
			var fatal *pgconn.PgError
			if errors.As(err, &fatal) && t.done < commitAt && t.prepared &&
				sessionEnded[fatal.Code] {
				return statementError(fatal)
			}
			return contract.Errorf(contract.Unknown, "the connection to PostgreSQL was lost before the "+
				"commit was confirmed: %w", cause(ctx, err))
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			switch t.done {
			case commitAt - 2:
				o.lock = append(o.lock, copyRow(msg.Values))
			case commitAt - 1:
				o.work = append(o.work, copyRow(msg.Values))
			}
		case *pgproto3.CommandComplete:
			if t.done == commitAt {
				ending = string(msg.CommandTag)
			}
			t.done++
		case *pgproto3.ErrorResponse:
			// The server skips all messages up to Sync, COMMIT too. An error of COMMIT itself means
			// that the transaction was rolled back.
			refused = pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.ReadyForQuery:
			switch {
			case refused != nil:
				t.rollback(ctx)
				return t.refusal(refused, commitAt)
			case ending != "COMMIT":
				return contract.Errorf(contract.Transient, "PostgreSQL ended the transaction by %q "+
					"instead of COMMIT", ending)
			}
			return confirmed()
		}
	}
}

// send puts the messages into the buffer, and returns how many statements precede COMMIT.
func (t *transaction) send(lock, work statement, params [][]byte) int {
	f := t.conn.Frontend()
	parse := func(s statement) string {
		if t.prepared {
			return s.name
		}
		f.SendParse(&pgproto3.Parse{Query: s.sql, ParameterOIDs: s.types})
		return ""
	}
	simple := func(s statement, params ...[]byte) {
		f.SendBind(&pgproto3.Bind{PreparedStatement: parse(s), ParameterFormatCodes: binaryFormat,
			Parameters: params, ResultFormatCodes: binaryFormat})
		f.SendExecute(&pgproto3.Execute{})
	}
	before := 3
	simple(begin)
	if t.settings != "" {
		simple(statement{sql: t.settings})
		before++
	}
	f.SendBind(&pgproto3.Bind{DestinationPortal: workPortal, PreparedStatement: parse(work),
		ParameterFormatCodes: binaryFormat,
		Parameters:           params, ResultFormatCodes: binaryFormat})
	started := binary.BigEndian.AppendUint64(nil, uint64(greetingFrom(t.conn).started))
	simple(lock, started, params[len(params)-1]) // the store
	f.SendExecute(&pgproto3.Execute{Portal: workPortal})
	simple(commit)
	f.SendSync(&pgproto3.Sync{})
	return before
}

// locking are what the errors stand for that sqlLock and sqlSweepLock make. Of the schema version
// the database knows only that the oldest one whose programs may write is a newer one.
var locking = map[string]error{
	"22012": contract.CheckWriter(knownSchema+1, knownSchema), // division by zero
	"2201F": contract.ErrAnotherServer,                        // negative square root
}

func (t *transaction) refusal(e *pgconn.PgError, commitAt int) error {
	if known := locking[e.Code]; known != nil && t.done == commitAt-2 {
		return known
	}
	err := statementError(e)
	if strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "58") || e.Code == "40003" {
		// It may be a pooler's word for a lost connection behind it.
		err.Class = contract.Unknown
	}
	return err
}

// sessionEnded has the codes by which a server says that it ends the session. If it had not come to
// COMMIT by then, the transaction was rolled back. Any other end may mean that a pooler has lost
// its connection to the server, and there the commit may have happened.
var sessionEnded = map[string]bool{
	"57P01": true, // shutdown
	"57P02": true, // another session crashed
	"57P05": true, // idle session timeout
	"25P03": true, // idle in transaction timeout
	"25P04": true, // transaction timeout
}

// rollback makes the session usable again after a statement failed. The locks were released when it
// did.
func (t *transaction) rollback(ctx context.Context) {
	if t.conn.TxStatus() == 'I' {
		return
	}
	if err := t.conn.Exec(ctx, `ROLLBACK`).Close(); err != nil {
		t.abandon()
	}
}

// abandon closes the connection without waiting for the server.
func (t *transaction) abandon() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	t.conn.Close(ctx) // fails because it does not wait, and closes nevertheless
}

// cause returns the end of the context, if that is why the connection was cut.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
