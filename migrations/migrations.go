// Package migrations holds the schema of the store's tables as versioned SQL, one directory per
// kind of database, and brings databases to it.
//
// # The rule for changes
//
// A schema change expands first and contracts a release later, so that the programs of two
// successive releases can work on one database while replicas are replaced one by one. The row
// of each store says in oldest_writer the oldest schema version whose programs may still write: a
// migration that only adds something leaves it, one that such a program would harm raises it to its
// own number in all of them, in the same transaction.
//
// A program that knows the schema versions up to S may use a database at version V if V == S, or if
// V > S and oldest_writer <= S: that is how an older replica may start again in the middle of a
// rolling upgrade. A program that is running when oldest_writer rises beyond S finds that out under
// the commit lock and writes no more. If V < S, the database has to be migrated first.
//
// A migration is a file NNNNN_name.sql that begins with "-- +goose Up" and runs in one transaction
// where the database can. There is no way down: an older program runs on the newer schema, or a
// backup is restored.
package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// VersionTable is the table in which the applied versions are recorded.
const VersionTable = "rowkeeper_schema"

// Set is the migrations of one kind of database.
type Set struct {
	// dialect is goose's name of the database.
	dialect database.Dialect
	// files has the SQL files in dir.
	files fs.FS
	dir   string
	// tableExists is a query without arguments that tells whether the version table is there, as
	// one boolean or 0 or 1.
	tableExists string
	// store, if not nil, makes what reads and writes the version table, in place of goose's own.
	store func() (database.Store, error)
	// optimistic says that migrators need no lock: one that loses fails without effect and looks
	// again.
	optimistic bool
	// begin, if not empty, is for databases without transactional DDL: it puts the first row, of
	// version 0, into a version table that has none, since whoever has created the table was
	// interrupted.
	begin string
}

// Migration is one step of a schema.
type Migration struct {
	Version int64
	// Name is from the file's name, and empty if this program does not know the migration.
	Name string
	// Applied is the time when it was applied, zero if it is pending.
	Applied time.Time
}

// VersionError says that a program cannot use a database because of the schema's version.
type VersionError struct {
	// Have is the version of the database's schema, 0 if it has none.
	Have int64
	// Know is the newest version that this program knows.
	Know int64
}

func (e *VersionError) Error() string {
	switch {
	case e.Have == 0:
		return "the database holds no rowkeeper store yet: run `rowkeeper migrate up`"
	case e.Have < e.Know:
		return fmt.Sprintf("the database's schema is version %d, older than version %d that this "+
			"program needs: run `rowkeeper migrate up`", e.Have, e.Know)
	default:
		return fmt.Sprintf("the database's schema is version %d, newer than version %d that this "+
			"program knows; use a newer rowkeeper", e.Have, e.Know)
	}
}

// Newest returns the newest version of the set.
func (s Set) Newest() int64 {
	known, err := s.known()
	if err != nil || len(known) == 0 {
		return 0
	}
	return known[len(known)-1].Version
}

// known lists the set's migrations by version.
func (s Set) known() ([]Migration, error) {
	names, err := fs.Glob(s.files, s.dir+"/*.sql")
	if err != nil {
		return nil, err
	}
	var known []Migration
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		_, title, _ := strings.Cut(strings.TrimSuffix(name[len(s.dir)+1:], ".sql"), "_")
		known = append(known, Migration{Version: version, Name: title})
	}
	slices.SortFunc(known, func(a, b Migration) int { return cmp.Compare(a.Version, b.Version) })
	return known, nil
}

// Up brings the database to the newest version of the set and returns the migrations that it ran,
// also those before one that failed. Any number of programs may call it at once. It leaves alone a
// database that is newer than the set but may still be used, and returns a [VersionError] if it may
// not.
//
// locker, which must not be nil except for SQLite, holds a lock for as long as its connection
// lives. db may need a second connection beside the locked one.
func Up(ctx context.Context, db *sql.DB, s Set, locker lock.SessionLocker) ([]Migration, error) {
	if locker == nil && !s.optimistic {
		return nil, errors.New("migrations: this database needs a lock")
	}
	var done []Migration
	for {
		before, err := s.version(ctx, db)
		if err != nil {
			return done, err
		}
		if before > s.Newest() {
			return done, s.Check(ctx, db)
		}
		applied, err := s.up(ctx, db, locker)
		done = append(done, applied...)
		if err == nil || !s.optimistic || ctx.Err() != nil {
			return done, err
		}
		// Either the migration is wrong, or another program was faster. In the latter case the
		// version has moved, which it can only do as often as there are migrations.
		own := before
		if len(applied) > 0 {
			own = applied[len(applied)-1].Version
		}
		if after, verr := s.version(ctx, db); verr != nil || after == own {
			return done, err
		}
	}
}

// complete puts the first row into a version table that has none. It asks before it writes: an
// account that may only use the database may also ask for migrations where none is pending.
func (s Set) complete(ctx context.Context, db *sql.DB) error {
	if s.begin == "" {
		return nil
	}
	exists, err := s.exists(ctx, db)
	if err != nil || !exists {
		return err
	}
	var filled bool
	if err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM `+VersionTable+
		`)`).Scan(&filled); err != nil || filled {
		return err
	}
	_, err = db.ExecContext(ctx, s.begin)
	return err
}

// up runs what is pending once.
func (s Set) up(ctx context.Context, db *sql.DB, locker lock.SessionLocker) ([]Migration, error) {
	if err := s.complete(ctx, db); err != nil {
		return nil, err
	}
	files, err := fs.Sub(s.files, s.dir)
	if err != nil {
		return nil, err
	}
	dialect, opts := s.dialect, []goose.ProviderOption{goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger())}
	if s.store != nil {
		store, err := s.store()
		if err != nil {
			return nil, err
		}
		dialect, opts = database.DialectCustom, append(opts, goose.WithStore(store))
	} else {
		opts = append(opts, goose.WithTableName(VersionTable))
	}
	if locker != nil {
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(dialect, db, files, opts...)
	if err != nil {
		return nil, err
	}
	results, err := p.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
	}
	known, kerr := s.known()
	if kerr != nil {
		return nil, kerr
	}
	var applied []Migration
	for _, r := range results {
		i, ok := slices.BinarySearchFunc(known, r.Source.Version, func(m Migration, v int64) int {
			return cmp.Compare(m.Version, v)
		})
		if !ok {
			continue
		}
		m := known[i]
		m.Applied = time.Now()
		applied = append(applied, m)
	}
	return applied, err
}

// Status lists the migrations of the set, and the ones that the database has besides, by version.
// It changes nothing.
func Status(ctx context.Context, db *sql.DB, s Set) ([]Migration, error) {
	list, err := s.known()
	if err != nil {
		return nil, err
	}
	exists, err := s.exists(ctx, db)
	if err != nil || !exists {
		return list, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id, tstamp FROM `+VersionTable+
		` WHERE version_id > 0 ORDER BY version_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		var stamp any
		if err := rows.Scan(&version, &stamp); err != nil {
			return nil, err
		}
		i, ok := slices.BinarySearchFunc(list, version, func(m Migration, v int64) int {
			return cmp.Compare(m.Version, v)
		})
		if !ok {
			list = slices.Insert(list, i, Migration{Version: version})
		}
		list[i].Applied = stampTime(stamp)
	}
	return list, rows.Err()
}

// stampTime reads a time that the database wrote without a zone, which drivers return in various
// types. That a migration was applied must not depend on it.
func stampTime(v any) time.Time {
	text := ""
	switch v := v.(type) {
	case time.Time:
		return v
	case []byte:
		text = string(v)
	case string:
		text = v
	}
	if t, err := time.Parse(time.DateTime, text); err == nil {
		return t
	}
	return time.Unix(0, 0)
}

// Stores returns the names of the stores that were not dropped, or of all stores, sorted, of a
// database whose tables hold several. It returns what Check does if this program may not read it.
func (s Set) Stores(ctx context.Context, db *sql.DB, dropped bool) ([]string, error) {
	if err := s.Check(ctx, db); err != nil {
		return nil, err
	}
	query := `SELECT name FROM rowkeeper_store WHERE epoch > 0`
	if dropped {
		query = `SELECT name FROM rowkeeper_store`
	}
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, rows.Err()
}

// Check tells whether a program that knows this set may read and write the database: nil, a
// [VersionError], or what kept it from finding out. It changes nothing.
func (s Set) Check(ctx context.Context, db *sql.DB) error {
	have, err := s.version(ctx, db)
	if err != nil {
		return err
	}
	know := s.Newest()
	if have == know {
		return nil
	}
	if have > know {
		var oldest int64
		if err := db.QueryRowContext(ctx,
			`SELECT oldest_writer FROM rowkeeper_store WHERE id = 1`).Scan(&oldest); err != nil {
			return err
		}
		if oldest <= know {
			return nil
		}
	}
	return &VersionError{Have: have, Know: know}
}

// version returns the newest version that was applied, 0 if none was.
func (s Set) version(ctx context.Context, db *sql.DB) (int64, error) {
	exists, err := s.exists(ctx, db)
	if err != nil || !exists {
		return 0, err
	}
	var version sql.NullInt64
	err = db.QueryRowContext(ctx, `SELECT max(version_id) FROM `+VersionTable).Scan(&version)
	return version.Int64, err
}

func (s Set) exists(ctx context.Context, db *sql.DB) (exists bool, err error) {
	err = db.QueryRowContext(ctx, s.tableExists).Scan(&exists)
	return exists, err
}
