package database

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func inspected(d dbtest.DB) Config {
	return Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Timeout: time.Minute}
}

func examine(t *testing.T, d dbtest.DB, o inspect.Options) *inspect.Report {
	t.Helper()
	r, err := Examine(t.Context(), inspected(d), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// filled opens a store in which there is some of everything: keys, history that is compacted and
// swept, a transaction that is newer than that, an expiry, and a fence.
func filled(t *testing.T, d dbtest.DB) *Store {
	t.Helper()
	store := openDatabase(t, d, noCompaction)
	many(t, store, "/registry/pods/ns/", 30, 10)
	engine := pods(t, store)
	if _, err := store.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	indexed, err := engine.ChangeIndexes(t.Context(), func(x *contract.Indexes) (bool, error) {
		d := contract.Directory{Path: podsHere, Resource: "pods"}
		return true, errors.Join(x.Add(d, "label:app"), x.Add(d, "created"))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "db", "web"} {
		app, created := indexed.All[0].ID, indexed.All[1].ID
		commit(t, engine, contract.Mutation{Key: podKey("indexed"), Expect: contract.Any, Value: []byte(name),
			Known: indexed, Found: []contract.Entry{contract.ExistsEntry(app),
				contract.ValueEntry(app, name), contract.ValueEntry(created, "2026"+name)},
			By: &contract.User{Name: "alice", AuditID: name}})
	}
	create(t, engine, "old")
	change(t, engine, "old", "new")
	compacted := change(t, engine, "old", "newest")
	remove(t, engine, "old")
	if err := store.Compact(t.Context(), int64(compacted)); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []contract.Key{"/registry/pods/ns/t", "/registry/example.com/widgets/"} {
		if _, err := store.mvcc.Transact(t.Context(), []contract.Mutation{
			{Key: prefix + "1", Value: []byte("1")}, {Key: prefix + "2", Value: []byte("2")},
			{Key: prefix + "3", Value: []byte("3")}}); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, store.mvcc, contract.Mutation{Key: "/registry/events/ns/e", Value: []byte("e"),
		TTL: time.Hour})
	return store
}

// durable opens a database that keeps its commits over a crash.
func durable(t *testing.T, kind dbtest.Kind, opts dbserver.Options) dbtest.DB {
	t.Helper()
	if kind == dbtest.SQLite {
		return dbtest.Open(t, kind)
	}
	return dbtest.NewServer(t, kind, opts).Open()
}

// healthy are the settings of a server in which there is nothing to find.
func healthy(kind dbtest.Kind) dbserver.Options {
	if kind == dbtest.MySQL {
		return dbserver.Options{Settings: map[string]string{"performance-schema": "ON"}}
	}
	return dbserver.Options{}
}

// TestHealthy: nothing is found in a database that is in order, and nothing in it is changed.
func TestHealthy(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			d := durable(t, kind, healthy(kind))
			store := filled(t, d)
			r := examine(t, d, inspect.Options{PieceRows: 3})
			for _, f := range r.Findings {
				if f.Check != "disk" { // that is this machine's
					t.Errorf("found %+v", f)
				}
			}
			if !slices.Contains(r.Checked, "consistency") || len(r.Durability) == 0 {
				t.Errorf("checked %v, durability %v", r.Checked, r.Durability)
			}
			s, err := Status(t.Context(), inspected(d))
			if err != nil {
				t.Fatal(err)
			}
			head, err := store.CurrentRevision(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.Head != head || s.Epoch != 2 || s.Objects != 38 || s.Compacted != store.CompactedRevision() ||
				s.Schema != s.Newest || s.Total == nil || *s.Total < 1 || s.Live == nil ||
				time.Since(s.Written).Abs() > time.Minute {
				t.Errorf("the status is %+v, and the head %d", s, head)
			}
			if len(s.Resources) < 3 || s.Resources[0] != (inspect.Resource{Directory: "/registry/pods/",
				Objects: 34}) || s.Resources[1] != (inspect.Resource{
				Directory: "/registry/example.com/widgets/", Objects: 3}) {
				t.Errorf("the resources are %+v", s.Resources)
			}
			switch {
			case kind == dbtest.SQLite && s.Servers != nil:
				t.Errorf("SQLite knows of %+v", s.Servers)
			case kind != dbtest.SQLite && (len(s.Servers) == 0 || s.Servers[0].Connections < 1):
				t.Errorf("the servers are %+v", s.Servers)
			}
			for _, v := range []any{r, s, r.Redacted(), s.Redacted()} {
				text, err := json.Marshal(v)
				if err != nil || strings.Contains(string(text), "letmein") {
					t.Errorf("%v; there is a password in %s", err, text)
				}
			}
			text, err := json.Marshal([]any{r.Redacted(), s.Redacted()})
			u, parseErr := url.Parse(d.URL)
			if err != nil || parseErr != nil || strings.Contains(string(text), u.Path) ||
				u.Host != "" && strings.Contains(string(text), u.Host) ||
				strings.Contains(string(text), "widgets") {
				t.Errorf("%v, %v; there is a name in %s", err, parseErr, text)
			}
		})
	}
}

// TestInspectionChangesNothing looks at a database that no server uses. A server that opens it
// afterwards goes on in the same history.
func TestInspectionChangesNothing(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := filled(t, d)
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		before := content(t, d)
		examine(t, d, inspect.Options{PieceRows: 3})
		status, err := Status(t.Context(), inspected(d))
		if err != nil {
			t.Fatal(err)
		}
		if after := content(t, d); after != before {
			t.Errorf("what was %s is %s", before, after)
		}
		again := openDatabase(t, d, noCompaction)
		head, err := again.CurrentRevision(t.Context())
		if err != nil || head != status.Head {
			t.Errorf("the head was %d, and is %d (%v)", status.Head, head, err)
		}
	})
}

// content stands for all that a database holds: of SQLite the bytes of its files.
func content(t *testing.T, d dbtest.DB) string {
	t.Helper()
	if d.Kind == dbtest.SQLite {
		sum := ""
		u, err := url.Parse(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{u.Path, u.Path + "-wal"} {
			data, err := os.ReadFile(name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			sum += fmt.Sprintf("%x ", sha256.Sum256(data))
		}
		return sum
	}
	db, all := openSQL(t, d), ""
	for _, query := range []string{"SELECT * FROM rowkeeper_store ORDER BY id",
		"SELECT revision, token FROM rowkeeper_log ORDER BY revision", "SELECT revision FROM rowkeeper_live ORDER BY revision"} {
		rows, err := inspect.ReadRows(t.Context(), db, query)
		if err != nil {
			t.Fatal(err)
		}
		all += fmt.Sprint(rows)
	}
	return all
}

// spoilt is a database in which something is not as it should be.
type spoilt struct {
	// findings are what has to be found.
	findings []string
	kinds    []dbtest.Kind
	// sql spoils the database, in each of whose statements %s stands for its name.
	sql []string
	// url is a parameter of the URL.
	url string
	// repaired: a repair mends it.
	repaired bool
}

var (
	servers = []dbtest.Kind{dbtest.Postgres, dbtest.MariaDB, dbtest.MySQL}
	lite    = []dbtest.Kind{dbtest.SQLite}
	pg      = []dbtest.Kind{dbtest.Postgres}
	my      = []dbtest.Kind{dbtest.MariaDB, dbtest.MySQL}
)

// damages are of the tables. They do not hide each other. In SQLite each has a database of its own.
var damages = []spoilt{
	{findings: []string{"live-beyond-head"},
		sql: []string{"UPDATE rowkeeper_live SET revision = revision + 1000000000 WHERE expiry IS NOT NULL"}},
	{findings: []string{"live-without-log"}, sql: []string{"DELETE FROM rowkeeper_log WHERE revision = 2"}},
	{findings: []string{"live-other-row"},
		sql: []string{"UPDATE rowkeeper_live SET revision = 3 WHERE revision = 4"}},
	{findings: []string{"live-differs"},
		sql: []string{"UPDATE rowkeeper_live SET version = version + 1 WHERE revision > 4"}},
	{findings: []string{"revision-missing"}, sql: []string{"UPDATE rowkeeper_log SET revision = revision + 5 " +
		"WHERE revision = (SELECT r FROM (SELECT MAX(revision) AS r FROM rowkeeper_log) m)"}},
	{findings: []string{"log-backwards"},
		sql: []string{"UPDATE rowkeeper_log SET prev_revision = revision WHERE revision = 5"}},
	{findings: []string{"parts-missing"}, sql: []string{"DELETE FROM rowkeeper_log WHERE revision = " +
		"(SELECT r FROM (SELECT MIN(revision) AS r FROM rowkeeper_log) m)"}},
	{findings: []string{"part-alone"}, sql: []string{"DELETE FROM rowkeeper_log WHERE revision = " +
		"(SELECT r FROM (SELECT (-MAX(revision)) {div} 512 AS r FROM rowkeeper_log WHERE revision < 0) m)"}},
	{findings: []string{"part-beyond-head"}, sql: []string{"UPDATE rowkeeper_log SET revision = revision - 512000 " +
		"WHERE revision = (SELECT r FROM (SELECT MIN(revision) AS r FROM rowkeeper_log) m)"}},
	{findings: []string{"user-alone"}, sql: []string{"UPDATE rowkeeper_user SET revision = revision + 1000000007"}},
	{findings: []string{"index-row-missing"}, sql: []string{"DELETE FROM rowkeeper_index WHERE entry = " +
		"(SELECT e FROM (SELECT entry AS e FROM rowkeeper_index ORDER BY entry LIMIT 1) m)"}},
	{findings: []string{"index-row-alone"}, sql: []string{"UPDATE rowkeeper_live SET entries = NULL " +
		"WHERE revision = (SELECT r FROM (SELECT MIN(revision) AS r FROM rowkeeper_live WHERE entries IS NOT NULL) m)"}},
	{findings: []string{"boundary-beyond-head"}, sql: []string{"UPDATE rowkeeper_store SET swept = compacted + 1"}},
	{findings: []string{"schema-new"}, sql: []string{"INSERT INTO rowkeeper_schema (version_id, is_applied, tstamp) " +
		"SELECT 99, is_applied, tstamp FROM rowkeeper_schema WHERE version_id = 1"}},
}

// others are spoilt in a way of their kind.
var others = []spoilt{
	{findings: []string{"index-missing", "index-different"}, kinds: lite, repaired: true, sql: []string{
		"DROP INDEX rowkeeper_live_expiry", "DROP INDEX rowkeeper_lease_expiry",
		"CREATE INDEX rowkeeper_lease_expiry ON rowkeeper_lease (ttl)"}},
	// The program that wrote the index was another one, or the disk has lost a page.
	{findings: []string{"index-damaged"}, kinds: lite, repaired: true, sql: []string{
		"PRAGMA writable_schema = ON", "UPDATE sqlite_schema SET sql = " +
			"'CREATE INDEX rowkeeper_live_expiry ON rowkeeper_live (expiry) WHERE expiry IS NULL' " +
			"WHERE name = 'rowkeeper_live_expiry'"}},
	{findings: []string{"log-lost"}, kinds: lite, sql: []string{"PRAGMA user_version = 3"}},
	{findings: []string{"durability-synchronous"}, kinds: lite, url: "synchronous=OFF"},
	{findings: []string{"journal-mode"}, kinds: lite, sql: []string{"PRAGMA journal_mode = DELETE"}},

	{findings: []string{"index-missing", "index-different", "index-invalid"}, kinds: pg, repaired: true,
		sql: []string{"DROP INDEX rowkeeper_live_expiry", "DROP INDEX rowkeeper_lease_expiry",
			"CREATE INDEX rowkeeper_lease_expiry ON rowkeeper_lease (ttl)", "UPDATE pg_index " +
				"SET indisvalid = false WHERE indexrelid = 'rowkeeper_lease_pkey'::regclass"}},
	{findings: []string{"index-missing", "revision-twice"}, kinds: pg, sql: []string{
		"ALTER TABLE rowkeeper_log DROP CONSTRAINT rowkeeper_log_pkey",
		"INSERT INTO rowkeeper_log SELECT * FROM rowkeeper_log WHERE revision > 0"}},
	// The tests' servers do not wait for the disk.
	{findings: []string{"durability-fsync", "durability-full_page_writes", "durability-synchronous_commit",
		"read-only", "time-limit", "isolation", "pooler", "autovacuum-off"}, kinds: pg,
		url: "prepared_statements=false", sql: []string{"ALTER DATABASE %s SET statement_timeout = '40s'",
			"ALTER DATABASE %s SET default_transaction_isolation = 'serializable'",
			"ALTER TABLE rowkeeper_log SET (autovacuum_enabled = off)",
			"ALTER DATABASE %s SET default_transaction_read_only = on"}},

	{findings: []string{"index-missing", "index-different", "durability-innodb_flush_log_at_trx_commit",
		"durability-innodb_doublewrite"}, kinds: my, repaired: true, sql: []string{
		"DROP INDEX rowkeeper_live_expiry ON rowkeeper_live", "ALTER TABLE rowkeeper_lease " +
			"DROP INDEX rowkeeper_lease_expiry, ADD INDEX rowkeeper_lease_expiry (store, ttl)"}},
	{findings: []string{"index-invalid"}, kinds: []dbtest.Kind{dbtest.MariaDB}, repaired: true,
		sql: []string{"ALTER TABLE rowkeeper_live ALTER INDEX rowkeeper_live_expiry IGNORED"}},
	{findings: []string{"index-invalid"}, kinds: []dbtest.Kind{dbtest.MySQL}, repaired: true,
		sql: []string{"ALTER TABLE rowkeeper_live ALTER INDEX rowkeeper_live_expiry INVISIBLE"}},
}

// TestSpoilt spoils databases, and looks for the findings that name what was done.
func TestSpoilt(t *testing.T) {
	all := slices.Clone(others)
	if dbtest.OnTiDB(dbtest.MySQL) {
		all = append(all, spoilt{findings: []string{"head-differs"}, kinds: []dbtest.Kind{dbtest.MySQL},
			sql: []string{"UPDATE rowkeeper_store SET head = head - 1"}})
	}
	together := spoilt{kinds: servers}
	for _, s := range damages {
		together.findings = append(together.findings, s.findings...)
		together.sql = append(together.sql, s.sql...)
		s.kinds = lite
		all = append(all, s)
	}
	for _, s := range append(all, together) {
		for _, kind := range s.kinds {
			t.Run(string(kind)+"/"+s.findings[0], func(t *testing.T) {
				if slices.Contains(s.findings, "index-different") {
					dbtest.NotOnTiDB(t, kind, "it replaces no index in one statement")
				}
				d := dbtest.Open(t, kind)
				store := filled(t, d)
				// A server would compare what it has seen with what is spoilt.
				if err := store.Close(); err != nil {
					t.Fatal(err)
				}
				u, err := url.Parse(d.URL)
				if err != nil {
					t.Fatal(err)
				}
				spoil(t, d, strings.TrimPrefix(u.Path, "/"), s.sql)
				if name, value, ok := strings.Cut(s.url, "="); ok {
					q := u.Query()
					q.Set(name, value)
					u.RawQuery = q.Encode()
					d.URL = u.String()
				}
				r := examine(t, d, inspect.Options{PieceRows: 3})
				for _, name := range s.findings {
					i := slices.IndexFunc(r.Findings, func(f inspect.Finding) bool { return f.Name == name })
					if i < 0 {
						t.Errorf("no %s; found %+v; unseen %+v", name, r.Findings, r.Unseen)
					} else if f := r.Findings[i]; f.Says == "" || f.Means == "" || f.Mend == "" || f.Check == "" {
						t.Errorf("the finding is %+v", f)
					}
				}
				if !s.repaired {
					return
				}
				r = examine(t, d, inspect.Options{Repair: true})
				if len(r.Repaired) == 0 || slices.ContainsFunc(r.Findings, func(f inspect.Finding) bool {
					return f.Check == "indexes" || f.Check == "consistency"
				}) {
					t.Errorf("repaired %q, and found %+v", r.Repaired, r.Findings)
				}
			})
		}
	}
}

// spoil runs statements on one connection.
func spoil(t *testing.T, d dbtest.DB, name string, statements []string) {
	t.Helper()
	conn, err := openSQL(t, d).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	div := "/"
	if slices.Contains(my, d.Kind) {
		div = "DIV"
	}
	words := strings.NewReplacer("{div}", div, "%s", name)
	for _, statement := range statements {
		if _, err := conn.ExecContext(t.Context(), words.Replace(statement)); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// TestSpoiltByOthers: what other sessions do is found, and whose they are.
func TestSpoiltByOthers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		filled(t, d)
		tx, err := openSQL(t, d).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(t.Context(),
			"UPDATE rowkeeper_live SET lease = lease WHERE revision > 0"); err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"long-transaction"}
		if d.Kind == dbtest.Postgres {
			if _, err := tx.ExecContext(t.Context(), "LOCK TABLE rowkeeper_aborted IN SHARE MODE"); err != nil {
				t.Fatal(err)
			}
			names = append(names, "foreign-lock")
		}
		for _, name := range names {
			var r *inspect.Report
			eventually(t, name, func() bool {
				r = examine(t, d, inspect.Options{Quick: true, LongTransaction: time.Nanosecond})
				return slices.ContainsFunc(r.Findings, func(f inspect.Finding) bool {
					return f.Name == name && strings.Contains(f.Who, u.User.Username())
				})
			})
		}
	}, servers...)
}

// TestSpoiltRights: a role that lacks a right is told the command that grants it, and what the role
// does not see is said.
func TestSpoiltRights(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		filled(t, d)
		u, err := url.Parse(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(u.Path, "/")
		role := name + "_r"
		if d.Kind == dbtest.Postgres {
			spoil(t, d, name, []string{"CREATE ROLE " + role + " LOGIN PASSWORD 'role-s3cret'",
				"GRANT SELECT ON ALL TABLES IN SCHEMA public TO " + role})
			defer spoil(t, d, name, []string{"DROP OWNED BY " + role, "DROP ROLE " + role})
		} else {
			spoil(t, d, name, []string{"CREATE USER '" + role + "'@'%' IDENTIFIED BY 'role-s3cret'",
				"GRANT SELECT ON " + name + ".* TO '" + role + "'@'%'"})
			defer spoil(t, d, name, []string{"DROP USER '" + role + "'@'%'"})
		}
		u.User = url.UserPassword(role, "role-s3cret")
		d.URL = u.String()
		r := examine(t, d, inspect.Options{PieceRows: 3})
		i := slices.IndexFunc(r.Findings, func(f inspect.Finding) bool { return f.Name == "right-missing" })
		if i < 0 || !strings.Contains(r.Findings[i].Mend, "GRANT INSERT ON rowkeeper_log TO ") ||
			!strings.Contains(r.Findings[i].Mend, role) {
			t.Errorf("found %+v", r.Findings)
		}
		if !slices.ContainsFunc(r.Unseen, func(u inspect.Unseen) bool { return strings.Contains(u.What, "sessions") }) {
			t.Errorf("unseen %+v", r.Unseen)
		}
		text, err := json.Marshal(r)
		if err != nil || strings.Contains(string(text), "role-s3cret") {
			t.Errorf("%v; there is a password in %s", err, text)
		}
	}, servers...)
}
