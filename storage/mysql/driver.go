package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

var schemes = []string{"mysql", "mariadb"}

// Driver opens stores in MySQL and MariaDB. Its URLs are described in the package's documentation.
var Driver mvcc.Driver = opener{}

type opener struct{}

// Name returns "mysql".
func (opener) Name() string { return "mysql" }

// Schemes returns "mysql" and "mariadb". Both mean the same: what the server is, it says itself.
func (opener) Schemes() []string { return schemes }

// Open connects to the database and checks that it holds a store that this program can use. It changes nothing, and needs no more
// than SELECT, INSERT, UPDATE and DELETE on the database. Its error is one sentence that names what to do.
func (opener) Open(ctx context.Context, url string, opts mvcc.DriverOptions) (mvcc.Backend, error) {
	s, err := newServer(url, opts)
	if err != nil {
		return nil, err
	}
	b := newBackend(s, opts.Timeout)
	if err := b.open(ctx); err != nil {
		if closeErr := b.Close(); closeErr != nil {
			opts.Logger.Debug("closing connections", "err", closeErr)
		}
		return nil, err
	}
	return b, nil
}

// open makes the first connection, to which all others are compared.
func (b *backend) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.reads.Conn(ctx)
	if err != nil {
		return b.failed("open the database", err)
	}
	defer c.Close()
	var f facts
	if err := c.Raw(func(c any) error { f = c.(*conn).facts; return nil }); err != nil {
		return b.failed("open the database", err)
	}
	if b.limits, err = limitsFor(f.maxPacket); err != nil {
		return err
	}
	b.server.minPacket.Store(int64(packetFor(b.limits.GroupBytes)))
	b.galera = f.galera
	if err := migrations.MySQL.Check(ctx, b.reads); err != nil {
		return b.failed("check the schema", err)
	}
	b.server.durability.Store(&f.durability)
	b.server.fingerprint.Store(&f.fingerprint)
	return nil
}

// Migrate brings the schema to the newest version. It needs CREATE, ALTER, INDEX and DROP on the database besides what Open does.
func (opener) Migrate(ctx context.Context, url string, opts mvcc.DriverOptions) ([]mvcc.Migration, error) {
	return migrating(url, opts, func(db *sql.DB) ([]migrations.Migration, error) {
		var done []migrations.Migration
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			steps, err := migrations.Up(ctx, db, migrations.MySQL, migrations.MySQLLocker())
			done = append(done, steps...)
			if err != nil && !collided(err) {
				err = backoff.Permanent(err)
			}
			return struct{}{}, err
		}, backoff.WithMaxElapsedTime(time.Minute))
		return done, err
	})
}

// collided tells whether a migration failed since another one ran at the same time. On Galera each node has locks of its own, so two nodes may migrate at
// once. Who loses begins anew, and finds what the other one has done; each step of a migration does nothing if it was done.
func collided(err error) bool {
	const tableExists = 1050
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		return undone[server.Number] == mvcc.Transient || server.Number == tableExists
	}
	// goose has created the version table, and not filled it yet; it has no name for this error.
	return strings.Contains(err.Error(), "missing zero version")
}

// Status lists the migrations that this program knows and those that the database has.
func (opener) Status(ctx context.Context, url string, opts mvcc.DriverOptions) ([]mvcc.Migration, error) {
	return migrating(url, opts, func(db *sql.DB) ([]migrations.Migration, error) {
		return migrations.Status(ctx, db, migrations.MySQL)
	})
}

func migrating(url string, opts mvcc.DriverOptions, f func(*sql.DB) ([]migrations.Migration, error)) ([]mvcc.Migration, error) {
	s, err := newServer(url, opts)
	if err != nil {
		return nil, err
	}
	b := newBackend(s, opts.Timeout)
	defer b.Close()
	// A migration holds one connection for the lock and works on others.
	db := s.pool(connector{server: s, anyServer: true}, 4)
	defer db.Close()
	list, err := f(db)
	done := make([]mvcc.Migration, len(list))
	for i, m := range list {
		done[i] = mvcc.Migration(m)
	}
	if err != nil {
		return done, b.failed("migrate the database", err)
	}
	return done, nil
}
