package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlkit"
)

// Query implements [contract.Driver]. Double quotes are those of names, as in the other databases.
func (opener) Query(ctx context.Context, url string, opts contract.DriverOptions, q contract.Query,
	each func(columns []string, values []any) error) error {
	if err := q.Check(); err != nil {
		return err
	}
	var callers error
	err := administering(url, opts, "run the statement", func(_ *server, db *sql.DB) error {
		first, err := beginQuery(ctx, db, q)
		if err != nil {
			return err
		}
		return sqlkit.Query(ctx, db, first, q, late, func(columns []string, values []any) error {
			if len(columns) == 0 { // TiDB has executed what writes, and what it wrote is not committed
				return contract.QueryError(false, q, errors.New("it does not read"))
			}
			callers = each(columns, values)
			return callers
		})
	})
	if callers != nil {
		return callers
	}
	return err
}

// late tells whether the server has ended a statement since it took too long. The errors are those
// of MySQL and of MariaDB. TiDB has that of MySQL, or says what became of its own read.
func late(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && (e.Number == 3024 || e.Number == 1969 ||
		e.Number == 1105 && e.Message == "context canceled")
}

// beginQuery are the statements that begin a transaction which only reads, and by which the server
// ends what takes too long. Servers differ in both.
func beginQuery(ctx context.Context, db *sql.DB, q contract.Query) ([]string, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f, err := factsOf(c)
	if err != nil {
		return nil, err
	}
	limit := fmt.Sprintf("SET SESSION max_execution_time = %d", q.Timeout.Milliseconds())
	if f.mariadb {
		limit = fmt.Sprintf("SET SESSION max_statement_time = %f", q.Timeout.Seconds())
	}
	first := []string{limit, "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ANSI_QUOTES'"}
	if f.tidb { // it promises no transaction that only reads; this one is never committed
		return append(first, "START TRANSACTION"), nil
	}
	return append(first, "START TRANSACTION READ ONLY"), nil
}
