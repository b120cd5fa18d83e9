package mysql

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/migrations"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Migrate brings the schema to the newest version. It needs CREATE, ALTER, INDEX, DROP and CREATE
// VIEW on the database besides what Open does.
func (opener) Migrate(ctx context.Context, url string,
	opts contract.DriverOptions) ([]contract.Migration, error) {
	return migrating(url, opts, func(db *sql.DB) ([]migrations.Migration, error) {
		var done []migrations.Migration
		if err := letFirstNode(ctx, db, nodeTurn); err != nil {
			return nil, err
		}
		set := migrations.MySQL
		tidb, err := isTiDB(ctx, db)
		if err != nil {
			return nil, err
		}
		if tidb {
			set = migrations.TiDB
		}
		_, err = backoff.Retry(ctx, func() (struct{}, error) {
			steps, err := migrations.Up(ctx, db, set, migrations.MySQLLocker())
			done = append(done, steps...)
			if err != nil && !collided(err) {
				err = backoff.Permanent(err)
			}
			return struct{}{}, err
		}, backoff.WithMaxElapsedTime(time.Minute))
		return done, err
	})
}

// nodeTurn is how long a node of Galera leaves a migration to each node before it.
const nodeTurn = 5 * time.Second

// letFirstNode waits on Galera until another node has migrated, or each before it has had its turn.
// To make a view, a node locks the tables and views below it, and then waits for its turn among the
// statements of all nodes. If another node's statement comes first and changes one of these, the
// two wait for each other for ever. So servers that start together on several nodes leave it to the
// first node that has one.
func letFirstNode(ctx context.Context, db *sql.DB, turn time.Duration) error {
	var name, index string
	err := db.QueryRowContext(ctx, `SHOW STATUS LIKE 'wsrep_local_index'`).Scan(&name, &index)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // it is no Galera cluster
	}
	if err != nil {
		return err
	}
	before, err := strconv.Atoi(index)
	if err != nil {
		return nil // the server has no cluster, and says that by the greatest number
	}
	over := time.NewTimer(time.Duration(before) * turn)
	defer over.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := migrations.MySQL.Check(ctx, db)
		if v := (*migrations.VersionError)(nil); !errors.As(err, &v) || v.Have >= v.Know {
			return nil // Up finds what else may be wrong
		}
		select {
		case <-tick.C:
		case <-over.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// collided tells whether a migration failed because another one ran at the same time. On Galera
// each node has locks of its own, so two nodes may migrate at once. The one that loses begins anew,
// and finds what the other one has done. A step that was done before does nothing.
func collided(err error) bool {
	const tableExists = 1050
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		return undone[server.Number] == contract.Transient || server.Number == tableExists
	}
	// goose has created the version table, and not filled it yet; it has no name for this error.
	return strings.Contains(err.Error(), "missing zero version")
}

// Status lists the migrations that this program knows, and the ones that the database has.
func (opener) Status(ctx context.Context, url string,
	opts contract.DriverOptions) ([]contract.Migration, error) {
	return migrating(url, opts, func(db *sql.DB) ([]migrations.Migration, error) {
		return migrations.Status(ctx, db, migrations.MySQL)
	})
}

func migrating(url string, opts contract.DriverOptions,
	f func(*sql.DB) ([]migrations.Migration, error)) ([]contract.Migration, error) {
	var done []contract.Migration
	err := administering(url, opts, "migrate the database", func(_ *server, db *sql.DB) error {
		list, err := f(db)
		for _, m := range list {
			done = append(done, contract.Migration(m))
		}
		return err
	})
	return done, err
}

// administering runs f with the connections of a role that may change the schema.
func administering(url string, opts contract.DriverOptions, what string,
	f func(*server, *sql.DB) error) error {
	s, err := newServer(url, opts)
	if err != nil {
		return err
	}
	d := newDatabase(s, opts.Timeout)
	defer d.Close()
	// A migration holds one connection for the lock and works on others.
	db := s.pool(connector{server: s, once: true}, 4)
	defer db.Close()
	if err := f(s, db); err != nil {
		return d.failed(what, err)
	}
	return nil
}
