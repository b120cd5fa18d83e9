package database

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// CompactionPolicy says how much history is kept: lists and watches can begin at any revision that
// is not compacted. The zero value of a field means its default.
type CompactionPolicy struct {
	// Window is the time for which every revision is kept. Default 10 minutes. If negative, nothing
	// is compacted but by Store.Compact.
	Window time.Duration
	// Keep is the number of newest revisions that are kept however old they are. Default 1,000.
	Keep int64
	// Interval is how often older history is given up. Default one minute.
	Interval time.Duration
}

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
	Login contract.Login
	// Drivers are the kinds of databases that the URL may name. A program links the drivers that it
	// lists, and no others.
	Drivers []contract.Driver
	// Store names the store in the database. Each store has objects, revisions and a history of its
	// own. Default "default", which every database has; [CreateStore] creates others.
	Store string
	// Migrate brings the schema to the newest version before the database is opened. Otherwise a
	// database whose schema is older than the program needs is refused.
	Migrate bool
	// Logger takes what nobody is left to be told. Default: that of slog.
	Logger *slog.Logger
	// Timeout bounds every operation on the database. Default 30 s.
	Timeout time.Duration
	// Compaction says how much history is kept, and WindowFor the windows of the stores that have
	// another one than Compaction.Window, by their names.
	Compaction CompactionPolicy
	WindowFor  map[string]time.Duration
	// CacheBytes bounds the keys and values that each store keeps in memory to answer reads that no
	// watch cache answers, as those by etcd's API. Default: none are kept.
	CacheBytes int
	// EventBytes bounds the events that each store keeps in memory for watches, and as many bytes
	// of writes that wait to be committed. Default 64 MiB.
	EventBytes int
	// ProgressInterval is how often watches that asked for progress hear it while nothing else
	// happens. Default 25 s.
	ProgressInterval time.Duration
	// Clock replaces the clock of a database that has none of its own (SQLite), in tests. It
	// decides when objects with a time to live expire.
	Clock func() time.Time
	// RefuseLost makes Open refuse a database that knows that its newest writes are lost, as SQLite
	// does when its write-ahead log was removed. A backup of such a database would be taken for a
	// whole one. Otherwise Open begins a new history with what is left.
	RefuseLost bool

	// scheduler and polls belong to the stores that are opened together.
	scheduler *mvcc.Scheduler
	polls     *mvcc.Polls
	// served is that of a store of a [StorePool].
	served *contract.Served
}

// Store is an open store of a database: its one committer, and the one reader of its history. The
// other stores that [Open] was told of share its connections.
type Store struct {
	placements placements
	mvcc       *mvcc.Engine
	metrics    *mvcc.Metrics
	log        *slog.Logger
}

// Engine is the history of a store, and Engines are those of all stores that are open with it, its
// own first. They are no methods, since [Store] has public names.
func Engine(s *Store) *mvcc.Engine { return s.mvcc }

// Engines is described at [Engine].
func Engines(s *Store) (list []*mvcc.Engine) {
	for _, s := range s.all() {
		list = append(list, s.mvcc)
	}
	return list
}

// Open opens a database. storeFor names the stores of the resources (group/resource) whose objects
// are not kept in Config.Store; see placement.go. The error is one sentence that says what to do,
// without passwords.
func Open(ctx context.Context, c Config, storeFor map[string]string) (*Store, error) {
	c = c.withDefaults()
	s, err := openOne(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := s.assign(ctx, c, storeFor); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openOne opens the database without the other stores.
func openOne(ctx context.Context, c Config) (*Store, error) {
	shared, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	s, err := c.open(ctx, shared)
	if err != nil {
		return nil, errors.Join(err, shared.Close())
	}
	s.placements.shared, s.placements.disconnect = shared, sync.OnceValue(shared.Close)
	return s, nil
}

// connect connects to the database, whose schema it may have to migrate before.
func (c Config) connect(ctx context.Context) (contract.Database, error) {
	driver, err := c.driver()
	if err != nil {
		return nil, err
	}
	if err := c.migrate(ctx, driver); err != nil {
		return nil, err
	}
	db, err := driver.Connect(ctx, c.URL, c.driverOptions())
	if err != nil {
		return nil, sentence("open the database", err)
	}
	return db, nil
}

// sentence says of an error that is no sentence what could not be done. A user who starts a server
// with a wrong password asked for no migration, and need not be told of it.
func sentence(what string, err error) error {
	if known := (*contract.Error)(nil); errors.As(err, &known) {
		return err
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

func (c Config) migrate(ctx context.Context, driver contract.Driver) error {
	if c.Migrate {
		if _, err := driver.Migrate(ctx, c.URL, c.driverOptions()); err != nil {
			return sentence("migrate the database", err)
		}
	}
	return nil
}

// openAnother opens a store of a database that was connected to for another one.
func (c Config) openAnother(ctx context.Context, db contract.Database) (*Store, error) {
	if _, separate := db.(contract.Separate); separate {
		// It has a schema of its own.
		driver, err := c.driver()
		if err == nil {
			err = c.migrate(ctx, driver)
		}
		if err != nil {
			return nil, err
		}
	}
	return c.open(ctx, db)
}

// open opens the store of a database.
func (c Config) open(ctx context.Context, db contract.Database) (*Store, error) {
	backend, err := db.Store(ctx, c.driverOptions().StoreName())
	if err != nil {
		return nil, sentence("open the database", err)
	}
	metrics := mvcc.NewMetrics()
	window, own := c.WindowFor[c.driverOptions().StoreName()]
	if !own {
		window = c.Compaction.Window
	}
	store, err := mvcc.Open(ctx, backend, mvcc.Config{
		Logger:     c.Logger,
		Metrics:    metrics,
		Timeout:    c.Timeout,
		Scheduler:  c.scheduler,
		Polls:      c.polls,
		Served:     c.served,
		Reopened:   c.served != nil,
		CacheBytes: c.CacheBytes,
		Ring:       mvcc.RingLimits{Bytes: c.EventBytes},
		QueueBytes: c.EventBytes,

		ProgressInterval: c.ProgressInterval,
		Compaction: mvcc.CompactionPolicy{
			Window:   window,
			Keep:     contract.Revision(c.Compaction.Keep),
			Interval: c.Compaction.Interval,
		},
	})
	if err != nil {
		return nil, sentence("open the database", err)
	}
	return New(store, metrics, c), nil
}

// New makes a store of a history that is open.
func New(store *mvcc.Engine, metrics *mvcc.Metrics, c Config) *Store {
	c = c.withDefaults()
	return &Store{mvcc: store, metrics: metrics, log: c.Logger, placements: placements{
		own: c.driverOptions().StoreName(), timeout: c.Timeout, others: map[string]*Store{},
		asked: map[string]string{}, served: map[contract.Key]placement{},
		moved: make(chan struct{})}}
}

// Migrate brings the schema of the database to the newest version, in place of Config.Migrate: by a
// role that may do so, before servers start that may not. It returns the migrations that it ran.
// Several processes may do it at once.
func Migrate(ctx context.Context, c Config) ([]contract.Migration, error) {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return nil, err
	}
	return driver.Migrate(ctx, c.URL, c.driverOptions())
}

// Migrations lists the migrations that the program knows or the database has, in order.
func Migrations(ctx context.Context, c Config) ([]contract.Migration, error) {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return nil, err
	}
	return driver.Status(ctx, c.URL, c.driverOptions())
}

// CreateStore creates the store that Config.Store names, empty, and brings the schema to the newest
// version before. It returns false if the database has a store of that name already, which it
// leaves as it is.
func CreateStore(ctx context.Context, c Config) (created bool, err error) {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return false, err
	}
	return contract.CreateStore(ctx, driver, c.URL, c.driverOptions())
}

// EnsureStore is CreateStore that leaves a store as it is which was dropped, or is one end of a
// move.
func EnsureStore(ctx context.Context, c Config) error {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return err
	}
	_, err = driver.CreateStore(ctx, c.URL, c.driverOptions())
	return err
}

// AllStores lists the names of all stores in the database, also of those that were dropped or are
// an end of a move, in order.
func AllStores(ctx context.Context, c Config) ([]string, error) {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return nil, err
	}
	o := c.driverOptions()
	o.Dropped = true
	return driver.Stores(ctx, c.URL, o)
}

// Stores lists the names of the stores in the database, in order.
func Stores(ctx context.Context, c Config) ([]string, error) {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return nil, err
	}
	return driver.Stores(ctx, c.URL, c.driverOptions())
}

// Query runs a statement that reads, and calls each for the rows until it returns an error. Without
// rows it calls each once, with no values. Values are those of [contract.Driver].
func Query(ctx context.Context, c Config, q contract.Query,
	each func(columns []string, values []any) error) error {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return err
	}
	return driver.Query(ctx, c.URL, c.driverOptions(), q, each)
}

// MeasureStore counts and measures the objects and leases of the store that Config.Store names, in
// time that grows with their number, and reads its quota.
func MeasureStore(ctx context.Context, c Config) (usage contract.Usage, quota contract.Quota, err error) {
	err = c.withBackend(ctx, func(b contract.Backend) error {
		var st contract.State
		if quota, _, st, err = b.Quota(ctx); err == nil && st.Dropped() {
			return contract.NoStore(c.Store)
		}
		if err == nil {
			usage, _, err = b.Usage(ctx)
		}
		var leases int64
		if err == nil {
			leases, _, err = b.CountLeases(ctx)
		}
		usage = contract.WithLeases(usage, leases)
		return err
	})
	return usage, quota, err
}

// LimitStore sets the quota of the store that Config.Store names. Servers that use it heed that
// within ten seconds: when it is used up they refuse, by 403 Forbidden, to create objects, and to
// let any grow if it is the bytes that are used up. They measure as often, so a store may come to
// hold more. To delete, and to make objects smaller, always works.
func LimitStore(ctx context.Context, c Config, quota contract.Quota) error {
	if quota.Objects < 0 || quota.Bytes < 0 {
		return fmt.Errorf("a quota is not negative: %d objects, %d bytes", quota.Objects, quota.Bytes)
	}
	return c.withBackend(ctx, func(b contract.Backend) error { return contract.SetQuota(ctx, b, quota) })
}

// DropStore drops the store that Config.Store names, with all that it holds. Servers that use it
// answer errors from then on. It returns false if the store was dropped before; then it removes
// what an interrupted drop has left. The default store cannot be dropped, nor one that keeps
// resources of another store.
func DropStore(ctx context.Context, c Config) (dropped bool, err error) {
	if c.driverOptions().StoreName() == contract.DefaultStore {
		return false, errors.New("the store \"default\" cannot be dropped, since every database " +
			"has it: drop the database")
	}
	err = c.withBackend(ctx, func(b contract.Backend) error {
		if home, _, err := b.Home(ctx); err != nil {
			return err
		} else if home != "" {
			return contract.ErrOfDirectory
		}
		if err := Unneeded(ctx, c.Store, b); err != nil {
			return err
		}
		dropped, err = contract.Drop(ctx, b)
		return err
	})
	return dropped, err
}

// withBackend calls f with the store that is meant.
func (c Config) withBackend(ctx context.Context, f func(contract.Backend) error) error {
	b, err := OpenBackend(ctx, c)
	if err != nil {
		return err
	}
	return errors.Join(f(b), b.Close())
}

// OpenBackend opens the store that is meant below the engine: for what is done to stores that no
// server uses. The caller closes it.
func OpenBackend(ctx context.Context, c Config) (contract.Backend, error) {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return nil, err
	}
	return contract.OpenBackend(ctx, driver, c.URL, c.driverOptions())
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.scheduler == nil {
		c.scheduler, c.polls = mvcc.NewScheduler(), &mvcc.Polls{}
	}
	return c
}

func (c Config) driverOptions() contract.DriverOptions {
	return contract.DriverOptions{Store: c.Store, Logger: c.Logger, Timeout: c.Timeout, Now: c.Clock,
		Login: c.Login, RefuseLost: c.RefuseLost}
}

// driver picks the driver by the URL's scheme, and checks the name of the store. Nothing else of
// the URL may appear in an error, since it may hold a password.
func (c Config) driver() (contract.Driver, error) {
	if err := CheckStoreName(c.Store); c.Store != "" && err != nil {
		return nil, err
	}
	var schemes []string
	scheme, _, found := strings.Cut(c.URL, ":")
	for _, d := range c.Drivers {
		if found && slices.Contains(d.Schemes(), scheme) {
			return d, nil
		}
		for _, s := range d.Schemes() {
			schemes = append(schemes, s+":")
		}
	}
	known := strings.Join(schemes, ", ")
	switch {
	case len(schemes) == 0:
		return nil, errors.New("no database driver is linked into this program: name at least " +
			"one in Config.Drivers")
	case c.URL == "":
		return nil, fmt.Errorf("no database is named: give a URL that begins with one of %s", known)
	case !found || !isScheme(scheme):
		return nil, fmt.Errorf("the database URL has no scheme: it has to begin with one of %s",
			known)
	}
	return nil, fmt.Errorf("this program has no driver for database URLs that begin with %s: it has "+
		"drivers for %s", scheme, known)
}

// CheckStoreName returns an error if a store cannot have the name.
func CheckStoreName(name string) error {
	if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
		strings.Trim(name, "-") != name || name == "" {
		return fmt.Errorf("no store can have the name %q: a name has at most 63 lower-case "+
			"letters, digits and hyphens, and begins and ends with a letter or digit", name)
	}
	return nil
}

func isScheme(s string) bool {
	return s != "" && strings.Trim(s,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.") == ""
}

// Close acknowledges or fails all waiting writes, ends all watches, and closes the connections. It
// may be called more than once.
func (s *Store) Close() error {
	s.placements.mu.Lock()
	unfollow := s.placements.unfollow
	s.placements.mu.Unlock()
	if unfollow != nil {
		unfollow()
	}
	return s.closeOthers()
}

func (s *Store) closeOthers() error {
	var errs []error
	// The own store comes last: another one that goes over to a new epoch reads in it.
	for _, s := range slices.Backward(s.all()) {
		errs = append(errs, s.mvcc.Close())
	}
	if s.placements.disconnect != nil {
		errs = append(errs, s.placements.disconnect())
	}
	return errors.Join(errs...)
}

// Ready returns nil if the database answers, takes writes, and this process has delivered to its
// watches all that was written when Ready was called. ctx bounds how long it waits for that.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.placements.closed(); err != nil {
		return err
	}
	for _, s := range s.all() {
		if err := s.mvcc.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Listening returns nil if the writes of other processes are notified by the database, or if it is
// a kind that is polled; otherwise it returns why they are polled for.
func (s *Store) Listening() error {
	for _, s := range s.all() {
		if err := s.mvcc.Listening(); err != nil {
			return err
		}
	}
	return nil
}

// Size reads the size of the database. Here and in what follows, the other stores that are open
// with this one do not count.
func (s *Store) Size(ctx context.Context) (contract.Size, error) { return s.mvcc.Size(ctx) }

// LastSize is the size when it was last measured: when the server compacts, each minute by default.
// It is 0 before that.
func (s *Store) LastSize() contract.Size { return s.metrics.Size() }

// CurrentRevision reads the newest revision. No write that was acknowledged before the call, by any
// replica, has a newer one.
func (s *Store) CurrentRevision(ctx context.Context) (int64, error) {
	head, err := s.mvcc.Head(ctx)
	return int64(head), err
}

// CompactedRevision returns the newest revision, as far as this process knows, below which nothing
// can be read any more. It is 0 if nothing was ever compacted.
func (s *Store) CompactedRevision() int64 { return int64(s.mvcc.CompactedRevision()) }

// Compact gives up the history before the revision, beyond what the policy in Config does by
// itself. The rows that it frees are removed in the background.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	return s.mvcc.Compact(ctx, contract.Revision(revision))
}

// Fence begins a new history, to be used after a restore that the servers could not notice: all
// revisions that anybody may have seen are given up, all watches and caches of all replicas begin
// anew. It returns the first revision of the new history.
func (s *Store) Fence(ctx context.Context) (int64, error) {
	revision, err := s.mvcc.Fence(ctx)
	return int64(revision), err
}

// Collector returns the database's metrics, to be registered once. Those of the other stores have
// the label store. If there are none, it can be unregistered.
func (s *Store) Collector() prometheus.Collector {
	if len(s.placements.others) == 0 {
		return s.metrics
	}
	return collector{s}
}

// collector collects the metrics of a database with other stores.
type collector struct{ store *Store }

// Describe describes nothing: a registry takes no metrics of one name with different labels, unless
// they are not described.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(metrics chan<- prometheus.Metric) {
	c.store.metrics.Collect(metrics)
	for name, other := range c.store.placements.others {
		prometheus.WrapCollectorWith(prometheus.Labels{"store": name}, other.metrics).Collect(metrics)
	}
}
