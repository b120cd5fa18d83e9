package storage

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/login"
)

// Driver opens databases of one kind. The packages sqlite, postgres and mysql below this one have
// one each.
type Driver = contract.Driver

// CompactionPolicy says how much history is kept: lists and watches can begin at any revision that
// is not compacted. The zero value of a field means its default.
type CompactionPolicy = database.CompactionPolicy

// Size is how large a database is, in bytes.
type Size = contract.Size

// Config says which database to open, and how to use it. The zero value of each optional field
// means its default.
type Config struct {
	// URL names the database, such as sqlite:///var/lib/rowkeeper/state.db, memory:,
	// postgres://user@host/database?sslmode=verify-full or
	// mysql://user@host:3306/database?tls=true.
	URL string
	// Login, if not nil, returns the user and the password of each new connection to a server.
	// Package login has what reads files and runs programs, and what keeps an answer until it ends.
	// Without it they are the ones of URL. SQLite has no users.
	Login login.Func
	// Drivers are the kinds of databases that the URL may name. A program links the drivers that it
	// lists, and no others.
	Drivers []Driver
	// Store names the store in the database. Each store has objects, revisions and a history of its
	// own. Default "default", which every database has; [CreateStore] creates others.
	Store string
	// StoreFor names the stores of the resources whose objects are not kept in Store but in another
	// one of the database, with commits and a history of its own: a flood of Leases or Events does
	// not slow other writes then. The database records it, and no server that is told otherwise
	// serves the resource; [MoveResource] moves objects that exist. A store that is named here
	// should be used for nothing else.
	StoreFor map[schema.GroupResource]string
	// Migrate brings the schema to the newest version before the database is opened. Otherwise a
	// database whose schema is older than the program needs is refused.
	Migrate bool
	// Logger takes what nobody is left to be told. Default: klog.
	Logger *slog.Logger
	// Timeout bounds every operation on the database. Default 30 s.
	Timeout time.Duration
	// Compaction says how much history is kept.
	Compaction CompactionPolicy
	// WindowFor has the windows of stores that have another one than Compaction.Window, by their
	// names: that of Store, or those of StoreFor. Of the servers of a store, the one with the
	// shortest window decides.
	WindowFor map[string]time.Duration
	// Users says of which resources the user and the audit ID of each write are recorded, for
	// [History]. They are those of the request's context, so a program's own writes have none. They
	// are personal data, kept as long as what was written. Default: of none.
	Users func(schema.GroupResource) bool
	// CacheBytes bounds the keys and values that each store keeps in memory to answer reads that no
	// watch cache answers. Default: none are kept.
	CacheBytes int
	// EventBytes bounds the events that each store keeps in memory for watches, and as many bytes
	// of writes that wait. Default 64 MiB.
	EventBytes int
	// Clock replaces the clock of a database that has none of its own (SQLite), in tests. It
	// decides when objects with a time to live expire.
	Clock func() time.Time
	// RefuseLost makes Open refuse a database that knows that its newest writes are lost, as SQLite
	// does when its write-ahead log was removed. A backup of such a database would be taken for a
	// whole one. Otherwise Open begins a new history with what is left.
	RefuseLost bool
}

// Database says the same to what knows no Kubernetes, such as storage/etcd. StoreFor and Users are
// left out.
func (c Config) Database() database.Config {
	if c.Logger == nil {
		c.Logger = slog.New(logr.ToSlogHandler(klog.Background()))
	}
	return database.Config{URL: c.URL, Login: c.Login, Drivers: c.Drivers, Store: c.Store, Migrate: c.Migrate,
		Logger: c.Logger, Timeout: c.Timeout, Compaction: c.Compaction, WindowFor: c.WindowFor, CacheBytes: c.CacheBytes,
		EventBytes: c.EventBytes, Clock: c.Clock, RefuseLost: c.RefuseLost}
}

// Store is an open store of a database: its one committer, and the one reader of its history.
// The storage of every resource in this process uses it. Any number of API servers may use it, and
// a process may have several. The other stores of Config.StoreFor share its connections.
type Store struct {
	db       *database.Store
	log      *slog.Logger
	users    func(schema.GroupResource) bool
	untold   untold
	decoders eventDecoders
	// directories says which codec writes where.
	directories directories
	large       largeResources
	turns       turns
}

// Open opens a database. Its error is one sentence that says what to do, without passwords.
//
// It also tells the watch caches of this process that consistent reads from them are possible; see
// "The watch cache" above. So open the database before any API server is built.
func Open(ctx context.Context, c Config) (*Store, error) {
	storeFor := make(map[string]string, len(c.StoreFor))
	for resource, store := range c.StoreFor {
		storeFor[resourceName(resource)] = store
	}
	db, err := database.Open(ctx, c.Database(), storeFor)
	if err != nil {
		return nil, err
	}
	return newStore(db, c.Database().Logger, c.Users), nil
}

func newStore(db *database.Store, log *slog.Logger,
	users func(schema.GroupResource) bool) *Store {
	supportConsistentReads()
	return &Store{db: db, log: log, users: users}
}

// Database is the store without what knows Kubernetes. storage/etcd can serve it, too.
func (s *Store) Database() *database.Store { return s.db }

// Close acknowledges or fails all waiting writes, ends all watches, and closes the connections. It
// may be called more than once. Release the stores first.
func (s *Store) Close() error { return s.db.Close() }

// Ready returns nil if the database answers, takes writes, and this process has delivered to its
// watches all that was written when Ready was called. ctx bounds how long it waits for that.
func (s *Store) Ready(ctx context.Context) error { return s.db.Ready(ctx) }

// Listening returns nil if the writes of other processes are notified by the database, or if it is
// a kind that is polled; otherwise it returns why they are polled for.
func (s *Store) Listening() error { return s.db.Listening() }

// Size reads the size of the database. Here and in what follows, the other stores of
// Config.StoreFor do not count.
func (s *Store) Size(ctx context.Context) (Size, error) { return s.db.Size(ctx) }

// LastSize is the size when it was last measured: when the server compacts, each minute by default.
// It is 0 before that.
func (s *Store) LastSize() Size { return s.db.LastSize() }

// CurrentRevision reads the newest revision. No write that was acknowledged before the call, by any
// replica, has a newer one.
func (s *Store) CurrentRevision(ctx context.Context) (int64, error) {
	return s.db.CurrentRevision(ctx)
}

// CompactedRevision returns the newest revision, as far as this process knows, below which nothing
// can be read any more. It is 0 if nothing was ever compacted.
func (s *Store) CompactedRevision() int64 { return s.db.CompactedRevision() }

// Compact gives up the history before the revision, beyond what the policy in Config does by
// itself. The rows that it frees are removed in the background.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	return s.db.Compact(ctx, revision)
}

// Fence begins a new history, to be used after a restore that the servers could not notice: all
// revisions that anybody may have seen are given up, all watches and caches of all replicas begin
// anew. It returns the first revision of the new history.
func (s *Store) Fence(ctx context.Context) (int64, error) { return s.db.Fence(ctx) }

// Collector returns the database's metrics, to be registered once. Those of the other stores of
// Config.StoreFor have the label store. If there are none, it can be unregistered.
func (s *Store) Collector() prometheus.Collector { return s.db.Collector() }

// FirstKey returns the first key from one key on and before another, "" if there is none, in
// whatever store of Config.StoreFor it is. It sees whatever was acknowledged before the call, by
// any process.
func (s *Store) FirstKey(ctx context.Context, from, before string) (string, error) {
	return s.db.FirstKey(ctx, from, before)
}

// CountKeys counts the keys from one key on and before another, in whatever store of
// Config.StoreFor they are. It sees whatever was acknowledged before the call, by any process, and
// reads no value.
func (s *Store) CountKeys(ctx context.Context, from, before string) (int64, error) {
	return s.db.CountKeys(ctx, from, before)
}

// KeyRevision returns the revision at which a key was written last, 0 if it does not exist, in
// whatever store of Config.StoreFor it is. It sees whatever was acknowledged before the call, by
// any process, and reads no value. Its errors are those of a request, which clients may be told.
func (s *Store) KeyRevision(ctx context.Context, key string) (int64, error) {
	r, err := s.db.KeyRevision(ctx, key)
	return r, s.apiError(ctx, schema.GroupResource{}, err)
}
