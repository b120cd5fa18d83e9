package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Statement is a statement for the tests of plans.
type Statement struct {
	Name, SQL string
	Writes    bool
}

// Statements are all that touch the tables.
func Statements() []Statement {
	list := []Statement{
		{"state", sqlState, false}, {"tail", sqlTail, false}, {"parts", sqlParts, false}, {"get", sqlGet, false},
		{"poll", sqlPoll, false},
		{"get_keys", sqlGetKeys, false}, {"page", sqlPage, false}, {"keys", sqlKeys, false},
		{"replaced", sqlReplaced, false}, {"values", sqlValues, false},
		{"chain", sqlChain, false}, {"changes", sqlChanges, false}, {"users", sqlUsers, false}, {"count", sqlCount, false},
		{"count_up_to", sqlCountUpTo, false}, {"expired", sqlExpired, false},
		{"first_at", sqlFirstAt, false}, {"leases", sqlLeases, false},
		{"lapsing", sqlLapsing, false}, {"attached", sqlAttached, false},
		{"attached_to", sqlAttachedTo, false}, {"count_leases", sqlCountLeases, false},
		{"some_leases", sqlSomeLeases, true}, {"put_leases", sqlPutLeases, true},
		{"drop_leases", sqlDropLeases, true}, {"all_leases", sqlAllLeases, true}, {"sweepable", sqlSweepRows, false},
		{"find_group", sqlFindGroup, true}, {"abort", sqlAbort, true},
		{"compact", sqlCompact, true}, {"records", sqlRecords, true},
		{"record_parts", sqlRecordParts, true}, {"import", sqlImport, true},
		{"mark", sqlMark, true}, {"record_fingerprint", sqlRecordFingerprint, true},
		{"identity", sqlIdentity, false},
		{"record_boot", sqlRecordBoot, true}, {"size", sqlSize, false},
		{"usage", sqlUsage, false}, {"erase", sqlErase, true}, {"remove", sqlRemove, true}, {"renew", sqlRenew, true},
		{"growth", sqlGrowth, false}, {"quota", sqlQuota, false}, {"set_quota", sqlSetQuota, true},
		{"home", sqlHome, false}, {"the_home", sqlTheHome, true}, {"set_home", sqlSetHome, true},
		{"set_identity", sqlSetIdentity, true},
		{"everywhere", sqlEverywhere, false}, {"directories", sqlDirectories, true},
		{"put_directory", sqlPutDirectory, true},
		{"indexes", sqlIndexes, false}, {"the_indexes", sqlTheIndexes, true},
		{"set_indexes", sqlSetIndexes, true}, {"page_of", sqlPageOf, false},
		{"replaced_of", sqlReplacedOf, false},
		{"count_of", sqlCountOf, false}, {"index_rows", sqlIndexRows, false},
		{"index_rows_back", sqlIndexRowsBack, false}, {"reindex", sqlReindex, true},
		{"drop_entries", sqlDropEntries, true},
	}
	for _, s := range writingStatements {
		if s.name != begin.name && s.name != commit.name {
			list = append(list, Statement{s.name, s.sql, true})
		}
	}
	return list
}

// Session calls f with a connection of the pool that reads, or of the one that writes.
func Session(ctx context.Context, b contract.Backend, writes bool, f func(*pgx.Conn) error) error {
	pool := b.(*backend).reads
	if writes {
		pool = b.(*backend).commits
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return f(conn.Conn())
}

// ProbeEvery sets how often a backend that does not listen yet will try the way.
func ProbeEvery(b contract.Backend, interval time.Duration) {
	b.(*backend).listener.interval = interval
}

// Alone tells whether a backend's process announces nothing, since nobody else listens.
func Alone(b contract.Backend) bool {
	a := &b.(*backend).sender
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alone
}

// MajorVersion is majorVersion.
var MajorVersion = majorVersion

// StatementError is statementError.
var StatementError = statementError

// ConnConfig parses a URL and returns the configuration of its connections.
func ConnConfig(url string, opts contract.DriverOptions) (*pgx.ConnConfig, error) {
	c, err := parseURL(url, opts)
	if err != nil {
		return nil, err
	}
	cc := c.pool.ConnConfig.Copy()
	_, err = c.refresh(context.Background(), cc)
	return cc, err
}

// CheckURL parses a URL.
func CheckURL(url string, opts contract.DriverOptions) error {
	c, err := parseURL(url, opts)
	if err == nil {
		_ = c.where()
	}
	return err
}

// Questions and InspectorSettings are those of Inspect.
var (
	Questions         = questions
	InspectorSettings = inspectorSettings(time.Minute)
)
