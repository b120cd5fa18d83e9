package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/term"
	netutils "k8s.io/utils/net"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/history"
	"github.com/rowkeeper/rowkeeper/pkg/internal/authz"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
	"github.com/rowkeeper/rowkeeper/storage"
)

func init() {
	// The gates of the API machinery are there already; those of its logging are not.
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// Program is what one server program has of its own.
type Program struct {
	// Name is the program's name. The default of --data-dir is a dot and the name.
	Name string
	// Title is what the announcement calls the program. Default: Name.
	Title string
	// Try returns a command line after "kubectl --kubeconfig FILE" that the announcement proposes,
	// "" for none. It is called when the flags were read, and may be nil.
	Try func() string

	// Scheme, Codecs and Drivers are those of [options.StorageOptions].
	Scheme  *runtime.Scheme
	Codecs  serializer.CodecFactory
	Drivers []storage.Driver

	// Definitions serves CustomResourceDefinitions where the flag --enable-crds asks for it:
	// crds.Prepare does. Without it, the program has no such flag.
	Definitions definitions.Prepare

	// AddFlags adds the program's own flags, if it has any.
	AddFlags func(*pflag.FlagSet)
	// Validate returns what is wrong with the program or its own flags. It may be nil.
	Validate func(aggregated bool) []error
	// NewConfig returns a configuration in which everything is set that follows from the API.
	NewConfig func() *genericapiserver.RecommendedConfig
	// New makes the server.
	New func(*genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error)
	// First is called when a server that stands alone is ready, its directory is new, and its
	// database is the one in there, before the announcement. It may be nil.
	First func(context.Context, *rest.Config)
}

// StorageOptions returns the flags by which the program names its database, with their defaults.
func (p Program) StorageOptions() *options.StorageOptions {
	return options.NewStorageOptions(storage.DefaultPrefix, p.Scheme, p.Codecs, p.Drivers...)
}

// Server is a server program: its flags, and what they lead to.
type Server struct {
	// Storage and Aggregated are the flags for the database and for servers behind a cluster's API
	// server. The program may change their defaults before it asks for the Command.
	Storage    *options.StorageOptions
	Aggregated *options.AggregatedOptions

	program    Program
	configFile string
	dataDir    string // of a server that is not aggregated
	// ownDatabase says that the database is that of the data directory.
	ownDatabase bool
	// collectGarbage runs the garbage collector in a server that is not aggregated.
	collectGarbage bool
	// service is the namespace and name of the Service of an aggregated server that makes its
	// serving certificate by itself.
	service string
	// enableHistory serves the subresource history.
	enableHistory bool
	// enableCRDs serves CustomResourceDefinitions in a server that is not aggregated.
	enableCRDs bool
	// webhookServices says where the Services of webhooks are, with enableCRDs.
	webhookServices map[string]string
	// serviceAccounts says how their tokens are signed, with enableCRDs.
	serviceAccounts definitions.ServiceAccounts
	// signInFile says by which tokens users sign in to a server that is not aggregated.
	signInFile string
	// authorizationFile says who decides about requests to a server that is not aggregated, and
	// authorization is what it says. It is nil without the file.
	authorizationFile string
	authorization     *authz.File

	requests requestOptions
	serving  *genericoptions.SecureServingOptions
	audit    *genericoptions.AuditOptions
	features *genericoptions.FeatureOptions
	tracing  *genericoptions.TracingOptions
	logging  *logsapi.LoggingConfiguration
}

// New returns the server of a program, with the defaults of all flags.
func New(p Program) *Server {
	s := &Server{
		Storage:    p.StorageOptions(),
		Aggregated: options.NewAggregatedOptions(),

		program:        p,
		dataDir:        "." + p.Name,
		collectGarbage: true,
		requests:       newRequestOptions(),
		serving:        genericoptions.NewSecureServingOptions(),
		audit:          genericoptions.NewAuditOptions(),
		features:       genericoptions.NewFeatureOptions(),
		tracing:        genericoptions.NewTracingOptions(),
		logging:        logsapi.NewLoggingConfiguration(),
	}
	s.serving.BindAddress = netutils.ParseIPSloppy("127.0.0.1")
	s.serving.BindPort = 8443
	// The flag for it is that of the aggregated options. Which server's objects configure it
	// depends on the mode.
	s.features.EnablePriorityAndFairness = false
	return s
}

// The flags of what a cluster does for an aggregated server, with the names that they have in a
// cluster's programs.
const (
	collectorFlag     = "enable-garbage-collector"
	crdsFlag          = "enable-crds"
	clientCAFlag      = "client-ca-file"
	priorityFlag      = "enable-priority-and-fairness"
	signInFlag        = "authentication-config"
	authorizationFlag = "authorization-config"
	servicesFlag      = "webhook-service"
	issuerFlag        = "service-account-issuer"
	signingKeyFlag    = "service-account-signing-key-file"
	keyFlag           = "service-account-key-file"
)

// definitionsFlags are for servers with definitions only.
var definitionsFlags = []string{servicesFlag, issuerFlag, signingKeyFlag, keyFlag}

// clusterSection has the flags that are for aggregated servers only.
const clusterSection = "cluster"

// flags returns the flags in their sections.
func (s *Server) flags() cliflag.NamedFlagSets {
	var sections cliflag.NamedFlagSets
	fs := sections.FlagSet("generic")
	fs.StringVar(&s.configFile, "config", s.configFile,
		"YAML file that maps the names of flags, without dashes in front, to values. What the "+
			"command line says comes before it.")
	fs.StringVar(&s.dataDir, "data-dir", s.dataDir,
		"Directory for the server's certificates, the kubeconfig and, without --database, the "+
			"database state.db. Only one server at a time can use it. An aggregated server has none.")
	fs.BoolVar(&s.collectGarbage, collectorFlag, s.collectGarbage,
		"Delete the objects whose owners are gone, as owner references say, in one of the "+
			"replicas. An aggregated server leaves it to its cluster.")
	fs.BoolVar(&s.enableHistory, "enable-history", s.enableHistory,
		"Serve what the database still knows of each object's past, as the subresource history, to "+
			"users who may get it. See --compaction-window.")
	if s.program.Definitions != nil {
		fs.BoolVar(&s.enableCRDs, crdsFlag, s.enableCRDs,
			"Serve CustomResourceDefinitions and their objects, Namespaces, which objects can then "+
				"only be created in, roles, which then say who may do what, and a few other "+
				"resources of the core API. Definitions need memory: 189 of public projects take up "+
				"to 2.5 GB while they are created, and 1.9 GB after a restart. GOMEMLIMIT, such as "+
				"2GiB, bounds that. An aggregated server leaves them to its cluster.")
		fs.StringToStringVar(&s.webhookServices, servicesFlag, s.webhookServices,
			"NAMESPACE/NAME=HOST:PORT: where the Service is that webhooks name, with "+
				"--enable-crds. Repeat it for more. The webhook's certificate must be for "+
				"NAME.NAMESPACE.svc, as in a cluster. Other webhooks are called by URL.")
		fs.StringArrayVar(&s.serviceAccounts.Issuers, issuerFlag, s.serviceAccounts.Issuers,
			"Whom the tokens of service accounts name as their issuer, with --enable-crds. "+
				"Repeat it for others whose tokens are accepted, too. All servers of a database must "+
				"have the same. Default: "+definitions.DefaultIssuer+".")
		fs.StringVar(&s.serviceAccounts.SigningKeyFile, signingKeyFlag,
			s.serviceAccounts.SigningKeyFile,
			"File with the private key that signs the tokens of service accounts, with "+
				"--enable-crds. All servers of a database must have the same. Without it, they make "+
				"keys, keep them in the database, and replace them.")
		fs.StringArrayVar(&s.serviceAccounts.KeyFiles, keyFlag, s.serviceAccounts.KeyFiles,
			"File with keys, public or private ones, by which tokens of service accounts are "+
				"accepted, besides those that sign, with --enable-crds. Repeat it for more.")
	}
	fs.StringVar(&s.signInFile, signInFlag, s.signInFile,
		"File with an AuthenticationConfiguration (apiserver.config.k8s.io): the issuers by whose "+
			"tokens users sign in, beside certificates, and whether requests may be anonymous. The "+
			"server follows changes of it. An aggregated server leaves it to its cluster.")
	who := "webhooks"
	if s.program.Definitions != nil {
		who += ", and with --enable-crds roles"
	}
	fs.StringVar(&s.authorizationFile, authorizationFlag, s.authorizationFile,
		"File with an AuthorizationConfiguration (apiserver.config.k8s.io): who decides what users "+
			"may do, in which order: "+who+". The server follows changes of it. An aggregated "+
			"server leaves it to its cluster.")
	if s.program.AddFlags != nil {
		s.program.AddFlags(fs)
	}
	s.requests.addFlags(fs)
	s.Storage.AddFlags(sections.FlagSet("storage"))

	var upstream pflag.FlagSet
	s.serving.AddFlags(&upstream)
	s.features.AddFlags(&upstream)
	addFlags(sections.FlagSet("secure serving"), &upstream, map[string]string{
		"bind-address": "The IP address to listen on. 0.0.0.0 or :: means all interfaces.",
		"secure-port":  "The port for HTTPS. 0 means one that is free.",
		"tls-cert-file": "File with the serving certificate, and with those that lead to its " +
			"authority, if any, after it. Without it and --tls-private-key-file, a server that " +
			"is not aggregated makes a certificate of its own.",
		"tls-private-key-file":             "File with the private key of --tls-cert-file.",
		"tls-cipher-suites":                "",
		"tls-curve-preferences":            "",
		"tls-min-version":                  "",
		"tls-sni-cert-key":                 "",
		"disable-http2-serving":            "",
		"http2-max-streams-per-connection": "",
	})
	var aggregated pflag.FlagSet
	s.Aggregated.AddFlags(&aggregated)
	aggregated.VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == clientCAFlag:
			f.Usage += " Without a cluster, besides the server's own authority."
			fs.AddFlag(f)
		case f.Name == priorityFlag && s.program.Definitions != nil:
			f.Usage += " Without a cluster, as the server's own say, with --enable-crds."
			fs.AddFlag(f)
		default:
			sections.FlagSet(clusterSection).AddFlag(f)
		}
	})
	sections.FlagSet(clusterSection).StringVar(&s.service, "service", s.service,
		"NAMESPACE/NAME of the Service that the APIServices of this server name. The server then "+
			"makes and renews its serving certificate by itself, in place of --tls-cert-file and "+
			"--tls-private-key-file. It keeps the certificate, and the authority that signs it, in "+
			"the Secret NAME-certificate beside the Service, and writes the authority into the "+
			"APIServices.")
	s.audit.AddFlags(sections.FlagSet("audit"))
	addFlags(sections.FlagSet("features"), &upstream, map[string]string{
		"profiling":            "",
		"contention-profiling": "",
		"debug-socket-path":    "",
	})
	utilfeature.DefaultMutableFeatureGate.AddFlag(sections.FlagSet("features"))
	s.tracing.AddFlags(sections.FlagSet("tracing"))
	logsapi.AddFlags(s.logging, sections.FlagSet("logging"))
	return sections
}

// addFlags adds the named flags, with another usage where one is given.
func addFlags(to, from *pflag.FlagSet, usages map[string]string) {
	for name, usage := range usages {
		flag := from.Lookup(name)
		if usage != "" {
			flag.Usage = usage
		}
		to.AddFlag(flag)
	}
}

// ServesDefinitions tells whether --enable-crds is given.
func (s *Server) ServesDefinitions() bool { return s.enableCRDs }

// Command returns the command serve, which serves until its context ends. A wrong use of it ends
// with a [UsageError].
func (s *Server) Command() *cobra.Command {
	sections := s.flags()
	namespaces, example := "Namespaces", ""
	if s.program.Definitions != nil {
		namespaces, example = "Without --enable-crds, namespaces", " --enable-crds"
	}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the API",
		Long: "Serve runs the API server until it is told to stop by SIGTERM or an interrupt.\n\n" +
			"By default it serves on https://127.0.0.1:8443 from a SQLite database in the " +
			"directory ." + s.program.Name + ", where it also keeps an authority of its own and " +
			"a kubeconfig for the administrator. No cluster is needed. " + namespaces + " need " +
			"not exist: an object's namespace is a part of its name.\n\n" +
			"With --aggregated or --kubeconfig it is a part of a cluster, behind the cluster's " +
			"API server.\n\n" +
			"Warnings and errors are logged, and with -v=1 or more what the server does, too. A " +
			"log in JSON has everything.",
		Example: "  " + s.program.Name + " serve\n" +
			"  " + s.program.Name + " serve --database \"postgres://user@db/objects?sslmode=verify-full\"" + example,
		Args:          NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.configFile != "" {
				if err := applyConfigFile(s.configFile, cmd.Flags()); err != nil {
					return UsageError{Err: err}
				}
			}
			if err := s.complete(); err != nil {
				return err
			}
			if err := utilerrors.NewAggregate(append(s.validate(),
				s.validateMode(cmd.Flags(), sections.FlagSet(clusterSection))...)); err != nil {
				return UsageError{Err: err}
			}
			if err := logsapi.ValidateAndApplyWithOptions(s.logging, s.logStreams(),
				utilfeature.DefaultFeatureGate); err != nil {
				return UsageError{Err: err}
			}
			defer logs.FlushLogs()
			storage.KeepWithinGroup()
			return s.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	// 0 if it is no terminal: then lines are not wrapped
	columns, _, _ := term.TerminalSize(os.Stdout)
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns)
	return cmd
}

// UsageError is an error in the way that a program was called.
type UsageError = commandline.UsageError

// NoArgs refuses arguments that are not flags. For a command with others below it, they would be
// commands.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasAvailableSubCommands() {
		return UsageError{Err: fmt.Errorf("unknown command %q", args[0])}
	}
	return UsageError{Err: fmt.Errorf("unexpected argument %q", args[0])}
}

// complete fills in what follows from other options.
func (s *Server) complete() error {
	// Where there is a cluster, there is its garbage collector.
	s.Storage.EnableGarbageCollection = s.Aggregated.Complete() || s.collectGarbage
	if s.Aggregated.Enabled {
		return nil
	}
	if !s.Storage.NamesDatabase() {
		dir, err := filepath.Abs(s.dataDir)
		if err != nil {
			return fmt.Errorf("cannot find --data-dir: %w", err)
		}
		s.Storage.URL = (&url.URL{Scheme: "sqlite",
			Path: filepath.ToSlash(filepath.Join(dir, "state.db"))}).String()
		s.ownDatabase = true
	}
	return nil
}

func (s *Server) validate() []error {
	var errs []error
	if s.program.Validate != nil {
		errs = s.program.Validate(s.Aggregated.Enabled)
	}
	errs = append(errs, s.Storage.Validate()...)
	errs = append(errs, s.requests.validate()...)
	if (s.serving.ServerCert.CertKey.CertFile == "") != (s.serving.ServerCert.CertKey.KeyFile == "") {
		errs = append(errs,
			errors.New("--tls-cert-file and --tls-private-key-file need each other"))
	}
	errs = append(errs, s.serving.Validate()...)
	errs = append(errs, s.audit.Validate()...)
	errs = append(errs, s.features.Validate()...)
	return append(errs, s.tracing.Validate()...)
}

// validateMode returns which of the flags are for the other mode.
func (s *Server) validateMode(all, cluster *pflag.FlagSet) []error {
	var errs []error
	if s.Aggregated.Enabled {
		for _, name := range append([]string{"data-dir", collectorFlag, crdsFlag, signInFlag,
			authorizationFlag}, definitionsFlags...) {
			if all.Changed(name) {
				errs = append(errs,
					fmt.Errorf("--%s is only for servers that are not aggregated", name))
			}
		}
		files := s.serving.ServerCert.CertKey.CertFile != "" ||
			s.serving.ServerCert.CertKey.KeyFile != ""
		namespace, name, _ := strings.Cut(s.service, "/")
		switch {
		case s.service == "" && !files:
			errs = append(errs, fmt.Errorf("an aggregated server needs --tls-cert-file and "+
				"--tls-private-key-file, which %q makes, or --service", s.program.Name+" certs"))
		case s.service != "" && files:
			errs = append(errs, errors.New("the serving certificate is that of --tls-cert-file, "+
				"or the server makes it for --service: give one of the two"))
		case s.service != "" && (len(utilvalidation.IsDNS1123Label(namespace)) > 0 ||
			len(utilvalidation.IsDNS1035Label(name)) > 0):
			errs = append(errs, fmt.Errorf("--service %q is not the NAMESPACE/NAME of a Service",
				s.service))
		}
		return append(errs, s.Aggregated.Validate()...)
	}
	if s.dataDir == "" {
		errs = append(errs, errors.New("--data-dir must name a directory"))
	}
	for _, name := range definitionsFlags {
		if all.Changed(name) && !s.enableCRDs {
			errs = append(errs, fmt.Errorf("--%s needs --%s", name, crdsFlag))
		}
	}
	if err := s.serviceAccounts.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--%s: %w", issuerFlag, err))
	}
	if s.program.Definitions != nil && all.Changed(priorityFlag) && !s.enableCRDs {
		errs = append(errs, fmt.Errorf("--%s needs --%s", priorityFlag, crdsFlag))
	}
	for _, err := range definitions.Services(s.webhookServices).Validate() {
		errs = append(errs, fmt.Errorf("--%s: %w", servicesFlag, err))
	}
	cluster.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			errs = append(errs, fmt.Errorf("--%s is only for aggregated servers: give "+
				"--aggregated or --kubeconfig, too", f.Name))
		}
	})
	return errs
}

// listen opens the port, so that a port which is in use is known before anything else is done.
func (s *Server) listen() error {
	address := net.JoinHostPort(s.serving.BindAddress.String(), strconv.Itoa(s.serving.BindPort))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot serve: %w; choose another --secure-port or --bind-address", err)
	}
	s.serving.Listener = listener
	s.serving.BindPort = listener.Addr().(*net.TCPAddr).Port
	return nil
}

// names are what the serving certificate is for.
func (s *Server) names() standalone.Names {
	names := standalone.Names{
		DNS: []string{"localhost"},
		IPs: []net.IP{netutils.ParseIPSloppy("127.0.0.1"), netutils.ParseIPSloppy("::1")},
	}
	if ip := s.serving.BindAddress; !ip.IsUnspecified() && !ip.IsLoopback() {
		names.IPs = append(names.IPs, ip)
	}
	if host := s.requests.externalHost; host != "" {
		if ip := netutils.ParseIPSloppy(host); ip != nil {
			names.IPs = append(names.IPs, ip)
		} else {
			names.DNS = append(names.DNS, host)
		}
	}
	return names
}

// url is where a client on this machine reaches the server.
func (s *Server) url() string {
	host := s.serving.BindAddress.String()
	if s.serving.BindAddress.IsUnspecified() {
		host = "127.0.0.1"
		if netutils.IsIPv6(s.serving.BindAddress) {
			host = "::1"
		}
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(s.serving.BindPort))
}

// config applies the options. Authorization is left to the caller.
func (s *Server) config(store *storage.Store) (*genericapiserver.RecommendedConfig, error) {
	config := s.program.NewConfig()
	c := &config.Config
	s.requests.applyTo(c)
	c.PublicAddress = s.serving.BindAddress
	if c.PublicAddress.IsUnspecified() {
		// It is used in discovery and links only. The address of all interfaces would mean nothing
		// there.
		c.PublicAddress = netutils.ParseIPSloppy("127.0.0.1")
	}
	if err := s.Storage.ApplyTo(c, store); err != nil {
		return nil, err
	}
	if s.enableHistory {
		history.Serve(c)
	}
	if err := s.tracing.ApplyTo(nil, c); err != nil {
		return nil, err
	}
	if pair := s.serving.ServerCert.CertKey; pair.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile); err != nil {
			return nil, fmt.Errorf("cannot serve with the certificate %s and the key %s: %w",
				pair.CertFile, pair.KeyFile, err)
		}
	}
	if err := options.ApplySecureServing(s.serving, c); err != nil {
		return nil, err
	}
	if err := s.audit.ApplyTo(c); err != nil {
		return nil, err
	}
	return config, nil
}
