// Package target starts the systems that are compared, each in fresh directories with its own
// default durability, and makes storage.Interfaces for them.
//
// A target has a server side, which [Target.Serve] starts, and a client side, which [Target.Dial]
// opens, in the same process or in another one. Both are all that a line of the bench sees, so that
// its work is written once.
package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// Target is one system under test: a product on a database.
type Target struct {
	// Product is etcd, kine, rowkeeper-etcd, rowkeeper or floor. Database is etcd, sqlite,
	// postgres, mariadb, mysql, tidb or floor.
	Product, Database string

	serve serve
	dial  func(ctx context.Context, address string, o DialOptions) (Client, error)
}

// Name names the target in flags and results.
func (t Target) Name() string {
	if t.Product == t.Database {
		return t.Product
	}
	return t.Product + "-" + t.Database
}

// Baseline is the name of the target that all others are compared with.
const Baseline = "etcd"

// serve starts the servers of a target.
type serve func(ctx context.Context, dir string, p Programs) (Server, error)

// databases start a database of each kind.
var databases = map[programs.Kind]serve{
	programs.SQLite:   serveSQLite,
	programs.Postgres: servePostgres,
	programs.MariaDB:  serveMariaDB,
	programs.MySQL:    serveMySQL,
}

// All are the known targets, the baseline first.
func All() []Target {
	targets := []Target{{"etcd", "etcd", serveEtcd, dialEtcd}}
	for _, kind := range programs.Kinds() {
		targets = append(targets, Target{"kine", string(kind), kineOn(databases[kind]), dialKine})
	}
	for _, kind := range programs.Kinds() {
		targets = append(targets, Target{"rowkeeper-etcd", string(kind), frontOn(databases[kind]),
			dialEtcd})
	}
	for _, kind := range programs.Kinds() {
		targets = append(targets, Target{"rowkeeper", string(kind), databases[kind], dialRowkeeper})
	}
	return targets
}

// Floor is a target for comparisons, which is run only if it is named: see [ServeFloor].
var Floor = Target{"floor", "floor", startFloor, dialEtcd}

// Find returns the targets with these names, in their usual order.
func Find(names []string) ([]Target, error) {
	all := append(All(), TiDB, Floor)
	var known []string
	for _, t := range all {
		known = append(known, t.Name())
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no target %q; the targets are %s", name,
				strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(t Target) bool { return !slices.Contains(names, t.Name()) }),
		nil
}

// Serve starts the target's servers with data directories below dir.
func (t Target) Serve(ctx context.Context, dir string, p Programs) (Server, error) {
	s, err := t.serve(ctx, dir, p)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", t.Name(), err)
	}
	return s, nil
}

// Dial connects to servers, which may have been started by another process.
func (t Target) Dial(ctx context.Context, address string, o DialOptions) (Client, error) {
	c, err := t.dial(ctx, address, o)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t.Name(), err)
	}
	return c, nil
}

// CreateStore creates a store beside the default one, if the product has stores.
func (t Target) CreateStore(ctx context.Context, address, name string) error {
	if t.Product != "rowkeeper" {
		return nil
	}
	_, err := storage.CreateStore(ctx, storage.Config{URL: address, Drivers: drivers.All(),
		Store: name})
	if err != nil {
		return fmt.Errorf("create the store %q: %w", name, err)
	}
	return nil
}

// Source is how "rowkeeper move" names what a server serves.
func Source(s Server) string {
	if named, ok := s.(interface{ source() string }); ok {
		return named.source()
	}
	return s.Address()
}

// Server is the server side of a target.
type Server interface {
	// Address is what clients dial.
	Address() string
	// Processes are the ids of the server processes, without their children. A database inside the
	// client has none.
	Processes() []int
	// Settings tell what the server does for durability, as the server says itself. Weaker settings
	// than the default ones are an error.
	Settings(ctx context.Context) ([]string, error)
	// DataDirs hold all that is stored.
	DataDirs() []string
	// Checkpoint brings the server's write-ahead log into its data files, so that the size on disk
	// is that of the data. No client may write.
	Checkpoint(ctx context.Context) error
	// Settle waits until the server has cleaned up what was deleted, so that the space can be used
	// again.
	Settle(ctx context.Context) error
	// Committer writes single rows durably, past the product: what the database itself can do.
	Committer(ctx context.Context) (Committer, error)
	// Restart ends the server in order and starts it again with the same data at the same address.
	Restart(ctx context.Context) error
	// Stop ends the server.
	Stop() error
}

// Counter is a server that counts what it is asked.
type Counter interface {
	// Statements is how many statements it has executed, or as many transactions if each is one.
	Statements(ctx context.Context) (int64, error)
}

// Committer writes rows, each in a durable transaction of its own.
type Committer interface {
	Commit(ctx context.Context, id int64, value []byte) error
	// Append commits the least that a history of ordered revisions in this database consists of: a
	// lock that orders the writers, a row of the log at the next revision, and the key's row that
	// names it. It decides nothing, checks nothing and tells nobody.
	Append(ctx context.Context, id int64, value []byte) error
	Close() error
}

// Client is the client side of a target.
type Client interface {
	// Store makes a storage.Interface for the objects below a prefix, and a function that releases
	// it.
	Store(prefix string) (apistorage.Interface, func(), error)
	// Compact gives up the history before the revision and returns when the space of what was
	// replaced has been freed for the store.
	Compact(ctx context.Context, revision int64) error
	// Beside is a client of a store that CreateStore has created, in the same database and process.
	// It ends with this one at the latest.
	Beside(ctx context.Context, store string) (Client, error)
	Close() error
}

// Archiver is a client that makes backups.
type Archiver interface {
	// Backup writes all live objects to a new file, as the product's users do.
	Backup(ctx context.Context, file string) error
	// Restore makes them the content of an empty store beside this one. It returns an error that is
	// errors.ErrUnsupported if another program does so.
	Restore(ctx context.Context, file string) error
}

// DialOptions are what lines ask of a client.
type DialOptions struct {
	// KeepHistory turns off the compaction that the product does by itself: nothing is compacted
	// but by Client.Compact.
	KeepHistory bool
	// Window, if not 0, is how much history is kept, where KeepHistory is not asked for.
	Window time.Duration
	// Store, if not "", is one that Target.CreateStore has created. A target without stores has all
	// objects in one place.
	Store string
}

// composed is a server that needs others, the first of which is the one that clients dial.
type composed struct {
	Server
	front *programs.Program
	// address replaces that of the database, and behind is how "rowkeeper move" names that.
	address, behind string
	about           string
}

func (c *composed) Address() string  { return c.address }
func (c *composed) source() string   { return c.behind }
func (c *composed) Processes() []int { return append(c.Server.Processes(), c.front.PID()) }

func (c *composed) Settings(ctx context.Context) ([]string, error) {
	settings, err := c.Server.Settings(ctx)
	return append([]string{c.about}, settings...), err
}

func (c *composed) Restart(ctx context.Context) error {
	if err := c.front.Stop(ctx); err != nil {
		return err
	}
	if err := c.Server.Restart(ctx); err != nil {
		return err
	}
	return c.start(ctx)
}

func (c *composed) start(ctx context.Context) error {
	if err := c.front.Start(); err != nil {
		return err
	}
	return awaitEtcd(ctx, c.address, c.front)
}

func (c *composed) Stop() error {
	return errors.Join(c.front.Stop(context.Background()), c.Server.Stop())
}
