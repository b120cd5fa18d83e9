package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// The ids of a store of many keys and of one among a thousand stores of few.
const large, small = 1, 500

// fill writes keys, each twice, without this package's help: 2*10^digits log rows. And it makes 999
// stores of three keys.
func fill(tb testing.TB, db *sql.DB) (keys int64) {
	tb.Helper()
	const digits = `(SELECT 0 n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
		UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`
	const number = `(SELECT a.n + 10*b.n + 100*c.n + 1000*d.n + 10000*e.n AS n FROM ` +
		digits + ` a, ` + digits + ` b, ` + digits + ` c, ` + digits + ` d, ` + digits + ` e)`
	exec(tb, db,
		`INSERT INTO rowkeeper_log SELECT 1, 2+n, CONCAT('/registry/', LPAD(n MOD 50000, 8, '0')), IF(n < 50000, 0, n-49998), 2 + n MOD 50000, 1, 0,
			UNHEX(LPAD(HEX(n DIV 10 + 1), 32, '0')), 1700000000000000 + n, 0, NULL, REPEAT('v', 300) FROM `+number+` numbers ORDER BY n`,
		`INSERT INTO rowkeeper_live SELECT 1, g.key, g.revision, g.create_revision, g.version, g.lease, IF(g.revision MOD 100 = 0, 4000000000000000 - g.revision, NULL), NULL
			FROM rowkeeper_log g WHERE g.store = 1 AND g.revision >= 50002`,
		`INSERT INTO rowkeeper_lease SELECT 1, 2*n+2, 60, 4000000000000000 + n FROM `+number+` numbers WHERE n < 50000`,
		`INSERT INTO rowkeeper_lease SELECT 2 + n DIV 3, n, 60, n FROM `+number+` numbers WHERE n BETWEEN 3 AND 2996`,
		`INSERT INTO rowkeeper_index SELECT 1, x'0000000102', l.key FROM rowkeeper_live l WHERE l.store = 1`,
		`INSERT INTO rowkeeper_index SELECT 1, x'000000010261', l.key FROM rowkeeper_live l WHERE l.store = 1`,
		`INSERT INTO rowkeeper_user SELECT g.store, g.revision, 'alice', 'id' FROM rowkeeper_log g WHERE g.store = 1`,
		`UPDATE rowkeeper_live SET lease = 7, expiry = -7 WHERE store = 1 AND revision MOD 500 = 7`,
		`UPDATE rowkeeper_store SET compacted = 60000, swept = 50000`,
		`INSERT INTO rowkeeper_store (id, name, identity, epoch, compacted, swept, oldest_writer)
			SELECT n, CONCAT('store-', n), n, 1, 3, 2, 1 FROM `+number+` numbers WHERE n BETWEEN 2 AND 1000`,
		`INSERT INTO rowkeeper_log SELECT s.id, 2+n, CONCAT('/registry/', LPAD(n, 8, '0')), 0, 2+n, 1, 0,
			UNHEX(LPAD(HEX(n + 1), 32, '0')), 1700000000000000 + n, 0, NULL, 'v' FROM rowkeeper_store s JOIN `+digits+` numbers WHERE s.id > 1 AND n < 3`,
		`INSERT INTO rowkeeper_live SELECT g.store, g.key, g.revision, g.create_revision, g.version, g.lease, 4000000000000000, NULL
			FROM rowkeeper_log g WHERE g.store > 1`)
	return 50_000
}

// TestPlans: no statement reads more rows than it needs, whether the server's statistics of the
// tables are those of empty ones or not.
func TestPlans(t *testing.T) {
	each(t, func(t *testing.T, db dbtest.DB) {
		dbtest.NotOnTiDB(t, db.Kind, "it tells plans in another form")
		a := admin(t, db.URL)
		c, err := a.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		exec(t, c, `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`)
		if db.Kind == dbtest.MariaDB {
			exec(t, c, `SET SESSION in_predicate_conversion_threshold = 0`)
		}
		exec(t, c, `ALTER TABLE rowkeeper_log STATS_AUTO_RECALC = 0`,
			`ALTER TABLE rowkeeper_live STATS_AUTO_RECALC = 0`,
			`ANALYZE TABLE rowkeeper_log, rowkeeper_live`)
		keys := fill(t, a)
		// The statistics of a table that grows are renewed in the background, each table's at
		// another time, and not if the server stops before.
		for _, now := range []struct {
			statistics string
			change     []string
		}{
			{"of empty tables", nil},
			{"of a log of two rows", []string{
				`UPDATE mysql.innodb_table_stats SET n_rows = 2 WHERE database_name = DATABASE() AND table_name = 'rowkeeper_log'`,
				`FLUSH TABLES rowkeeper_log`,
			}},
			{"of a log of two rows and of all keys", []string{`ANALYZE TABLE rowkeeper_live`}},
			{"of few keys and of the whole log", []string{
				`ANALYZE TABLE rowkeeper_log`,
				`UPDATE mysql.innodb_table_stats SET n_rows = 2 WHERE database_name = DATABASE() AND table_name = 'rowkeeper_live'`,
				`FLUSH TABLES rowkeeper_live`,
			}},
			{"of now", []string{`ANALYZE TABLE rowkeeper_log, rowkeeper_live`}},
		} {
			exec(t, a, now.change...)
			for _, s := range mysql.Statements(large, keys) {
				checkPlan(t, c, s, now.statistics, false)
			}
			for _, s := range mysql.Statements(small, keys) {
				checkPlan(t, c, s, now.statistics, true)
			}
		}
	})
}

// checkPlan looks at how a statement reads, and how much. Of a store of few keys it reads no more
// than of one of many.
func checkPlan(t *testing.T, c *sql.Conn, s mysql.Statement, statistics string, few bool) {
	t.Helper()
	s.SQL = strings.TrimSuffix(strings.TrimSpace(s.SQL), ";")
	plan := table(t, c, "EXPLAIN FORMAT=TRADITIONAL "+s.SQL, s.Args...)
	for _, step := range plan {
		kind, extra := step["type"], step["Extra"]
		name := step["table"]
		good := []string{"const", "eq_ref", "ref", "range", "system"}
		switch {
		// nothing to read, or a result of another step
		case name == "" || strings.HasPrefix(name, "<"):
		case name == "a": // the aborted tokens, of which there are a few
		case name == "u": // the entries of a piece
		case strings.HasPrefix(extra, "Recursive"): // the row that was found last
		case !slices.Contains(good, kind) && !strings.Contains(extra, "no matching row") &&
			!strings.Contains(extra, "Impossible"):
			t.Errorf("%s, with statistics %s, reads %s by %s: %v", s.Name, statistics, name,
				kind, plan)
		}
		// A page by an index puts together what it has found of each entry, up to the limit.
		if s.Name != "page by an index" &&
			(strings.Contains(extra, "filesort") || strings.Contains(extra, "temporary")) {
			t.Errorf("%s, with statistics %s, sorts or copies: %v", s.Name, statistics, plan)
		}
	}

	// The rows that it really reads.
	exec(t, c, "FLUSH STATUS", "START TRANSACTION")
	table(t, c, s.SQL, s.Args...)
	read := 0
	for _, counter := range table(t, c, "SHOW SESSION STATUS WHERE variable_name LIKE "+
		"'Handler_read_%'") {
		if counter["Variable_name"] == "Handler_read_rnd_deleted" ||
			counter["Variable_name"] == "Handler_read_retry" {
			continue
		}
		n, err := strconv.Atoi(counter["Value"])
		if err != nil {
			t.Fatal(err)
		}
		read += n
	}
	exec(t, c, "ROLLBACK")
	// SHOW itself reads a little, too.
	if limit := 2*s.Rows + 60; read > limit {
		t.Errorf("%s, with statistics %s, reads %d rows, more than %d: %v", s.Name, statistics,
			read, limit, plan)
	}
	if !few && s.Rows >= 257 && read < s.Rows/2 {
		t.Errorf("%s, with statistics %s, reads %d rows only, of about %d: the test does not ask "+
			"what it means to", s.Name, statistics, read, s.Rows)
	}
}

// table reads a result as text.
func table(t *testing.T, c *sql.Conn, query string, args ...any) []map[string]string {
	t.Helper()
	if len(args) > 0 {
		// As the backend's connections do, the arguments are written into the statement.
		for _, a := range args {
			text := ""
			switch a := a.(type) {
			case []byte:
				text = mysql.Literal(a)
			case string:
				text = mysql.Literal([]byte(a))
			default:
				text = fmt.Sprint(a)
			}
			query = strings.Replace(query, "?", text, 1)
		}
	}
	rows, err := c.QueryContext(context.Background(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]string
	for rows.Next() {
		values, dest := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		row := map[string]string{}
		for i, name := range names {
			row[name] = values[i].String
		}
		all = append(all, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}
