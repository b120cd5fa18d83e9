package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Migration is one step of a database's schema.
type Migration = contract.Migration

// Migrate brings the schema of the database to the newest version, in place of Config.Migrate: by a
// role that may do so, before servers start that may not. It returns the migrations that it ran.
// Several processes may do it at once.
func Migrate(ctx context.Context, c Config) ([]Migration, error) {
	return database.Migrate(ctx, c.Database())
}

// Migrations lists the migrations that the program knows or the database has, in order.
func Migrations(ctx context.Context, c Config) ([]Migration, error) {
	return database.Migrations(ctx, c.Database())
}

// CreateStore creates the store that Config.Store names, empty, and brings the schema to the newest
// version before. It returns false if the database has a store of that name already, which it
// leaves as it is.
func CreateStore(ctx context.Context, c Config) (created bool, err error) {
	return database.CreateStore(ctx, c.Database())
}

// Stores lists the names of the stores in the database, in order.
func Stores(ctx context.Context, c Config) ([]string, error) {
	return database.Stores(ctx, c.Database())
}

// Query is a statement that reads: SELECT, WITH, VALUES, TABLE or EXPLAIN.
type Query = contract.Query

// RunQuery runs a statement that reads, in the database of Config.URL, with its role, and in SQLite
// in the file of Config.Store. The database lets it only read. docs/reference/sql.md describes the
// views that it may use. RunQuery calls each for the rows, with the names of the columns, until it
// returns an error. Without rows it calls each once, with no values. A value is nil, a number, a
// bool, a time.Time, a string, or []byte, which may be text. It is valid until each returns.
func RunQuery(ctx context.Context, c Config, q Query,
	each func(columns []string, values []any) error) error {
	return database.Query(ctx, c.Database(), q, each)
}

// StoreUsage is what the objects of a store need: their number, and the bytes of their keys and
// values.
type StoreUsage = contract.Usage

// StoreQuota is how many objects a store may have, and how many bytes, as StoreUsage counts them. 0
// is no bound.
type StoreQuota = contract.Quota

// MeasureStore counts and measures the objects of the store that Config.Store names, in time that
// grows with their number, and reads its quota.
func MeasureStore(ctx context.Context, c Config) (usage StoreUsage, quota StoreQuota, err error) {
	return database.MeasureStore(ctx, c.Database())
}

// LimitStore sets the quota of the store that Config.Store names. Servers that use it heed that
// within ten seconds: when it is used up they refuse, by 403 Forbidden, to create objects, and to
// let any grow if it is the bytes that are used up. They measure as often, so a store may come to
// hold more. To delete, and to make objects smaller, always works.
func LimitStore(ctx context.Context, c Config, quota StoreQuota) error {
	return database.LimitStore(ctx, c.Database(), quota)
}

// DropStore drops the store that Config.Store names, with all that it holds. Servers that use it
// answer errors from then on. It returns false if the store was dropped before; then it removes
// what an interrupted drop has left. The default store cannot be dropped, nor one that keeps
// resources of another store.
func DropStore(ctx context.Context, c Config) (dropped bool, err error) {
	return database.DropStore(ctx, c.Database())
}

// CheckStoreName returns an error if a store cannot have the name.
func CheckStoreName(name string) error { return database.CheckStoreName(name) }

// MoveResource moves the objects of a resource to another store, from where they are, and records
// that. The prefix is that of the servers (RESTOptions.Prefix, default [DefaultPrefix]). The
// objects are below it, in the directory group/resource. No server should run meanwhile: one that
// serves the resource all the same closes the database, and what it has confirmed until then is
// moved. Both stores are fenced, so all clients of servers that go on list anew. A store is refused
// in which a third one keeps its objects of the resource.
//
// The objects keep their UIDs and the times at which they expire. They get new resourceVersions if
// the other store was ever written. Its history is fenced beyond that of the first one, so that
// clients that resume begin anew. A move that was interrupted is ended by the next one, to whatever
// store. A store that has objects of the resource is refused, unless there are none to move. Then
// it is recorded as their place.
func MoveResource(ctx context.Context, c Config, prefix string, resource schema.GroupResource,
	to string) (moved int64, err error) {
	return database.MoveResource(ctx, c.Database(), prefix, resourceName(resource), to)
}

// ParseResource parses the form group/resource, or resource for one of the core group.
func ParseResource(s string) (schema.GroupResource, error) {
	group, resource, err := database.SplitResource(s)
	return schema.GroupResource{Group: group, Resource: resource}, err
}

// resourceName is how a resource is named in flags, and in the database.
func resourceName(r schema.GroupResource) string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Group + "/" + r.Resource
}
