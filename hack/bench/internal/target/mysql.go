package target

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// mysqlServer is a server of the MySQL family with its stock settings. Only where it listens is
// changed.
type mysqlServer struct {
	*programs.Program
	port int
}

func serveMariaDB(ctx context.Context, dir string, p Programs) (Server, error) {
	return serveMySQLFamily(ctx, dir, p.MariaDB, func(data string) []string {
		return []string{p.MariaDBInstall, "--no-defaults", "--datadir=" + data,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"}
	})
}

func serveMySQL(ctx context.Context, dir string, p Programs) (Server, error) {
	return serveMySQLFamily(ctx, dir, p.MySQL, func(data string) []string {
		return []string{p.MySQL, "--no-defaults", "--initialize-insecure", "--datadir=" + data}
	})
}

func serveMySQLFamily(ctx context.Context, dir, server string,
	initialize func(data string) []string) (Server, error) {
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	if dir, err = mkdir(dir, "mysql"); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	s := &mysqlServer{port: port, Program: program(dir, syscall.SIGTERM,
		server, "--no-defaults", "--datadir="+data, "--bind-address=127.0.0.1",
		fmt.Sprintf("--port=%d", port), "--socket="+filepath.Join(dir, "socket"),
		"--pid-file="+filepath.Join(dir, "server.pid"))}
	if err := s.RunAs("mysql", "nobody"); err != nil {
		return nil, err
	}
	if err := s.Run(initialize(data)...); err != nil {
		return nil, err
	}
	return s, s.beginFresh(ctx)
}

// beginFresh starts a server without data, and makes what the bench needs.
func (s *mysqlServer) beginFresh(ctx context.Context) error {
	err := s.begin(ctx)
	if err == nil {
		err = s.exec(ctx, "CREATE USER 'bench'@'%' IDENTIFIED BY 'bench'",
			"GRANT ALL ON *.* TO 'bench'@'%'", "CREATE DATABASE bench", "CREATE DATABASE raw")
	}
	if err != nil {
		return errors.Join(err, s.Stop())
	}
	return nil
}

func (s *mysqlServer) begin(ctx context.Context) error {
	if err := s.Start(); err != nil {
		return err
	}
	return s.Await(ctx, func(ctx context.Context) error { return s.exec(ctx, "SELECT 1") })
}

// open connects as the administrator, who has no password on the local socket.
func (s *mysqlServer) open(user, password, database string) (*sql.DB, error) {
	c := mysql.NewConfig()
	c.Logger = &mysql.NopLogger{}
	c.User, c.Passwd, c.DBName = user, password, database
	c.MultiStatements = true
	c.Net, c.Addr = "unix", filepath.Join(s.Dir, "socket")
	if user != "root" {
		c.Net, c.Addr = "tcp", fmt.Sprintf("127.0.0.1:%d", s.port)
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func (s *mysqlServer) exec(ctx context.Context, statements ...string) error {
	db, err := s.open("root", "", "")
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

// Address leaves out encryption, as do the addresses of all other targets.
func (s *mysqlServer) Address() string {
	return fmt.Sprintf("mysql://bench:bench@127.0.0.1:%d/bench?tls=false", s.port)
}
func (s *mysqlServer) Processes() []int   { return []int{s.PID()} }
func (s *mysqlServer) DataDirs() []string { return []string{s.Dir} }
func (s *mysqlServer) Stop() error        { return s.Program.Stop(context.Background()) }

func (s *mysqlServer) Settings(ctx context.Context) ([]string, error) {
	db, err := s.open("root", "", "")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	var version, method string
	var flush, doublewrite, syncBinlog, binlog int
	var pool int64
	// Doublewrite is a number or a word, by server and version.
	err = db.QueryRowContext(ctx,
		`SELECT version(), @@innodb_flush_log_at_trx_commit, CASE WHEN @@innodb_doublewrite IN ('0', 'OFF') THEN 0 ELSE 1 END,
		coalesce(@@innodb_flush_method, ''), @@log_bin, @@sync_binlog, @@innodb_buffer_pool_size`).Scan(&version, &flush, &doublewrite, &method, &binlog, &syncBinlog, &pool)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("innodb_flush_log_at_trx_commit=%d, innodb_doublewrite=%d, "+
		"innodb_flush_method=%s, log_bin=%d, sync_binlog=%d, innodb_buffer_pool_size=%dM", flush,
		doublewrite, method, binlog, syncBinlog, pool>>20)
	if flush != 1 || doublewrite == 0 || binlog == 1 && syncBinlog != 1 ||
		strings.Contains(strings.ToLower(method), "nosync") {
		return nil, fmt.Errorf("the server is less durable than by default: %s", text)
	}
	name := "MySQL"
	if strings.Contains(version, "MariaDB") {
		name = "MariaDB"
	}
	return []string{name + " " + strings.Split(version, "-")[0] + ": " + text}, nil
}

func (s *mysqlServer) Statements(ctx context.Context) (n int64, err error) {
	db, err := s.open("root", "", "")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	var name string
	err = db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	return n, err
}

// Checkpoint leaves the server alone: its log has a fixed size and is counted as it is.
func (s *mysqlServer) Checkpoint(context.Context) error { return nil }

// Settle waits until the purge threads have removed what was deleted.
func (s *mysqlServer) Settle(ctx context.Context) error {
	db, err := s.open("root", "", "")
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		var transactions int
		err := db.QueryRowContext(ctx, "SELECT count FROM information_schema.innodb_metrics "+
			"WHERE name = 'trx_rseg_history_len'").Scan(&transactions)
		if err != nil {
			return err
		}
		if transactions < 1000 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d transactions have not been purged: %w", transactions, ctx.Err())
		}
	}
}

func (s *mysqlServer) Restart(ctx context.Context) error {
	if err := s.Program.Stop(ctx); err != nil {
		return err
	}
	return s.begin(ctx)
}

func (s *mysqlServer) Committer(ctx context.Context) (Committer, error) {
	db, err := s.open("bench", "bench", "raw")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	raw, err := newSQLCommitter(ctx, db, "INSERT INTO raw (id, value) VALUES (?, ?)",
		"CREATE TABLE IF NOT EXISTS raw (id bigint PRIMARY KEY, value mediumblob NOT NULL)",
		"CREATE TABLE IF NOT EXISTS raw_head (id int PRIMARY KEY)",
		"INSERT IGNORE INTO raw_head VALUES (1)",
		"CREATE TABLE IF NOT EXISTS raw_log (revision bigint PRIMARY KEY, `key` varbinary(1024) "+
			"NOT NULL, value mediumblob NOT NULL)",
		"CREATE TABLE IF NOT EXISTS raw_live (`key` varbinary(1024) PRIMARY KEY, revision bigint "+
			"NOT NULL)")
	if err != nil {
		return nil, err
	}
	return mysqlCommitter{raw}, nil
}

type mysqlCommitter struct{ *sqlCommitter }

// Append sends all of it at once.
func (c mysqlCommitter) Append(ctx context.Context, id int64, value []byte) error {
	key := rawKey(id)
	_, err := c.db.ExecContext(ctx, fmt.Sprintf(`
		START TRANSACTION;
		SELECT id FROM raw_head WHERE id = 1 FOR UPDATE;
		INSERT INTO raw_log (revision, `+"`key`"+`, value) SELECT coalesce(max(revision), 0) + 1, '%s', x'%x' FROM raw_log;
		INSERT INTO raw_live (`+"`key`"+`, revision) SELECT '%s', max(revision) FROM raw_log;
		COMMIT`, key, value, key))
	return err
}
