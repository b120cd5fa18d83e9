package target

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// postgresServer is a cluster as initdb makes it. Only where it listens is changed.
type postgresServer struct {
	*programs.Program
	port int
}

func servePostgres(ctx context.Context, dir string, p Programs) (Server, error) {
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	if dir, err = mkdir(dir, "postgres"); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	s := &postgresServer{port: port, Program: program(dir, syscall.SIGINT,
		filepath.Join(p.Postgres, "postgres"), "-D", data, "-p", fmt.Sprint(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")}
	if err := s.RunAs("postgres", "nobody"); err != nil {
		return nil, err
	}
	if err := s.Run(filepath.Join(p.Postgres, "initdb"), "--pgdata="+data, "--username=bench",
		"--auth=trust", "--encoding=UTF8", "--locale=C"); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.exec(ctx, "CREATE DATABASE bench", "CREATE DATABASE raw"); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *postgresServer) begin(ctx context.Context) error {
	if err := s.Start(); err != nil {
		return err
	}
	return s.Await(ctx, func(ctx context.Context) error { return s.exec(ctx, "SELECT 1") })
}

func (s *postgresServer) url(database string) string {
	return fmt.Sprintf("postgres://bench@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

func (s *postgresServer) exec(ctx context.Context, statements ...string) error {
	c, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	for _, q := range statements {
		if _, err := c.Exec(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}

func (s *postgresServer) Address() string    { return s.url("bench") }
func (s *postgresServer) Processes() []int   { return []int{s.PID()} }
func (s *postgresServer) DataDirs() []string { return []string{s.Dir} }
func (s *postgresServer) Stop() error        { return s.Program.Stop(context.Background()) }

func (s *postgresServer) Settings(ctx context.Context) ([]string, error) {
	c, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	durable := map[string]string{"fsync": "on", "synchronous_commit": "on",
		"full_page_writes": "on"}
	names := []string{"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method",
		"shared_buffers", "max_wal_size"}
	var version string
	if err := c.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return nil, err
	}
	var texts []string
	for _, name := range names {
		var value string
		if err := c.QueryRow(ctx, "SHOW "+name).Scan(&value); err != nil {
			return nil, err
		}
		if want, ok := durable[name]; ok && value != want {
			return nil, fmt.Errorf("postgres has %s=%s instead of %s: remove the setting", name,
				value, want)
		}
		texts = append(texts, name+"="+value)
	}
	return []string{"PostgreSQL " + version + ": " + strings.Join(texts, ", ")}, nil
}

// Statements counts transactions, since what is asked for in idle times is one statement in each.
func (s *postgresServer) Statements(ctx context.Context) (n int64, err error) {
	c, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	err = c.QueryRow(ctx, "SELECT xact_commit + xact_rollback FROM pg_stat_database "+
		"WHERE datname = 'bench'").Scan(&n)
	return n, err
}

// Checkpoint writes all to the data files and lets the log go that is not needed any more. How many
// old segments are kept for reuse follows from how much was written between the last checkpoints; a
// few idle ones let that estimate fall.
func (s *postgresServer) Checkpoint(ctx context.Context) error {
	return s.exec(ctx, "CHECKPOINT")
}

// Settle waits until autovacuum, which looks once a minute, has been to the tables with many dead
// rows.
func (s *postgresServer) Settle(ctx context.Context) error {
	c, err := pgx.Connect(ctx, s.url("bench"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		// Autovacuum's own threshold, with its default settings.
		var waiting int
		err := c.QueryRow(ctx,
			`SELECT count(*) FROM pg_stat_user_tables t JOIN pg_class c ON c.oid = t.relid WHERE n_dead_tup > 50 + 0.2 * greatest(reltuples, 0)`).Scan(&waiting)
		if err != nil {
			return err
		}
		if waiting == 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("autovacuum has not cleaned up %d tables: %w", waiting, ctx.Err())
		}
	}
}

func (s *postgresServer) Restart(ctx context.Context) error {
	if err := s.Program.Stop(ctx); err != nil {
		return err
	}
	return s.begin(ctx)
}

func (s *postgresServer) Committer(ctx context.Context) (Committer, error) {
	c, err := pgx.Connect(ctx, s.url("raw"))
	if err != nil {
		return nil, err
	}
	if _, err := c.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS raw (id bigint PRIMARY KEY, value bytea NOT NULL);
		CREATE TABLE IF NOT EXISTS raw_head (id int PRIMARY KEY);
		INSERT INTO raw_head VALUES (1) ON CONFLICT DO NOTHING;
		CREATE TABLE IF NOT EXISTS raw_log (revision bigint PRIMARY KEY, key bytea NOT NULL, value bytea NOT NULL);
		CREATE TABLE IF NOT EXISTS raw_live (key bytea PRIMARY KEY, revision bigint NOT NULL)`); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return postgresCommitter{c}, nil
}

type postgresCommitter struct{ conn *pgx.Conn }

func (c postgresCommitter) Commit(ctx context.Context, id int64, value []byte) error {
	_, err := c.conn.Exec(ctx, "INSERT INTO raw (id, value) VALUES ($1, $2)", id, value)
	return err
}

// Append sends all of it at once.
func (c postgresCommitter) Append(ctx context.Context, id int64, value []byte) error {
	key := []byte(rawKey(id))
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue("SELECT FROM raw_head WHERE id = 1 FOR UPDATE")
	b.Queue("INSERT INTO raw_log (revision, key, value) SELECT coalesce(max(revision), 0) + 1, "+
		"$1, $2 FROM raw_log", key, value)
	b.Queue("INSERT INTO raw_live (key, revision) SELECT $1, max(revision) FROM raw_log", key)
	b.Queue("COMMIT")
	return c.conn.SendBatch(ctx, &b).Close()
}

func (c postgresCommitter) Close() error { return c.conn.Close(context.Background()) }
