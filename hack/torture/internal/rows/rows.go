// Package rows reads the tables of a database as an administrator could, without any code of the
// product: it records the log while it is written, before compaction takes it away, and does to the
// database what scenarios ask for.
package rows

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// The annotation and the label of the objects of a run.
const (
	ValueAnnotation = "torture.rowkeeper.dev/value"
	ColourLabel     = "torture.rowkeeper.dev/colour"
)

// DB is a database.
type DB struct {
	*sql.DB
	kind   string
	prefix string
	// url, prefixOfKeys and store are what Open was given, path is the file's.
	url, prefixOfKeys, store, path string
	// The name of the column "key" has to be quoted for MySQL, and not for others.
	key string
}

// File is the file of a store in a SQLite database.
func File(database, store string) string {
	if store == "default" {
		return database
	}
	return filepath.Join(database+".stores", store+".db")
}

// Open opens a store in the database of a URL as "rowkeeper serve" takes it. Rows whose key does
// not begin with the prefix and the group are not of the run.
func Open(rawURL, prefix, store string) (*DB, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	d := &DB{kind: u.Scheme, prefix: prefix + "/ci.rowkeeper.dev/", url: rawURL,
		prefixOfKeys: prefix, store: store, path: File(u.Path, store), key: "key"}
	driver, dsn := "pgx", rawURL
	switch u.Scheme {
	case "sqlite":
		driver, dsn = "sqlite", d.path+"?_pragma=busy_timeout(10000)&_txlock=immediate"
	case "mysql":
		d.key = "`key`"
		c := mysql.NewConfig()
		c.Logger = &mysql.NopLogger{}
		c.User, c.Net, c.Addr, c.DBName = u.User.Username(), "tcp", u.Host,
			strings.TrimPrefix(u.Path, "/")
		c.Passwd, _ = u.User.Password()
		if wait := u.Query().Get("wsrep_sync_wait"); wait != "" {
			c.Params = map[string]string{"wsrep_sync_wait": wait}
		}
		c.Timeout, c.InterpolateParams = 5*time.Second, true
		connector, err := mysql.NewConnector(c)
		if err != nil {
			return nil, err
		}
		d.DB = sql.OpenDB(connector)
		return d, nil
	}
	d.DB, err = sql.Open(driver, dsn)
	return d, err
}

// arg is the placeholder of an argument.
func (d *DB) arg(n int) string {
	if strings.HasPrefix(d.kind, "postgres") {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// itself is the condition that a row of rowkeeper_store is the store's, and in that a row of
// another table is. In SQLite the file has no other.
func (d *DB) itself() string {
	if d.kind == "sqlite" {
		return "1 = 1"
	}
	return fmt.Sprintf("name = '%s'", d.store)
}

func (d *DB) in(table string) string {
	if d.kind == "sqlite" {
		return "1 = 1"
	}
	return fmt.Sprintf("%sstore = (SELECT id FROM rowkeeper_store WHERE %s)", table, d.itself())
}

// Clock reads the database's clock as the product's statements do.
func (d *DB) Clock(ctx context.Context) (time.Time, error) {
	query := "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	if strings.HasPrefix(d.kind, "postgres") {
		query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
	}
	var us int64
	err := d.QueryRowContext(ctx, query).Scan(&us)
	return time.UnixMicro(us), err
}

// Head reads the newest revision.
func (d *DB) Head(ctx context.Context) (int64, error) {
	var head int64
	err := d.QueryRowContext(ctx, "SELECT max(revision) FROM rowkeeper_log WHERE "+
		d.in("")).Scan(&head)
	return head, err
}

// Compacted reads the revision below which the history may have been removed.
func (d *DB) Compacted(ctx context.Context) (int64, error) {
	var compacted int64
	err := d.QueryRowContext(ctx, "SELECT compacted FROM rowkeeper_store WHERE "+
		d.itself()).Scan(&compacted)
	return compacted, err
}

// ExpireAll lets everything that has a time to live expire.
func (d *DB) ExpireAll(ctx context.Context) error {
	_, err := d.ExecContext(ctx, "UPDATE rowkeeper_live SET expiry = 1 WHERE expiry IS NOT NULL AND "+
		d.in(""))
	return err
}

// Expiring counts the keys that have a time to live.
func (d *DB) Expiring(ctx context.Context) (n int64, err error) {
	err = d.QueryRowContext(ctx,
		"SELECT count(*) FROM rowkeeper_live WHERE expiry IS NOT NULL AND "+d.in("")).Scan(&n)
	return n, err
}

// Leases counts the leases, and the keys that are attached to one.
func (d *DB) Leases(ctx context.Context) (n int64, err error) {
	err = d.QueryRowContext(ctx, fmt.Sprintf("SELECT (SELECT count(*) FROM rowkeeper_lease "+
		"WHERE %[1]s) + (SELECT count(*) FROM rowkeeper_live WHERE expiry < 0 AND %[1]s)",
		d.in(""))).Scan(&n)
	return n, err
}

// marker is the key of a fence's row while it is read.
const marker = "\x00"

// Log reads the rows of so many revisions at most, from one on, and tells whether there are others.
func (d *DB) Log(ctx context.Context, from int64, limit int) (rows []history.Row, more bool,
	err error) {
	read := func(which, order string, args ...any) ([]history.Row, error) {
		return d.query(ctx, fmt.Sprintf("SELECT revision, prev_revision, %s, deleted, token, time, "+
			"value FROM rowkeeper_log WHERE %s AND %s ORDER BY revision %s", d.key, d.in(""), which,
			order), args...)
	}
	last, err := read("revision >= "+d.arg(1), fmt.Sprint("LIMIT ", limit), from)
	if err != nil {
		return nil, false, err
	}
	var first, end int64
	for _, r := range last {
		if partsOf(r.Token) > 0 {
			if end = r.Revision; first == 0 {
				first = end
			}
		}
	}
	var parts []history.Row
	if first > 0 {
		// Those of earlier revisions have greater numbers, and so have earlier parts.
		if parts, err = read("revision > "+d.arg(1)+" AND revision < "+d.arg(2), "DESC",
			-(end+1)<<partBits, -first<<partBits); err != nil {
			return nil, false, err
		}
	}
	for _, r := range last {
		n := 0
		for n < len(parts) && parts[n].Revision <= r.Revision {
			n++
		}
		rows = append(append(rows, parts[:n]...), r)
		parts = parts[n:]
	}
	return rows, len(last) == limit, nil
}

// A part of the transaction at a revision has the number -(revision<<partBits + part).
const partBits = 9

// numbered returns the revision and the part of a row with a number.
func numbered(id int64) (revision int64, part int) {
	if id < 0 {
		return -id >> partBits, int(-id & (1<<partBits - 1))
	}
	return id, 0
}

// partsOf is how many parts the transaction with a token has. Its last two bytes say so.
func partsOf(token string) (n int64) {
	if len(token) > 4 {
		n, _ = strconv.ParseInt(token[len(token)-4:], 16, 32) // it is in hexadecimal digits
	}
	return n
}

// Live reads the objects that exist.
func (d *DB) Live(ctx context.Context) ([]history.Object, error) {
	rows, err := d.query(ctx,
		fmt.Sprintf("SELECT l.revision, g.prev_revision, l.%[1]s, g.deleted, g.token, g.time, g.value FROM rowkeeper_live l JOIN rowkeeper_log g ON g.revision = l.revision WHERE %[2]s AND %[3]s ORDER BY l.%[1]s", d.key, d.in("l."), d.in("g.")))
	var objects []history.Object
	for _, r := range rows {
		if r.Key != "" && r.Key != marker {
			objects = append(objects, r.Object)
		}
	}
	return objects, err
}

func (d *DB) query(ctx context.Context, query string, args ...any) ([]history.Row, error) {
	rows, err := d.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []history.Row
	for rows.Next() {
		var r history.Row
		var key, token, value []byte
		var id, prev, us int64
		if err := rows.Scan(&id, &prev, &key, &r.Deleted, &token, &us,
			&value); err != nil {
			return nil, err
		}
		r.Revision, r.Part = numbered(id)
		r.Prev, _ = numbered(prev)
		r.Time = time.UnixMicro(us)
		r.Token = hex.EncodeToString(token)
		switch name, ours := strings.CutPrefix(string(key), d.prefix); {
		case len(key) == 0:
			r.Key = marker
		case ours:
			r.Key = name
			if !r.Deleted {
				if r.Object, err = parse(value); err != nil {
					return nil, fmt.Errorf("the value of %s at %d: %w", key, r.Revision, err)
				}
				r.Object.Key, r.Object.RV = name, r.Revision
			}
		}
		found = append(found, r)
	}
	return found, rows.Err()
}

// Stored is the part of an object that the checks look at, as the API and the database encode it.
type Stored struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Image string `json:"image"`
	} `json:"spec"`
}

// Object returns what the checks look at.
func (s *Stored) Object(resource string) (history.Object, error) {
	o := history.Object{
		Key:    resource + "/" + s.Metadata.Namespace + "/" + s.Metadata.Name,
		Value:  s.Metadata.Annotations[ValueAnnotation],
		Colour: s.Metadata.Labels[ColourLabel],
		Image:  s.Spec.Image,
	}
	if s.Metadata.ResourceVersion == "" {
		return o, nil
	}
	var err error
	o.RV, err = strconv.ParseInt(s.Metadata.ResourceVersion, 10, 64)
	return o, err
}

func parse(value []byte) (history.Object, error) {
	var s Stored
	if err := json.Unmarshal(value, &s); err != nil {
		return history.Object{}, err
	}
	return s.Object("")
}
