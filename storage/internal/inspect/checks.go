package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity says how bad a finding is.
type Severity int

// The severities. A Note needs nothing; a Warning will cost something one day; an Error does now.
const (
	Note Severity = iota
	Warning
	Error
)

// String is the severity in words.
func (s Severity) String() string { return [...]string{"note", "warning", "error"}[s] }

// MarshalText implements [encoding.TextMarshaler].
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is something that is not as it should be.
type Finding struct {
	// Check is the one that has found it, and Name its own name, which stays the same.
	Check    string   `json:"check"`
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	// Says is what was found, Means what follows from it, and Mend the one command that mends it.
	Says  string `json:"says"`
	Means string `json:"means"`
	Mend  string `json:"mend"`
	// Who has caused it: a session, with its user and address.
	Who string `json:"who,omitempty"`

	// repair makes the index or the statistics that are found to be missing or wrong.
	repair []string
}

// Check is one thing that Rowkeeper relies on.
type Check struct {
	Name string
	// Reads are the questions whose answers Judge takes.
	Reads []Question
	Judge func(*Facts) []Finding
	// Of are the kinds of databases of which it says something, nil for all.
	Of []string
}

// Checks are all of them, but for the consistency of the tables (walk.go).
var Checks = []Check{
	{"version", []Question{Server, Schema, Store}, judgeVersion, nil},
	{"rights", []Question{Rights}, judgeRights, nil},
	{"durability", []Question{Settings, Replication}, judgeDurability, nil},
	{"settings", []Question{Settings}, judgeSettings, nil},
	{"pooler", []Question{Server}, judgePooler, []string{"postgres"}},
	{"replication", []Question{Settings, Replication}, judgeReplication, []string{"postgres", "mysql"}},
	{"vacuum", []Question{Settings, Tables, Purge}, judgeVacuum, nil},
	{"transactions", []Question{Transactions}, judgeTransactions, nil},
	{"locks", []Question{Locks}, judgeLocks, nil},
	{"binary logs", []Question{Settings, BinaryLogs}, judgeBinaryLogs, []string{"mysql"}},
	{"disk", []Question{Disk}, judgeDisk, nil},
	{"clock", []Question{Server}, judgeClock, nil},
	{"indexes", []Question{Indexes}, judgeIndexes, nil},
	{"statistics", []Question{Tables}, judgeStatistics, []string{"postgres"}},
	{"boundaries", []Question{Store}, judgeBoundaries, nil},
}

func judgeVersion(f *Facts) (found []Finding) {
	have, oldest := f.one(Schema).Int("version"), f.one(Store).Int("oldest_writer")
	switch {
	case have < f.Newest:
		found = append(found, Finding{Name: "schema-old", Severity: Error,
			Says:  fmt.Sprintf("the schema is version %d, and this program needs %d", have, f.Newest),
			Means: "servers of this version refuse the database",
			Mend:  "rowkeeper migrate up"})
	case have > f.Newest && oldest > f.Newest:
		found = append(found, Finding{Name: "schema-new", Severity: Error,
			Says: fmt.Sprintf("the schema is version %d, and this program knows %d", have,
				f.Newest),
			Means: "servers of this version may not use the database",
			Mend:  "install a newer rowkeeper"})
	case have > f.Newest:
		found = append(found, Finding{Name: "schema-new", Severity: Note,
			Says: fmt.Sprintf("the schema is version %d, and this program knows %d", have,
				f.Newest),
			Means: "servers of this version may still use the database, in an upgrade",
			Mend:  "install a newer rowkeeper"})
	}
	if f.one(Server).Bool("standby") {
		found = append(found, Finding{Name: "standby", Severity: Error,
			Says:  "the server is a standby",
			Means: "it takes no writes, and what it answers may be late",
			Mend:  "name the primary in the database URL"})
	}
	return found
}

// judgeRights makes one finding of all rights that are missing, since one command grants them.
func judgeRights(f *Facts) []Finding {
	var lacks []string
	for _, row := range f.Answers[Rights] {
		lacks = append(lacks, row["privilege"]+" ON "+row["name"])
	}
	if len(lacks) == 0 {
		return nil
	}
	slices.Sort(lacks)
	role, grants := f.one(Server)["role"], make([]string, len(lacks))
	for i, right := range lacks {
		grants[i] = "GRANT " + right + " TO " + role
	}
	mend := strings.Join(grants, "; ")
	if f.Kind == "sqlite" {
		mend = "chown the file and its directory to the user of the servers"
	}
	return []Finding{{Name: "right-missing", Severity: Error,
		Says:  "the role lacks " + strings.Join(lacks, ", "),
		Means: "servers with this role refuse to start, or their writes fail",
		Mend:  mend}}
}

// timeLimits are the limits that end sessions or statements. The sessions of servers set their own.
var timeLimits = map[string][]string{
	"postgres": {"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
		"idle_session_timeout", "transaction_timeout"},
	"mysql": {"max_statement_time", "max_execution_time", "idle_transaction_timeout",
		"idle_write_transaction_timeout"},
}

// judgeSettings finds what was set from outside. Most of it does not matter, since the sessions of
// servers set what they need: it does where a pooler gives each transaction another session.
func judgeSettings(f *Facts) (found []Finding) {
	for _, name := range []string{"default_transaction_read_only", "read_only", "innodb_read_only",
		"offline_mode"} {
		if value, source := f.settingFrom(name); f.on(name) {
			found = append(found, Finding{Name: "read-only", Severity: Error,
				Says:  name + " is " + value + setBy(source),
				Means: "the database takes no writes",
				Mend:  f.reset(name, source, "OFF")})
		}
	}
	for _, name := range timeLimits[f.Kind] {
		value, source := f.settingFrom(name)
		if strings.Trim(value, "0.") == "" {
			continue
		}
		limit := Finding{Name: "time-limit", Severity: Note, Says: name + " is " + value +
			setBy(source), Means: "it does not matter to servers, whose sessions set their own; " +
			"other programs' statements end by it", Mend: f.reset(name, source, "0")}
		switch {
		case f.Pooler:
			limit.Severity = Warning
			limit.Means = "reads end by it, since a pooler gives each transaction another session"
		case source == "client":
			limit.Means = "the database URL says so, and the sessions of servers keep to it"
		}
		found = append(found, limit)
	}
	isolation, source := f.settingFrom("default_transaction_isolation")
	if isolation != "" && isolation != "read committed" {
		found = append(found, Finding{Name: "isolation", Severity: Note,
			Says: "default_transaction_isolation is " + isolation + setBy(source),
			Means: "it does not matter to servers, which name the isolation of each transaction that " +
				"writes",
			Mend: f.reset("default_transaction_isolation", source, "")})
	}
	if mode := f.setting("journal_mode"); f.Kind == "sqlite" && mode != "" && mode != "wal" {
		found = append(found, Finding{Name: "journal-mode", Severity: Error,
			Says:  "the file is in journal mode " + mode,
			Means: "servers refuse it",
			Mend:  "rowkeeper migrate up"})
	}
	if row := (Row{"n": f.setting("wait_timeout")}); f.Kind == "mysql" && row["n"] != "" &&
		row.Int("n") < 60 {
		found = append(found, Finding{Name: "wait-timeout", Severity: Warning,
			Says:  "wait_timeout is " + row["n"] + " seconds",
			Means: "the server ends connections that servers keep for later",
			Mend:  "SET GLOBAL wait_timeout = 28800"})
	}
	return found
}

func setBy(source string) string {
	switch source {
	case "", "default":
		return ""
	case "client":
		return ", set by the database URL"
	}
	return ", set by the " + source
}

// reset is the command that takes a setting back, where it was made.
func (f *Facts) reset(name, source, value string) string {
	switch {
	case f.Kind == "mysql":
		return "SET GLOBAL " + name + " = " + value
	case source == "database":
		return "ALTER DATABASE " + f.one(Server)["database"] + " RESET " + name
	case source == "user":
		return "ALTER ROLE " + f.one(Server)["role"] + " RESET " + name
	case source == "database user":
		return "ALTER ROLE " + f.one(Server)["role"] + " IN DATABASE " + f.one(Server)["database"] +
			" RESET " + name
	case source == "client":
		return "take " + name + " out of the database URL, or out of PGOPTIONS"
	}
	return "ALTER SYSTEM RESET " + name + "; SELECT pg_reload_conf()"
}

// judgePooler compares the session's process as the server calls it with what the client was told.
// A pooler tells numbers of its own.
func judgePooler(f *Facts) []Finding {
	row := f.one(Server)
	between := row["told"] != "" && row["told"] != row["backend"]
	switch {
	case between && !f.Pooler:
		return []Finding{{Name: "pooler", Severity: Warning,
			Says: "a pooler is between, and the database URL does not say prepared_statements=false",
			Means: "in session mode all is well; in transaction mode statements fail, and " +
				"notifications are lost",
			Mend: "add prepared_statements=false to the database URL, if it is in transaction mode"}}
	case !between && f.Pooler && row["told"] != "":
		return []Finding{{Name: "pooler", Severity: Note,
			Says:  "no pooler is between, and the database URL says prepared_statements=false",
			Means: "other replicas' writes are polled for, and statements are planned anew each time",
			Mend:  "take prepared_statements=false out of the database URL"}}
	}
	return nil
}

// keptWAL is how much a slot that nobody reads may keep before it is told.
const keptWAL = 1 << 30

func judgeReplication(f *Facts) (found []Finding) {
	synchronous := 0
	for _, row := range f.Answers[Replication] {
		if row["sync"] == "sync" || row["sync"] == "quorum" {
			synchronous++
		}
		if row.Bool("slot") && row["state"] == "inactive" {
			severity := Note
			if row.Int("behind") > keptWAL {
				severity = Warning
			}
			found = append(found, Finding{Name: "slot-inactive", Severity: severity,
				Says: fmt.Sprintf("nobody reads the replication slot %s, which keeps %s of WAL",
					row["name"], Bytes(row.Int("behind"))),
				Means: "the disk fills until somebody reads it or drops it",
				Mend:  "SELECT pg_drop_replication_slot('" + row["name"] + "')"})
		}
	}
	if f.setting("synchronous_standby_names") != "" && synchronous == 0 &&
		f.asked(Replication) && f.setting("synchronous_commit") != "local" &&
		!f.one(Server).Bool("standby") {
		found = append(found, Finding{Name: "standby-missing", Severity: Error,
			Says:  "no standby is synchronous, and synchronous_standby_names asks for one",
			Means: "every write waits until a standby connects",
			Mend: "start the standby, or ALTER SYSTEM RESET synchronous_standby_names; SELECT " +
				"pg_reload_conf()"})
	}
	if state := f.setting("wsrep_cluster_status"); state != "" && !strings.EqualFold(state, "Primary") {
		found = append(found, Finding{Name: "quorum-missing", Severity: Error,
			Says:  "the node is in a part of the cluster without a majority (" + state + ")",
			Means: "it takes no writes, and its answers are refused",
			Mend:  "connect the nodes again"})
	}
	return found
}

const (
	// dead is from how many dead rows on they are told, if they are more than the ones that live.
	// The schema lets autovacuum begin at 10,000 and 2 %.
	dead = 100000
	// oldNumber is the age of a transaction number that autovacuum should have taken away: it
	// begins at 200 million, and the server stops at 2,000 million.
	oldNumber = 500_000_000
	// unpurged is how many old versions InnoDB keeps when something holds them back.
	unpurged = 1_000_000
)

func judgeVacuum(f *Facts) (found []Finding) {
	for _, name := range []string{"autovacuum", "track_counts"} {
		if f.setting(name) == "off" {
			found = append(found, Finding{Name: "autovacuum-off", Severity: Error,
				Says:  name + " is off",
				Means: "the tables grow for ever, and one day the server stops taking writes",
				Mend:  "ALTER SYSTEM RESET " + name + "; SELECT pg_reload_conf()"})
		}
	}
	for _, row := range f.Answers[Tables] {
		name := row["name"]
		if strings.Contains(row["options"], "autovacuum_enabled=false") ||
			strings.Contains(row["options"], "autovacuum_enabled=off") {
			found = append(found, Finding{Name: "autovacuum-off", Severity: Error,
				Says:  "autovacuum is off for the table " + name,
				Means: "the table grows for ever",
				Mend:  "ALTER TABLE " + name + " RESET (autovacuum_enabled)"})
		}
		if f.Kind == "postgres" && row.Int("dead") > dead && row.Int("dead") > row.Int("rows") {
			found = append(found, Finding{Name: "bloat", Severity: Warning,
				Says: fmt.Sprintf("the table %s has %d dead rows beside %d live ones", name,
					row.Int("dead"), row.Int("rows")),
				Means: "vacuum does not keep up, or something holds it back: reads become slower",
				Mend:  "VACUUM " + name})
		}
		if row.Int("age") > oldNumber {
			found = append(found, Finding{Name: "wraparound", Severity: Error,
				Says: fmt.Sprintf("the table %s has transaction numbers of age %d", name,
					row.Int("age")),
				Means: "at 2,000,000,000 the server takes no more writes",
				Mend:  "VACUUM (FREEZE) " + name})
		}
		total, free := row.Int("bytes"), row.Int("free")
		if f.Kind == "sqlite" && total > 1<<20 && free > total/2 {
			found = append(found, Finding{Name: "bloat", Severity: Note,
				Says: fmt.Sprintf("%s of the file's %s are free pages", Bytes(free),
					Bytes(total)),
				Means: "later writes use them; a server gives them back to the file system bit by bit",
				Mend:  "start a server, whose compaction gives them back"})
		}
	}
	if n := f.one(Purge).Int("versions"); n > unpurged {
		found = append(found, Finding{Name: "purge-behind", Severity: Warning,
			Says:  fmt.Sprintf("InnoDB has %d old versions that it has not purged", n),
			Means: "a long transaction holds them back, or purge does not keep up: reads become slower",
			Mend:  "end the longest transaction, which the check of transactions names"})
	}
	return found
}

func (f *Facts) kill(id string) string {
	if f.Kind == "mysql" {
		return "KILL " + id
	}
	return "SELECT pg_terminate_backend(" + id + ")"
}

// who names a session.
func who(row Row) string {
	words := "session " + row["id"] + " of " + row["user"]
	if row["application"] != "" {
		words += " (" + row["application"] + ")"
	}
	if row["address"] != "" {
		words += " from " + row["address"]
	}
	return words
}

func judgeTransactions(f *Facts) (found []Finding) {
	for _, row := range f.Answers[Transactions] {
		age := time.Duration(row.Int("seconds")) * time.Second
		if age < f.Long || !row.Bool("holds") {
			continue
		}
		t := Finding{Name: "long-transaction", Severity: Warning, Who: who(row),
			Says: fmt.Sprintf("a transaction is %s old (%s)", age, valueOf(row["state"])),
			Means: "old versions of rows are kept for it, in all tables of the database: they grow, " +
				"and reads become slower",
			Mend: f.kill(row["id"])}
		if row["state"] == "prepared" {
			t.Name, t.Who = "prepared-transaction", "a prepared transaction of "+row["user"]
			t.Mend = "ROLLBACK PREPARED '" + strings.ReplaceAll(row["id"], "'", "''") + "'"
		}
		found = append(found, t)
	}
	return found
}

// judgeLocks finds what others hold. A server that waits for another one's commit is as it should
// be.
func judgeLocks(f *Facts) (found []Finding) {
	for _, row := range f.Answers[Locks] {
		if f.ours(row) || row.Int("waiters") == 0 && !row.Bool("strong") {
			continue
		}
		severity := Warning
		if row.Int("waiters") > 0 {
			severity = Error
		}
		found = append(found, Finding{Name: "foreign-lock", Severity: severity, Who: who(row),
			Says: fmt.Sprintf("another program holds a lock (%s) on %s, for %d s; sessions that "+
				"wait for it: %d", row["mode"], row["object"], row.Int("seconds"), row.Int("waiters")),
			Means: "writes wait for it, and fail when they have waited too long",
			Mend:  f.kill(row["id"])})
	}
	return found
}

// ours tells whether a session is a server's: by its name, or where sessions have none, by its
// user.
func (f *Facts) ours(row Row) bool {
	if f.Application != "" {
		return row["application"] == f.Application
	}
	return row["user"] == f.one(Server)["user"]
}

func judgeBinaryLogs(f *Facts) (found []Finding) {
	if !f.on("log_bin") {
		return nil
	}
	var bytes int64
	for _, row := range f.Answers[BinaryLogs] {
		bytes += row.Int("bytes")
	}
	days, seconds := f.setting("expire_logs_days"), f.setting("binlog_expire_logs_seconds")
	if strings.Trim(days, "0.") == "" && strings.Trim(seconds, "0.") == "" {
		found = append(found, Finding{Name: "binary-logs-kept", Severity: Note,
			Says:  "binary logs are kept for ever; there are " + Bytes(bytes),
			Means: "they fill the disk: each write is in them once",
			Mend:  "SET GLOBAL binlog_expire_logs_seconds = 604800"})
	}
	if format := f.setting("binlog_format"); format == "STATEMENT" {
		found = append(found, Finding{Name: "binary-log-format", Severity: Error,
			Says:  "binlog_format is STATEMENT",
			Means: "InnoDB refuses writes at READ COMMITTED",
			Mend:  "SET GLOBAL binlog_format = ROW"})
	}
	return found
}

// A disk should have roomy bytes left, or a twentieth of it. With less than room, a group of writes
// and what compaction needs do not fit.
const (
	room  = 64 << 20
	roomy = 1 << 30
)

func judgeDisk(f *Facts) []Finding {
	row := f.one(Disk)
	free, total := row.Int("free"), row.Int("total")
	if total == 0 || free > roomy || free > room && free > total/20 {
		return nil
	}
	severity := Warning
	if free <= room {
		severity = Error
	}
	return []Finding{{Name: "disk-full", Severity: severity,
		Says: fmt.Sprintf("the file system has %s left of %s", Bytes(free), Bytes(total)),
		Means: "writes are answered 507 when the last 32 MiB are reached; deletions and compaction go " +
			"on",
		Mend: "remove other files from the file system, or make it larger"}}
}

// skew is how far clocks may differ. Times to live and compaction follow the database's.
const skew = 2 * time.Second

func judgeClock(f *Facts) []Finding {
	micros := f.one(Server).Int("now")
	if micros == 0 {
		return nil
	}
	now, off := time.UnixMicro(micros), time.Duration(0)
	if now.Before(f.Before) {
		off = now.Sub(f.Before)
	} else if now.After(f.After) {
		off = now.Sub(f.After)
	}
	if off.Abs() < skew {
		return nil
	}
	return []Finding{{Name: "clock", Severity: Warning,
		Says: fmt.Sprintf("the database's clock is %s from this machine's", off.Round(time.Second)),
		Means: "objects expire, and history is compacted, by the database's clock; a token or a " +
			"certificate may be refused by the other",
		Mend: "chronyc makestep, on the machine whose clock is wrong"}}
}

func judgeIndexes(f *Facts) (found []Finding) {
	rows := f.Answers[Indexes]
	const mend = "rowkeeper doctor --repair"
	for _, want := range f.Indexes {
		i := slices.IndexFunc(rows, func(row Row) bool {
			return row["table"] == want.Table && row["name"] == want.Name
		})
		index := Finding{Severity: Error, Mend: mend, repair: []string{want.Create}}
		switch {
		case i < 0:
			index.Name = "index-missing"
			index.Says = "the index " + want.Name + " of " + want.Table + " is missing"
			index.Means = "statements read the whole table, or fail"
			if want.Create == "" {
				index.repair = nil
				index.Means = "nothing keeps a revision or a key from being there twice, and statements " +
					"read the whole table"
				index.Mend = "ALTER TABLE " + want.Table + " ADD PRIMARY KEY (" + want.Columns + ")"
			}
		case rows[i]["columns"] != want.Columns || rows[i].Bool("unique") != want.Unique:
			index.Name, index.repair = "index-different", []string{want.Drop, want.Create}
			index.Says = "the index " + want.Name + " of " + want.Table + " has the columns " +
				rows[i]["columns"] + ", and the schema says " + want.Columns
			index.Means = "statements read more than they need, or fail"
			if want.Create == "" {
				index.repair = nil
				index.Mend = "ALTER TABLE " + want.Table + " DROP PRIMARY KEY, ADD PRIMARY KEY (" +
					want.Columns + ")"
			}
		case !rows[i].Bool("valid"):
			index.Name, index.repair = "index-invalid", []string{want.Rebuild}
			index.Says = "the index " + want.Name + " of " + want.Table + " is not used by the database"
			index.Means = "statements read the whole table; the index was not built to its end, or was " +
				"switched off"
		default:
			continue
		}
		found = append(found, index)
	}
	return found
}

// manyRows is from how many rows on a table needs statistics.
const manyRows = 10000

func judgeStatistics(f *Facts) (found []Finding) {
	if f.Analyze == "" {
		return nil
	}
	for _, row := range f.Answers[Tables] {
		if row.Bool("analyzed") || row.Int("rows") < manyRows {
			continue
		}
		found = append(found, Finding{Name: "statistics-missing", Severity: Warning,
			Says:   "the table " + row["name"] + " has no statistics",
			Means:  "sizes are guessed, and other programs' statements are planned wrongly",
			Mend:   "rowkeeper doctor --repair",
			repair: []string{fmt.Sprintf(f.Analyze, row["name"])}})
	}
	return found
}

// judgeBoundaries compares the row of the store with the head.
func judgeBoundaries(f *Facts) []Finding {
	row := f.one(Store)
	if row.Bool("log_lost") {
		return []Finding{{Name: "log-lost", Severity: Error,
			Says:  "the write-ahead log of the file was removed",
			Means: "the newest writes are lost with it, if no server has the file open",
			Mend:  "put the log back while no server runs, or: rowkeeper fence"}}
	}
	head, compacted, swept := row.Int("head"), row.Int("compacted"), row.Int("swept")
	damage := ""
	switch {
	case head == 0:
		damage = "the log is empty"
	case compacted > head:
		damage = fmt.Sprintf("compacted is %d, beyond the head at %d", compacted, head)
	case swept > compacted:
		damage = fmt.Sprintf("swept is %d, beyond compacted at %d", swept, compacted)
	case row.Bool("row_differs"):
		return []Finding{damaged("head-differs", fmt.Sprintf("the row of the store says that the head is "+
			"at %d, and the log ends at %d, or with another token or time", row.Int("row_head"), head))}
	default:
		return nil
	}
	return []Finding{damaged("boundary-beyond-head", damage)}
}

// damaged is a finding that only a backup mends.
func damaged(name, says string) Finding {
	return Finding{Name: name, Severity: Error, Says: says,
		Means: "the tables were changed by something else than Rowkeeper, or the database has lost " +
			"rows: objects may be missing or wrong",
		Mend: "rowkeeper restore --replace --database-file url.txt FILE"}
}

// Bytes writes a size for people.
func Bytes(n int64) string {
	const units = "KMGTP"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/(1<<10), 0
	for value >= 1<<10 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
