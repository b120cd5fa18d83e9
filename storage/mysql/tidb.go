package mysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// On TiDB, the head, its token and its time stand in the row of the store, and each commit writes
// them there. The other servers find the head as the last row of the log. On TiDB that would be
// right as well, and it would be slow: a row that is locked by each commit and changed by none
// leaves a lock record in TiKV each time, through which all later ones have to go, and planning the
// statements is a good part of what a commit costs. The commit lock protects the row of the store,
// so what it says of the head is what the log says, in each snapshot.
//
// Servers of a TiDB cluster have clocks of their own. So the time is never below that of the head:
// of two commits, the later one has no earlier time, whichever servers they go through.

// tidbState are the columns of the state. No server is another one than the others: what one of
// them has confirmed, all of them read.
const tidbState = `s.epoch, s.head, s.head_token, s.compacted, s.swept, ` +
	`@@GLOBAL.tidb_super_read_only, ` + tidbNow + `, ''`

// tidbNow is the time. The row of the store has to be named besides.
const tidbNow = `GREATEST(` + now + `, s.head_time)`

// forTiDB makes a statement one for TiDB: it reads the head from the row of the store.
var forTiDB = strings.NewReplacer(
	state, tidbState,
	storeAndHead, `rowkeeper_store s`,
	polledState, tidbState,
)

// isTiDB tells whether new connections lead to TiDB.
func isTiDB(ctx context.Context, db *sql.DB) (bool, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return false, err
	}
	f, err := factsOf(c)
	return f.tidb, errors.Join(err, c.Close())
}

// onServer is a statement as TiDB, or another server, takes it. It comes before ofStore.
func onServer(sql string, tidb bool) string {
	if tidb {
		return forTiDB.Replace(sql)
	}
	return sql
}

// writeHead writes the head, by primary key.
const writeHead = `
UPDATE rowkeeper_store s
SET s.head = %d, s.head_token = x'%x', s.head_time = %d
WHERE s.id = $store`

// inTiDB is inTransaction where a marker is the head.
var inTiDB = func() sqlkit.TxStatements {
	all := inTransaction
	all.Mark = slices.Insert(slices.Clone(all.Mark), 1, sqlkit.Change{SQL: writeHead, Args: 3})
	return all
}()

// underLock are the statements of what is done under the commit lock, and in a snapshot.
func (d *database) underLock() *sqlkit.TxStatements {
	if d.tidb {
		return &inTiDB
	}
	return &inTransaction
}

// writeFirstHead writes the head of a store that has its first marker, by primary keys.
const writeFirstHead = `
UPDATE rowkeeper_store s
JOIN rowkeeper_log h ON h.store = s.id AND h.revision = 1
SET s.head = h.revision, s.head_token = h.token, s.head_time = h.time
WHERE s.id = ?`

// tidbSettings make a session read and write what all servers have committed, whatever the server's
// defaults are:
//
//   - tidb_txn_mode: a lock of a row is taken when it is asked for.
//   - tidb_low_resolution_tso, tidb_read_staleness, tidb_snapshot, tidb_enable_external_ts_read: a
//     read sees what was committed before it began.
//   - tidb_replica_read: a read is answered by a replica that has all commits.
//   - tidb_guarantee_linearizability: a commit that begins after another one was confirmed comes
//     after it.
//   - tidb_disable_txn_auto_retry, tidb_retry_limit: the server repeats no transaction.
//   - tidb_constraint_check_in_place_pessimistic: a key that is there twice is an error at once.
//   - tidb_dml_type, tidb_batch_insert, tidb_batch_delete: a statement is not divided.
//   - tidb_executor_concurrency: statements are small, and many run at a time.
//   - tidb_idle_transaction_timeout: in a transaction, it would take the place of wait_timeout.
//   - max_execution_time: backups and large deletions take long.
//
// A server that lacks one of them does not do what it would prevent.
var tidbSettings = [][2]string{{"tidb_txn_mode", "'pessimistic'"}, {"tidb_snapshot", "''"},
	{"tidb_low_resolution_tso", "OFF"}, {"tidb_read_staleness", "0"},
	{"tidb_enable_external_ts_read", "OFF"}, {"tidb_replica_read", "'leader'"},
	{"tidb_guarantee_linearizability", "ON"}, {"tidb_disable_txn_auto_retry", "ON"},
	{"tidb_retry_limit", "0"}, {"tidb_constraint_check_in_place_pessimistic", "ON"},
	{"tidb_dml_type", "'standard'"}, {"tidb_batch_insert", "OFF"}, {"tidb_batch_delete", "OFF"},
	{"tidb_executor_concurrency", "1"}, {"tidb_idle_transaction_timeout", "0"},
	{"max_execution_time", "0"},
}

// tidbVariables asks for the names of tidbSettings, and for tidb_rc_read_check_ts, which no session
// can set: with it, a read may be older than a commit that was confirmed before.
const tidbVariables = `SHOW VARIABLES WHERE variable_name LIKE 'tidb\\_%' OR variable_name = 'max_execution_time'`

func tidbSession(vars map[string]string) (string, error) {
	if isOn(vars["tidb_rc_read_check_ts"]) {
		return "", contract.Errorf(contract.Invalid, "the server has tidb_rc_read_check_ts=ON, by which "+
			"reads may be stale: set it to OFF on each TiDB server")
	}
	var set []string
	for _, v := range tidbSettings {
		if _, ok := vars[v[0]]; ok {
			set = append(set, v[0]+" = "+v[1])
		}
	}
	return "SET SESSION " + strings.Join(set, ", "), nil
}
