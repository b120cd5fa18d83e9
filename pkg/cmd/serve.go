package cmd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/term"
	netutils "k8s.io/utils/net"

	"github.com/rowkeeper/rowkeeper/pkg/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/standalone"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

func init() {
	// The gates of the API machinery are there already; those of its logging are not.
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// drivers are the kinds of databases that the program can use.
func drivers() []storage.Driver {
	return []storage.Driver{sqlite.Driver, postgres.Driver, mysql.Driver}
}

func newStorageOptions() *options.StorageOptions {
	o := options.NewStorageOptions(storage.DefaultPrefix, apiserver.Scheme, apiserver.Codecs, drivers()...)
	o.StoredAs = apiserver.StoredAs
	return o
}

// serveOptions are what "rowkeeper serve" can be told.
type serveOptions struct {
	configFile string
	dataDir    string
	enableCRDs bool

	requests requestOptions
	storage  *options.StorageOptions
	serving  *genericoptions.SecureServingOptions
	audit    *genericoptions.AuditOptions
	features *genericoptions.FeatureOptions
	tracing  *genericoptions.TracingOptions
	logging  *logsapi.LoggingConfiguration

	// aggregated is for servers that are a part of a cluster, and dataDir for those that are not.
	aggregated *options.AggregatedOptions
}

func newServeOptions() *serveOptions {
	o := &serveOptions{
		dataDir:  ".rowkeeper",
		requests: newRequestOptions(),
		storage:  newStorageOptions(),
		serving:  genericoptions.NewSecureServingOptions(),
		audit:    genericoptions.NewAuditOptions(),
		features: genericoptions.NewFeatureOptions(),
		tracing:  genericoptions.NewTracingOptions(),
		logging:  logsapi.NewLoggingConfiguration(),

		aggregated: options.NewAggregatedOptions(),
	}
	o.serving.BindAddress = netutils.ParseIPSloppy("127.0.0.1")
	o.serving.BindPort = 8443
	// Priority and fairness is configured by objects of a core API, which only an aggregated server has.
	o.features.EnablePriorityAndFairness = false
	return o
}

// clusterSection has the flags that are for aggregated servers only.
const clusterSection = "cluster"

// flags returns the flags in their sections.
func (o *serveOptions) flags() cliflag.NamedFlagSets {
	var sections cliflag.NamedFlagSets
	fs := sections.FlagSet("generic")
	fs.StringVar(&o.configFile, "config", o.configFile,
		"YAML file that maps the names of flags, without dashes in front, to values. What the command line says comes before it.")
	fs.StringVar(&o.dataDir, "data-dir", o.dataDir,
		"Directory for the server's certificates, the kubeconfig and, without --database, the database state.db. Only one server at a time can use it. "+
			"An aggregated server has none.")
	fs.BoolVar(&o.enableCRDs, "enable-crds", o.enableCRDs,
		"Serve CustomResourceDefinitions and their objects, Namespaces, which objects can then only be created in, and a few other resources of the core API. "+
			"An aggregated server leaves them to its cluster.")
	o.requests.addFlags(fs)
	o.storage.AddFlags(sections.FlagSet("storage"))

	var upstream pflag.FlagSet
	o.serving.AddFlags(&upstream)
	o.features.AddFlags(&upstream)
	addFlags(sections.FlagSet("secure serving"), &upstream, map[string]string{
		"bind-address": "The IP address to listen on. 0.0.0.0 or :: means all interfaces.",
		"secure-port":  "The port for HTTPS. 0 means one that is free.",
		"tls-cert-file": "File with the serving certificate, and with those that lead to its authority, if any, after it. Without it and --tls-private-key-file, " +
			"a server that is not aggregated makes a certificate of its own.",
		"tls-private-key-file":             "File with the private key of --tls-cert-file.",
		"tls-cipher-suites":                "",
		"tls-curve-preferences":            "",
		"tls-min-version":                  "",
		"tls-sni-cert-key":                 "",
		"disable-http2-serving":            "",
		"http2-max-streams-per-connection": "",
	})
	o.aggregated.AddFlags(sections.FlagSet(clusterSection))
	o.audit.AddFlags(sections.FlagSet("audit"))
	addFlags(sections.FlagSet("features"), &upstream, map[string]string{
		"profiling":            "",
		"contention-profiling": "",
		"debug-socket-path":    "",
	})
	utilfeature.DefaultMutableFeatureGate.AddFlag(sections.FlagSet("features"))
	o.tracing.AddFlags(sections.FlagSet("tracing"))
	logsapi.AddFlags(o.logging, sections.FlagSet("logging"))
	return sections
}

// addFlags adds those of the flags that are named, with another usage where one is given.
func addFlags(to, from *pflag.FlagSet, usages map[string]string) {
	for name, usage := range usages {
		flag := from.Lookup(name)
		if usage != "" {
			flag.Usage = usage
		}
		to.AddFlag(flag)
	}
}

func newServeCommand() *cobra.Command {
	o := newServeOptions()
	sections := o.flags()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the API",
		Long: "Serve runs the API server until it is told to stop by SIGTERM or an interrupt.\n\n" +
			"Without any flag it serves on https://127.0.0.1:8443 from a SQLite database in the directory .rowkeeper, where it also keeps an authority of its own and " +
			"a kubeconfig for the administrator. No cluster is needed. Namespaces need not exist: an object's namespace is a part of its name.\n\n" +
			"With --aggregated or --kubeconfig it is a part of a cluster, behind the cluster's API server.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.configFile != "" {
				if err := applyConfigFile(o.configFile, cmd.Flags()); err != nil {
					return usageError{err}
				}
			}
			if err := o.complete(); err != nil {
				return err
			}
			if err := utilerrors.NewAggregate(append(o.validate(), o.validateMode(cmd.Flags(), sections.FlagSet(clusterSection))...)); err != nil {
				return usageError{err}
			}
			if err := logsapi.ValidateAndApply(o.logging, utilfeature.DefaultFeatureGate); err != nil {
				return usageError{err}
			}
			defer logs.FlushLogs()
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	columns, _, _ := term.TerminalSize(os.Stdout) // 0 if it is no terminal: then lines are not wrapped
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns)
	return cmd
}

// complete fills in what follows from other options.
func (o *serveOptions) complete() error {
	// Where there is a cluster, there is its garbage collector.
	o.storage.EnableGarbageCollection = o.aggregated.Complete()
	if o.aggregated.Enabled {
		return nil
	}
	if o.storage.URL == "" && o.storage.URLFile == "" {
		dir, err := filepath.Abs(o.dataDir)
		if err != nil {
			return fmt.Errorf("cannot find --data-dir: %w", err)
		}
		o.storage.URL = (&url.URL{Scheme: "sqlite", Path: filepath.ToSlash(filepath.Join(dir, "state.db"))}).String()
	}
	return nil
}

func (o *serveOptions) validate() []error {
	errs := o.storage.Validate()
	errs = append(errs, o.requests.validate()...)
	if (o.serving.ServerCert.CertKey.CertFile == "") != (o.serving.ServerCert.CertKey.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file need each other"))
	}
	errs = append(errs, o.serving.Validate()...)
	errs = append(errs, o.audit.Validate()...)
	errs = append(errs, o.features.Validate()...)
	return append(errs, o.tracing.Validate()...)
}

// validateMode returns which of the flags are for the other mode.
func (o *serveOptions) validateMode(all, cluster *pflag.FlagSet) []error {
	var errs []error
	if o.aggregated.Enabled {
		if o.enableCRDs {
			errs = append(errs, errors.New("--enable-crds is only for servers that are not aggregated: a cluster serves its own CustomResourceDefinitions"))
		}
		if all.Changed("data-dir") {
			errs = append(errs, errors.New("--data-dir is only for servers that are not aggregated"))
		}
		if o.serving.ServerCert.CertKey.CertFile == "" {
			errs = append(errs, errors.New("an aggregated server needs --tls-cert-file and --tls-private-key-file, which \"rowkeeper certs\" makes"))
		}
		return append(errs, o.aggregated.Validate()...)
	}
	if o.dataDir == "" {
		errs = append(errs, errors.New("--data-dir must name a directory"))
	}
	cluster.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			errs = append(errs, fmt.Errorf("--%s is only for aggregated servers: give --aggregated or --kubeconfig, too", f.Name))
		}
	})
	return errs
}

// listen opens the port, so that a port which is in use is known before anything else is done.
func (o *serveOptions) listen() error {
	address := net.JoinHostPort(o.serving.BindAddress.String(), strconv.Itoa(o.serving.BindPort))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot serve: %w; choose another --secure-port or --bind-address", err)
	}
	o.serving.Listener = listener
	o.serving.BindPort = listener.Addr().(*net.TCPAddr).Port
	return nil
}

// names are what the serving certificate is for.
func (o *serveOptions) names() standalone.Names {
	names := standalone.Names{
		DNS: []string{"localhost"},
		IPs: []net.IP{netutils.ParseIPSloppy("127.0.0.1"), netutils.ParseIPSloppy("::1")},
	}
	if ip := o.serving.BindAddress; !ip.IsUnspecified() && !ip.IsLoopback() {
		names.IPs = append(names.IPs, ip)
	}
	if host := o.requests.externalHost; host != "" {
		if ip := netutils.ParseIPSloppy(host); ip != nil {
			names.IPs = append(names.IPs, ip)
		} else {
			names.DNS = append(names.DNS, host)
		}
	}
	return names
}

// url is where a client on this machine reaches the server.
func (o *serveOptions) url() string {
	host := o.serving.BindAddress.String()
	if o.serving.BindAddress.IsUnspecified() {
		host = "127.0.0.1"
		if netutils.IsIPv6(o.serving.BindAddress) {
			host = "::1"
		}
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(o.serving.BindPort))
}

// databaseName is what may be shown of the database's URL: no user and no parameters.
func (o *serveOptions) databaseName() string {
	if o.storage.URLFile != "" {
		return "the database of " + o.storage.URLFile
	}
	u, err := url.Parse(o.storage.URL)
	if err != nil {
		return "a database"
	}
	if u.Opaque != "" || u.Host == "" && u.Path == "" {
		return u.Scheme + ":"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// config applies the options. Who may do what is left to the caller.
func (o *serveOptions) config(db *storage.Database) (*apiserver.Config, error) {
	config := apiserver.NewConfig()
	c := &config.Generic.Config
	o.requests.applyTo(c)
	c.PublicAddress = o.serving.BindAddress
	if c.PublicAddress.IsUnspecified() {
		// Only used in discovery and links, where an address of all interfaces means nothing.
		c.PublicAddress = netutils.ParseIPSloppy("127.0.0.1")
	}
	if err := o.storage.ApplyTo(c, db); err != nil {
		return nil, err
	}
	if err := o.tracing.ApplyTo(nil, c); err != nil {
		return nil, err
	}
	if pair := o.serving.ServerCert.CertKey; pair.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile); err != nil {
			return nil, fmt.Errorf("cannot serve with the certificate %s and the key %s: %w", pair.CertFile, pair.KeyFile, err)
		}
	}
	if err := options.ApplySecureServing(o.serving, c); err != nil {
		return nil, err
	}
	if err := o.audit.ApplyTo(c); err != nil {
		return nil, err
	}
	return config, nil
}

// requestOptions bound what clients can ask of the server, and how it stops.
type requestOptions struct {
	externalHost           string
	maxInFlight            int
	maxMutatingInFlight    int
	timeout                time.Duration
	minTimeoutSeconds      int
	shutdownDelay          time.Duration
	shutdownSendRetryAfter bool
	shutdownWatchGrace     time.Duration
	goawayChance           float64
}

func newRequestOptions() requestOptions {
	return requestOptions{
		maxInFlight:         400,
		maxMutatingInFlight: 200,
		timeout:             time.Minute,
		minTimeoutSeconds:   1800,
		shutdownWatchGrace:  10 * time.Second,
	}
}

func (o *requestOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.externalHost, "external-hostname", o.externalHost,
		"The name or address by which clients know the server, if they know it by another one. The certificate that the server makes is valid for it.")
	fs.IntVar(&o.maxInFlight, "max-requests-inflight", o.maxInFlight,
		"How many reading requests may be under way at a time. Further ones are answered by 429. 0 means any number.")
	fs.IntVar(&o.maxMutatingInFlight, "max-mutating-requests-inflight", o.maxMutatingInFlight,
		"How many writing requests may be under way at a time. Further ones are answered by 429. 0 means any number.")
	fs.DurationVar(&o.timeout, "request-timeout", o.timeout,
		"How long a request may take, other than a watch.")
	fs.IntVar(&o.minTimeoutSeconds, "min-request-timeout", o.minTimeoutSeconds,
		"How many seconds a watch lasts at least whose client does not say. It ends after a random time between this and twice this, so that watches do not come back together.")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", o.shutdownDelay,
		"How long the server goes on serving after it was told to stop, while /readyz says that it is not ready, so that load balancers can notice.")
	fs.BoolVar(&o.shutdownSendRetryAfter, "shutdown-send-retry-after", o.shutdownSendRetryAfter,
		"Answer new requests by 429 while those under way are finished, instead of refusing connections.")
	fs.DurationVar(&o.shutdownWatchGrace, "shutdown-watch-termination-grace-period", o.shutdownWatchGrace,
		"How long the watches take to end, some at a time, when the server stops.")
	fs.Float64Var(&o.goawayChance, "goaway-chance", o.goawayChance,
		"The fraction of requests after which an HTTP/2 client is asked to connect anew, so that it may find another replica: 0 to 0.02.")
}

func (o *requestOptions) validate() []error {
	var errs []error
	reject := func(wrong bool, text string) {
		if wrong {
			errs = append(errs, errors.New(text))
		}
	}
	reject(o.maxInFlight < 0, "--max-requests-inflight must not be negative")
	reject(o.maxMutatingInFlight < 0, "--max-mutating-requests-inflight must not be negative")
	reject(o.timeout <= 0, "--request-timeout must be greater than 0")
	reject(o.minTimeoutSeconds <= 0, "--min-request-timeout must be greater than 0")
	reject(o.shutdownDelay < 0, "--shutdown-delay-duration must not be negative")
	reject(o.shutdownWatchGrace < 0, "--shutdown-watch-termination-grace-period must not be negative")
	reject(o.goawayChance < 0 || o.goawayChance > 0.02, "--goaway-chance must be between 0 and 0.02")
	return errs
}

func (o *requestOptions) applyTo(c *genericapiserver.Config) {
	if o.externalHost != "" {
		c.ExternalAddress = o.externalHost
	}
	c.MaxRequestsInFlight = o.maxInFlight
	c.MaxMutatingRequestsInFlight = o.maxMutatingInFlight
	c.RequestTimeout = o.timeout
	c.MinRequestTimeout = o.minTimeoutSeconds
	c.ShutdownDelayDuration = o.shutdownDelay
	c.ShutdownSendRetryAfter = o.shutdownSendRetryAfter
	c.ShutdownWatchTerminationGracePeriod = o.shutdownWatchGrace
	c.GoawayChance = o.goawayChance
}
