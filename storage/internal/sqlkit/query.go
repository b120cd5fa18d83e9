package sqlkit

import (
	"context"
	"database/sql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Query runs a statement of a user in a read-only transaction, which the statements first begin,
// and calls each for its rows, with the names of the columns, until it returns an error. It calls
// each once with no values if there are no rows. Bytes are []byte, whether or not they are text.
// The errors of each are returned as they are. Those of the statement are of type
// *[contract.Error], and late says of them whether the database has ended it since its time was
// over.
func Query(ctx context.Context, db *sql.DB, first []string, q contract.Query, late func(error) bool,
	each func(columns []string, values []any) error, options ...any) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// Nobody uses the connection after this, so the end of it is the end of the transaction.
		_ = conn.Close()
	}()
	for _, text := range first {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	refused := func(err error) error { return contract.QueryError(late(err), q, err) }
	rows, err := conn.QueryContext(ctx, q.SQL, options...)
	if err != nil {
		return refused(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return refused(err)
	}
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	found := false
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return refused(err)
		}
		found = true
		if err := each(columns, values); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return refused(err)
	}
	if found {
		return nil
	}
	return each(columns, nil)
}
