package dbserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// startTimeout bounds the time from the start of a server to its first answer.
const startTimeout = 2 * time.Minute

// check waits until the server answers, and reads its version.
func (s *Server) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	db, err := s.admin()
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// The statement of both kinds: Postgres answers "PostgreSQL 15.18 (…) on …", MySQL
		// "9.7.4-…", MariaDB "10.11.19-MariaDB-…".
		var version string
		err := db.QueryRowContext(ctx, "SELECT version()").Scan(&version)
		if err == nil {
			return s.setVersion(version)
		}
		if s.host == nil && ctx.Err() == nil {
			return fmt.Errorf("the server does not answer: %w", err)
		}
		if s.host != nil && !s.host.running(ctx) && ctx.Err() == nil {
			return fmt.Errorf("the server ended: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

func (s *Server) setVersion(version string) error {
	kind := MySQL
	switch {
	case strings.HasPrefix(version, "PostgreSQL "):
		kind = Postgres
		version = strings.TrimPrefix(version, "PostgreSQL ")
	case strings.Contains(version, "MariaDB"):
		kind = MariaDB
	}
	if kind != s.Kind {
		return fmt.Errorf("the server is of kind %s (%s), not %s", kind, version, s.Kind)
	}
	s.Version = strings.FieldsFunc(version, func(r rune) bool { return r == ' ' || r == '-' })[0]
	return nil
}

// admin opens the server for the administrator's statements.
func (s *Server) admin() (*sql.DB, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil,
			errors.New("it is not a URL such as postgres://user:password@host:5432/database or mysql://user:password@host:3306/")
	}
	if s.Kind == Postgres {
		return sql.Open("pgx", s.URL)
	}
	c := mysql.NewConfig()
	c.Logger = &mysql.NopLogger{}
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr = "tcp", u.Host
	if u.Port() == "" {
		c.Addr += ":3306"
	}
	c.DBName = strings.TrimPrefix(u.Path, "/")
	c.TLSConfig = u.Query().Get("tls")
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// quote quotes an identifier. Names of databases are made in this package and hold neither quotes
// nor backslashes.
func (s *Server) quote(name string) string {
	if s.Kind == Postgres {
		return `"` + name + `"`
	}
	return "`" + name + "`"
}

// Exec runs the administrator's statements, each in its own transaction.
func (s *Server) Exec(ctx context.Context, statements ...string) error {
	db, err := s.admin()
	if err != nil {
		return err
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}

// CreateDatabase creates an empty database and returns its URL.
func (s *Server) CreateDatabase(ctx context.Context, name string) (string, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return "", err
	}
	if err := s.Exec(ctx, "CREATE DATABASE "+s.quote(name)); err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// DropDatabase drops a database, though connections to it may be open.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	if s.Kind == Postgres {
		return s.Exec(ctx, "DROP DATABASE IF EXISTS "+s.quote(name)+" WITH (FORCE)")
	}
	return s.dropMySQL(ctx, name)
}

// dropMySQL drops a database. A connection with an open transaction in it would hold up the drop:
// it is cut then.
func (s *Server) dropMySQL(ctx context.Context, name string) error {
	db, err := s.admin()
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 1"); err != nil {
		return err
	}
	for {
		_, err := conn.ExecContext(ctx, "DROP DATABASE IF EXISTS "+s.quote(name))
		const lockWaitTimeout = 1205
		if err == nil || !isMySQL(err, lockWaitTimeout) {
			return err
		}
		if err := cut(ctx, conn, name); err != nil {
			return fmt.Errorf("cut the connections to %s: %w", name, err)
		}
	}
}

// cut ends all connections to a database.
func cut(ctx context.Context, conn *sql.Conn, name string) error {
	rows, err := conn.QueryContext(ctx,
		"SELECT id FROM information_schema.processlist WHERE db = ?", name)
	if err != nil {
		// MySQL cannot list a connection whose running statement is not text. The next attempt
		// finds another statement.
		const cannotConvert = 3854
		if isMySQL(err, cannotConvert) {
			return nil
		}
		return err
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, id := range ids {
		const noSuchThread = 1094 // it has ended meanwhile
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("KILL %d", id)); err != nil &&
			!isMySQL(err, noSuchThread) {
			return err
		}
	}
	return nil
}

// isMySQL tells whether an error is the server's with this number.
func isMySQL(err error, number uint16) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == number
}
