package contract

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// Driver opens databases of one kind, named by URL. A program links the drivers that it names.
type Driver interface {
	// Name is the kind of database: "sqlite", "postgres", "mysql".
	Name() string
	// Schemes are the URL schemes that the driver serves.
	Schemes() []string
	// Examples are how its URLs look, for help texts.
	Examples() []string
	// Connect connects to the database and checks that it has a schema that this program can use.
	// It changes nothing. Its errors, and those of the database's method Store, are *Errors whose
	// text is one sentence that names what to do, without secrets. opts.Store means nothing here.
	Connect(ctx context.Context, url string, opts DriverOptions) (Database, error)
	// Migrate brings the database's schema to the newest version, under a lock, so that several
	// processes may do so at once; it creates the schema, and the default store, in an empty
	// database. It returns the migrations that it ran. Where each store has a schema of its own,
	// it is that of the store that opts names.
	Migrate(ctx context.Context, url string, opts DriverOptions) ([]Migration, error)
	// Status lists all migrations that this program knows or the database has, in order.
	Status(ctx context.Context, url string, opts DriverOptions) ([]Migration, error)
	// CreateStore creates the empty store that opts names, in a database whose schema it brings to
	// the newest version before. It returns false if there is a store of that name already, which
	// it leaves as it is, also if it was dropped. Several processes may do so at once. Others call
	// the function contract.CreateStore.
	CreateStore(ctx context.Context, url string, opts DriverOptions) (created bool, err error)
	// Stores lists the names of the stores that were not dropped, in order, or of all stores if
	// opts says so.
	Stores(ctx context.Context, url string, opts DriverOptions) ([]string, error)
	// Query runs a statement that [Query.Check] takes, in a transaction that the database lets only
	// read. It calls each for the rows, with the names of the columns, until it returns an error,
	// which Query returns as it is. Without rows, it calls each once, with no values. A value is
	// nil, a number, a bool, a time, a string, or []byte for text or bytes. It is valid until each
	// returns.
	Query(ctx context.Context, url string, opts DriverOptions, q Query,
		each func(columns []string, values []any) error) error
}

// Database is a database that a process is connected to. Its backends share what they can:
// connections to a server, and what listens there.
type Database interface {
	// Store returns a backend of the store of a name, also of one that was dropped. It finds the
	// store by a connection that is begun after the call.
	Store(ctx context.Context, name string) (Backend, error)
	// Close lets go of the database. The connections are closed when the last backend is, too.
	Close() error
}

// OpenBackend connects to a database for the one store that the options name.
func OpenBackend(ctx context.Context, d Driver, url string, opts DriverOptions) (Backend, error) {
	db, err := d.Connect(ctx, url, opts)
	if err != nil {
		return nil, err
	}
	b, err := db.Store(ctx, opts.StoreName())
	if closeErr := db.Close(); err == nil && closeErr != nil {
		return nil, errors.Join(closeErr, b.Close())
	}
	return b, err
}

// Separate is a Database whose backends have nothing in common. It is called to open one.
type Separate func(ctx context.Context, name string) (Backend, error)

// Store implements [Database].
func (open Separate) Store(ctx context.Context, name string) (Backend, error) {
	return open(ctx, name)
}

// Close implements [Database].
func (Separate) Close() error { return nil }

// Holders counts the holders of something, and tells which one was the last.
type Holders struct{ n atomic.Int64 }

// Hold counts one more.
func (h *Holders) Hold() { h.n.Add(1) }

// Release counts one less, and tells whether nobody is left.
func (h *Holders) Release() bool { return h.n.Add(-1) == 0 }

// DefaultStore is the name of the store that every database has.
const DefaultStore = "default"

// NoStore says that a database has no store of the name. Without the default one it is damaged.
func NoStore(name string) error {
	if name == DefaultStore {
		return ErrEmptyStore
	}
	return Errorf(Invalid, "the database has no store %q: correct the name, or create the store "+
		"by `rowkeeper stores create %s`", name, name)
}

// DriverOptions are what a driver is told besides the URL.
type DriverOptions struct {
	// Store is the name of the store, a DNS label. "" means DefaultStore. [OpenBackend] opens it.
	Store string
	// Logger takes what nobody is left to be told. Never nil.
	Logger *slog.Logger
	// Timeout bounds every operation on the database.
	Timeout time.Duration
	// Login, if not nil, returns the user and the password of each new connection; all else comes
	// from the URL that was opened.
	Login Login
	// Now, if not nil, replaces the clock of a database that has none of its own (SQLite).
	Now func() time.Time
	// RefuseLost makes [OpenBackend] refuse a database that knows that commits are lost, because a
	// copy of it would be taken for a whole one. Otherwise such a database is fenced.
	RefuseLost bool
	// Dropped makes Stores list the stores that were dropped, too.
	Dropped bool
}

// Migration is one step of a schema.
type Migration struct {
	Version int64
	Name    string
	// Applied is the time when it was applied, zero if it is pending.
	Applied time.Time
}

// StoreName is the name of the store that is meant.
func (o DriverOptions) StoreName() string { return cmp.Or(o.Store, DefaultStore) }
