package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
)

// The tests of this package see this of its inside.

// Literal is text.binary.
func Literal(data []byte) string {
	var t text
	t.binary(data)
	return t.String()
}

// MaxLiteral is escapedBytes.
func MaxLiteral(n int) int { return escapedBytes(n) }

// HeldBytes is heldBytes, and WorthHolding is worthHolding.
const (
	HeldBytes    = heldBytes
	WorthHolding = worthHolding
)

// CheckURL parses a URL and returns the configuration of a connection.
func CheckURL(url string) (*mysql.Config, error) {
	c, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if c.user == "" {
		return nil, errNoUser
	}
	d, _, err := c.dial(context.Background(), false, &mysql.NopLogger{})
	return d, err
}

// LetFirstNode is letFirstNode, as a migration calls it.
func LetFirstNode(ctx context.Context, url string, opts contract.DriverOptions,
	turn time.Duration) error {
	return administering(url, opts, "wait for another node", func(_ *server, db *sql.DB) error {
		return letFirstNode(ctx, db, turn)
	})
}

// Dial returns the configuration of one connection.
func Dial(url string, opts contract.DriverOptions) (*mysql.Config, error) {
	s, err := newServer(url, opts)
	if err != nil {
		return nil, err
	}
	d, _, err := s.cfg.dial(context.Background(), false, &mysql.NopLogger{})
	return d, err
}

// CheckVersion is checkVersion.
func CheckVersion(version string, mariadb bool) error { return checkVersion(version, mariadb) }

// InGalera is inGalera.
var InGalera = inGalera

// LimitsFor is limitsFor.
func LimitsFor(maxPacket int) (contract.Limits, error) { return limitsFor(maxPacket) }

// Judge is database.judge, for a database that has a URL and no connection.
func Judge(url string, err error) error {
	cfg, parseErr := parseURL(url)
	if parseErr != nil {
		return parseErr
	}
	return (&database{server: &server{cfg: cfg}}).judge("read", err, contract.Unavailable)
}

// SessionVariable reads a number from a session that commits.
func SessionVariable(ctx context.Context, b contract.Backend, name string) (v float64, err error) {
	err = b.(*backend).commits.QueryRowContext(ctx, "SELECT @@SESSION."+name).Scan(&v)
	return v, err
}

// JudgeCommit is database.failedCommit, for a database that has a URL and no connection.
func JudgeCommit(url string, err error) error {
	cfg, parseErr := parseURL(url)
	if parseErr != nil {
		return parseErr
	}
	return (&database{server: &server{cfg: cfg}}).failedCommit("write", err)
}

// ConnectError is config.connectError.
func ConnectError(url string, err error) error {
	cfg, parseErr := parseURL(url)
	if parseErr != nil {
		return parseErr
	}
	return cfg.connectError(cfg.user, err)
}

// LargestGroup returns the length of the texts of a group in which every byte has to be escaped.
func LargestGroup(l contract.Limits, g *contract.Group) (first, second int) {
	b := &backend{database: &database{server: &server{hold: 10}, galera: true}, store: "2147483647"}
	one, two := b.text(), b.text()
	b.askGuard(&one, 10, 1<<62, g.Token)
	one.askLive(g.Mutations)
	one.askCompared(g.Mutations)
	res := &contract.GroupResult{}
	res.Outcomes = make([]contract.Outcome, len(g.Mutations))
	for i := range res.Outcomes {
		res.Outcomes[i] = contract.Outcome{Accepted: true, Revision: 1 << 62, Prev: 1 << 62,
			Create: 1 << 62, Version: 1 << 62, Lease: 1 << 62}
	}
	b.writeGroup(&two, g, res, removedBy(g, res.Outcomes), nil)
	return one.Len(), two.Len()
}

// Overtaken is a backend whose sweeps call Meanwhile when they have read what they will delete.
type Overtaken struct {
	contract.Backend
	Meanwhile func()
}

// Sweep implements [contract.Backend].
func (o Overtaken) Sweep(ctx context.Context, p *contract.SweepPlan) (deleted int, err error) {
	b := o.Backend.(*backend)
	t := b.sweep(p, &deleted)
	decide := t.decide
	t.decide = func(a *answers) (*text, error) {
		second, err := decide(a)
		if err == nil {
			o.Meanwhile()
		}
		return second, err
	}
	err = b.transact(ctx, t)
	return deleted, err
}

// inspected is the statement of a question.
func inspected(q inspect.Question) string { return questions[q][0].sql }

// Statements are all statements that read or change rows of the two large tables, as a store is
// asked by its id that has keys /registry/00000000 to keys-1, each written twice, and so log rows
// up to 2*keys+1, half of which can be swept.
func Statements(store int, keys int64) []Statement {
	from, to := []byte("/registry/"), []byte("/registry0")
	head := 2*keys + 1
	const many = 500
	names := make([]contract.Key, many)
	revisions := make([]int64, many)
	for i := range revisions {
		revisions[i] = 2 + int64(i)*(head/many)
	}
	for i := range names {
		names[i] = contract.Key(fmt.Sprintf("/registry/%08d", int64(i)*(keys/many)))
	}
	var rows []entryRow
	for _, k := range names {
		rows = append(rows, entryRow{"\x00\x00\x00\x01\x02", k})
	}
	ofEntries := func(args ...any) []any {
		return argumentsOf([]contract.Entry{"\x00\x00\x00\x01\x02", "\x00\x00\x00\x01\x02a"}, args)
	}
	entry := []byte("\x00\x00\x00\x01\x02")
	walk := []any{entry, []byte(names[many/2]), entry, []byte("\x00\x00\x00\x01\x03"), from, to, 500}
	back := []any{entry, []byte(names[many-1]), entry, []byte("\x00\x00\x00\x01\x02"), from, to, 500}
	list := revisionList(revisions)
	all := int64(math.MaxInt64)
	// 500 stores of few keys, and the one that is asked for.
	stores := []int64{int64(store)}
	for i := range many {
		stores = append(stores, int64(501+i))
	}
	statements := []Statement{
		{"state", selectState, nil, 1},
		{"poll", pollOf(stores, 0, false), nil, 3 * (many + 1)},
		{"poll with the expiry of some", pollOf(stores, many/2, false), nil, 4 * (many + 1)},
		{"poll with expiry", pollOf(stores, many+1, false), nil, 5 * (many + 1)},
		{"tail", selectTail, []any{false, head / 2, 1000}, 1000},
		{"tail with previous values", selectTail, []any{true, head / 2, 1000}, 2000},
		{"key", selectKey, []any{[]byte("/registry/00000042")}, 2},
		{"missing key", selectKey, []any{[]byte("/registry/x")}, 2},
		{"keys", fmt.Sprintf(selectKeys, keyList(names)), nil, 2 * many},
		{"keys, one only", fmt.Sprintf(selectKeys, keyList(names[:1])), nil, 2},
		{"page", selectPage, []any{from, to, -all, all, 500}, 1000},
		{"last page", selectPage, []any{fmt.Appendf(nil, "/registry/%08d", keys-many), to, -all, all,
			2 * many}, 2 * many},
		{"page in the middle", selectPage, []any{fmt.Appendf(nil, "/registry/%08d", keys/2), to,
			-all, all, 500}, 1000},
		{"page of keys", selectPageKeys, []any{from, to, -all, all, 500}, 500},
		{"replaced by an index", selectReplacedOf(2), []any{head - 1000, head, -512 * (head - 999), -512*head - 511, -all, head - 1000, from, to,
			-512*(head-500) - 511, head - 500, contract.PackEntries([]contract.Entry{"\x00\x00\x00\x01\x02"}), []byte("none")}, 1000},
		{"replaced", selectReplaced, []any{head - 1000, head, -512 * (head - 999), -512*head - 511, -all, head - 1000, from, to}, 1000},
		{"values", fmt.Sprintf(selectValues, list), nil, many},
		{"chain", selectChain, []any{50_044, []byte("/registry/00000042"), 500}, 6},
		{"changes", selectChanges, []any{head - 1000, head, -512 * (head - 999), -512*head - 511, from, to}, 1000},
		{"users", fmt.Sprintf(selectUsers, list), nil, many},
		{"count", selectCount, []any{from, fmt.Appendf(nil, "/registry/%08d", 1000), -all, all}, 1000},
		{"count up to a limit", selectCountUpTo, []any{from, to, -all, all, 1000}, 2000},
		{"expiring", selectExpiring, []any{257}, 257},
		{"leases", selectLeases, []any{many, 500}, 500},
		{"lapsing", selectLapsing, []any{0, 500}, 500},
		{"attached", selectAttached, []any{-7, []byte("/registry/"), 50}, 50},
		{"attached to several", fmt.Sprintf(selectAttachedTo, "-7,-8", 50), nil, 50},
		{"count leases", countLeases, nil, int(keys)},
		{"held", fmt.Sprintf(selectHeld, list), nil, many},
		{"compared", compared(head-1000, contract.Comparison{Start: "/registry/", End: "/registry/00001000",
			Property: contract.CompareRevision, Operator: contract.Greater}), nil, 1001},
		{"compared values", compared(head-1000, contract.Comparison{Start: "/registry/",
			End: "/registry/00001000", Property: contract.CompareValue, Operator: contract.NotEqual}),
			nil, 2001},
		{"compared key", compared(head-1000, contract.Comparison{Start: "/registry/00000042",
			End: "/registry/00000042\x00", Property: contract.CompareValue}), nil, 3},
		{"compared since", compared(head-1000, contract.Comparison{Start: "/registry/",
			End: "/registry0", Property: contract.CompareValue, Operator: contract.NotEqual,
			Changed: true}), nil, 3002},
		{"written", fmt.Sprintf(selectWritten, head-1000, contract.Lowest(contract.Revision(head-1000))),
			nil, 1001},
		{"parts", selectParts, []any{true, true, true, 0, -1 << 62, 1000}, 1},
		{"record parts", selectRecordParts, nil, 1},
		{"next key", inspected(inspect.NextKey), []any{from}, 1},
		{"count keys", inspected(inspect.CountKeys), []any{from, fmt.Appendf(nil, "/registry/%08d", 1000)}, 1000},
		// What a piece has is read again from where it was put, twice.
		{"piece of live", inspected(inspect.LivePiece), []any{from, 1000}, 2500},
		{"piece of the log", inspected(inspect.LogPiece), []any{head / 2, 1000}, 2000},
		{"piece of the parts", inspected(inspect.PartPiece), []any{0, 1000}, 1},
		{"piece of the users", inspected(inspect.UserPiece), []any{head / 2, 1000}, 2000},
		{"rows of an index", inspected(inspect.EntryPiece), []any{entry, []byte(names[many/2]), entry,
			[]byte("\x00\x00\x00\x02"), 1000}, 3500},
		{"entries of live", inspected(inspect.EntriesPiece), []any{from, to, 1000, []byte("\x00\x00\x00\x01"),
			[]byte("\x00\x00\x00\x02")}, 4000},
		{"some leases", fmt.Sprintf(selectSomeLeases, list), nil, many},
		{"all leases", selectAllLeases, nil, int(keys)},
		{"delete leases", fmt.Sprintf(deleteLeases, revisionRows(revisions)), nil, 2 * many},
		{"remove log", fmt.Sprintf(removeRecords, keyRows(names)), nil, 4 * many},
		{"first row", selectFirstAt, []any{head / 2}, 1},
		{"records", selectRecords, nil, 4 * int(keys)},
		{"identity", selectIdentity, nil, 1},
		{"lock", fmt.Sprintf(lockStore, askedInQueue), nil, 1},
		{"lock without a queue", fmt.Sprintf(lockStore, askedHere), nil, 1},
		{"guard", fmt.Sprintf(selectGuard, head/2, make([]byte, 16)), nil, 3},
		{"tokens", fmt.Sprintf(selectTokens, list), nil, many},
		{"live", fmt.Sprintf(selectLive, keyList(names)), nil, many},
		{"live, one key", fmt.Sprintf(selectLive, keyList(names[:1])), nil, 1},
		{"lost", fmt.Sprintf(selectLost, keyList(names)), nil, 2 * many},
		{"removed", fmt.Sprintf(selectRemoved, list), nil, many},
		{"by token", fmt.Sprintf(selectByToken, head-1000, make([]byte, 16)), nil, 1000},
		{"sweep", selectSweep, []any{501}, 503},
		{"delete live", fmt.Sprintf(deleteLive, keyRows(names)), nil, 2 * many},
		{"delete swept", fmt.Sprintf(deleteSwept, revisionRows(revisions)), nil, 2 * many},
		{"delete swept users", fmt.Sprintf(deleteSweptUsers, revisionRows(revisions)), nil, 2 * many},
		{"remove users", fmt.Sprintf(removeUsers, keyRows(names)), nil, 4 * many},
		{"erase users", fmt.Sprintf(eraseUsers, many), nil, many},
		{"usage", selectUsage, nil, 2 * int(keys)},
		{"erase live", fmt.Sprintf(eraseLive, many), nil, 3 * many},
		{"erase log", fmt.Sprintf(eraseLog, head, many), nil, 3 * many},
		{"erase aborted", eraseAborted, nil, 1},
		{"erase directories", eraseDirectories, nil, 1},
		{"directories", selectDirectories, nil, 1},
		{"indexes", selectIndexes, nil, 1},
		{"the indexes", selectTheIndexes, nil, 1},
		{"update indexes", fmt.Sprintf(updateIndexes, 1, "'x'"), nil, 1},
		{"entries", fmt.Sprintf(selectEntries, keyList(names)), nil, many},
		{"entries of rows", fmt.Sprintf(selectEntriesOf, keyList(names)), nil, many},
		{"update entries", fmt.Sprintf(updateEntries, entryRows(rows)), nil, 3 * many},
		{"delete entries", fmt.Sprintf(deleteEntries, entryRows(rows)), nil, 2 * many},
		{"drop entries", fmt.Sprintf(dropEntries, "x'00000001'", "x'00000002'", many), nil, many},
		{"erase entries", fmt.Sprintf(eraseEntries, many), nil, many},
		{"page by an index", selectPageOf(2), ofEntries(from, to, -all, all, 500), 4000},
		{"count by an index", countOf(2), ofEntries(from, to, 1000), 4000},
		{"rows of an index", selectIndexRows, walk, 503},
		{"rows of an index, backwards", selectIndexRowsBack, back, 503},
		{"renew", renewStore, nil, 1},
		{"growth", selectGrowth, []any{head - 1000, -512 * (head - 999)}, 2000},
		{"quota", selectQuota, nil, 1},
		{"home", selectHome, nil, 1},
		{"the home", selectTheHome, nil, 1},
		{"update home", fmt.Sprintf(updateHome, "'x'"), nil, 1},
		{"update identity", fmt.Sprintf(updateIdentity, "'x'"), nil, 1},
		{"everywhere", selectEverywhere, []any{[]byte("/registry/00000001")}, 3000},
		{"update quota", fmt.Sprintf(updateQuota, 1, 2), nil, 1},
		{"update swept", fmt.Sprintf(updateSwept, 1, 1, 1), nil, 1},
		{"update compacted", fmt.Sprintf(updateCompacted, 1), nil, 1},
		{"update epoch", fmt.Sprintf(updateEpoch, 1, 1, 1, "NULL"), nil, 1},
		{"update fingerprint", fmt.Sprintf(updateFingerprint, "'x'"), nil, 1},
	}
	for i := range statements {
		statements[i].SQL = ofStore(statements[i].SQL, fmt.Sprint(store))
	}
	return statements
}

// Transact takes the commit lock, as a commit does, and calls decide.
func Transact(ctx context.Context, b contract.Backend, decide func()) error {
	store := b.(*backend)
	t := transaction{what: "test", ask: store.text(), decide: func(a *answers) (*text, error) {
		if _, _, err := store.guard(a); err != nil {
			return nil, err
		}
		decide()
		return nil, errors.New("nothing is decided")
	}}
	store.askGuard(&t.ask, store.server.hold, 0, contract.Token{})
	return store.transact(ctx, &t)
}

// compared is the statement of a comparison.
func compared(since int64, c contract.Comparison) string {
	t := text{store: "$store"}
	t.compare(contract.Revision(since), &c)
	return t.String()
}

// Statement is a statement, its arguments, and about how many rows it has to read.
type Statement struct {
	Name string
	SQL  string
	Args []any
	Rows int
}
