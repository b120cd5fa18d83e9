package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Identity asks on a connection of its own, which finds out anew what the server is.
func (b *backend) Identity(ctx context.Context) (contract.Identity, error) {
	const what = "read the store's identity"
	var id contract.Identity
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.admin.Conn(ctx)
	if err != nil {
		return id, b.failed(what, err)
	}
	defer c.Close()
	if id, _, err = b.row(ctx, link{c}); err != nil {
		return id, b.failed(what, err)
	}
	return id, nil
}

// row reads the row of the store, and what the connection knows, wherever that leads.
func (b *backend) row(ctx context.Context, l link) (id contract.Identity, d contract.Durability,
	err error) {
	f, err := factsOf(l.Conn)
	if err != nil {
		return id, d, err
	}
	_, id, d, err = scan(f, l.QueryRowContext(ctx, ofStore(selectIdentity, b.store)))
	if errors.Is(err, sql.ErrNoRows) {
		err = contract.ErrEmptyStore
	}
	return id, d, err
}

// scan takes the row of a store.
func scan(f facts, row *sql.Row) (store int64, id contract.Identity, d contract.Durability, err error) {
	id.Actual, d.Boot, d.Relaxed = f.Fingerprint, f.Boot, f.Relaxed
	err = row.Scan(&store, &id.Store, &id.Recorded, &id.Epoch, &d.Recorded)
	if f.galera {
		d.Recorded = ""
	}
	return store, id, d, err
}

// factsOf returns what a connection knows of its server.
func factsOf(c *sql.Conn) (f facts, err error) {
	err = c.Raw(func(c any) error { f = c.(*conn).facts; return nil })
	return f, err
}

// check refuses an answer of another server than the one that the connection was made to. The row
// has the columns of the state.
func (f facts) check(r row) error {
	if f.server != "" && !r[1].null && string(r[7].bytes) != f.server {
		return contract.ErrAnotherServer
	}
	return nil
}

// tableCreated returns in which database, by its name as the server keeps it, and when the table
// that no migration alters was created, no row if it is missing. It reads the dictionary.
const tableCreated = `
SELECT t.table_schema, CAST(UNIX_TIMESTAMP(t.create_time) AS SIGNED)
FROM information_schema.tables t
WHERE t.table_schema = DATABASE() AND t.table_name = 'rowkeeper_aborted'`

// tableNumber is tableCreated on TiDB, whose servers have no identity, and which gives each table
// another number.
const tableNumber = `
SELECT t.table_schema, CONCAT(t.tidb_table_id, ' of ', CAST(UNIX_TIMESTAMP(t.create_time) AS SIGNED))
FROM information_schema.tables t
WHERE t.table_schema = DATABASE() AND t.table_name = 'rowkeeper_aborted'`

func (c *connector) fingerprintOf(ctx context.Context, s session, f facts,
	vars map[string]string) (string, error) {
	query := tableCreated
	if f.tidb {
		query = tableNumber
	}
	created, err := c.strings(ctx, s, query, 2)
	if err != nil || len(created) == 0 {
		return "", err
	}
	name, time := strconv.QuoteToASCII(created[0][0]), created[0][1]
	switch {
	case f.galera:
		// Any node may answer. The nodes have nothing else in common that a restore would change.
		return fmt.Sprintf("galera cluster %s, database %s", vars["wsrep_cluster_state_uuid"],
			name), nil
	case f.tidb:
		return fmt.Sprintf("tidb database %s, table %s", name, time), nil
	case f.mariadb:
		return fmt.Sprintf("mariadb server %s, database %s, tables of %s", vars["server_id"],
			name, time), nil
	}
	begun, err := c.groupBegun(ctx, s, vars)
	if err != nil {
		return "", err
	}
	if begun != "" {
		return fmt.Sprintf("mysql group %s begun at %s, database %s, tables of %s",
			vars["group_replication_group_name"], begun, name, time), nil
	}
	return fmt.Sprintf("mysql server %s, database %s, tables of %s", vars["server_uuid"],
		name, time), nil
}

// groupView returns when the server's group was bootstrapped, the fixed part of the identifier of
// its view. It is no row, or "", if the server takes part in none.
const groupView = `
SELECT SUBSTRING_INDEX(g.view_id, ':', 1)
FROM performance_schema.replication_group_member_stats g
WHERE g.member_id = @@GLOBAL.server_uuid`

// groupBegun tells when a group was bootstrapped whose primary the server may be. All its members
// have the commits that one of them has confirmed: the majority had them first, and a new primary
// answers when it has applied them. A group that is bootstrapped anew may have lost some. The
// result is "" if the server takes part in none, or if the account may not know.
func (c *connector) groupBegun(ctx context.Context, s session,
	vars map[string]string) (string, error) {
	if vars["group_replication_group_name"] == "" {
		return "", nil
	}
	rows, err := c.strings(ctx, s, groupView, 1)
	if refused := (*mysql.MySQLError)(nil); errors.As(err, &refused) && refused.Number == 1142 {
		return "", nil
	}
	if err != nil || len(rows) == 0 {
		return "", err
	}
	return rows[0][0], nil
}
