package mysql

import (
	"context"
	"strconv"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// The server's start, in seconds since 1970. Uptime is counted to the time at which the statement
// began, which is also what UNIX_TIMESTAMP returns: so the difference is always the same, however
// the clock is moved after the start.
const (
	startOfMySQL = `
SELECT CAST(UNIX_TIMESTAMP() - g.variable_value AS SIGNED)
FROM performance_schema.global_status g
WHERE g.variable_name = 'Uptime'`
	startOfMariaDB = `
SELECT CAST(UNIX_TIMESTAMP() - g.variable_value AS SIGNED)
FROM information_schema.global_status g
WHERE g.variable_name = 'UPTIME'`
)

// relaxed tells whether the server confirms commits that a crash of its own or of its operating
// system could undo: commits that are in the redo log's buffer or in the system's memory; and with
// a binary log also commits that are not in it on the disk, as recovery rolls back what it does not
// find there.
func relaxed(vars map[string]string) bool {
	return vars["innodb_flush_log_at_trx_commit"] != "1" ||
		isOn(vars["log_bin"]) && vars["sync_binlog"] != "1" ||
		vars["innodb_flush_method"] == "nosync" || isOn(vars["debug_no_sync"])
}

// bootOf finds out what can undo commits. Clusters of Galera and of TiDB have no start of their
// own: what one node loses it gets back from the others.
func (c *connector) bootOf(ctx context.Context, s session, f facts,
	vars map[string]string) (boot string, mayLose bool, err error) {
	if f.galera || f.tidb || f.Fingerprint == "" {
		return "", false, nil
	}
	query := startOfMySQL
	if f.mariadb {
		query = startOfMariaDB
	}
	start, err := c.strings(ctx, s, query, 1)
	if err == nil && len(start) != 1 {
		err = contract.Errorf(contract.Invalid, "the server does not tell its uptime")
	}
	if err != nil {
		return "", false, err
	}
	return "start " + start[0][0], relaxed(vars), nil
}

// Durability implements [contract.Backend], on a connection of its own.
func (b *backend) Durability(ctx context.Context) (d contract.Durability, err error) {
	const what = "read the server's durability"
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.admin.Conn(ctx)
	if err != nil {
		return d, b.failed(what, err)
	}
	defer c.Close()
	if _, d, err = b.row(ctx, link{c}); err != nil {
		return d, b.failed(what, err)
	}
	return d, nil
}

// RecordBoot implements [contract.Backend]. After the commit it waits until the redo log is on the
// disk up to where it ended then. The server writes it each second; an account that may (RELOAD)
// has it written at once.
func (b *backend) RecordBoot(ctx context.Context, from, boot string) error {
	const what = "record the server's start"
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if _, err := b.admin.ExecContext(ctx, ofStore(updateBoot, b.store), boot, from); err != nil {
		return b.failed(what, err)
	}
	written, _, err := b.redo(ctx)
	if err != nil {
		return b.failed(what, err)
	}
	_, _ = b.admin.ExecContext(ctx, "FLUSH NO_WRITE_TO_BINLOG ENGINE LOGS") // else it is waited for
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, flushed, err := b.redo(ctx)
		if err != nil {
			return b.failed(what, err)
		}
		if flushed >= written {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b.failed(what, ctx.Err())
		}
	}
}

// redo returns up to where the redo log is written, and is on the disk. MySQL before 8.0.30 does
// not tell: then both are 0.
func (b *backend) redo(ctx context.Context) (written, flushed uint64, err error) {
	rows, err := b.admin.QueryContext(ctx, `SHOW GLOBAL STATUS WHERE variable_name IN
	('Innodb_lsn_current', 'Innodb_lsn_flushed', 'Innodb_redo_log_current_lsn', 'Innodb_redo_log_flushed_to_disk_lsn')`)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return 0, 0, err
		}
		lsn, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		if name == "Innodb_lsn_current" || name == "Innodb_redo_log_current_lsn" {
			written = lsn
		} else {
			flushed = lsn
		}
	}
	return written, flushed, rows.Err()
}
