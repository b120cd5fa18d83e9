package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

const pipelines = "/registry/ci.example.com/pipelines/"

// ask runs a statement, and returns each row as text, NULL as "-".
func ask(t testing.TB, d dbtest.DB, text string) (rows []string) {
	t.Helper()
	rows, err := asked(t.Context(), d, contract.Query{SQL: text, Timeout: time.Minute})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return rows
}

func asked(ctx context.Context, d dbtest.DB, q contract.Query) (rows []string, err error) {
	err = d.Driver.Query(ctx, d.URL, contract.DriverOptions{Logger: slog.New(slog.DiscardHandler),
		Timeout: time.Minute}, q, func(_ []string, values []any) error {
		var cells []string
		for _, v := range values {
			switch v := v.(type) {
			case nil:
				cells = append(cells, "-")
			case []byte:
				cells = append(cells, string(v))
			case time.Time:
				cells = append(cells, v.UTC().Format(time.DateTime))
			default:
				cells = append(cells, fmt.Sprint(v))
			}
		}
		if values != nil {
			rows = append(rows, strings.Join(cells, "|"))
		}
		return nil
	})
	return rows, err
}

// recorded records directories.
func recorded(t testing.TB, s *mvcc.Engine, directories ...contract.Directory) {
	t.Helper()
	if err := s.RecordDirectories(t.Context(), directories); err != nil {
		t.Fatal(err)
	}
}

// fill writes objects of all kinds. Those of the pipelines and of nodes are in directories that are
// recorded.
func fill(t testing.TB, s *mvcc.Engine) {
	t.Helper()
	recorded(t, s, contract.Directory{Path: pipelines, Group: "ci.example.com", Resource: "pipelines",
		Scope: contract.Namespaced}, contract.Directory{Path: "/registry/nodes/", Resource: "nodes",
		Scope: contract.ClusterScoped})
	put := func(key, value string) {
		t.Helper()
		commit(t, s, contract.Mutation{Key: contract.Key(key), Value: []byte(value)})
	}
	put(pipelines+"default/web", `{"metadata":{"uid":"u1","creationTimestamp":"2026-01-02T03:04:05Z",`+
		`"labels":{"team":"web"}},"spec":{"branch":"main"}}`+"\n")
	put(pipelines+"default/wide", `{"metadata":{"uid":"u2","labels":{"a":"b"}},"x":[`+
		strings.Repeat(`{"}{\"":[{}]},`, 200)+`1]}`)
	put(pipelines+"other/nul", `{"metadata":{"uid":"u3"},"a":"\u0000"}`)
	put(pipelines+"other/protobuf", "k8s\x00\n\x0f\xff\xfe")
	put(pipelines+"other/encrypted", "k8s:enc:aescbc:v1:key:\xff\x00\xfe")
	put(pipelines+"other/cut", `{"metadata":{"uid":"u4"`)
	put(pipelines+"other/deep", `{"metadata":{"uid":"u5"},"a":`+strings.Repeat(`[{"a":`, 2000)+"1"+
		strings.Repeat("}]", 2000)+"}")
	put(pipelines+"other/latin", "{\"metadata\":{\"uid\":\"u6\",\"x\":\"\xff\"}}")
	put(pipelines+"other/odd", `{"metadata":{"labels":7,"creationTimestamp":"2026-99-99T99:99:99Z"}}`)
	put(pipelines+"other/list", `[1]`)
	put(pipelines+"other/empty", "")
	put("/registry/nodes/n1", `{"metadata":{"uid":"n","creationTimestamp":7}}`)
	put("/registry/configmaps/kube-system/x", "k8s\x00")
	put("/registry/apiregistration.k8s.io/apiservices/v1.", "k8s\x00")
	put("/registry/kro.run/graphs/ns/g", `{"metadata":{"uid":"g"}}`)
	put("/registry/services/specs/default/kubernetes", "k8s\x00")
	put("/registry/services/endpoints/default/kubernetes", "k8s\x00")
	put("/registry/minions/n2", "k8s\x00")
	put("/registry/health", "")
	put("/registry/a/b/c/d", "x")
	put("foo/bar", "x")
	put("\xff\xfe/\"\\\x00'", "x")
	put(string(placementKey), "{}")
}

// objects are what the views say of fill's objects: group, resource, namespace, name, uid, whether
// the object is JSON. What is "?" depends on the database.
var objects = []string{
	"ci.example.com|pipelines|default|web|u1|json",
	"ci.example.com|pipelines|default|wide|u2|json",
	"ci.example.com|pipelines|other|nul|?|?",
	"ci.example.com|pipelines|other|protobuf|-|-",
	"ci.example.com|pipelines|other|encrypted|-|-",
	"ci.example.com|pipelines|other|cut|-|-",
	"ci.example.com|pipelines|other|deep|?|?",
	"ci.example.com|pipelines|other|latin|?|?",
	"ci.example.com|pipelines|other|odd|-|json",
	"ci.example.com|pipelines|other|list|-|-",
	"ci.example.com|pipelines|other|empty|-|-",
	"|nodes|-|n1|n|json",
	"-|configmaps|kube-system|x|-|-",
	"apiregistration.k8s.io|apiservices|-|v1.|-|-",
	"kro.run|graphs|ns|g|g|json",
	"|services|default|kubernetes|-|-",
	"|endpoints|default|kubernetes|-|-",
	"|nodes|-|n2|-|-",
	"-|-|-|/registry/health|-|-",
	"-|-|-|/registry/a/b/c/d|-|-",
	"-|-|-|foo/bar|-|-",
}

// checkObjects compares rows with objects, of which there is one more, whose key is no text.
func checkObjects(t testing.TB, what string, rows []string) {
	t.Helper()
	if len(rows) != len(objects)+1 {
		t.Errorf("%s has %d rows, want %d: %q", what, len(rows), len(objects)+1, rows)
	}
	for _, want := range objects {
		prefix := strings.TrimSuffix(want, "?|?")
		i := slices.IndexFunc(rows, func(row string) bool {
			return row == want || prefix != want && strings.HasPrefix(row, prefix)
		})
		if i < 0 {
			t.Errorf("%s has no %s: %q", what, want, rows)
		}
	}
}

// group is how the column is called, and quoted by all databases in a Query.
const described = `"group", resource, namespace, name, uid, CASE WHEN object IS NULL THEN NULL ELSE 'json' END`

func TestViews(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		s := Engine(openDatabase(t, d, mvcc.Config{}))
		fill(t, s)
		checkObjects(t, "rowkeeper_objects", ask(t, d, "SELECT "+described+" FROM rowkeeper_objects"))
		checkObjects(t, "rowkeeper_history", ask(t, d, "SELECT "+described+" FROM rowkeeper_history"))
		for what, want := range map[string][]string{
			"SELECT count(*) FROM rowkeeper_objects WHERE uid = 'u2'": {"1"},
			// What fits into all databases is the same in all columns.
			"SELECT store, created, size, directory, path FROM rowkeeper_objects WHERE name = 'web'": {
				"default|2026-01-02 03:04:05" + map[bool]string{true: ".000"}[d.Kind == dbtest.SQLite] +
					"|118|" + pipelines + "|" + pipelines + "default/web"},
			"SELECT directory, created, size, path FROM rowkeeper_objects WHERE name = 'x'": {
				"-|-|4|/registry/configmaps/kube-system/x"},
			"SELECT count(*) FROM rowkeeper_objects WHERE created IS NOT NULL AND name <> 'n1'": {"1"},
			`SELECT directory, "group", resource, scope FROM rowkeeper_resource ORDER BY directory`: {
				pipelines + "|ci.example.com|pipelines|Namespaced", "/registry/nodes/||nodes|Cluster"},
		} {
			if got := ask(t, d, what); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
	})
}

// TestViewsOfWrites: the views show revisions as clients know them, also of parts of transactions,
// and what was done.
func TestViewsOfWrites(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		s := Engine(openDatabase(t, d, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}}))
		key := contract.Key("/registry/configmaps/ns/a")
		one := commit(t, s, contract.Mutation{Key: key, Value: []byte("1"),
			By: &contract.User{Name: "jürgen", AuditID: "id"}})
		two := commit(t, s, contract.Mutation{Key: key, Expect: one, Value: []byte("22"),
			By: &contract.User{Name: "unaudited"}})
		three := commit(t, s, contract.Mutation{Key: key, Expect: two, Delete: true})
		all, err := s.Transact(t.Context(), []contract.Mutation{
			{Key: key, Value: []byte(`{"metadata":{"uid":"a"}}`)},
			{Key: "/registry/configmaps/ns/b", Value: []byte(`{"metadata":{"uid":"b"}}`)},
			{Key: "/registry/configmaps/ns/c", Value: []byte("c")}})
		if err != nil {
			t.Fatal(err)
		}
		row := func(name string, r contract.Revision, more ...string) string {
			return strings.Join(append([]string{name, fmt.Sprint(r)}, more...), "|")
		}
		want := []string{row("a", all, "a"), row("b", all, "b"), row("c", all, "-")}
		if got := ask(t, d, "SELECT name, revision, uid FROM rowkeeper_objects ORDER BY name"); !slices.Equal(got, want) {
			t.Errorf("the objects are %q, want %q", got, want)
		}
		want = []string{row("a", one, "create", "1"), row("a", two, "update", "2"),
			row("a", three, "delete", "-"), row("a", all, "create", "24"), row("b", all, "create", "24"),
			row("c", all, "create", "1")}
		if got := ask(t, d, "SELECT name, revision, verb, size FROM rowkeeper_history "+
			"ORDER BY name, revision"); !slices.Equal(got, want) {
			t.Errorf("the history is %q, want %q", got, want)
		}
		want = []string{row("a", one, "jürgen", "id"), row("a", two, "unaudited", "-"),
			row("a", three, "-", "-")}
		if got := ask(t, d, "SELECT name, revision, username, audit_id FROM rowkeeper_history "+
			"ORDER BY revision LIMIT 3"); !slices.Equal(got, want) {
			t.Errorf("the users are %q, want %q", got, want)
		}
	})
}

// TestViewsOfStores: objects are shown with the names of their stores, which have directories of
// their own, until a store is dropped.
func TestViewsOfStores(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		c := Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Migrate: true, Store: "team",
			Logger: slog.New(slog.DiscardHandler)}
		if _, err := CreateStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		other, err := Open(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		own := Engine(openDatabase(t, d, mvcc.Config{}))
		recorded(t, own, contract.Directory{Path: podsHere, Resource: "pods"})
		recorded(t, Engine(other), contract.Directory{Path: podsHere, Resource: "beans"})
		create(t, own, "mine")
		create(t, Engine(other), "theirs")
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		const what = "SELECT store, resource, namespace, name FROM rowkeeper_objects ORDER BY store"
		mine, theirs := "default|pods|ns|mine", "team|beans|ns|theirs"
		in := func(store string) (rows []string) {
			t.Helper()
			err := d.Driver.Query(t.Context(), d.URL, contract.DriverOptions{Store: store,
				Logger: c.Logger, Timeout: time.Minute}, contract.Query{SQL: what},
				func(_ []string, values []any) error {
					if values != nil {
						rows = append(rows, fmt.Sprintf("%s|%s|%s|%s", values...))
					}
					return nil
				})
			if err != nil {
				t.Fatal(err)
			}
			return rows
		}
		if d.Kind == dbtest.SQLite {
			if got := in("team"); !slices.Equal(got, []string{theirs}) {
				t.Errorf("the other file has %q", got)
			}
		} else if got := in(""); !slices.Equal(got, []string{mine, theirs}) {
			t.Errorf("both stores have %q", got)
		}
		if _, err := DropStore(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if got := in(""); !slices.Equal(got, []string{mine}) {
			t.Errorf("after the drop there is %q", got)
		}
	})
}

// TestViewPlans: a query for a directory reads the keys of the directory only, by the primary key.
func TestViewPlans(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		dbtest.NotOnTiDB(t, d.Kind, "it reads all keys of the database for a query of a view")
		store := openDatabase(t, d, mvcc.Config{})
		s := Engine(store)
		recorded(t, s, contract.Directory{Path: pipelines, Group: "ci.example.com", Resource: "pipelines"},
			contract.Directory{Path: podsHere, Resource: "pods"})
		if _, err := s.Import(t.Context(), &contract.Import{Token: contract.NewToken(),
			Records: func(each func(*contract.Record) error) error {
				for i := range 20000 {
					if err := each(&contract.Record{Key: podKey(fmt.Sprintf("%06d", i)),
						Revision: contract.Revision(i + 2), Create: 2, Version: 1, Value: []byte("{}")}); err != nil {
						return err
					}
				}
				return nil
			}}); err != nil {
			t.Fatal(err)
		}
		commit(t, s, contract.Mutation{Key: pipelines + "default/web", Value: []byte("{}")})
		for _, where := range []string{
			"store = 'default' AND directory = '" + pipelines + "'",
			`"group" = 'ci.example.com' AND resource = 'pipelines'`,
		} {
			query := "SELECT name, object FROM rowkeeper_objects WHERE " + where
			if got := ask(t, d, query); !slices.Equal(got, []string{"web|{}"}) {
				t.Errorf("%s: %q", where, got)
			}
			explain := map[dbtest.Kind]string{dbtest.SQLite: "EXPLAIN QUERY PLAN ",
				dbtest.Postgres: "EXPLAIN (COSTS OFF) ", dbtest.MariaDB: "EXPLAIN ",
				dbtest.MySQL: "EXPLAIN FORMAT=TRADITIONAL "}[d.Kind]
			plan := strings.Join(ask(t, d, explain+query), "\n")
			var ranged, scanned bool
			switch d.Kind {
			case dbtest.SQLite:
				ranged = strings.Contains(plan, "SEARCH l USING PRIMARY KEY (key>? AND key<?)")
				scanned = strings.Contains(plan, "SCAN l")
			case dbtest.Postgres:
				ranged = strings.Contains(plan, "Index Cond: ((store = r.store) AND (key >= r.first) AND (key < r.beyond))")
				scanned = strings.Contains(plan, "Seq Scan on rowkeeper_live")
			default:
				for line := range strings.Lines(plan) {
					if cells := strings.Split(line, "|"); cells[2] == "l" {
						ok := strings.Contains(line, "|range|") || strings.Contains(line, "Range checked for each record")
						ranged, scanned = ranged || ok, scanned || !ok
					}
				}
			}
			if !ranged || scanned {
				t.Errorf("the plan for %s is\n%s", where, plan)
			}
		}
	})
}

// TestQueryReads: a query can neither write nor go on for longer than it may.
func TestQueryReads(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, mvcc.Config{})
		create(t, pods(t, store), "a")
		for _, text := range []string{"WITH x AS (SELECT 1) DELETE FROM rowkeeper_live",
			"DELETE FROM rowkeeper_live", "SELECT 1; DELETE FROM rowkeeper_live",
			"EXPLAIN ANALYZE DELETE FROM rowkeeper_live",
			"WITH x AS (DELETE FROM rowkeeper_live RETURNING 1) SELECT * FROM x"} {
			_, err := asked(t.Context(), d, contract.Query{SQL: text})
			// SQLite and MySQL explain a deletion, and do not execute it.
			if err == nil && !strings.HasPrefix(text, "EXPLAIN") {
				t.Errorf("%s was executed", text)
			}
		}
		if got := ask(t, d, "SELECT name FROM rowkeeper_objects"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("there is %q", got)
		}
		long := map[dbtest.Kind]string{
			dbtest.SQLite:   "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT max(i) FROM n",
			dbtest.Postgres: "SELECT pg_sleep(60)",
			dbtest.MariaDB:  "SELECT name FROM rowkeeper_store WHERE sleep(60) = 0",
			dbtest.MySQL:    "SELECT name FROM rowkeeper_store WHERE sleep(60) = 0",
		}[d.Kind]
		began := time.Now()
		_, err := asked(t.Context(), d, contract.Query{SQL: long, Timeout: 100 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "longer than 100ms") || time.Since(began) > 50*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if _, err := asked(t.Context(), d, contract.Query{SQL: "SELECT nothing FROM nowhere"}); err == nil ||
			!strings.HasPrefix(err.Error(), "the database refuses the statement: ") {
			t.Errorf("a wrong statement: %v", err)
		}
		enough := errors.New("enough")
		err = d.Driver.Query(t.Context(), d.URL, contract.DriverOptions{Timeout: time.Minute,
			Logger: slog.New(slog.DiscardHandler)}, contract.Query{SQL: "SELECT 1 AS one"},
			func([]string, []any) error { return enough })
		if !errors.Is(err, enough) {
			t.Errorf("the caller's error is %v", err)
		}
	})
}

// execute runs statements as somebody who uses the database for something else, too.
func execute(t testing.TB, d dbtest.DB, statements ...string) {
	t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	driver, source := "pgx", d.URL
	switch u.Scheme {
	case "sqlite":
		driver, source = "sqlite", "file:"+u.Path+"?_pragma=busy_timeout(10000)"
	case "mysql":
		c := mysql.NewConfig()
		c.User, c.Net, c.Addr, c.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
		c.Passwd, _ = u.User.Password()
		driver, source = "mysql", c.FormatDSN()
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// queries are the blocks of SQL of a page.
var queries = regexp.MustCompile("(?s)\n```sql\n(.*?)```\n")

// TestDocumentedQueries runs what the page on SQL says.
func TestDocumentedQueries(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		s := Engine(openDatabase(t, d, mvcc.Config{}))
		fill(t, s)
		execute(t, d, "CREATE TABLE teams (namespace VARCHAR(63), owner VARCHAR(63))",
			"INSERT INTO teams VALUES ('default', 'Ada'), ('none', 'Bob')")
		kind := string(d.Kind)
		if d.Kind == dbtest.MariaDB {
			kind = string(dbtest.MySQL)
		}
		ran := 0
		for _, block := range queries.FindAllSubmatch(page, -1) {
			query := string(block[1])
			if strings.Contains(query, "GRANT") ||
				strings.HasPrefix(query, "-- ") && !strings.HasPrefix(query, "-- "+kind+"\n") {
				continue
			}
			ran++
			rows := ask(t, d, query)
			want, contains := 0, ""
			switch {
			case strings.Contains(query, "GROUP BY store, namespace"):
				want, contains = 5, "default|other|9"
			case strings.Contains(query, "ORDER BY size"):
				want, contains = 10, "default|pipelines|other|deep|"
			case strings.Contains(query, "ORDER BY time"):
				want, contains = len(objects)+1, "|create|pipelines|default|web"
			case strings.Contains(query, "teams"):
				want, contains = 1, "Ada|default|4"
			case strings.Contains(query, "branch"):
				want, contains = 1, "default|web|main"
			}
			if len(rows) != want || !slices.ContainsFunc(rows, func(row string) bool {
				return strings.Contains(row, contains)
			}) {
				t.Errorf("%s\nreturns %d rows, want %d with %s: %q", query, len(rows), want, contains, rows)
			}
		}
		if ran != 5 {
			t.Errorf("%d examples were run", ran)
		}
	})
}
