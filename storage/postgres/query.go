package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Query implements [contract.Driver]. The extended protocol takes one statement only, so none can
// end the transaction and go on.
func (driver) Query(ctx context.Context, url string, opts contract.DriverOptions, q contract.Query,
	each func(columns []string, values []any) error) error {
	if err := q.Check(); err != nil {
		return err
	}
	var callers error
	err := withDB(ctx, url, opts, func(_ *config, db *sql.DB) error {
		first := []string{"BEGIN READ ONLY",
			fmt.Sprintf("SET LOCAL statement_timeout = %d", q.Timeout.Milliseconds())}
		return sqlkit.Query(ctx, db, first, q, late, func(columns []string, values []any) error {
			callers = each(columns, values)
			return callers
		}, pgx.QueryExecModeDescribeExec)
	})
	if callers != nil {
		return callers
	}
	return err
}

// late tells whether the server has ended a statement since it took too long.
func late(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "57014"
}
