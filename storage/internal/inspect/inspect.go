package inspect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Question is what a driver is asked. The comment of each says which columns its rows have. A
// driver leaves out columns, and questions, of which its database knows nothing.
type Question string

// The questions.
const (
	// Server: product, version, now (microseconds since 1970), role, database, standby, sees_others
	// (whether the role sees other accounts' sessions), backend and told (the session's process as
	// the server calls it, and as the client was told).
	Server Question = "server"
	// Schema: version, 0 if there are no tables.
	Schema Question = "schema"
	// Store: id, epoch, compacted, swept, oldest_writer, max_objects, max_bytes, generation and
	// indexes (the declarations), head, written (the head's time, in microseconds since 1970),
	// log_lost (whether the file's log was removed), row_head and row_differs (what the store's row
	// says of the head, and whether that is not what the log says).
	Store Question = "store"
	// Settings: name, value, source.
	Settings Question = "settings"
	// Rights: privilege and name of what the role lacks, in the way that GRANT takes them.
	Rights Question = "rights"
	// Servers: user, application, address, connections, processes (0 if it cannot tell), since
	// (seconds).
	Servers Question = "servers"
	// Transactions: id, user, application, address, state, seconds, holds (whether old versions of
	// rows are kept for it).
	Transactions Question = "transactions"
	// Locks: id, user, application, address, object, mode, waiters, seconds.
	Locks Question = "locks"
	// Tables: name, bytes, rows, dead, age (of the oldest transaction number), analyzed, options.
	Tables Question = "tables"
	// Sizes: total and live, in bytes.
	Sizes Question = "sizes"
	// Purge: versions that InnoDB has not purged yet.
	Purge Question = "purge"
	// Replication: name, state, sync, behind (bytes), slot.
	Replication Question = "replication"
	// BinaryLogs: bytes of each.
	BinaryLogs Question = "binary logs"
	// Disk: free and total, in bytes.
	Disk Question = "disk"
	// Indexes: table, name, columns, unique, valid.
	Indexes Question = "indexes"
	// NextKey: key, the first one from an argument on.
	NextKey Question = "keys"
	// CountKeys: n, of the keys from an argument on and before another one.
	CountKeys Question = "number of keys"
	// LivePiece walks the live rows whose keys come after an argument, as many as another one says:
	// rows, last (the last key), lost, other, differs, beyond, example.
	LivePiece Question = "live rows"
	// LogPiece walks the log after a revision: rows, last, head, compacted, kept (how many of the
	// rows are beyond compacted), twice, backwards, incomplete, example.
	LogPiece Question = "rows of the log"
	// PartPiece walks the parts of transactions below an ID: rows, last, orphans, beyond, example.
	PartPiece Question = "parts of transactions"
	// UserPiece walks the users' rows after a revision: rows, last, alone, example.
	UserPiece Question = "rows of users"
	// EntryPiece walks the rows of declared indexes that come after an entry and a key, up to an
	// entry, as many as another argument says: rows, entry and key (of the last row), generation,
	// alone, example.
	EntryPiece Question = "rows of declared indexes"
	// EntriesPiece walks the live rows whose keys come after one and before another one, and
	// compares what they have of entries from one on and before another one, as many rows as a
	// fifth argument says: rows, last (the last key), generation, lacking, example.
	EntriesPiece Question = "entries of live rows"
	// IndexCheck compares an index, or what belongs to a table, with the table: damage, "" for
	// none. The arguments are the table and the index.
	IndexCheck Question = "structure of the indexes"
)

// Row is a row of an answer, by columns. NULL is missing.
type Row map[string]string

// Int reads a column. What is no number is 0.
func (r Row) Int(column string) int64 {
	n, _ := strconv.ParseInt(r[column], 10, 64) // drivers give numbers where a question says so
	return n
}

// Bool reads a column.
func (r Row) Bool(column string) bool {
	switch r[column] {
	case "true", "t", "1", "on", "ON":
		return true
	}
	return false
}

// Index is an index that the schema has.
type Index struct {
	Table, Name string
	// Columns are named with commas in between.
	Columns string
	Unique  bool
	// Create makes it, Drop removes it, and Rebuild makes an invalid one valid. Create and Drop are
	// empty for a primary key, which nobody should be without in between.
	Create, Drop, Rebuild string
}

// Database is one that is looked at, by a session that only reads.
type Database struct {
	// Kind is the driver's name.
	Kind string
	// Where names the database for people, without a password.
	Where string
	// Store is the name of the store that is meant, and ID what the database calls it, once it is
	// known.
	Store, ID string
	// Newest is the newest version of the schema that this program knows.
	Newest int64
	// Indexes are those of the schema.
	Indexes []Index
	// Analyze makes the statistics of a table anew; %s stands for it. It is empty where no plan
	// depends on statistics.
	Analyze string
	// Application is what the sessions of servers call themselves, where sessions have names.
	Application string
	// Pooler: the URL says that a pooler gives each transaction another session.
	Pooler bool
	// Ask answers a question, or returns [ErrNoAnswer] if this kind of database knows nothing of
	// it.
	Ask func(ctx context.Context, q Question, args ...any) ([]Row, error)
	// Repair runs a statement that makes an index or statistics.
	Repair func(ctx context.Context, statement string) error
}

// Driver is a [contract.Driver] whose databases can be looked at.
type Driver interface {
	// Inspect connects to a database and calls f with it. It changes nothing, whatever schema and
	// rights it finds. Errors of f are returned as they are.
	Inspect(ctx context.Context, url string, opts contract.DriverOptions,
		f func(*Database) error) error
}

// ErrNoAnswer answers a question of which a database knows nothing.
var ErrNoAnswer = errors.New("this kind of database does not know that")

// Facts are the answers to questions.
type Facts struct {
	*Database
	Answers map[Question][]Row
	// Unseen are the questions that were not answered, and why.
	Unseen map[Question]error
	// Before and After are this program's clock before and after the first question.
	Before, After time.Time
	// Long is from when on a transaction is long.
	Long time.Duration
}

// longTransaction is how old a transaction may be. A list of a large store takes seconds.
const longTransaction = 5 * time.Minute

// gather asks questions. The first ones have to be answered.
func gather(ctx context.Context, db *Database, questions []Question) (*Facts, error) {
	f := &Facts{Database: db, Answers: map[Question][]Row{}, Unseen: map[Question]error{},
		Before: time.Now(), Long: longTransaction}
	for i, q := range append([]Question{Server, Schema, Store}, questions...) {
		if _, asked := f.Answers[q]; asked {
			continue
		}
		rows, err := db.Ask(ctx, q)
		if i == 0 {
			f.After = time.Now()
		}
		switch {
		case errors.Is(err, ErrNoAnswer):
			continue
		case err != nil && (i < 3 || ctx.Err() != nil):
			return nil, err
		case err != nil:
			f.Unseen[q] = err
			continue
		}
		f.Answers[q] = rows
		switch q {
		case Schema:
			if f.one(Schema).Int("version") == 0 {
				return nil, contract.Errorf(contract.Invalid,
					"the database holds no rowkeeper store yet: run `rowkeeper migrate up`")
			}
		case Store:
			if len(rows) == 0 || f.one(Store).Int("epoch") < 0 {
				return nil, contract.NoStore(db.Store)
			}
			db.ID = rows[0]["id"]
		}
	}
	return f, nil
}

// asked tells whether a question was answered, perhaps by no row.
func (f *Facts) asked(q Question) bool {
	_, ok := f.Answers[q]
	return ok
}

// one is the first row of an answer, or an empty one.
func (f *Facts) one(q Question) Row {
	if rows := f.Answers[q]; len(rows) > 0 {
		return rows[0]
	}
	return Row{}
}

// setting is the value of a setting, "" if the database has none of the name.
func (f *Facts) setting(name string) string {
	value, _ := f.settingFrom(name)
	return value
}

func (f *Facts) settingFrom(name string) (value, source string) {
	for _, row := range f.Answers[Settings] {
		if row["name"] == name {
			return row["value"], row["source"]
		}
	}
	return "", ""
}

// on tells whether a setting is on.
func (f *Facts) on(name string) bool { return Row{"value": f.setting(name)}.Bool("value") }

// Querier runs statements: a *[sql.DB], *[sql.Conn] or *[sql.Tx].
type Querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// ReadRows runs a statement and reads its rows.
func ReadRows(ctx context.Context, q Querier, text string, args ...any) ([]Row, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var all []Row
	values, targets := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		targets[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		row := Row{}
		for i, v := range values {
			switch v := v.(type) {
			case nil:
			case []byte:
				row[names[i]] = string(v)
			default:
				row[names[i]] = fmt.Sprint(v)
			}
		}
		all = append(all, row)
	}
	return all, rows.Err()
}
