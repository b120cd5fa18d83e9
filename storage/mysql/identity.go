package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Identity asks on a connection of its own, which finds out anew what the server is.
func (b *backend) Identity(ctx context.Context) (mvcc.Identity, error) {
	const what = "read the store's identity"
	var id mvcc.Identity
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.admin.Conn(ctx)
	if err != nil {
		return id, b.failed(what, err)
	}
	defer c.Close()
	err = c.Raw(func(c any) error { id.Actual = c.(*conn).facts.fingerprint; return nil })
	if err == nil {
		err = c.QueryRowContext(ctx, ofStore(selectIdentity, b.store)).
			Scan(&id.Store, &id.Recorded, &id.Epoch)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return id, mvcc.ErrEmptyStore
	case err != nil:
		return id, b.failed(what, err)
	}
	return id, nil
}

// tableCreated returns in which database, by its name as the server keeps it, and when the table
// that no migration alters was created, no row if it is missing. It reads the dictionary.
const tableCreated = `
SELECT t.table_schema, CAST(UNIX_TIMESTAMP(t.create_time) AS SIGNED)
FROM information_schema.tables t
WHERE t.table_schema = DATABASE() AND t.table_name = 'rowkeeper_aborted'`

// is tells whether this is the fingerprint of the database that this process works with.
func (s *server) is(fingerprint string) bool {
	known := s.fingerprint.Load()
	return known == nil || *known == fingerprint
}

func (c *connector) fingerprintOf(ctx context.Context, s session, f facts,
	vars map[string]string) (string, error) {
	created, err := c.strings(ctx, s, tableCreated, 2)
	if err != nil || len(created) == 0 {
		return "", err
	}
	name, time := strconv.QuoteToASCII(created[0][0]), created[0][1]
	switch {
	case f.galera:
		// Any node may answer. The nodes have nothing else in common that a restore would change.
		return fmt.Sprintf("galera cluster %s, database %s", vars["wsrep_cluster_state_uuid"],
			name), nil
	case f.mariadb:
		return fmt.Sprintf("mariadb server %s, database %s, tables of %s", vars["server_id"],
			name, time), nil
	}
	return fmt.Sprintf("mysql server %s, database %s, tables of %s", vars["server_uuid"],
		name, time), nil
}
