package sqlkit

import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

// Conn runs statements on the connection of a transaction. [View] and [Tx] are made of it.
//
// Arguments are of the types int64, string, [contract.Token], []contract.Key and []contract.Lease.
// The rows of a cursor have no state: its columns are those of the statement. Errors are of type
// *[contract.Error].
type Conn interface {
	// Select runs a read and calls each for its rows, in order. It returns the error of each as it
	// is, and gives up the rest then.
	Select(r *Read, each func(Cursor) error, args ...any) error
	// Group reads the guard of a group, as [contract.Tx] says, and calls each for the log rows with
	// the token and a greater revision. Columns: revision, key, prev, create, version, lease, time,
	// deleted.
	Group(token contract.Token, after contract.Revision, each func(Cursor)) (contract.Guard, error)
	// Change runs a statement that writes.
	Change(sql string, args ...any) error
	// PutLeases writes leases, in the place of those with the same IDs.
	PutLeases(rows []contract.LeaseRow) error
	// Insert writes a row of the log, at the time of the state, and a live row for each record.
	Insert(token contract.Token, at contract.State, records []contract.Record) error
	// Erase removes at most limit live rows, and as many log rows before the head of the state, and
	// as many users' rows and rows of the index, and all aborted tokens and directories. It returns
	// how many live rows, log rows, users' rows and rows of the index it has removed.
	Erase(limit int, at contract.State) (int, error)
	// Reindex, SetIndexes and DropEntries do what those of [contract.Tx] do.
	Reindex(keys []contract.Reindexed) error
	SetIndexes(generation int64, text string) error
	DropEntries(low, high contract.Entry, limit int) (int, error)
	// Fingerprint is that of the database to which the connection leads.
	Fingerprint() string
}

// Change is a statement that writes. It takes so many of the arguments of what it is a part of,
// from the first on.
type Change struct {
	SQL         string
	First, Args int
}

// TxStatements are the texts of what a [Tx] and a [View] do. Columns and parameters are as those of
// [Statements], and there is no state.
type TxStatements struct {
	// Keys counts the live rows, in one row. Column: their number.
	Keys string
	// Records reads the log rows with IDs above 0 that are live, in rising order. Columns: ID, key,
	// create, version, lease, expiry (0 if the key has none of its own), value.
	Records string
	// RecordParts reads the same rows with IDs below 0, in falling order.
	RecordParts string
	// AllLeases reads all leases. Columns: ID, time to live, expiry.
	AllLeases string
	// Leases reads leases. Parameter: the IDs. Columns as for AllLeases.
	Leases string
	// DropLeases deletes leases. Parameter: the IDs.
	DropLeases string
	// Remove deletes users' rows, log rows and live rows of keys. Each statement has one parameter:
	// the keys.
	Remove []string
	// Abort records an aborted token. Parameters: the token, the revision that its group had seen.
	Abort string
	// SetCompacted sets compacted. Parameter: the revision.
	SetCompacted string
	// RecordFingerprint stores the fingerprint where none is. Parameter: the fingerprint.
	RecordFingerprint string
	// Mark writes a marker, and what begins with it. Parameters: the revision, the token and the
	// time of the marker; epoch, compacted, swept, and a fingerprint, "" to leave the one that is
	// there.
	Mark []Change
	// Indexes reads the declarations of indexes. Columns: generation, text (NULL for none).
	Indexes string
	// Clear deletes all rows of the five tables. No parameters.
	Clear []string
	// Renew gives the store another identity. No parameters.
	Renew string
	// SetQuota records the quota. Parameters: objects, bytes.
	SetQuota string
	// Home reads what SetHome has recorded. Column: the text (NULL for none). SetHome and
	// SetIdentity have one parameter: the text.
	Home, SetHome, SetIdentity string
	// Directories reads the recorded directories. Columns: path, group, resource, scope.
	Directories string
	// PutDirectory records a directory. Parameters: path, group, resource, scope, the first key,
	// and the first key beyond, all as text.
	PutDirectory string
}

// View implements [contract.Snapshot] on a connection.
type View struct {
	conn  Conn
	sql   *TxStatements
	state contract.State
}

// NewView makes a View of what a connection sees, of which st is the state.
func NewView(c Conn, sql *TxStatements, st contract.State) *View { return &View{c, sql, st} }

// State implements [contract.Snapshot].
func (v *View) State() contract.State { return v.state }

// Keys implements [contract.Snapshot].
func (v *View) Keys() (n int64, err error) {
	err = v.conn.Select(&Read{What: "count the keys", SQL: v.sql.Keys, Columns: 1, OneRow: true},
		func(c Cursor) error { n = c.Int(0); return nil })
	return n, err
}

// AllLeases implements [contract.Snapshot].
func (v *View) AllLeases() ([]contract.LeaseRow, error) { return v.leases(v.sql.AllLeases) }

func (v *View) leases(sql string, args ...any) (found []contract.LeaseRow, err error) {
	err = v.conn.Select(&Read{What: "read the leases", SQL: sql, Columns: 3},
		func(c Cursor) error { found = append(found, leaseRow(c)); return nil }, args...)
	return found, err
}

// Records implements [contract.Snapshot].
func (v *View) Records(each func(*contract.Record) error) error {
	for _, sql := range []string{v.sql.RecordParts, v.sql.Records} {
		err := v.conn.Select(&Read{What: "read the records", SQL: sql, Columns: 7},
			func(c Cursor) error {
				id := revision(c, 0)
				return each(&contract.Record{Revision: id.Revision(), Part: id.Part(),
					Key: c.Key(1), Create: revision(c, 2), Version: c.Int(3), Lease: lease(c, 4),
					Expiry: c.Int(5), Value: c.Value(6)})
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// Tx implements [contract.Tx] on a connection whose transaction holds the commit lock.
type Tx struct {
	View
	limits contract.Limits
}

// NewTx makes a Tx. The limits are those of the backend.
func NewTx(c Conn, sql *TxStatements, st contract.State, limits contract.Limits) *Tx {
	return &Tx{View: View{c, sql, st}, limits: limits}
}

// Fingerprint implements [contract.Tx].
func (t *Tx) Fingerprint() string { return t.conn.Fingerprint() }

// Group implements [contract.Tx].
func (t *Tx) Group(token contract.Token,
	after contract.Revision) (g contract.Guard, rows []contract.Row, err error) {
	g, err = t.conn.Group(token, after, func(c Cursor) {
		rows = append(rows, contract.Row{Revision: revision(c, 0), Key: c.Key(1), Prev: revision(c, 2),
			Create: revision(c, 3), Version: c.Int(4), Lease: lease(c, 5), Time: moment(c, 6),
			Deleted: c.Bool(7), Token: token})
	})
	return g, rows, err
}

// Abort implements [contract.Tx].
func (t *Tx) Abort(token contract.Token, seen contract.Revision) error {
	return t.conn.Change(t.sql.Abort, token, int64(seen))
}

// SetCompacted implements [contract.Tx].
func (t *Tx) SetCompacted(r contract.Revision) error {
	return t.conn.Change(t.sql.SetCompacted, int64(r))
}

// Mark implements [contract.Tx].
func (t *Tx) Mark(st contract.State, fingerprint string) error {
	args := []any{int64(st.Head.Revision), st.Head.Token, st.Now.UnixMicro(),
		int64(st.Head.Epoch), int64(st.Compacted), int64(st.Swept), fingerprint}
	for _, c := range t.sql.Mark {
		if err := t.conn.Change(c.SQL, args[c.First:c.First+c.Args]...); err != nil {
			return err
		}
	}
	return nil
}

// RecordFingerprint implements [contract.Tx].
func (t *Tx) RecordFingerprint(fingerprint string) error {
	return t.conn.Change(t.sql.RecordFingerprint, fingerprint)
}

// Leases implements [contract.Tx].
func (t *Tx) Leases(leases []contract.Lease) ([]contract.LeaseRow, error) {
	return t.leases(t.sql.Leases, leases)
}

// PutLeases implements [contract.Tx].
func (t *Tx) PutLeases(rows []contract.LeaseRow) error { return t.conn.PutLeases(rows) }

// DropLeases implements [contract.Tx].
func (t *Tx) DropLeases(leases []contract.Lease) error {
	return t.conn.Change(t.sql.DropLeases, leases)
}

// Remove implements [contract.Tx].
func (t *Tx) Remove(keys []contract.Key) error {
	for _, sql := range t.sql.Remove {
		if err := t.conn.Change(sql, keys); err != nil {
			return err
		}
	}
	return nil
}

// Clear implements [contract.Tx].
func (t *Tx) Clear() error {
	for _, sql := range t.sql.Clear {
		if err := t.conn.Change(sql); err != nil {
			return err
		}
	}
	return nil
}

// Erase implements [contract.Tx].
func (t *Tx) Erase(limit int) (int, error) { return t.conn.Erase(limit, t.state) }

// Renew implements [contract.Tx].
func (t *Tx) Renew() error { return t.conn.Change(t.sql.Renew) }

// SetQuota implements [contract.Tx].
func (t *Tx) SetQuota(q contract.Quota) error {
	return t.conn.Change(t.sql.SetQuota, q.Objects, q.Bytes)
}

// Home implements [contract.Tx].
func (t *Tx) Home() (home string, err error) {
	err = t.conn.Select(&Read{What: "read where the store has come from", SQL: t.sql.Home, Columns: 1,
		OneRow: true}, func(c Cursor) error { home = string(c.Value(0)); return nil })
	return home, err
}

// SetHome implements [contract.Tx].
func (t *Tx) SetHome(home string) error { return t.conn.Change(t.sql.SetHome, home) }

// SetIdentity implements [contract.Tx].
func (t *Tx) SetIdentity(identity string) error {
	return t.conn.Change(t.sql.SetIdentity, identity)
}

// Directories implements [contract.Tx].
func (t *Tx) Directories() (found []contract.Directory, err error) {
	err = t.conn.Select(&Read{What: "read the directories", SQL: t.sql.Directories, Columns: 4},
		func(c Cursor) error {
			found = append(found, contract.Directory{Path: c.Key(0), Group: string(c.Key(1)),
				Resource: string(c.Key(2)), Scope: string(c.Key(3))})
			return nil
		})
	return found, err
}

// PutDirectories implements [contract.Tx].
func (t *Tx) PutDirectories(directories []contract.Directory) error {
	for _, d := range directories {
		if err := t.conn.Change(t.sql.PutDirectory, string(d.Path), d.Group, d.Resource, d.Scope,
			string(d.Path), string(d.Beyond())); err != nil {
			return err
		}
	}
	return nil
}

// Indexes implements [contract.Tx].
func (t *Tx) Indexes() (x *contract.Indexes, err error) {
	err = t.conn.Select(&Read{What: "read the indexes", SQL: t.sql.Indexes, Columns: 2},
		func(c Cursor) (err error) {
			x, err = contract.UnmarshalIndexes(c.Int(0), string(c.Value(1)))
			return err
		})
	if err == nil && x == nil {
		err = contract.ErrEmptyStore
	}
	return x, err
}

// SetIndexes implements [contract.Tx].
func (t *Tx) SetIndexes(x *contract.Indexes) error {
	text, err := contract.MarshalIndexes(x)
	if err != nil {
		return err
	}
	return t.conn.SetIndexes(x.Generation, text)
}

// Reindex implements [contract.Tx].
func (t *Tx) Reindex(keys []contract.Reindexed) error {
	if len(keys) == 0 {
		return nil
	}
	return t.conn.Reindex(keys)
}

// DropEntries implements [contract.Tx].
func (t *Tx) DropEntries(low, high contract.Entry, limit int) (int, error) {
	return t.conn.DropEntries(low, high, limit)
}

// Insert implements [contract.Tx]. It gathers records to as many as a commit group may have.
func (t *Tx) Insert(token contract.Token, write func(func(*contract.Record) error) error) error {
	var (
		records []contract.Record
		bytes   int
	)
	flush := func() error {
		if len(records) == 0 {
			return nil
		}
		err := t.conn.Insert(token, t.state, records)
		clear(records)
		records, bytes = records[:0], 0
		return err
	}
	if err := write(func(r *contract.Record) error {
		size := len(r.Key) + len(r.Value)
		if len(records) == t.limits.GroupMutations || bytes+size > t.limits.GroupBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		records, bytes = append(records, *r), bytes+size
		return nil
	}); err != nil {
		return err
	}
	return flush()
}
