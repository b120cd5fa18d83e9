package postgres_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// TestPlans runs every statement of the driver, in the driver's sessions, on tables with 100,000
// keys, and looks at how each row was found: with plans that were made when the tables were empty,
// with statistics and without, generic and custom.
func TestPlans(t *testing.T) {
	for _, mode := range []string{"force_generic_plan", "force_custom_plan", "unprepared"} {
		t.Run(mode, func(t *testing.T) {
			url := migrated(t)
			b := openURL(t, url)
			defer b.Close()
			admin := connect(t, url)
			err := postgres.Session(t.Context(), b, false, func(reader *pgx.Conn) error {
				return postgres.Session(t.Context(), b, true, func(writer *pgx.Conn) error {
					sessions := []explainer{{t, reader, false}, {t, writer, true}}
					for _, e := range sessions {
						if mode == "unprepared" {
							continue
						}
						exec(t, e.conn, "SET plan_cache_mode = "+mode)
						e.prepare()
						e.explain("empty tables", false)
					}
					fill(t, admin)
					if mode == "unprepared" {
						// As behind a pooler: the settings of the sessions that read are the
						// server's, and each statement is planned for its arguments.
						exec(t, admin, "ANALYZE")
						exec(t, reader, "RESET ALL", "SET enable_seqscan = on",
							"SET enable_bitmapscan = on", "SET enable_hashjoin = on",
							"SET enable_mergejoin = on", "SET plan_cache_mode = force_custom_plan")
						exec(t, writer, "SET plan_cache_mode = force_custom_plan")
						for _, e := range sessions {
							e.prepare()
							e.explain(mode, true)
						}
						return nil
					}
					for _, e := range sessions {
						e.explain("plans from when the tables were empty", true)
					}
					exec(t, admin, "ANALYZE")
					for _, e := range sessions {
						e.explain("statistics", true)
						exec(t, e.conn, "DEALLOCATE ALL")
						e.prepare()
						e.explain("plans from when the tables were full", true)
					}
					return nil
				})
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// started is when the server was started.
const started = `(date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint`

// The ids of a store of many keys and of one among a thousand stores of few. Those after it, up to
// the last one, are polled together with it.
const large, small, many = 1, 500, 500

// fill makes a store of 100,000 keys, of which the first 20,000 were updated and 500 expire,
// compacted in the middle of the updates and swept before it; and 999 stores of three keys.
func fill(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn,
		`INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value)
		 SELECT 1, 1 + n, 0, 1 + n, 1, 0, n, false, convert_to(format('k/%s', lpad(n::text, 6, '0')), 'UTF8'), decode(md5('t' || n), 'hex'), '\x76'
		 FROM generate_series(1, 100000) n`,
		`INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value)
		 SELECT 1, 100001 + n, 1 + n, 1 + n, 2, 0, 100000 + n, false, convert_to(format('k/%s', lpad(n::text, 6, '0')), 'UTF8'), decode(md5('t' || 100000 + n), 'hex'), '\x76'
		 FROM generate_series(1, 20000) n`,
		`UPDATE rowkeeper_log SET entries = ARRAY['\x0000000102'::bytea, '\x000000010261'] WHERE store = 1 AND revision % 2 = 0 AND revision > 100001`,
		`INSERT INTO rowkeeper_live (store, key, revision, create_revision, version, lease, expiry)
		 SELECT 1, convert_to(format('k/%s', lpad(n::text, 6, '0')), 'UTF8'), CASE WHEN n <= 20000 THEN 100001 + n ELSE 1 + n END, 1 + n, 1, 0,
		        CASE WHEN n % 200 = 0 THEN n END
		 FROM generate_series(1, 100000) n`,
		`UPDATE rowkeeper_live SET entries = ARRAY['\x0000000102'::bytea, '\x000000010261'] WHERE store = 1`,
		`INSERT INTO rowkeeper_index (store, entry, key) SELECT 1, unnest(entries), key FROM rowkeeper_live WHERE store = 1`,
		`UPDATE rowkeeper_live SET lease = 7, expiry = -7 WHERE store = 1 AND revision % 200 = 7`,
		`INSERT INTO rowkeeper_user (store, revision, name, audit_id) SELECT store, revision, 'alice', 'id' FROM rowkeeper_log WHERE store = 1`,
		`INSERT INTO rowkeeper_lease (store, id, ttl, expiry) SELECT 1, n, 60, n FROM generate_series(1, 100000) n`,
		`INSERT INTO rowkeeper_lease (store, id, ttl, expiry) SELECT 1 + n / 3, n, 60, n FROM generate_series(3, 2999) n`,
		`UPDATE rowkeeper_store SET compacted = 110000, swept = 100001`,
		`INSERT INTO rowkeeper_store (epoch, compacted, swept, oldest_writer, name, identity)
		 SELECT 1, 3, 2, 1, 'store-' || n, n FROM generate_series(2, 1000) n`,
		`INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value)
		 SELECT s.id, 1 + n, 0, 1 + n, 1, 0, n, false, convert_to(format('k/%s', lpad(n::text, 6, '0')), 'UTF8'), decode(md5('t' || n), 'hex'), '\x76'
		 FROM rowkeeper_store s, generate_series(1, 3) n WHERE s.id > 1`,
		`INSERT INTO rowkeeper_live (store, key, revision, create_revision, version, lease, expiry)
		 SELECT store, key, revision, create_revision, 1, 0, time FROM rowkeeper_log WHERE store > 1`,
	)
}

type explainer struct {
	*testing.T
	conn   *pgx.Conn
	writes bool
}

// arguments are those with which a statement is run, and how many rows of the tables it may look
// at.
var arguments = func() map[string]struct {
	args string
	rows float64
} {
	array := func(n int, typ string, element func(i int) string) string {
		var out []string
		for i := range n {
			out = append(out, element(i))
		}
		return "ARRAY[" + strings.Join(out, ", ") + "]::" + typ + "[]"
	}
	// A group of 30 updates, 20 deletions and 14 creations.
	const group = 64
	key := func(i int) string {
		if i >= 50 {
			return fmt.Sprintf(`'new/%d'`, i)
		}
		return fmt.Sprintf(`'k/%06d'`, 30_000+i*977)
	}
	expected := func(i int) string {
		if i >= 50 {
			return "0"
		}
		return fmt.Sprint(30_001 + i*977)
	}
	deleted := func(i int) string { return fmt.Sprint(i >= 30 && i < 50) }
	groupOf := func(lease string) string {
		return strings.Join([]string{`'\x00'`, "'{1,0}'", "ARRAY[120001::bigint]",
			`ARRAY[decode(md5('t120000'), 'hex')]`, array(group, "bytea", key),
			array(group, "bigint", expected), array(group, "boolean", deleted),
			array(group, "bytea", func(int) string { return `'\x00'` }),
			array(group, "bigint", func(int) string { return "-" + lease }),
			array(group, "boolean", deleted),
			array(group, "bigint", func(int) string { return lease })}, ", ")
	}
	// Each key of the group has two entries, of which one goes, and one comes.
	entries := array(group, "text", func(int) string { return `'{"\\x0000000102","\\x000000010262"}'` })
	users := array(group, "text", func(int) string { return `'alice'` })
	const comparing = `ARRAY['k/050000', 'none']::bytea[], ARRAY['k/051000', 'nonf']::bytea[], ` +
		`ARRAY[3, 2]::bigint[], ARRAY[3, 0]::bigint[], ARRAY[0, 0]::bigint[], ARRAY['x', '']::bytea[], true`
	// The keys of 1,000 rows, and their live rows, are looked at in the place of a large range.
	const since = `ARRAY['k/000001']::bytea[], ARRAY['k/099999']::bytea[], 119001, -60929023, `
	revisions := array(500, "bigint", func(i int) string { return fmt.Sprint(30_000 + i*101) })
	const walk = `'\x0000000102', 'k/050000', '\x0000000102', '\x0000000103', 'k/', 'l', 500`
	const back = `'\x0000000102', 'k/090000', '\x0000000102', '\x0000000102', 'k/', 'l', 500`
	const around = `'k/050000', 'k/090000'`
	return map[string]struct {
		args string
		rows float64
	}{
		"state":                  {``, 2},
		"poll":                   {``, 4 * (1 + many)},
		"tail":                   {`true, 100500, 500`, 1010},
		"get":                    {`'k/050000'`, 4},
		"get_keys":               {array(group, "bytea", key), 2 + 2*group},
		"parts":                  {`true, true, true, -1, -9223372036854775807, 500`, 2},
		"page":                   {around + `, -9223372036854775807, 9223372036854775807, 500`, 1002},
		"keys":                   {around + `, -61441023, 120001, 500`, 502},
		"replaced":               {`100500, 101000, -51456511, -51712511, -51201023, 100001, 'k/', 'l'`, 502},
		"replaced_of":            {`100500, 101000, -51456511, -51712511, -51201023, 100001, 'k/', 'l', -51461631, 100510, ARRAY['\x0000000102', '\x000000010261']::bytea[]`, 502},
		"values":                 {revisions, 502},
		"chain":                  {`100501, 'k/000500', 500`, 4},
		"changes":                {`100500, 101000, -51456511, -51712511, 'k/', 'l'`, 502},
		"users":                  {revisions, 502},
		"count":                  {`'k/050000', 'k/060000', -9223372036854775807, 9223372036854775807`, 10_002},
		"count_up_to":            {around + `, -9223372036854775807, 9223372036854775807, 10000`, 10_002},
		"expired":                {`101`, 103},
		"first_at":               {`50000`, 3},
		"leases":                 {`50000, 500`, 502},
		"lapsing":                {`0, 500`, 502},
		"attached":               {`-7, 'k/', 50`, 502},
		"attached_to":            {`ARRAY[-7, -8], 50`, 52},
		"count_leases":           {``, 100_003},
		"some_leases":            {revisions, 500},
		"put_leases":             {`ARRAY[7, 2000000], ARRAY[60, 60], ARRAY[9, 9]`, 0},
		"drop_leases":            {revisions, 1000},
		"all_leases":             {``, 100_000},
		"records":                {``, 240_002},
		"record_parts":           {``, 0},
		"import":                 {`ARRAY[200000, 200001], ARRAY[1, 2], ARRAY[0, 7], ARRAY['x', 'y']::bytea[], ARRAY['x', 'y']::bytea[], 1, '\x00', ARRAY[1, 2], ARRAY[0, 9]`, 0},
		"mark":                   {`200000, '\x00', 1, 2, 200000, 100000, 'x'`, 1},
		"record_fingerprint":     {`'x'`, 1},
		"record_boot":            {`'', 'x'`, 1},
		"identity":               {``, 3},
		"size":                   {``, 2},
		"usage":                  {``, 203_000},
		"erase":                  {`500`, 4010},
		"remove":                 {array(group, "bytea", key), 5 * group},
		"renew":                  {``, 1},
		"growth":                 {`119501, -61185023`, 1002},
		"quota":                  {``, 3},
		"set_quota":              {`1, 2`, 1},
		"home":                   {``, 3},
		"the_home":               {``, 1},
		"set_home":               {`'x'`, 1},
		"set_identity":           {`'x'`, 1},
		"directories":            {``, 1},
		"indexes":                {``, 3},
		"the_indexes":            {``, 1},
		"set_indexes":            {`1, 'x'`, 1},
		"page_of":                {around + `, -9223372036854775807, 9223372036854775807, 500, ARRAY['\x0000000102', '\x000000010261']::bytea[]`, 2503 + 3},
		"count_of":               {around + `, 1000, ARRAY['\x0000000102', '\x000000010261']::bytea[]`, 2003},
		"index_rows":             {walk, 505},
		"index_rows_back":        {back, 505},
		"reindex":                {array(group, "bytea", key) + ", " + array(group, "bigint", expected) + ", " + entries, 3 * 2 * group},
		"drop_entries":           {`'\x00000001', '\x00000002', 500`, 1000},
		"put_directory":          {`'/a/', '', 'a', '', '/a/', '/a0'`, 1},
		"everywhere":             {`'k/000001'`, 3010},
		"rowkeeper_lock":         {started, 1},
		"rowkeeper_sweep_lock":   {started, 1},
		"rowkeeper_group":        {groupOf("0"), 4 + 4*group},
		"rowkeeper_leased_group": {groupOf("77"), 4 + 5*group},
		// They compare the values of 1,000 keys.
		"rowkeeper_compared_group": {groupOf("0") + ", " + comparing + ", '{}', '{}', 0, -511, '{f,f}'",
			4 + 4*group + 2000},
		"rowkeeper_whole_group": {groupOf("0") + ", " + strings.Replace(comparing, "'k/051000'", "'k/099999'", 1) +
			", " + since + "'{t,t}'", 4 + 4*group + 2 + 1000 + 2000},
		"rowkeeper_indexed_group":        {groupOf("0") + ", " + entries, 4 + 6*group},
		"rowkeeper_leased_indexed_group": {groupOf("77") + ", " + entries, 4 + 7*group},
		"rowkeeper_compared_indexed_group": {groupOf("0") + ", " + comparing + ", '{}', '{}', 0, -511, '{f,f}', " +
			entries, 4 + 6*group + 2000},
		"rowkeeper_whole_indexed_group": {groupOf("0") + ", " + strings.Replace(comparing, "'k/051000'", "'k/099999'", 1) +
			", " + since + "'{t,t}', " + entries, 4 + 6*group + 2 + 1000 + 2000},
		// They may attach to leases.
		"rowkeeper_users_group":         {groupOf("77") + ", " + users + ", " + users, 4 + 5*group},
		"rowkeeper_users_indexed_group": {groupOf("77") + ", " + entries + ", " + users + ", " + users, 4 + 7*group},
		"find_group":                    {`'\x00', 119501`, 510},
		"abort":                         {`'\x00', 1`, 0},
		"compact":                       {`115000`, 1},
		"sweepable":                     {`501, 1, 100001`, 506},
		"rowkeeper_sweep":               {`1, ` + revisions + `, 100500, 1, true, 100001, true`, 1010},
	}
}()

func (e explainer) prepare() {
	e.Helper()
	for _, s := range postgres.Statements() {
		if s.Writes == e.writes {
			if _, err := e.conn.PgConn().Prepare(e.Context(), "test_"+s.Name, s.SQL, nil); err != nil {
				e.Fatalf("prepare %s: %v", s.Name, err)
			}
		}
	}
}

func (e explainer) explain(when string, full bool) {
	e.Helper()
	for _, s := range postgres.Statements() {
		if s.Writes != e.writes {
			continue
		}
		a, ok := arguments[s.Name]
		if !ok {
			e.Fatalf("the statement %s has no arguments in this test", s.Name)
		}
		for _, store := range []int{large, small} {
			e.check(when, s, a.args, store, a.rows, full)
		}
	}
}

// check runs a statement on a store, and looks at its plan and at how many rows it touches. In the
// small store it touches no more than in the large one.
func (e explainer) check(when string, s postgres.Statement, args string, store int, rows float64,
	full bool) {
	e.Helper()
	call := fmt.Sprintf("test_%s(%s, %d)", s.Name, args, store)
	switch {
	case s.Name == "poll":
		stores := []string{fmt.Sprint(store)}
		for n := range many {
			stores = append(stores, fmt.Sprint(501+n))
		}
		call = "test_poll(ARRAY[" + strings.Join(stores, ", ") + "], 1000)"
	case args == "":
		call = fmt.Sprintf("test_%s(%d)", s.Name, store)
	}
	plan := e.run(call)
	touched := 0.0
	for _, n := range plan.all() {
		switch {
		case when != "unprepared" && slices.Contains([]string{"Hash Join", "Merge Join", "Hash",
			"Bitmap Heap Scan"}, n.Type) && n.ours():
			e.Errorf("%s: %s: a %s", when, s.Name, n.Type)
		case n.Type == "Seq Scan" && n.ours() && !slices.Contains(tiny, n.Table) &&
			(when != "unprepared" || s.Name != "usage"): // it reads all rows of the store
			e.Errorf("%s: %s: a sequential scan of %s", when, s.Name, n.Table)
		}
		if strings.HasPrefix(n.Table, "rowkeeper_") && strings.Contains(n.Type, "Scan") {
			touched += (n.Rows + n.Removed) * n.Loops
		}
		// A walk through an index whose first column is not bound returns few rows, and reads all.
		if pages := n.Hit + n.Read; strings.HasPrefix(n.Type, "Index") && len(n.Plans) == 0 &&
			pages > 100+n.Loops*(8+6*(n.Rows+n.Removed)) {
			e.Errorf("%s: %s reads %.0f pages of %s in %.0f loops, by %s: %s", when, s.Name, pages,
				n.Table, n.Loops, n.Index, n.Cond)
		}
	}
	if full && touched > rows {
		e.Errorf("%s: %s looks at %.0f rows, want at most %.0f", when, s.Name, touched, rows)
	}
	if full && store == large && rows > 2 && touched < rows/4 {
		e.Errorf("%s: %s looks at %.0f rows only: do its arguments fit?", when, s.Name, touched)
	}
}

// TestSweepAmongDeadUsers: while somebody holds a snapshot, the users' rows that were swept are
// still in the index. A batch of the sweep, which asks whether there are users, does not read them.
func TestSweepAmongDeadUsers(t *testing.T) {
	database := migrated(t)
	conn, holder := connect(t, database), connect(t, database)
	exec(t, conn, `INSERT INTO rowkeeper_user (store, revision, name, audit_id)
		SELECT 1, n, 'alice', 'id' FROM generate_series(1, 50000) n`)
	exec(t, holder, `BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT FROM rowkeeper_store`)
	exec(t, conn, `DELETE FROM rowkeeper_user WHERE revision < 50000`,
		`SET enable_bitmapscan = off`, `SET enable_seqscan = off`)
	e := explainer{T: t, conn: conn}
	e.prepare()
	for _, s := range postgres.Statements() {
		if s.Name == "sweepable" {
			e.check("among dead users", s, arguments[s.Name].args, large, 0, false)
		}
	}
}

// tiny are tables of few rows, of which the planner may read all where it is free to.
var tiny = []string{"rowkeeper_store", "rowkeeper_aborted", "rowkeeper_resource", "rowkeeper_schema"}

// run explains an execution, and undoes it.
func (e explainer) run(call string) node {
	e.Helper()
	exec(e.T, e.conn, "BEGIN")
	defer exec(e.T, e.conn, "ROLLBACK")
	var text []byte
	if err := e.conn.QueryRow(e.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE "+
		call, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		e.Fatalf("%s: %v", call, err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		e.Fatal(err)
	}
	return plans[0].Plan
}

// node is a node of a plan.
type node struct {
	Type    string  `json:"Node Type"`
	Table   string  `json:"Relation Name"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Hit     float64 `json:"Shared Hit Blocks"`
	Read    float64 `json:"Shared Read Blocks"`
	Index   string  `json:"Index Name"`
	Cond    string  `json:"Index Cond"`
	Plans   []node
}

func (n node) all() []node {
	list := []node{n}
	for _, p := range n.Plans {
		list = append(list, p.all()...)
	}
	return list
}

// ours tells whether the node is about a table of the store, itself or below.
func (n node) ours() bool {
	return strings.HasPrefix(n.Table, "rowkeeper_") || slices.ContainsFunc(n.Plans, node.ours)
}

func exec(t testing.TB, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}
