package options

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionconfigcontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	encryptionconfigmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/internal/reserved"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/login"
)

// StorageOptions say where and how an API server stores its objects.
type StorageOptions struct {
	// URL names the database. In its place URLFile is a file that holds the URL, or URLEnv an
	// environment variable.
	URL, URLFile, URLEnv string
	// Login is a program that prints the user and the password, with its arguments, separated by
	// spaces; see [login.Program].
	Login string
	// Drivers are the kinds of databases that the URL may name.
	Drivers []storage.Driver
	// Store names the store in the database.
	Store string
	// Migrate brings the schema to the newest version at start.
	Migrate bool
	// Timeout bounds every operation on the database.
	Timeout time.Duration

	// StoreFor has elements group/resource=NAME, or resource=NAME for the core group: the objects
	// of the resource are kept in the store of that name.
	StoreFor []string
	// Prefix begins all keys. API servers that share a database differ in it.
	Prefix string
	// Scheme and Serializer encode the objects: in each group's version of the highest priority,
	// and MediaType.
	Scheme     *runtime.Scheme
	Serializer runtime.StorageSerializer
	MediaType  string

	// CompactionWindow is the time, and CompactionKeep the number of revisions, for which the
	// history is kept; CompactionInterval is how often it is cut.
	CompactionWindow   time.Duration
	CompactionKeep     int64
	CompactionInterval time.Duration
	// CompactionWindowFor has elements NAME=DURATION: the window of a store that has another one.
	CompactionWindowFor []string

	// HistoryUsers has elements resource or group/resource: who writes them is recorded, for
	// histories. "*" stands for all resources.
	HistoryUsers []string

	// EncryptionConfig is a file with an EncryptionConfiguration of apiserver.config.k8s.io. It is
	// read again whenever it changes if EncryptionConfigReload is set.
	EncryptionConfig       string
	EncryptionConfigReload bool

	// WatchCache serves reads and watches from memory. WatchCacheSizes has elements
	// resource.group#size, where the size 0 makes an exception of the resource.
	WatchCache      bool
	WatchCacheSizes []string
	// MaxUnpagedList is how many objects a list without a limit may have, of resources without a
	// watch cache. There is no bound if it is negative.
	MaxUnpagedList int

	// DeleteCollectionWorkers is how many objects of a collection are deleted at a time.
	DeleteCollectionWorkers int
	// EnableGarbageCollection leaves the dependents of deleted objects to a garbage collector,
	// which has to run somewhere.
	EnableGarbageCollection bool
	// CountInterval is how often the objects of each resource are counted, for metrics and flow
	// control. 0 means never.
	CountInterval time.Duration
	// ReadyTimeout is how long the database may take to answer the readiness check.
	ReadyTimeout time.Duration
}

// NewStorageOptions returns the defaults.
func NewStorageOptions(prefix string, scheme *runtime.Scheme, serializer runtime.StorageSerializer,
	drivers ...storage.Driver) *StorageOptions {
	return &StorageOptions{
		Drivers:                 drivers,
		Store:                   "default",
		Migrate:                 true,
		Timeout:                 30 * time.Second,
		Prefix:                  prefix,
		Scheme:                  scheme,
		Serializer:              serializer,
		MediaType:               runtime.ContentTypeJSON,
		CompactionWindow:        10 * time.Minute,
		CompactionKeep:          1000,
		CompactionInterval:      time.Minute,
		WatchCache:              true,
		MaxUnpagedList:          storage.DefaultMaxUnpagedList,
		DeleteCollectionWorkers: 1,
		EnableGarbageCollection: true,
		CountInterval:           time.Minute,
		ReadyTimeout:            2 * time.Second,
	}
}

// AddDatabaseFlags adds the flags that name a database and a store. Commands other than serve use
// them.
func (o *StorageOptions) AddDatabaseFlags(fs *pflag.FlagSet) {
	o.AddURLFlags(fs)
	fs.StringVar(&o.Store, "store", o.Store,
		"The store in the database. Each has objects and a history of its own. Create one by "+
			"rowkeeper stores create.")
}

// AddURLFlags adds the flags that say which database is meant, without the store.
func (o *StorageOptions) AddURLFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.URL, "database", o.URL,
		"The database, by URL: "+strings.Join(o.examples(), ", ")+".")
	fs.StringVar(&o.URLFile, "database-file", o.URLFile,
		"File that holds the URL of the database, in place of --database, so that a password in "+
			"it is not seen in the list of processes.")
	fs.StringVar(&o.URLEnv, "database-env", o.URLEnv,
		"Environment variable that holds the URL of the database, in place of --database.")
	fs.StringVar(&o.Login, "database-login", o.Login,
		"Program that prints the user and the password of the database as JSON, with its "+
			"arguments, separated by spaces. It is run again before they end.")
	fs.DurationVar(&o.Timeout, "database-timeout", o.Timeout,
		"How long one operation on the database may take.")
}

// AddFlags adds all flags.
func (o *StorageOptions) AddFlags(fs *pflag.FlagSet) {
	if o == nil {
		return
	}
	o.AddDatabaseFlags(fs)
	fs.BoolVar(&o.Migrate, "database-migrate", o.Migrate,
		"Bring the schema of the database to the newest version at start. If false, a database "+
			"with an older schema is refused.")
	fs.StringArrayVar(&o.StoreFor, "store-for", o.StoreFor,
		"Keep the objects of a resource in another store of the database, with commits and a "+
			"history of its own, as group/resource=NAME, or resource=NAME for the core group. Can "+
			"be repeated. All servers of a database need the same. rowkeeper stores move moves "+
			"objects that exist.")
	fs.StringVar(&o.Prefix, "storage-prefix", o.Prefix,
		"What the keys of all objects begin with. Servers that share a store have different "+
			"prefixes, replicas of one server the same.")
	fs.StringVar(&o.MediaType, "storage-media-type", o.MediaType,
		"The media type in which objects are stored: "+strings.Join(o.mediaTypes(), ", ")+
			". Objects that are stored otherwise can still be read.")
	fs.DurationVar(&o.CompactionWindow, "compaction-window", o.CompactionWindow,
		"How long every old state can be listed and watched from. If negative, the history is "+
			"kept for ever.")
	fs.StringArrayVar(&o.CompactionWindowFor, "compaction-window-for", o.CompactionWindowFor,
		"The --compaction-window of one store, that of --store or one of --store-for, as "+
			"NAME=DURATION. Can be repeated. All servers of a store need the same.")
	fs.StringSliceVar(&o.HistoryUsers, "history-users", o.HistoryUsers,
		"Record the user and the audit ID of each write of a resource, as group/resource, or "+
			"resource for the core group, for as long as the history is kept. * means all resources. "+
			"Whoever may read a history sees them. They are not encrypted in the database.")
	fs.Int64Var(&o.CompactionKeep, "compaction-keep", o.CompactionKeep,
		"How many of the newest revisions are kept however old they are.")
	fs.DurationVar(&o.CompactionInterval, "compaction-interval", o.CompactionInterval,
		"How often older history is removed.")
	fs.StringVar(&o.EncryptionConfig, "encryption-provider-config", o.EncryptionConfig,
		"File with an EncryptionConfiguration of apiserver.config.k8s.io, which says which "+
			"resources are encrypted in the database, and how.")
	fs.BoolVar(&o.EncryptionConfigReload, "encryption-provider-config-automatic-reload",
		o.EncryptionConfigReload, "Read the file of --encryption-provider-config again whenever "+
			"it changes.")
	fs.BoolVar(&o.WatchCache, "watch-cache", o.WatchCache,
		"Serve lists and watches from memory. If false, each goes to the database.")
	fs.StringSliceVar(&o.WatchCacheSizes, "watch-cache-sizes", o.WatchCacheSizes,
		"Exceptions from --watch-cache, as resource.group#0. Other sizes than 0 have no effect, "+
			"since the caches find their size by themselves.")
	fs.IntVar(&o.MaxUnpagedList, "max-unpaged-list", o.MaxUnpagedList,
		"How many objects a list without a limit may have, of resources without a watch cache. "+
			"One that has more is refused. With a negative number there is no bound.")
	fs.IntVar(&o.DeleteCollectionWorkers, "delete-collection-workers", o.DeleteCollectionWorkers,
		"How many objects of a collection are deleted at a time.")
	fs.DurationVar(&o.CountInterval, "storage-count-interval", o.CountInterval,
		"How often the objects of each resource are counted, for metrics and flow control. 0 "+
			"means never.")
	fs.DurationVar(&o.ReadyTimeout, "database-ready-timeout", o.ReadyTimeout,
		"How long the database may take to answer before /readyz says that the server is not ready.")
}

// examples shows how URLs look, for the drivers that there are.
func (o *StorageOptions) examples() (examples []string) {
	for _, d := range o.Drivers {
		examples = append(examples, d.Examples()...)
	}
	return examples
}

func (o *StorageOptions) mediaTypes() []string {
	if o.Serializer == nil {
		return nil
	}
	var types []string
	for _, info := range o.Serializer.SupportedMediaTypes() {
		if info.MediaType != runtime.ContentTypeProtobuf || storableInProtobuf(o.Scheme) {
			types = append(types, info.MediaType)
		}
	}
	return types
}

// Validate returns what is wrong with the options as they are, before anything is opened.
func (o *StorageOptions) Validate() []error {
	if o == nil {
		return nil
	}
	errs := o.ValidateDatabase()
	reject := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	reject(!strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/"),
		"--storage-prefix %q has to begin with a slash and not to end with one", o.Prefix)
	reject(!slices.Contains(o.mediaTypes(), o.MediaType),
		"--storage-media-type %q is not one of %s", o.MediaType, strings.Join(o.mediaTypes(), ", "))
	reject(o.CompactionWindow == 0, "--compaction-window must not be 0: clients need some time "+
		"to resume a watch")
	if _, err := o.windows(); err != nil {
		errs = append(errs, err)
	}
	reject(o.CompactionKeep <= 0, "--compaction-keep must be greater than 0")
	reject(o.CompactionInterval <= 0, "--compaction-interval must be greater than 0")
	reject(o.EncryptionConfigReload && o.EncryptionConfig == "",
		"--encryption-provider-config-automatic-reload needs --encryption-provider-config")
	reject(o.MaxUnpagedList == 0, "--max-unpaged-list must not be 0: a negative number is no bound")
	reject(o.DeleteCollectionWorkers <= 0, "--delete-collection-workers must be greater than 0")
	reject(o.CountInterval < 0, "--storage-count-interval must not be negative")
	reject(o.ReadyTimeout <= 0, "--database-ready-timeout must be greater than 0")
	if _, err := uncached(o.WatchCacheSizes); err != nil {
		errs = append(errs, err)
	}
	if _, err := o.storesFor(); err != nil {
		errs = append(errs, err)
	}
	if _, err := o.usersOf(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// ValidateDatabase returns what is wrong with the options of AddDatabaseFlags.
func (o *StorageOptions) ValidateDatabase() []error {
	var errs []error
	if err := o.ValidateURL("database", "database"); err != nil {
		errs = append(errs, err)
	}
	if err := storage.CheckStoreName(o.Store); err != nil {
		errs = append(errs, fmt.Errorf("--store: %w", err))
	}
	if o.Timeout <= 0 {
		errs = append(errs, errors.New("--database-timeout must be greater than 0"))
	}
	return errs
}

// ValidateURL returns what is wrong with the options that name the database. The flags of the
// options begin with a word, and name a thing.
func (o *StorageOptions) ValidateURL(flag, thing string) error {
	given := 0
	for _, way := range []string{o.URL, o.URLFile, o.URLEnv} {
		if way != "" {
			given++
		}
	}
	switch {
	case given == 0:
		return fmt.Errorf("no %[2]s is named: give --%[1]s, --%[1]s-file or --%[1]s-env", flag, thing)
	case given > 1:
		return fmt.Errorf("--%[1]s, --%[1]s-file and --%[1]s-env exclude each other", flag)
	case o.Login != "" && strings.TrimSpace(o.Login) == "":
		return fmt.Errorf("--%s-login names no program", flag)
	}
	return nil
}

// NamesDatabase tells whether the options name a database, in one way or another.
func (o *StorageOptions) NamesDatabase() bool {
	return o.URL != "" || o.URLFile != "" || o.URLEnv != ""
}

// uncached returns the resources that --watch-cache-sizes excepts from the watch cache.
func uncached(sizes []string) ([]schema.GroupResource, error) {
	var resources []schema.GroupResource
	for _, s := range sizes {
		resource, size, found := strings.Cut(s, "#")
		n, err := strconv.Atoi(size)
		if !found || err != nil || n < 0 || resource == "" {
			return nil, fmt.Errorf("--watch-cache-sizes %q is not of the form resource.group#size",
				s)
		}
		if n == 0 {
			resources = append(resources, schema.ParseGroupResource(resource))
		}
	}
	return resources, nil
}

// storesFor returns the stores that --store-for names.
func (o *StorageOptions) storesFor() (map[schema.GroupResource]string, error) {
	stores := map[schema.GroupResource]string{}
	for _, a := range o.StoreFor {
		name, store, found := strings.Cut(a, "=")
		if !found {
			return nil, fmt.Errorf("--store-for %q is not of the form group/resource=NAME", a)
		}
		resource, err := storage.ParseResource(name)
		if err == nil {
			err = storage.CheckStoreName(store)
		}
		if err != nil {
			return nil, fmt.Errorf("--store-for %q: %w", a, err)
		}
		if other, ok := stores[resource]; ok {
			return nil, fmt.Errorf("--store-for assigns %s twice, to the stores %q and %q", name,
				other, store)
		}
		stores[resource] = store
	}
	return stores, nil
}

// usersOf tells of which resources --history-users wants the users, nil for none.
func (o *StorageOptions) usersOf() (func(schema.GroupResource) bool, error) {
	if len(o.HistoryUsers) == 0 {
		return nil, nil
	}
	var resources []schema.GroupResource
	for _, name := range o.HistoryUsers {
		if name == "*" {
			continue
		}
		resource, err := storage.ParseResource(name)
		if err != nil {
			return nil, fmt.Errorf("--history-users %q: %w", name, err)
		}
		resources = append(resources, resource)
	}
	all := len(resources) < len(o.HistoryUsers)
	return func(r schema.GroupResource) bool { return all || slices.Contains(resources, r) }, nil
}

// windows returns the windows that --compaction-window-for names.
func (o *StorageOptions) windows() (map[string]time.Duration, error) {
	windows := map[string]time.Duration{}
	for _, a := range o.CompactionWindowFor {
		name, text, found := strings.Cut(a, "=")
		window, err := time.ParseDuration(text)
		used := name == o.Store || slices.ContainsFunc(o.StoreFor, func(s string) bool {
			return strings.HasSuffix(s, "="+name)
		})
		switch {
		case !found || err != nil || window == 0:
			return nil, fmt.Errorf("--compaction-window-for %q is not of the form NAME=DURATION, with a "+
				"duration such as 168h", a)
		case !used:
			return nil, fmt.Errorf("--compaction-window-for names the store %q, which is neither that of "+
				"--store nor one of --store-for", name)
		case windows[name] != 0:
			return nil, fmt.Errorf("--compaction-window-for names the store %q twice", name)
		}
		windows[name] = window
	}
	return windows, nil
}

// Database returns the configuration that opens the database.
func (o *StorageOptions) Database() (storage.Config, error) {
	c := storage.Config{URL: o.URL, Drivers: o.Drivers, Store: o.Store, Migrate: o.Migrate,
		Timeout: o.Timeout}
	err := o.logIn(&c)
	if err != nil {
		return c, err
	}
	if c.StoreFor, err = o.storesFor(); err != nil {
		return c, err
	}
	c.Compaction.Window = o.CompactionWindow
	if c.WindowFor, err = o.windows(); err != nil {
		return c, err
	}
	if c.Users, err = o.usersOf(); err != nil {
		return c, err
	}
	c.Compaction.Keep = o.CompactionKeep
	c.Compaction.Interval = o.CompactionInterval
	return c, nil
}

// logIn sets the URL and the login.
func (o *StorageOptions) logIn(c *storage.Config) error {
	switch {
	case o.URLFile != "":
		file := login.File(o.URLFile)
		c.Login = func(ctx context.Context) (login.Credentials, error) {
			credentials, err := file(ctx)
			if err != nil {
				err = fmt.Errorf("cannot read --database-file: %w", err)
			}
			return credentials, err
		}
	case o.URLEnv != "":
		c.Login = login.Env(o.URLEnv)
	}
	if c.Login != nil {
		credentials, err := c.Login(context.Background())
		if err != nil {
			return err
		}
		c.URL = credentials.URL
	}
	command := strings.Fields(o.Login)
	if len(command) == 0 {
		return nil
	}
	if scheme, _, _ := strings.Cut(c.URL, ":"); scheme == "sqlite" || scheme == "memory" {
		return fmt.Errorf("--database-login is for a server: a database of %s: has no users", scheme)
	}
	c.Login = login.Keep(login.Program(command[0], command[1:]...),
		slog.New(logr.ToSlogHandler(klog.Background())))
	return nil
}

// DatabaseName is what may be shown of the database's URL: no user and no parameters.
func (o *StorageOptions) DatabaseName() string {
	switch {
	case o.URLFile != "":
		return "the database of " + o.URLFile
	case o.URLEnv != "":
		return "the database of $" + o.URLEnv
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return "a database"
	}
	switch {
	case u.Scheme == "sqlite" && u.Opaque != "": // a relative path, which has no password in it
		return (&url.URL{Scheme: u.Scheme, Opaque: u.Opaque}).String()
	case u.Opaque != "" || u.Host == "" && u.Path == "":
		return u.Scheme + ":"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// Open opens the database, which the caller closes after the server has stopped. It has to be
// opened before the server is made.
func (o *StorageOptions) Open(ctx context.Context) (*storage.Store, error) {
	c, err := o.Database()
	if err != nil {
		return nil, err
	}
	return storage.Open(ctx, c)
}

// watchGrace is the default of c.ShutdownWatchTerminationGracePeriod.
const watchGrace = 10 * time.Second

// ApplyTo makes a server store its objects in the database: it sets c.RESTOptionsGetter, adds the
// checks, metrics and transformers that belong to it, refuses stored objects whose encryption key
// is missing (see [storage.Store.CheckEncryption]), and lets requests give up half a second before
// their time is over, so that they can still be answered why. Lists are sorted where requests ask
// for it, see [ServeSortedLists]. The types of o.Scheme that cannot be encoded in protobuf are
// answered in JSON, see [LeaveOutProtobuf]. If c.ShutdownWatchTerminationGracePeriod is 0 it
// becomes ten seconds: a server without one waits for open watches for a minute when it stops.
// ApplyTo does not change the options.
func (o *StorageOptions) ApplyTo(c *genericapiserver.Config, store *storage.Store) error {
	if o == nil {
		return nil
	}
	if err := o.encrypt(c); err != nil {
		return err
	}
	c.ResourceTransformers = withKeys(c.ResourceTransformers)
	if err := o.checkKeys(c, store); err != nil {
		return err
	}
	leaveTimeToAnswer(c)
	ServeSortedLists(c)
	if c.ShutdownWatchTerminationGracePeriod == 0 {
		c.ShutdownWatchTerminationGracePeriod = watchGrace
	}
	if o.Scheme != nil {
		LeaveOutProtobuf(c, o.Scheme)
	}
	// Readiness, not liveness: a server whose database is away is not mended by being restarted.
	ready := healthz.NamedCheck("storage", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), o.ReadyTimeout)
		defer cancel()
		return store.Ready(ctx)
	})
	c.AddHealthzChecks(ready)
	events := &eventsCheck{store: store}
	c.AddReadyzChecks(ready, events)
	if err := c.AddPostStartHook("storage-metrics",
		func(hook genericapiserver.PostStartHookContext) error {
			events.serving.Store(true)
			hide := expose(store)
			context.AfterFunc(hook, hide)
			return nil
		}); err != nil {
		return fmt.Errorf("cannot expose the metrics of the storage: %w", err)
	}
	encodings, err := o.encodings(c)
	if err != nil {
		return err
	}
	c.RESTOptionsGetter, err = o.RESTOptionsGetter(c, store, encodings)
	return err
}

// RESTOptionsGetter makes further resources be stored in the database in the way that ApplyTo makes
// those of the scheme, but encoded otherwise. It is called after ApplyTo, with the same
// configuration.
func (o *StorageOptions) RESTOptionsGetter(c *genericapiserver.Config, store *storage.Store,
	encodings storage.Encodings) (*storage.RESTOptionsGetter, error) {
	except, err := uncached(o.WatchCacheSizes)
	if err != nil {
		return nil, err
	}
	return storage.NewRESTOptionsGetter(store, storage.RESTOptions{
		Encodings:                 encodings,
		Prefix:                    o.Prefix,
		Transformers:              c.ResourceTransformers,
		DisableWatchCache:         !o.WatchCache,
		WatchCacheDisabledFor:     except,
		MaxUnpagedList:            o.MaxUnpagedList,
		EnableGarbageCollection:   o.EnableGarbageCollection,
		DeleteCollectionWorkers:   o.DeleteCollectionWorkers,
		CountMetricPollPeriod:     o.CountInterval,
		StorageObjectCountTracker: c.StorageObjectCountTracker,
	})
}

// encodings says for each resource how it is encoded, and where its keys begin.
func (o *StorageOptions) encodings(c *genericapiserver.Config) (storage.Encodings, error) {
	if o.Scheme == nil || o.Serializer == nil {
		return nil, errors.New("the storage needs a scheme and a serializer")
	}
	return encodings{serverstorage.NewDefaultStorageFactory(storagebackend.Config{Prefix: o.Prefix},
		o.MediaType, o.Serializer,
		serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(o.Scheme,
			c.EffectiveVersion), serverstorage.NewResourceConfig(), nil)}, nil
}

// encodings puts the resources of a group below the group's name.
type encodings struct {
	*serverstorage.DefaultStorageFactory
}

func (encodings) ResourcePrefix(resource schema.GroupResource) string {
	return resource.Group + "/" + resource.Resource
}

// checkKeys refuses to serve stored objects that nothing can decrypt. Their watch caches would
// never be filled, and the log would say so each second.
func (o *StorageOptions) checkKeys(c *genericapiserver.Config, store *storage.Store) error {
	if store == nil {
		return nil // which is refused later
	}
	ctx, cancel := context.WithTimeout(wait.ContextForChannel(c.DrainedNotify()), o.Timeout)
	defer cancel()
	if err := store.CheckEncryption(ctx, o.Prefix, c.ResourceTransformers); err != nil {
		return fmt.Errorf("give a file with the keys of all stored objects by "+
			"--encryption-provider-config: %w", err)
	}
	return nil
}

// encrypt loads the encryption configuration, if there is one.
func (o *StorageOptions) encrypt(c *genericapiserver.Config) (err error) {
	if o.EncryptionConfig == "" || c.ResourceTransformers != nil {
		return nil
	}
	server := wait.ContextForChannel(c.DrainedNotify())
	ctx, closeTransformers := context.WithCancel(server)
	defer func() {
		if err != nil {
			closeTransformers()
		}
	}()
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, o.EncryptionConfig,
		o.EncryptionConfigReload, c.APIServerID)
	if err != nil {
		return fmt.Errorf("cannot use --encryption-provider-config: %w", err)
	}
	encryptionconfigmetrics.RecordEncryptionConfigLastConfigInfo(c.APIServerID,
		loaded.EncryptionFileContentHash)
	checks := loaded.HealthChecks
	c.ResourceTransformers = encryptionconfig.StaticTransformers(loaded.Transformers)
	if o.EncryptionConfigReload {
		// One check stands for all providers, since they may be others after the next reload, which
		// also closes the present transformers.
		transformers := encryptionconfig.NewDynamicTransformers(loaded.Transformers,
			loaded.HealthChecks[0], closeTransformers, loaded.KMSCloseGracePeriod)
		checks = []healthz.HealthChecker{transformers}
		c.ResourceTransformers = transformers
		if err := c.AddPostStartHook("encryption-provider-config-reload",
			func(genericapiserver.PostStartHookContext) error {
				go encryptionconfigcontroller.NewDynamicEncryptionConfiguration("encryption-provider-config-reload", o.EncryptionConfig, transformers,
					loaded.EncryptionFileContentHash, c.APIServerID).Run(server)
				return nil
			}); err != nil {
			return fmt.Errorf("cannot reload --encryption-provider-config: %w", err)
		}
	}
	c.AddHealthzChecks(checks...)
	c.AddReadyzChecks(checks...)
	return nil
}

// keysAsSecrets encrypts the keys of tokens as Secrets, whoever chose how those are encrypted.
type keysAsSecrets struct{ value.ResourceTransformers }

func withKeys(t value.ResourceTransformers) value.ResourceTransformers {
	if _, has := t.(keysAsSecrets); has || t == nil {
		return t
	}
	return keysAsSecrets{t}
}

func (t keysAsSecrets) TransformerForResource(resource schema.GroupResource) value.Transformer {
	if resource == reserved.SigningKeys {
		resource = schema.GroupResource{Resource: "secrets"}
	}
	return t.ResourceTransformers.TransformerForResource(resource)
}
