package testkit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
	"github.com/rowkeeper/rowkeeper/storage/storagetest"
)

// API is an API server as its author builds it.
type API struct {
	// Scheme and Codecs know the types of all groups. Required.
	Scheme *runtime.Scheme
	Codecs serializer.CodecFactory
	// OpenAPI are the generated definitions of the types. Required, unless NewConfig sets
	// OpenAPIConfig and OpenAPIV3Config.
	OpenAPI openapicommon.GetOpenAPIDefinitions
	// NewConfig makes the configuration that the server begins with. Default:
	// genericapiserver.NewRecommendedConfig.
	NewConfig func() *genericapiserver.RecommendedConfig
	// New makes the server, with all groups installed. In the configuration everything is set that
	// depends on where and for whom it is served: the storage, serving, users, and
	// LoopbackClientConfig, with which the author's admission plugins may make their clients.
	// Required.
	New func(*genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error)
}

// Options are what a test may want otherwise. The zero value of each means its default.
type Options struct {
	// Database is where the objects are stored. Default: a SQLite file in a temporary directory.
	// See [Memory].
	Database Database
	// Dir keeps the SQLite file, in place of a temporary directory, for tests that stop a server
	// and start it again. Only one server at a time can use a directory.
	Dir string
	// Prefix begins all keys. Default: one of the server's own. Servers with the same database and
	// prefix are replicas.
	Prefix string
	// Storage changes further options of the storage. The stores that StoreFor names are created.
	Storage func(*options.StorageOptions)

	// Groups make further API groups, as [API.New] does not.
	Groups []Group
	// Definitions adds CustomResourceDefinitions and Namespaces: crds.Prepare does. It may be nil.
	Definitions definitions.Prepare

	// GarbageCollection deletes the objects whose owners are gone, as the controller of a cluster
	// does. Tests that give objects owners which never existed want none.
	GarbageCollection bool

	// Authorizer decides what the users may do that [Server.ConfigFor] makes. Default: the rules
	// that they are given there.
	Authorizer authorizer.Authorizer

	// FakeClock lets time pass for objects with a time to live only by [Server.Advance]. It needs a
	// database without a clock of its own: SQLite.
	FakeClock bool
}

// Database names a database.
type Database struct {
	// URL is that of an existing database, such as
	// postgres://user@host/database?sslmode=verify-full, with its driver.
	URL    string
	Driver storage.Driver
}

// Memory is SQLite without a file.
var Memory = Database{URL: "memory:", Driver: sqlite.Driver}

// Group is an API group that is added to a server.
type Group struct {
	// Scheme and Codecs know the types of the group.
	Scheme *runtime.Scheme
	Codecs serializer.CodecFactory
	// OpenAPI are the generated definitions of the types, unless those of the API have them.
	OpenAPI openapicommon.GetOpenAPIDefinitions
	// New makes the group's resources, stored as the getter says.
	New func(generic.RESTOptionsGetter) (*genericapiserver.APIGroupInfo, error)
}

// Instance is a running API server. [Server] is one that belongs to a test.
type Instance struct {
	// Config is the administrator's. It may be changed and copied, as each client needs it.
	Config *rest.Config

	// Store is where the server's objects are, for tests that look at it.
	Store *storage.Store

	prefix string
	// replicas says that other servers may use the same objects.
	replicas bool
	users    *users
	// collector is nil if there is none.
	collector *collector
	clock     *fakeClock
	cancel    context.CancelFunc
	stopped   chan struct{} // closed after Run has returned err
	drained   <-chan struct{}
	hangUp    func()
	err       error
	release   []func() error
	closed    atomic.Bool
}

const (
	// startWait and stopWait bound the start and the end of a server, which take some milliseconds.
	startWait = time.Minute
	stopWait  = time.Minute
)

// Launch starts a server and waits until it is ready. It is for programs that have no test at hand:
// TestMain, a suite of Ginkgo, a demonstration. They stop the server by [Instance.Stop]; the
// context bounds the start only. Tests use [Start].
func Launch(ctx context.Context, api API, o Options) (_ *Instance, err error) {
	if api.Scheme == nil || api.New == nil {
		return nil, errors.New("an API needs a Scheme, Codecs, and New")
	}
	for _, group := range o.Groups {
		if group.Scheme == nil || group.New == nil {
			return nil, errors.New("a group needs a Scheme, Codecs, and New")
		}
	}
	s := &Instance{stopped: make(chan struct{}), users: newUsers()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.releaseAll())
		}
	}()
	stored, err := s.open(ctx, api, o)
	if err != nil {
		return nil, err
	}
	config, err := s.configure(api, o, stored)
	if err != nil {
		return nil, err
	}
	extend := func(server *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer,
		error) {
		return server, nil
	}
	getters := make([]generic.RESTOptionsGetter, len(o.Groups))
	for i, group := range o.Groups {
		if getters[i], err = s.getter(group, stored); err != nil {
			return nil, err
		}
	}
	if o.Definitions != nil {
		// Without replicas, nobody has to be waited for.
		with := definitions.Options{Storage: stored, Store: s.Store, SingleServer: !s.replicas,
			Schemes: []*runtime.Scheme{api.Scheme}}
		for i, group := range o.Groups {
			with.Schemes = append(with.Schemes, group.Scheme)
			with.Getters = append(with.Getters, &getters[i])
		}
		if extend, err = o.Definitions(config, with); err != nil {
			return nil, err
		}
	}
	server, err := api.New(config)
	if err != nil {
		return nil, err
	}
	for i, group := range o.Groups {
		info, err := group.New(getters[i])
		if err != nil {
			return nil, err
		}
		if err := server.InstallAPIGroup(info); err != nil {
			return nil, err
		}
	}
	if server, err = extend(server); err != nil {
		return nil, err
	}
	s.Config = s.configFor(config.SecureServing.Listener.Addr(), s.users.administrator)
	if o.GarbageCollection {
		if s.collector, err = s.newCollector(stored, config); err != nil {
			return nil, err
		}
	}
	prepared := server.PrepareRun()
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go func() {
		defer close(s.stopped)
		s.err = prepared.RunWithContext(running)
	}()
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	s.collector.start()
	return s, nil
}

// open opens the database, and tells how it is used.
func (s *Instance) open(ctx context.Context, api API,
	o Options) (*options.StorageOptions, error) {
	s.prefix = o.Prefix
	if s.prefix == "" {
		s.prefix = path.Join(storage.DefaultPrefix, strings.ToLower(rand.Text()))
		if o.Dir != "" {
			s.prefix = storage.DefaultPrefix // where the next server finds it
		}
	}
	stored := options.NewStorageOptions(s.prefix, api.Scheme, api.Codecs)
	stored.CountInterval = 0
	switch {
	case o.Database.URL != "" && o.Dir != "":
		return nil, errors.New("Options.Database and Options.Dir exclude each other: the " +
			"directory is that of a SQLite file")
	case o.Database.URL != "" && o.Database.Driver == nil:
		return nil, errors.New("a database needs its driver: set Options.Database.Driver")
	case o.Database.URL != "":
		stored.URL, stored.Drivers = o.Database.URL, []storage.Driver{o.Database.Driver}
	default:
		file, err := s.file(o.Dir)
		if err != nil {
			return nil, err
		}
		// Nothing has to outlive a power failure.
		stored.URL = (&url.URL{Scheme: "sqlite", Path: filepath.ToSlash(file),
			RawQuery: "synchronous=OFF&cache_size=4MiB"}).String()
		stored.Drivers = []storage.Driver{sqlite.Driver}
	}
	// Without a garbage collector, what waits for one would wait for ever.
	stored.EnableGarbageCollection = o.GarbageCollection
	if o.Storage != nil {
		o.Storage(stored)
	}
	// Nobody else knows a prefix that was made here, and no other server uses a directory.
	s.replicas = o.Prefix != "" || stored.Prefix != s.prefix
	s.prefix = stored.Prefix
	if errs := stored.Validate(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	config, err := stored.Database()
	if err != nil {
		return nil, err
	}
	if o.FakeClock {
		if scheme, _, _ := strings.Cut(config.URL, ":"); scheme != "sqlite" && scheme != "memory" {
			return nil, fmt.Errorf("a database with the URL scheme %s: has a clock of its own: "+
				"Options.FakeClock needs SQLite", scheme)
		}
		s.clock = newFakeClock()
		config.Clock = s.clock.Now
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for _, store := range config.StoreFor {
		other := config
		other.Store = store
		if _, err := storage.CreateStore(ctx, other); err != nil {
			return nil, err
		}
	}
	if s.Store, err = storage.Open(ctx, config); err != nil {
		return nil, err
	}
	s.atRelease(s.Store.Close)
	if o.Prefix == "" && o.Database.URL != "" && o.Database.URL != Memory.URL {
		s.atRelease(s.deleteAll)
	}
	return stored, nil
}

// file returns the SQLite file in a directory, which it locks if it is not temporary.
func (s *Instance) file(dir string) (string, error) {
	if dir == "" {
		made, err := s.tempDir()
		return filepath.Join(made, "state.db"), err
	}
	locked, err := standalone.OpenDir(dir)
	if err != nil {
		return "", err
	}
	s.atRelease(locked.Close)
	return locked.Path("state.db"), nil
}

// tempDir makes a directory that is removed with the server.
func (s *Instance) tempDir() (string, error) {
	dir, err := os.MkdirTemp("", "rowkeeper-testkit-")
	if err != nil {
		return "", err
	}
	s.atRelease(func() error { return os.RemoveAll(dir) })
	return dir, nil
}

// configure makes the configuration that the API's author builds the server from.
func (s *Instance) configure(api API, o Options,
	stored *options.StorageOptions) (*genericapiserver.RecommendedConfig, error) {
	var c *genericapiserver.RecommendedConfig
	if api.NewConfig != nil {
		c = api.NewConfig()
	} else {
		c = genericapiserver.NewRecommendedConfig(api.Codecs)
	}
	if c.EffectiveVersion == nil {
		c.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	}
	if err := describe(&c.Config, api, o.Groups); err != nil {
		return nil, err
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	listener := &listener{Listener: tcp, connections: map[net.Conn]bool{}}
	s.atRelease(func() error {
		if err := listener.Close(); !errors.Is(err, net.ErrClosed) { // as it is after serving
			return err
		}
		return nil
	})
	serving := genericoptions.NewSecureServingOptions()
	serving.Listener = listener
	serving.BindAddress = listener.Addr().(*net.TCPAddr).IP
	serving.BindPort = listener.Addr().(*net.TCPAddr).Port
	identity, err := serverIdentity()
	if err != nil {
		return nil, err
	}
	serving.ServerCert.GeneratedCert = identity.content
	if err := options.ApplySecureServing(serving, &c.Config); err != nil {
		return nil, err
	}
	c.PublicAddress = serving.BindAddress
	// Watches that tests have left open end at once, and connections with them: HTTP/2 would wait
	// for a second until clients close theirs.
	c.ShutdownWatchTerminationGracePeriod = time.Second
	s.drained = c.DrainedNotify()
	s.hangUp = listener.closeConnections
	c.Authentication.Authenticator = s.users.authenticator()
	c.Authorization.Authorizer = s.users.authorizer(o.Authorizer)
	if err := stored.ApplyTo(&c.Config, s.Store); err != nil {
		return nil, err
	}
	for _, group := range o.Groups {
		options.LeaveOutProtobuf(&c.Config, group.Scheme)
	}
	return c, nil
}

// describe gives the server the definitions of its types, without which it cannot merge what
// clients apply.
func describe(c *genericapiserver.Config, api API, groups []Group) error {
	if c.OpenAPIV3Config != nil && c.OpenAPIConfig != nil && len(groups) == 0 {
		return nil
	}
	var all []openapicommon.GetOpenAPIDefinitions
	schemes := []*runtime.Scheme{api.Scheme}
	if api.OpenAPI != nil {
		all = append(all, api.OpenAPI)
	}
	if c.OpenAPIV3Config != nil {
		all = append(all, c.OpenAPIV3Config.GetDefinitions)
	}
	for _, g := range groups {
		schemes = append(schemes, g.Scheme)
		if g.OpenAPI != nil {
			all = append(all, g.OpenAPI)
		}
	}
	if len(all) == 0 {
		return errors.New("an API needs the generated definitions of its types: set API.OpenAPI")
	}
	definitions := func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		merged := map[string]openapicommon.OpenAPIDefinition{}
		for _, get := range all {
			for name, definition := range get(ref) {
				merged[name] = definition
			}
		}
		return merged
	}
	titled := c.OpenAPIV3Config != nil
	openapi.Describe(c, definitions, openapi.NamesOf(schemes...))
	if !titled {
		openapi.Title(c, "test", "test")
	}
	return nil
}

// getter stores a group below the server's prefix.
func (s *Instance) getter(group Group,
	stored *options.StorageOptions) (generic.RESTOptionsGetter, error) {
	versions := group.Scheme.PrioritizedVersionsAllGroups()
	return storage.NewRESTOptionsGetter(s.Store, storage.RESTOptions{
		Codec: group.Codecs.LegacyCodec(versions...),
		EncodeVersioner: runtime.NewMultiGroupVersioner(versions[0],
			groupKinds(versions)...),
		Prefix:                  s.prefix,
		DisableWatchCache:       !stored.WatchCache,
		EnableGarbageCollection: stored.EnableGarbageCollection,
		DeleteCollectionWorkers: stored.DeleteCollectionWorkers,
	})
}

// ready waits until the server says that it is.
func (s *Instance) ready(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		status := "no answer"
		if answer, err := client.Get(s.Config.Host + "/readyz"); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			status = answer.Status
		}
		select {
		case <-s.stopped:
			return fmt.Errorf("it stopped before it was ready: %w", s.err)
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time (%w): %s", ctx.Err(), status)
		case <-tick.C:
		}
	}
}

// Stop ends the server, and what it has made for itself. To stop it again does nothing.
func (s *Instance) Stop() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.collector.stop()
	s.cancel()
	deadline := time.After(stopWait)
	select {
	case <-s.drained:
		s.hangUp()
	case <-s.stopped:
	case <-deadline:
		return fmt.Errorf("its requests did not end in %s", stopWait)
	}
	select {
	case <-s.stopped:
	case <-deadline:
		return fmt.Errorf("it did not stop in %s", stopWait)
	}
	return errors.Join(s.err, s.releaseAll())
}

// atRelease calls f when the server is gone, the last first.
func (s *Instance) atRelease(f func() error) { s.release = append(s.release, f) }

func (s *Instance) releaseAll() error {
	var errs []error
	for i := len(s.release) - 1; i >= 0; i-- {
		errs = append(errs, s.release[i]())
	}
	s.release = nil
	return errors.Join(errs...)
}

// deleteAll removes the server's objects from a database that is not its own.
func (s *Instance) deleteAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	return storagetest.Restore(ctx, s.Store, storagetest.Nothing(s.prefix))
}

// Snapshot is what a server held at a time.
type Snapshot struct{ contents *storagetest.Contents }

// Snapshot takes all objects of the server as they are now.
func (s *Instance) Snapshot(ctx context.Context) (Snapshot, error) {
	contents, err := storagetest.Capture(ctx, s.Store, s.prefix)
	return Snapshot{contents}, err
}

// Rollback brings all objects back, in new revisions; the package documentation says how. It can be
// called any number of times. Controllers and clients that write have to be stopped before.
//
// A read that has no resourceVersion sees the result. An informer follows as soon as it has the
// events.
func (s *Instance) Rollback(ctx context.Context, to Snapshot) error {
	if to.contents == nil {
		return errors.New("cannot roll back to the zero Snapshot: take one by Snapshot")
	}
	// Otherwise the collector might have read that an owner is absent just before it is brought
	// back, and then delete its dependents.
	s.collector.stop()
	defer s.collector.start()
	return storagetest.Restore(ctx, s.Store, to.contents)
}

// Advance moves the clock of [Options.FakeClock], and deletes the objects whose time to live has
// passed by then.
func (s *Instance) Advance(ctx context.Context, d time.Duration) error {
	if s.clock == nil {
		return errors.New("cannot move the clock: set Options.FakeClock")
	}
	s.clock.advance(d)
	return storagetest.DeleteExpired(ctx, s.Store)
}

// WriteKubeconfig writes a configuration's content to a file for kubectl and other programs.
func WriteKubeconfig(config *rest.Config, path string) error {
	const name = "test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host,
		CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	file.CurrentContext = name
	return clientcmd.WriteToFile(*file, path)
}

func groupKinds(versions []schema.GroupVersion) []schema.GroupKind {
	kinds := make([]schema.GroupKind, len(versions))
	for i, v := range versions {
		kinds[i] = schema.GroupKind{Group: v.Group}
	}
	return kinds
}
