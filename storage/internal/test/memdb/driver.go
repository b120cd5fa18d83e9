package memdb

import (
	"context"
	"crypto/sha256"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Database is a database with an empty store. It is a driver whose every URL is this database.
type Database struct {
	name    string
	now     func() time.Time
	version atomic.Pointer[tables]
	// lock is the commit lock. It has the capacity 1 and is full while a transaction holds it.
	lock      chan struct{}
	listeners listeners
}

var _ contract.Driver = (*Database)(nil)

// New makes a database with a clock. Its name is its fingerprint and the identity of its store.
func New(name string, now func() time.Time) *Database {
	d := &Database{name: name, now: now, lock: make(chan struct{}, 1)}
	// The migrations of a real database write the same: the store row, and the first marker.
	sum := sha256.Sum256([]byte(name))
	marker := contract.Row{Revision: 1, Token: contract.Token(sum[:16]), Time: micro(now()), Deleted: true}
	d.version.Store(&tables{store: storeRow{identity: name, epoch: 1}, log: []contract.Row{marker}})
	return d
}

// Name implements [contract.Driver].
func (d *Database) Name() string { return "memdb" }

// Schemes implements [contract.Driver].
func (d *Database) Schemes() []string { return []string{"memdb"} }

// Examples implements [contract.Driver].
func (d *Database) Examples() []string { return []string{"memdb:"} }

// Migrate implements [contract.Driver]. There is nothing to migrate.
func (d *Database) Migrate(context.Context, string, contract.DriverOptions) ([]contract.Migration, error) {
	return nil, nil
}

// Status implements [contract.Driver].
func (d *Database) Status(context.Context, string, contract.DriverOptions) ([]contract.Migration, error) {
	return nil, nil
}

// CreateStore implements [contract.Driver]. There is one store.
func (d *Database) CreateStore(_ context.Context, _ string,
	o contract.DriverOptions) (bool, error) {
	if o.StoreName() != contract.DefaultStore {
		return false, contract.Errorf(contract.Invalid, "a database in memory has one store")
	}
	return false, nil
}

// Stores implements [contract.Driver].
func (d *Database) Stores(context.Context, string, contract.DriverOptions) ([]string, error) {
	return []string{contract.DefaultStore}, nil
}

// Connect implements [contract.Driver]. The backends are of the type [*Backend].
func (d *Database) Connect(_ context.Context, _ string,
	o contract.DriverOptions) (contract.Database, error) {
	return contract.Separate(func(_ context.Context, name string) (contract.Backend, error) {
		if name != contract.DefaultStore {
			return nil, contract.NoStore(name)
		}
		return d.Open(o), nil
	}), nil
}

// Open opens the store.
func (d *Database) Open(o contract.DriverOptions) *Backend {
	return &Backend{d: d, timeout: o.Timeout}
}

// Query implements [contract.Driver].
func (d *Database) Query(context.Context, string, contract.DriverOptions, contract.Query,
	func([]string, []any) error) error {
	return contract.Errorf(contract.Invalid, "a database in memory takes no SQL")
}
