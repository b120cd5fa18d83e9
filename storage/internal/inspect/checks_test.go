package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// settings makes an answer of names and values.
func settings(pairs ...string) (rows []Row) {
	for i := 0; i < len(pairs); i += 2 {
		name, source, _ := strings.Cut(pairs[i], "@")
		rows = append(rows, Row{"name": name, "value": pairs[i+1], "source": source})
	}
	return rows
}

// clock is a time at which the database and this program agree.
var clock = time.UnixMicro(1_800_000_000_000_000)

// TestJudges: each judgement finds what it is for, and nothing else.
func TestJudges(t *testing.T) {
	at := func(d time.Duration) Row { return Row{"now": fmt.Sprint(clock.Add(d).UnixMicro())} }
	index := Row{"table": "t", "name": "i", "columns": "a,b", "unique": "false", "valid": "true"}
	without := func(row Row, column, value string) Row {
		c := Row{}
		for k, v := range row {
			c[k] = v
		}
		c[column] = value
		return c
	}
	for _, tc := range []struct {
		name  string
		judge func(*Facts) []Finding
		kind  string
		// answers has the question and the rows.
		question Question
		rows     []Row
		change   func(*Facts)
		// want are the findings, with their severities.
		want string
	}{
		{name: "the newest schema", judge: judgeVersion, question: Schema, rows: []Row{{"version": "3"}}},
		{name: "an old schema", judge: judgeVersion, question: Schema, rows: []Row{{"version": "2"}},
			want: "error schema-old"},
		{name: "a newer schema that may be used", judge: judgeVersion, question: Schema,
			rows: []Row{{"version": "4"}}, change: func(f *Facts) {
				f.Answers[Store] = []Row{{"oldest_writer": "3"}}
			}, want: "note schema-new"},
		{name: "a newer schema that may not", judge: judgeVersion, question: Schema,
			rows: []Row{{"version": "4"}}, change: func(f *Facts) {
				f.Answers[Store] = []Row{{"oldest_writer": "4"}}
			}, want: "error schema-new"},
		{name: "a standby", judge: judgeVersion, question: Server, rows: []Row{{"standby": "true"}},
			change: func(f *Facts) { f.Newest = 0 }, want: "error standby"},
		{name: "rights", judge: judgeRights, question: Rights,
			rows: []Row{{"privilege": "INSERT", "name": "t"}, {"privilege": "DELETE", "name": "t"}},
			want: "error right-missing"},
		{name: "no rights are missing", judge: judgeRights, question: Rights},

		{name: "strict PostgreSQL", judge: judgeDurability, kind: "postgres", question: Settings,
			rows: settings("fsync", "on", "full_page_writes", "on", "synchronous_commit", "on")},
		{name: "PostgreSQL without fsync", judge: judgeDurability, kind: "postgres", question: Settings,
			rows: settings("fsync", "off", "full_page_writes", "off", "synchronous_commit", "off"),
			want: "error durability-fsync, error durability-full_page_writes, note durability-synchronous_commit"},
		{name: "a standby that only writes", judge: judgeDurability, kind: "postgres", question: Settings,
			rows: settings("fsync", "on", "full_page_writes", "on", "synchronous_commit", "remote_write",
				"synchronous_standby_names", "s1"), want: "warning durability-synchronous_commit"},
		{name: "an asynchronous standby", judge: judgeDurability, kind: "postgres", question: Settings,
			rows:   settings("fsync", "on", "full_page_writes", "on", "synchronous_commit", "on"),
			change: func(f *Facts) { f.Answers[Replication] = []Row{{"name": "s", "slot": "true"}, {"name": "s"}} },
			want:   "note durability-synchronous_standby_names"},
		{name: "strict MySQL", judge: judgeDurability, kind: "mysql", question: Settings,
			rows: settings("innodb_flush_log_at_trx_commit", "1", "log_bin", "ON", "sync_binlog", "1",
				"innodb_doublewrite", "ON", "innodb_flush_method", "O_DIRECT")},
		{name: "relaxed MySQL", judge: judgeDurability, kind: "mysql", question: Settings,
			rows: settings("innodb_flush_log_at_trx_commit", "2", "log_bin", "1", "sync_binlog", "0",
				"innodb_doublewrite", "OFF", "innodb_flush_method", "nosync"),
			want: "warning durability-innodb_flush_log_at_trx_commit, warning durability-sync_binlog, " +
				"error durability-innodb_doublewrite, error durability-innodb_flush_method"},
		{name: "an asynchronous replica", judge: judgeDurability, kind: "mysql", question: Settings,
			rows:   settings("innodb_flush_log_at_trx_commit", "1"),
			change: func(f *Facts) { f.Answers[Replication] = []Row{{"name": "r"}} },
			want:   "note durability-semi-synchronous replication"},
		{name: "a semi-synchronous replica", judge: judgeDurability, kind: "mysql", question: Settings,
			rows:   settings("innodb_flush_log_at_trx_commit", "1", "Rpl_semi_sync_source_status", "ON"),
			change: func(f *Facts) { f.Answers[Replication] = []Row{{"name": "r"}} }},
		{name: "SQLite FULL", judge: judgeDurability, kind: "sqlite", question: Settings,
			rows: settings("synchronous", "FULL")},
		{name: "SQLite NORMAL", judge: judgeDurability, kind: "sqlite", question: Settings,
			rows: settings("synchronous", "NORMAL"), want: "warning durability-synchronous"},
		{name: "SQLite OFF", judge: judgeDurability, kind: "sqlite", question: Settings,
			rows: settings("synchronous", "OFF"), want: "error durability-synchronous"},
		{name: "unseen settings", judge: judgeDurability, kind: "sqlite", question: Disk},

		{name: "PostgreSQL's defaults", judge: judgeSettings, kind: "postgres", question: Settings,
			rows: settings("default_transaction_read_only", "off", "statement_timeout", "0",
				"default_transaction_isolation", "read committed")},
		{name: "set for the database", judge: judgeSettings, kind: "postgres", question: Settings,
			rows: settings("default_transaction_read_only@database", "on", "statement_timeout@user", "5000",
				"default_transaction_isolation@database", "serializable"),
			want: "error read-only, note time-limit, note isolation"},
		{name: "a time limit behind a pooler", judge: judgeSettings, kind: "postgres", question: Settings,
			rows: settings("statement_timeout@user", "5000"), change: func(f *Facts) { f.Pooler = true },
			want: "warning time-limit"},
		{name: "MySQL's limits", judge: judgeSettings, kind: "mysql", question: Settings,
			rows: settings("read_only", "ON", "max_statement_time", "10.000000", "wait_timeout", "30"),
			want: "error read-only, note time-limit, warning wait-timeout"},
		{name: "MySQL's defaults", judge: judgeSettings, kind: "mysql", question: Settings,
			rows: settings("read_only", "OFF", "max_statement_time", "0.000000", "wait_timeout", "28800")},
		{name: "journal mode", judge: judgeSettings, kind: "sqlite", question: Settings,
			rows: settings("journal_mode", "delete"), want: "error journal-mode"},
		{name: "WAL mode", judge: judgeSettings, kind: "sqlite", question: Settings,
			rows: settings("journal_mode", "wal")},

		{name: "no pooler", judge: judgePooler, question: Server, rows: []Row{{"backend": "7", "told": "7"}}},
		{name: "a pooler", judge: judgePooler, question: Server, rows: []Row{{"backend": "7", "told": "8"}},
			want: "warning pooler"},
		{name: "a pooler that is known", judge: judgePooler, question: Server,
			rows: []Row{{"backend": "7", "told": "8"}}, change: func(f *Facts) { f.Pooler = true }},
		{name: "a pooler that is not there", judge: judgePooler, question: Server,
			rows: []Row{{"backend": "7", "told": "7"}}, change: func(f *Facts) { f.Pooler = true },
			want: "note pooler"},

		{name: "a standby is missing", judge: judgeReplication, question: Replication,
			rows: []Row{{"name": "s", "sync": "async"}}, change: func(f *Facts) {
				f.Answers[Settings] = settings("synchronous_standby_names", "s1", "synchronous_commit", "on")
			}, want: "error standby-missing"},
		{name: "a standby is there", judge: judgeReplication, question: Replication,
			rows: []Row{{"name": "s", "sync": "quorum"}}, change: func(f *Facts) {
				f.Answers[Settings] = settings("synchronous_standby_names", "s1", "synchronous_commit", "on")
			}},
		{name: "slots", judge: judgeReplication, question: Replication, rows: []Row{
			{"name": "a", "slot": "true", "state": "active", "behind": "99999999999"},
			{"name": "b", "slot": "true", "state": "inactive", "behind": "1"},
			{"name": "c", "slot": "true", "state": "inactive", "behind": "99999999999"},
		}, want: "note slot-inactive, warning slot-inactive"},
		{name: "no majority", judge: judgeReplication, question: Settings,
			rows: settings("wsrep_cluster_status", "non-Primary"), want: "error quorum-missing"},
		{name: "a majority", judge: judgeReplication, question: Settings,
			rows: settings("wsrep_cluster_status", "Primary")},

		{name: "autovacuum is off", judge: judgeVacuum, kind: "postgres", question: Settings,
			rows: settings("autovacuum", "off", "track_counts", "on"), want: "error autovacuum-off"},
		{name: "tables", judge: judgeVacuum, kind: "postgres", question: Tables, rows: []Row{
			{"name": "small", "rows": "10", "dead": "1000", "age": "5"},
			{"name": "bloated", "rows": "150000", "dead": "200000", "age": "5"},
			{"name": "large", "rows": "300000", "dead": "200000", "age": "5"},
			{"name": "old", "age": "600000000"},
			{"name": "off", "options": "fillfactor=70,autovacuum_enabled=false"},
		}, want: "warning bloat, error wraparound, error autovacuum-off"},
		{name: "free pages", judge: judgeVacuum, kind: "sqlite", question: Tables,
			rows: []Row{{"bytes": "9000000", "free": "5000000"}}, want: "note bloat"},
		{name: "purge", judge: judgeVacuum, kind: "mysql", question: Purge,
			rows: []Row{{"versions": "2000000"}}, want: "warning purge-behind"},

		{name: "transactions", judge: judgeTransactions, kind: "postgres", question: Transactions, rows: []Row{
			{"id": "1", "seconds": "299", "holds": "true"}, {"id": "2", "seconds": "300", "holds": "false"},
			{"id": "3", "seconds": "300", "holds": "true"}, {"id": "4", "seconds": "301", "holds": "true",
				"state": "prepared"}}, want: "warning long-transaction, warning prepared-transaction"},
		{name: "locks", judge: judgeLocks, kind: "postgres", question: Locks,
			change: func(f *Facts) { f.Application = "rowkeeper" }, rows: []Row{
				{"id": "1", "application": "rowkeeper", "waiters": "3"}, {"id": "2", "application": "other"},
				{"id": "3", "application": "other", "strong": "true"}, {"id": "4", "waiters": "1"},
			}, want: "warning foreign-lock, error foreign-lock"},
		{name: "locks by user", judge: judgeLocks, kind: "mysql", question: Locks, change: func(f *Facts) {
			f.Answers[Server] = []Row{{"user": "ours"}}
		}, rows: []Row{{"id": "1", "user": "ours", "waiters": "3"}, {"id": "2", "user": "other", "waiters": "3"}},
			want: "error foreign-lock"},

		{name: "binary logs", judge: judgeBinaryLogs, kind: "mysql", question: Settings,
			rows: settings("log_bin", "ON", "binlog_format", "STATEMENT", "expire_logs_days", "0.000000",
				"binlog_expire_logs_seconds", "0"),
			want: "note binary-logs-kept, error binary-log-format"},
		{name: "binary logs that end", judge: judgeBinaryLogs, kind: "mysql", question: Settings,
			rows: settings("log_bin", "ON", "binlog_format", "ROW", "binlog_expire_logs_seconds", "60")},
		{name: "no binary logs", judge: judgeBinaryLogs, kind: "mysql", question: Settings,
			rows: settings("log_bin", "OFF", "binlog_format", "STATEMENT")},

		{name: "a disk with room", judge: judgeDisk, question: Disk,
			rows: []Row{{"free": "2000000000", "total": "900000000000"}}},
		{name: "a small disk with room", judge: judgeDisk, question: Disk,
			rows: []Row{{"free": "200000000", "total": "1000000000"}}},
		{name: "a disk that fills", judge: judgeDisk, question: Disk,
			rows: []Row{{"free": "200000000", "total": "900000000000"}}, want: "warning disk-full"},
		{name: "a full disk", judge: judgeDisk, question: Disk,
			rows: []Row{{"free": "200", "total": "900000000000"}}, want: "error disk-full"},

		{name: "a clock", judge: judgeClock, question: Server, rows: []Row{at(0)}},
		{name: "a clock that is late", judge: judgeClock, question: Server, rows: []Row{at(-3 * time.Second)},
			want: "warning clock"},
		{name: "a clock that is early", judge: judgeClock, question: Server, rows: []Row{at(time.Minute)},
			want: "warning clock"},
		{name: "a slow answer", judge: judgeClock, question: Server, rows: []Row{at(time.Minute)},
			change: func(f *Facts) { f.After = clock.Add(2 * time.Minute) }},

		{name: "indexes", judge: judgeIndexes, question: Indexes, rows: []Row{index}},
		{name: "no index", judge: judgeIndexes, question: Indexes, want: "error index-missing"},
		{name: "an index of another table", judge: judgeIndexes, question: Indexes,
			rows: []Row{without(index, "table", "u")}, want: "error index-missing"},
		{name: "other columns", judge: judgeIndexes, question: Indexes,
			rows: []Row{without(index, "columns", "a")}, want: "error index-different"},
		{name: "unique", judge: judgeIndexes, question: Indexes,
			rows: []Row{without(index, "unique", "true")}, want: "error index-different"},
		{name: "invalid", judge: judgeIndexes, question: Indexes,
			rows: []Row{without(index, "valid", "false")}, want: "error index-invalid"},
		{name: "statistics", judge: judgeStatistics, question: Tables, rows: []Row{
			{"name": "a", "rows": "20000", "analyzed": "true"}, {"name": "b", "rows": "20000", "analyzed": "false"},
			{"name": "c", "rows": "20", "analyzed": "false"}}, want: "warning statistics-missing"},

		{name: "boundaries", judge: judgeBoundaries, question: Store,
			rows: []Row{{"head": "9", "compacted": "9", "swept": "9"}}},
		{name: "a log that was removed", judge: judgeBoundaries, question: Store,
			rows: []Row{{"head": "9", "log_lost": "true"}}, want: "error log-lost"},
		{name: "an empty log", judge: judgeBoundaries, question: Store, rows: []Row{{"compacted": "0"}},
			want: "error boundary-beyond-head"},
		{name: "compacted beyond the head", judge: judgeBoundaries, question: Store,
			rows: []Row{{"head": "9", "compacted": "10", "swept": "9"}}, want: "error boundary-beyond-head"},
		{name: "a row with the head", judge: judgeBoundaries, question: Store,
			rows: []Row{{"head": "9", "row_head": "9", "row_differs": "0"}}},
		{name: "a row with another head", judge: judgeBoundaries, question: Store,
			rows: []Row{{"head": "9", "row_head": "8", "row_differs": "1"}}, want: "error head-differs"},
		{name: "swept beyond compacted", judge: judgeBoundaries, question: Store,
			rows: []Row{{"head": "9", "compacted": "7", "swept": "8"}}, want: "error boundary-beyond-head"},
	} {
		f := &Facts{Database: &Database{Kind: tc.kind, Newest: 3, Analyze: "ANALYZE %s",
			Indexes: []Index{{Table: "t", Name: "i", Columns: "a,b", Create: "create", Drop: "drop", Rebuild: "rebuild"}}},
			Answers: map[Question][]Row{tc.question: tc.rows}, Before: clock, After: clock, Long: longTransaction}
		if tc.question != Schema && tc.change == nil {
			f.Answers[Schema] = []Row{{"version": "3"}}
		}
		if tc.change != nil {
			tc.change(f)
		}
		var got []string
		for _, finding := range tc.judge(f) {
			got = append(got, finding.Severity.String()+" "+finding.Name)
			if finding.Says == "" || finding.Means == "" || finding.Mend == "" {
				t.Errorf("%s: %+v", tc.name, finding)
			}
		}
		if strings.Join(got, ", ") != tc.want {
			t.Errorf("%s: found %q, want %q", tc.name, strings.Join(got, ", "), tc.want)
		}
	}
}

// TestPieces: what a piece of a walk tells.
func TestPieces(t *testing.T) {
	for _, tc := range []struct {
		name  string
		judge func([]any, Row) []Finding
		after any
		piece Row
		want  string
	}{
		{"live", judgeLive, []byte{}, Row{"rows": "9", "lost": "0", "other": "0"}, ""},
		{"live and lost", judgeLive, []byte{}, Row{"lost": "1", "other": "1", "differs": "1", "beyond": "1"},
			"live-without-log, live-other-row, live-differs, live-beyond-head"},
		{"nothing", judgeLog, int64(0), Row{"rows": "0", "last": "0", "compacted": "0", "kept": "0"}, ""},
		{"dense", judgeLog, int64(0), Row{"last": "9", "compacted": "0", "kept": "9"}, ""},
		{"dense beyond compacted", judgeLog, int64(0), Row{"last": "9", "compacted": "5", "kept": "4"}, ""},
		{"dense after a piece", judgeLog, int64(7), Row{"last": "9", "compacted": "5", "kept": "2"}, ""},
		{"wholly compacted", judgeLog, int64(0), Row{"last": "9", "compacted": "15", "kept": "0"}, ""},
		{"a gap", judgeLog, int64(7), Row{"last": "10", "compacted": "5", "kept": "2"}, "revision-missing"},
		{"a gap behind a double", judgeLog, int64(0), Row{"last": "3", "compacted": "0", "kept": "3", "twice": "1"},
			"revision-twice, revision-missing"},
		{"a double", judgeLog, int64(0), Row{"last": "3", "compacted": "0", "kept": "4", "twice": "1"}, "revision-twice"},
		{"others", judgeLog, int64(0), Row{"last": "3", "kept": "3", "backwards": "1", "incomplete": "1"},
			"log-backwards, parts-missing"},
		{"parts", judgeParts, int64(0), Row{"rows": "3", "orphans": "0", "beyond": "0"}, ""},
		{"parts alone", judgeParts, int64(0), Row{"orphans": "3", "beyond": "3"}, "part-alone, part-beyond-head"},
		{"users", judgeUsers, int64(0), Row{"rows": "3", "alone": "0"}, ""},
		{"users alone", judgeUsers, int64(0), Row{"rows": "3", "alone": "1"}, "user-alone"},
	} {
		var got []string
		for _, finding := range tc.judge([]any{tc.after}, tc.piece) {
			got = append(got, finding.Name)
			if finding.Severity != Error {
				t.Errorf("%s: %+v", tc.name, finding)
			}
		}
		if strings.Join(got, ", ") != tc.want {
			t.Errorf("%s: found %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestDirectoryOf(t *testing.T) {
	for key, want := range map[string]string{
		"/registry/pods/default/web":           "/registry/pods/",
		"/registry/example.com/widgets/ns/one": "/registry/example.com/widgets/",
		"/registry/namespaces/default":         "/registry/namespaces/",
		"/registry/example.com/one":            "/registry/example.com/",
		"rowkeeper/placement":                  "rowkeeper/",
		"one":                                  "one",
		"/one":                                 "/one",
		"/a/b":                                 "/a/",
		"a/b/c":                                "a/",
		"":                                     "",
	} {
		if got := DirectoryOf(key); got != want || !strings.HasPrefix(key, got) || after(got) <= key {
			t.Errorf("the directory of %q is %q, and ends before %q; want %q", key, got, after(got), want)
		}
	}
}

// TestExamine: a piece after the other is read, what is not answered is told, and the worst finding
// comes first.
func TestExamine(t *testing.T) {
	const declared = `{"last": 2, "indexes": [{"id": 1, "directory": "/gone/", "state": "dropping"},
		{"id": 2, "directory": "/other/g/secrets/", "group": "g", "resource": "secrets", "name": "label:a", "state": "ready"}]}`
	asked := map[Question]int{}
	db := &Database{Kind: "postgres", Where: "secret-host", Store: "secret-store", Newest: 3}
	db.Ask = func(_ context.Context, q Question, args ...any) ([]Row, error) {
		asked[q]++
		switch q {
		case Server:
			return []Row{{"product": "P", "role": "secret-role", "sees_others": "false"}}, nil
		case Schema:
			return []Row{{"version": "3"}}, nil
		case Store:
			return []Row{{"id": "7", "epoch": "1", "head": "20005", "compacted": "0", "generation": "5", "indexes": declared}}, nil
		case EntryPiece:
			if string(args[0].([]byte)) >= "\x00\x00\x00\x02" {
				return []Row{{"rows": "7", "generation": "5", "alone": "1", "example": "3"}}, nil
			}
			return []Row{{"rows": "10000", "generation": "5", "entry": "\x00\x00\x00\x02", "key": "k", "alone": "0"}}, nil
		case EntriesPiece:
			if string(args[0].([]byte)) != "/other/g/secrets/" {
				return []Row{{"rows": "10000", "generation": "6", "lacking": "1"}}, nil
			}
			return []Row{{"rows": "10000", "generation": "5", "last": "/other/g/secrets/a", "lacking": "0"}}, nil
		case Settings:
			return nil, errors.New("secret-role may not")
		case Transactions:
			return []Row{{"id": "1", "user": "secret-user", "seconds": "999", "holds": "true"}}, nil
		case LogPiece:
			from := args[0].(int64)
			n := min(20005-from, args[1].(int64))
			return []Row{{"rows": fmt.Sprint(n), "last": fmt.Sprint(from + n), "kept": fmt.Sprint(n),
				"backwards": "1", "compacted": "0"}}, nil
		}
		return nil, ErrNoAnswer
	}
	var told []string
	r, err := Examine(t.Context(), db, Options{Progress: func(doing string, rows int64) {
		told = append(told, fmt.Sprint(doing, " ", rows))
	}})
	if err != nil {
		t.Fatal(err)
	}
	if db.ID != "7" || asked[LogPiece] != 3 || !slices.Contains(told, "rows of the log 20005") {
		t.Errorf("asked %v, told %v", asked, told)
	}
	if len(r.Findings) != 3 || r.Findings[0].Name != "log-backwards" || r.Findings[1].Name != "index-row-alone" ||
		r.Findings[1].Mend != "rowkeeper indexes rebuild g/secrets label:a --storage-prefix /other" ||
		r.Findings[2].Name != "long-transaction" {
		t.Errorf("found %+v", r.Findings)
	}
	if asked[EntryPiece] != 1 || asked[EntriesPiece] != 2 {
		t.Errorf("asked %v", asked)
	}
	if worst, ok := r.Worst(); !ok || worst != Error {
		t.Errorf("the worst is %v", worst)
	}
	var unseen []string
	for _, u := range r.Unseen {
		unseen = append(unseen, u.What)
	}
	if got := strings.Join(unseen, ", "); got != "entries of live rows, how much room the disk has, settings, the sessions and transactions of other roles" {
		t.Errorf("unseen: %s", got)
	}
	text, err := json.Marshal(r.Redacted())
	if err != nil || strings.Contains(string(text), "secret") || !strings.Contains(string(text), "log-backwards") {
		t.Errorf("redacted: %s (%v)", text, err)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "\nERROR log-backwards: ") ||
		!strings.Contains(out.String(), "secret-user") {
		t.Errorf("printed: %s (%v)", out.String(), err)
	}
}

// TestExamineWithoutRights: a role that may read nothing is told what it lacks; another error stays
// what it is.
func TestExamineWithoutRights(t *testing.T) {
	for _, class := range []contract.Class{contract.Denied, contract.Unavailable} {
		db := &Database{Kind: "postgres", Ask: func(_ context.Context, q Question, _ ...any) ([]Row, error) {
			switch q {
			case Rights:
				return []Row{{"privilege": "SELECT", "name": "t"}}, nil
			case Server:
				return []Row{{"role": "r"}}, nil
			}
			return nil, contract.Errorf(class, "no")
		}}
		r, err := Examine(t.Context(), db, Options{})
		if class == contract.Denied && (err != nil || len(r.Findings) != 1 || r.Findings[0].Name != "right-missing" ||
			r.Findings[0].Mend != "GRANT SELECT ON t TO r") || class != contract.Denied && err == nil {
			t.Errorf("%v: %+v, %v", class, r, err)
		}
	}
}
