package sqlite

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// plans has a line per statement: what SQLite must do for it, step by step. A step that walks over
// a whole table is written with its reason.
var plans = map[string]struct{ text, plan string }{
	"selectState": {selectState, headPlan},
	"selectGuard": {selectGuard, headPlan + "SCALAR SUBQUERY; SEARCH rowkeeper_log USING " +
		"INTEGER PRIMARY KEY (rowid=?); SCALAR SUBQUERY; SEARCH rowkeeper_aborted USING PRIMARY " +
		"KEY (token=?); "},
	"selectGet": {selectGet, headPlan + "SEARCH l USING PRIMARY KEY (key=?) LEFT-JOIN; " +
		"SEARCH g USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"selectKeys": {selectKeys, "SCAN a VIRTUAL TABLE INDEX 1:; " +
		"SEARCH l USING PRIMARY KEY (key=?); " +
		"SEARCH g USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"selectPage": {selectPage,
		"SEARCH l USING PRIMARY KEY (key>? AND key<?); SEARCH g USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"selectPageOfKeys": {selectPageOfKeys,
		"SEARCH rowkeeper_live USING PRIMARY KEY (key>? AND key<?); "},
	"countLive": {countLive, headPlan +
		"SCALAR SUBQUERY; SEARCH rowkeeper_live USING PRIMARY KEY (key>? AND key<?); "},
	// It scans the rows of the range.
	"countLiveUpTo": {countLiveUpTo, headPlan +
		"SCALAR SUBQUERY; CO-ROUTINE (subquery-1); SEARCH rowkeeper_live USING PRIMARY KEY (key>? AND key<?); SCAN (subquery-1); "},
	"selectReplaced": {selectReplaced, "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_log " +
		"USING INTEGER PRIMARY KEY (rowid>? AND rowid<?); UNION ALL; SEARCH rowkeeper_log USING " +
		"INTEGER PRIMARY KEY (rowid>? AND rowid<?); "},
	"selectReplacedOf": {selectReplacedOf(2), "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_log " +
		"USING INTEGER PRIMARY KEY (rowid>? AND rowid<?); UNION ALL; SEARCH rowkeeper_log USING " +
		"INTEGER PRIMARY KEY (rowid>? AND rowid<?); "},
	// It scans the parameter.
	"selectValues": {selectValues, "SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid=?); " +
		"LIST SUBQUERY; SCAN json_each VIRTUAL TABLE INDEX 1:; "},
	// It scans what it has found: the row before, and all rows at last.
	"selectChain": {selectChain, "CO-ROUTINE chain; SETUP; SEARCH rowkeeper_log USING INTEGER PRIMARY " +
		"KEY (rowid=?); RECURSIVE STEP; SCAN c; SEARCH g USING INTEGER PRIMARY KEY (rowid=?); SCAN " +
		"chain; "},
	"selectChanges": {selectChanges, "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_log " +
		"USING INTEGER PRIMARY KEY (rowid>? AND rowid<?); UNION ALL; SEARCH rowkeeper_log USING " +
		"INTEGER PRIMARY KEY (rowid>? AND rowid<?); "},
	// They scan the parameter.
	"selectUsers": {selectUsers, "SEARCH rowkeeper_user USING INTEGER PRIMARY KEY (rowid=?); " +
		"LIST SUBQUERY; SCAN json_each VIRTUAL TABLE INDEX 1:; "},
	"removeUsers": {removeUsers, "SEARCH rowkeeper_user USING INTEGER PRIMARY KEY (rowid=?); LIST SUBQUERY; " +
		"SCAN a VIRTUAL TABLE INDEX 1:; SEARCH l USING PRIMARY KEY (key=?); "},
	"insertUser":     {insertUser, ""},
	"deleteUser":     {deleteUser, "SEARCH rowkeeper_user USING INTEGER PRIMARY KEY (rowid=?); "},
	"deleteAllUsers": {deleteAllUsers, ""},
	// It scans the first rows.
	"eraseUsers": {eraseUsers, "SEARCH rowkeeper_user USING INTEGER PRIMARY KEY (rowid=?); LIST SUBQUERY; " +
		"SCAN rowkeeper_user; "},
	"selectTail": {selectTail,
		"SEARCH r USING INTEGER PRIMARY KEY (rowid>?); SEARCH p USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"selectFirstAt": {selectFirstAt,
		"SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid>?); "},
	"selectExpiring": {selectExpiring,
		"SEARCH rowkeeper_live USING INDEX rowkeeper_live_expiry (expiry>?); "},
	"selectLeases": {selectLeases,
		"SEARCH rowkeeper_lease USING INTEGER PRIMARY KEY (rowid>?); "},
	"selectLapsing": {selectLapsing,
		"SEARCH rowkeeper_lease USING INDEX rowkeeper_lease_expiry (expiry>?); "},
	"selectAttached": {selectAttached,
		"SEARCH rowkeeper_live USING INDEX rowkeeper_live_expiry (expiry=? AND key>?); "},
	// They scan the parameter, and the leases of the store.
	"selectAttachedTo": {selectAttachedTo, "SEARCH rowkeeper_live USING INDEX rowkeeper_live_expiry (expiry=?); " +
		"LIST SUBQUERY; SCAN json_each VIRTUAL TABLE INDEX 1:; "},
	"countLeases":  {countLeases, "MATERIALIZE n; SCAN rowkeeper_lease USING COVERING INDEX rowkeeper_lease_expiry; " + headPlan + "SCAN n; "},
	"selectLease":  {selectLease, "SEARCH rowkeeper_lease USING INTEGER PRIMARY KEY (rowid=?); "},
	"insertLease":  {insertLease, ""},
	"insertMarker": {insertMarker, ""},
	// They scan the parameter.
	"selectSomeLeases": {selectSomeLeases, "SEARCH rowkeeper_lease USING INTEGER PRIMARY KEY (rowid=?); " +
		"LIST SUBQUERY; SCAN json_each VIRTUAL TABLE INDEX 1:; "},
	"deleteLeases": {deleteLeases, "SEARCH rowkeeper_lease USING INTEGER PRIMARY KEY (rowid=?); " +
		"LIST SUBQUERY; SCAN json_each VIRTUAL TABLE INDEX 1:; "},
	"removeRecords": {removeRecords, "SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid=?); LIST SUBQUERY; " +
		"SCAN a VIRTUAL TABLE INDEX 1:; SEARCH l USING PRIMARY KEY (key=?); "},
	"removeKeys": {removeKeys, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); " +
		"LIST SUBQUERY; SCAN json_each VIRTUAL TABLE INDEX 1:; "},
	"selectAllLeases": {selectAllLeases, "SCAN rowkeeper_lease; "},
	"deleteAllLeases": {deleteAllLeases, ""},
	"selectLive":      {selectLive, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); "},
	"selectCompared": {selectCompared, "SEARCH l USING PRIMARY KEY (key>? AND key<?); SEARCH g " +
		"USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"selectAny": {selectAny, "SEARCH rowkeeper_live USING PRIMARY KEY (key>? AND key<?); "},
	"selectWritten": {selectWritten, "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_log " +
		"USING INTEGER PRIMARY KEY (rowid>?); UNION ALL; SEARCH rowkeeper_log USING INTEGER " +
		"PRIMARY KEY (rowid<?); "},
	"selectParts": {selectParts, "SEARCH r USING INTEGER PRIMARY KEY (rowid>? AND rowid<?); SEARCH p " +
		"USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"selectRecordParts": {selectRecordParts, "SEARCH g USING INTEGER PRIMARY KEY (rowid<?); SEARCH l " +
		"USING PRIMARY KEY (key=?); "},
	"selectOldestWriter": {selectOldestWriter, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"selectToken": {selectToken,
		"SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid=?); "},
	"selectValue": {selectValue,
		"SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid=?); "},
	"insertLog":        {insertLog, ""},
	"insertIndexedLog": {insertIndexedLog, ""},
	"insertLive":       {insertLive, ""},
	"updateLive":       {updateLive, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); "},
	"deleteLive":       {deleteLive, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); "},
	"selectGroup": {selectGroup,
		"SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid>?); "},
	"insertAborted": {insertAborted, ""},
	"updateCompacted": {updateCompacted, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"updateSwept": {updateSwept, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"selectSweep": {selectSweep, "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_aborted " +
		"USING PRIMARY KEY; SCALAR SUBQUERY; SEARCH rowkeeper_user; UNION ALL; CO-ROUTINE (subquery-5); SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid>? AND rowid<?); SCALAR SUBQUERY; SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); " +
		// It scans the rows of the batch.
		"SCALAR SUBQUERY; SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); SCAN " +
		"(subquery-5); "},
	"deleteLog":     {deleteLog, "SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid=?); "},
	"deleteAborted": {deleteAborted, "SCAN rowkeeper_aborted; "},
	"updateEpoch": {updateEpoch, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"selectIdentity": {selectIdentity, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"updateFingerprint": {updateFingerprint, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"selectBoot": {selectBoot,
		"SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"updateBoot": {updateBoot,
		"SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"selectSize": {selectSize, headPlan + "SCAN pragma_page_size VIRTUAL TABLE INDEX 0:; " +
		"SCAN pragma_page_count VIRTUAL TABLE INDEX 0:; SCAN pragma_freelist_count VIRTUAL TABLE " +
		"INDEX 0:; "},
	// It scans all keys, and the one row that was made of them.
	"selectUsage": {selectUsage, "MATERIALIZE u; SCAN l; SEARCH g USING INTEGER PRIMARY KEY " +
		"(rowid=?) LEFT-JOIN; " + headPlan + "SCAN u; "},
	"selectGrowth": {selectGrowth, "MATERIALIZE u; CO-ROUTINE g; COMPOUND QUERY; LEFT-MOST SUBQUERY; " +
		"SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid>?); UNION ALL; SEARCH rowkeeper_log " +
		// It scans what it has found.
		"USING INTEGER PRIMARY KEY (rowid<?); SCAN g; SEARCH p USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; " + headPlan + "SCAN u; "},
	"selectQuota":      {selectQuota, headPlan},
	"selectIndexes":    {selectIndexes, headPlan},
	"selectHome":       {selectHome, headPlan},
	"selectTheHome":    {selectTheHome, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"updateHome":       {updateHome, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"updateIdentity":   {updateIdentity, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"selectTheIndexes": {selectTheIndexes, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"updateIndexes":    {updateIndexes, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY (rowid=?); "},
	"selectEntries":    {selectEntries, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); "},
	"selectEntriesAt":  {selectEntriesAt, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); "},
	"updateEntries":    {updateEntries, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); "},
	"insertEntry":      {insertEntry, ""},
	"deleteEntry":      {deleteEntry, "SEARCH rowkeeper_index USING PRIMARY KEY (entry=? AND key=?); "},
	"deleteEntries": {deleteEntries, "SEARCH rowkeeper_index USING PRIMARY KEY (entry=? AND key=?); LIST " +
		"SUBQUERY; SEARCH rowkeeper_index USING PRIMARY KEY (entry>? AND entry<?); "},
	// It scans the first rows.
	"eraseEntries": {eraseEntries, "SEARCH rowkeeper_index USING PRIMARY KEY (entry=? AND key=?); LIST " +
		"SUBQUERY; SCAN rowkeeper_index; "},
	"deleteAllEntries": {deleteAllEntries, ""},
	// It sorts what the limit leaves of each entry, and merges it. It scans these rows.
	"selectPageOf": {selectPageOf(2), "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_store USING " +
		"INTEGER PRIMARY KEY (rowid=?); UNION ALL; CO-ROUTINE k; MERGE (UNION ALL); LEFT; " +
		"CO-ROUTINE (subquery-2); SEARCH i USING PRIMARY KEY (entry=? AND key>? AND key<?); SEARCH l " +
		"USING PRIMARY KEY (key=?); SCAN (subquery-2); USE TEMP B-TREE FOR ORDER BY; RIGHT; " +
		"CO-ROUTINE (subquery-4); SEARCH i USING PRIMARY KEY (entry=? AND key>? AND key<?); SEARCH l " +
		"USING PRIMARY KEY (key=?); SCAN (subquery-4); USE TEMP B-TREE FOR ORDER BY; SCAN k; SEARCH g " +
		"USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
	"countOf": {countOf(2), headPlan +
		"SCALAR SUBQUERY; CO-ROUTINE (subquery-1); SEARCH rowkeeper_index USING PRIMARY KEY (entry=? AND key>? AND key<?); SCAN (subquery-1); " +
		"SCALAR SUBQUERY; CO-ROUTINE (subquery-3); SEARCH rowkeeper_index USING PRIMARY KEY (entry=? AND key>? AND key<?); SCAN (subquery-3); "},
	// It scans what the limit leaves.
	"selectIndexRows": {selectIndexRows, "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_store USING INTEGER PRIMARY " +
		"KEY (rowid=?); UNION ALL; CO-ROUTINE (subquery-2); SEARCH rowkeeper_index USING PRIMARY KEY " +
		"((entry,key)>(?,?) AND entry<?); SCAN (subquery-2); "},
	"selectIndexRowsBack": {selectIndexRowsBack, "COMPOUND QUERY; LEFT-MOST SUBQUERY; SEARCH rowkeeper_store USING INTEGER PRIMARY " +
		"KEY (rowid=?); UNION ALL; CO-ROUTINE (subquery-2); SEARCH rowkeeper_index USING PRIMARY KEY " +
		"(entry>? AND (entry,key)<(?,?)); SCAN (subquery-2); "},
	// It scans the first keys.
	"eraseLive": {eraseLive, "SEARCH rowkeeper_live USING PRIMARY KEY (key=?); LIST SUBQUERY; " +
		"SCAN rowkeeper_live; "},
	"eraseLog": {eraseLog, "SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid=?); LIST " +
		"SUBQUERY; SEARCH rowkeeper_log USING INTEGER PRIMARY KEY (rowid<?); SCALAR SUBQUERY; " +
		"SEARCH rowkeeper_log; "},
	"eraseAborted":     {eraseAborted, ""},
	"eraseDirectories": {eraseDirectories, ""},
	// It scans the directories, one for each resource.
	"selectDirectories": {selectDirectories, "SCAN rowkeeper_resource; "},
	"insertDirectory":   {insertDirectory, ""},
	"updateName": {updateName, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"renewStore": {renewStore, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"updateQuota": {updateQuota, "SEARCH rowkeeper_store USING INTEGER PRIMARY KEY " +
		"(rowid=?); "},
	"selectPages": {selectPages, "SCAN pragma_page_count VIRTUAL TABLE INDEX 0:; SCAN " +
		"pragma_freelist_count VIRTUAL TABLE INDEX 0:; "},
	"selectOwner": {selectOwner, "SCAN pragma_application_id VIRTUAL TABLE INDEX 0:; " +
		"SCALAR SUBQUERY; SCAN sqlite_master; SCALAR SUBQUERY; SCAN sqlite_master; "},
	// It scans all rows, in the order of the rowid: an export has all.
	"selectRecords": {selectRecords, "SEARCH g USING INTEGER PRIMARY KEY (rowid>?); SEARCH l USING " +
		"PRIMARY KEY (key=?); "},
	"countAll":      {countAll, "SCAN rowkeeper_live; "},
	"deleteAllLive": {deleteAllLive, ""},
	"deleteAllLog":  {deleteAllLog, ""},
	// It scans all rows once, when the database is opened.
	"selectDamage": {selectDamage, "SCAN CONSTANT ROW; SCALAR SUBQUERY; SCAN l; SEARCH g USING " +
		"INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN; "},
}

// headPlan is the plan of the state.
const headPlan = "SEARCH s USING INTEGER PRIMARY KEY (rowid=?); SEARCH h USING INTEGER PRIMARY " +
	"KEY (rowid=?); SCALAR SUBQUERY; SEARCH rowkeeper_log; "

// TestPlans reads the plan of every statement on a log with 100,000 rows.
func TestPlans(t *testing.T) {
	url := fresh(t)
	sqlExec(t, strings.TrimPrefix(url, "sqlite://"),
		`INSERT INTO rowkeeper_log WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= 100000)
			SELECT i, CAST(printf('/registry/%06d', i) AS BLOB), 0, i, 1, 0, randomblob(16), 0, 0, NULL, x'00' FROM n`,
		`INSERT INTO rowkeeper_live SELECT key, revision, create_revision, version, lease, iif(revision % 10 = 0, revision, NULL), NULL FROM rowkeeper_log WHERE revision > 1`,
		`INSERT INTO rowkeeper_index SELECT x'0000000102', key FROM rowkeeper_live`,
		`INSERT INTO rowkeeper_user SELECT revision, 'alice', 'id' FROM rowkeeper_log WHERE revision > 1`)
	b := open(t, url).(*backend)
	defer b.Close()
	if n, _, err := b.Count(context.Background(), "/", "0", 0, 0); err != nil || n != 100_000 {
		t.Fatalf("there are %d rows, %v", n, err)
	}
	c, err := b.commits.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer b.commits.Put(c)
	for name, want := range plans {
		s, err := c.Prepare("EXPLAIN QUERY PLAN " + want.text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := ""
		for {
			row, err := s.Step()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !row {
				break
			}
			step := s.ColString(3)
			if kind, number, ok := strings.Cut(step, "SUBQUERY "); ok &&
				strings.Trim(number, "0123456789") == "" {
				step = kind + "SUBQUERY"
			}
			got += step + "; "
		}
		if got != want.plan {
			t.Errorf("%s: the plan is\n%s\nwant\n%s", name, got, want.plan)
		}
	}
}

// TestMeasuresReadNoValues: a value is measured without a look at its pages. SQLite does that where
// it is asked for the length of a column of a table, which is a flag of the step that reads it.
func TestMeasuresReadNoValues(t *testing.T) {
	const valueColumn, lengthOnly = 10, 0x40
	b := open(t, fresh(t)).(*backend)
	defer b.Close()
	c, err := b.commits.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.commits.Put(c)
	for name, text := range map[string]string{"selectUsage": selectUsage, "selectGrowth": selectGrowth} {
		s, err := c.Prepare("EXPLAIN " + text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found := 0
		for {
			row, err := s.Step()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !row {
				break
			}
			if s.ColString(1) == "Column" && s.ColInt(3) == valueColumn {
				found++
				if s.ColInt(6)&lengthOnly == 0 {
					t.Errorf("%s: step %d reads a value", name, s.ColInt(0))
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: no step measures a value", name)
		}
	}
}

// TestEveryStatementHasAPlan reads the source, so that none is forgotten.
func TestEveryStatementHasAPlan(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "statements.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	texts, pieces := map[string]string{}, map[string]bool{}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok { // it makes a statement
			texts[f.Name.Name] = "rowkeeper_"
			continue
		}
		if decl.(*ast.GenDecl).Tok != token.CONST {
			continue
		}
		for _, spec := range decl.(*ast.GenDecl).Specs {
			value := spec.(*ast.ValueSpec)
			ast.Inspect(value.Values[0], func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					texts[value.Names[0].Name] += n.Value
				case *ast.Ident:
					pieces[n.Name] = true
					texts[value.Names[0].Name] += texts[n.Name] // it stands before
				}
				return true
			})
		}
	}
	found := 0
	for name, text := range texts {
		if pieces[name] || !strings.Contains(text, "rowkeeper_") && !strings.Contains(text, "pragma_") {
			continue // a part of others, BEGIN and the like
		}
		found++
		if _, ok := plans[name]; !ok {
			t.Errorf("%s is not among the plans", name)
		}
	}
	if found != len(plans) {
		t.Errorf("there are %d statements and %d plans", found, len(plans))
	}
}
