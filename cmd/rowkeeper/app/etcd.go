package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// etcdCommand is the command "etcd": etcd's API, for a kube-apiserver as it is built upstream. Its
// flags have the names of etcd's where they mean the same.
type etcdCommand struct {
	storage   *options.StorageOptions
	directory *directoryFlags
	config    etcd.ServerConfig

	clientURLs, advertised, metricsURLs []string
	tls                                 tlsFiles
	plainText, anyClient                bool
	compactionMode, compactionRetention string
	progressInterval                    time.Duration

	// These have elements NAME=VALUE, where NAME is a store.
	listenStores, serverNames, clientNames  []string
	storeCerts, storeKeys, storeAuthorities []string

	// stores and doors are what the flags say.
	stores []*etcdStore
	doors  []*door
}

func newEtcdCommand() *cobra.Command {
	c := &etcdCommand{storage: program.StorageOptions(), directory: newDirectoryFlags()}
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Serve a database by etcd's API, for a kube-apiserver",
		Long: "Etcd serves a database by etcd's v3 API, so that a kube-apiserver as it is built " +
			"upstream keeps its objects there: give it the client URL as --etcd-servers. Any " +
			"number of processes may serve one database. The database is compacted when " +
			"kube-apiserver says so. Do not serve the same store by \"rowkeeper serve\".\n\n" +
			"One process serves any number of stores, each with clients of its own: on URLs of " +
			"its own (--listen-store), or on the client URLs under a server name of its own " +
			"(--store-server-name). With --trusted-ca-file, a certificate then opens a store " +
			"only if its common name is the store's, or one of --store-client-name.\n\n" +
			"What clients may have of connections, calls, streams, watches, requests and answers " +
			"is bounded for all stores together. Half of each bound is divided among the stores, " +
			"and the other half is for those that need more. The bounds fit into the memory that " +
			"GOMEMLIMIT or the control group leaves.\n\n" +
			"With --directory in place of --database, the stores are in many databases, and each is " +
			"found where the directory says, also when it has moved while it was served. All of them " +
			"have --listen-store or --store-server-name: the store \"default\" is in no directory.",

		Example: "  rowkeeper etcd --database sqlite:///var/lib/rowkeeper/state.db \\\n    --listen-client-urls unix:///run/rowkeeper/etcd.sock",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(c.listenStores) > 0 && !cmd.Flags().Changed("listen-client-urls") {
				c.clientURLs = nil
			}
			if err := c.validate(); err != nil {
				return server.UsageError{Err: err}
			}
			return c.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	c.addFlags(cmd.Flags())
	cmd.AddCommand(newEtcdImportCommand(), newEtcdExportCommand())
	return cmd
}

func (c *etcdCommand) addFlags(fs *pflag.FlagSet) {
	c.storage.AddDatabaseFlags(fs)
	c.directory.add(fs)
	fs.BoolVar(&c.storage.Migrate, "database-migrate", true,
		"Bring the schema of the database to the newest version at start. If false, a database "+
			"with an older schema is refused.")
	fs.StringVar(&c.config.Name, "name", "rowkeeper", "What the list of members calls this server.")
	fs.StringSliceVar(&c.clientURLs, "listen-client-urls", []string{"http://127.0.0.1:2379"},
		"Where clients connect: https://host:port, http://host:port, unix:///path or "+
			"unixs:///path. /health, /readyz, /version and /metrics are served there, too.")
	fs.StringSliceVar(&c.advertised, "advertise-client-urls", nil,
		"The client URLs that the list of members names: with several front ends, those of all. "+
			"Default: those of --listen-client-urls, with the name of this machine in place of "+
			"an address like 0.0.0.0.")
	fs.StringSliceVar(&c.metricsURLs, "listen-metrics-urls", nil,
		"Where /health, /readyz, /version and /metrics are served besides, without client "+
			"certificates.")
	fs.StringVar(&c.tls.cert, "cert-file", "", "The serving certificate, which is read again "+
		"for each connection.")
	fs.StringVar(&c.tls.key, "key-file", "", "The private key of --cert-file.")
	fs.StringVar(&c.tls.authority, "trusted-ca-file", "",
		"The authorities that sign clients' certificates. With TLS, clients without a "+
			"certificate are refused.")
	fs.BoolVar(&c.tls.require, "client-cert-auth", false,
		"Refuse clients without a certificate. It needs --trusted-ca-file, which does the same.")
	fs.StringSliceVar(&c.listenStores, "listen-store", nil,
		"Where clients of another store than --store connect, as NAME=URL. --listen-client-urls "+
			"has no default then.")
	fs.StringSliceVar(&c.serverNames, "store-server-name", nil,
		"The server name of a store, as NAME=HOST: clients that ask for it by TLS on the URLs of "+
			"--listen-client-urls use this store. Needs --trusted-ca-file.")
	fs.StringSliceVar(&c.clientNames, "store-client-name", nil,
		"The common name in the certificates of a store's clients, as NAME=COMMONNAME. NAME=* "+
			"lets every certificate in that the store trusts, and no other store may trust the same "+
			"ones. Other names need --trusted-ca-file, and TLS on each URL of the store. Default: "+
			"the store's name, if several stores are served.")
	fs.StringSliceVar(&c.storeCerts, "store-cert-file", nil,
		"The serving certificate of a store, as NAME=FILE. Default: --cert-file.")
	fs.StringSliceVar(&c.storeKeys, "store-key-file", nil,
		"The private key of a store's certificate, as NAME=FILE.")
	fs.StringSliceVar(&c.storeAuthorities, "store-trusted-ca-file", nil,
		"The authorities that sign the certificates of a store's clients, as NAME=FILE. "+
			"Default: --trusted-ca-file.")
	fs.BoolVar(&c.plainText, "allow-plain-text", false,
		"Listen without TLS on other addresses than those of this machine, too. Whoever reaches "+
			"such an address can read and change everything.")
	fs.BoolVar(&c.anyClient, "allow-any-client", false,
		"Listen by TLS without --trusted-ca-file on other addresses than those of this machine, "+
			"too. Whoever reaches such an address can read and change everything.")
	fs.IntVar(&c.config.MaxRequestBytes, "max-request-bytes", 3<<19,
		"The greatest size of a request. It cannot be greater than the default.")
	fs.IntVar(&c.config.MaxTxnOps, "max-txn-ops", 128,
		"The greatest number of operations of a transaction.")
	fs.Uint32Var(&c.config.MaxConcurrentStreams, "max-concurrent-streams", 10_000,
		"How many calls a connection may have at a time.")
	fs.Int64Var(&c.config.MaxConnections, "max-connections", 0,
		"How many connections clients may have. 0 means 10000, or 500 for each store if that is "+
			"more, or what a twelfth of the memory is enough for if that is less.")
	fs.Int64Var(&c.config.MaxCalls, "max-concurrent-calls", 0,
		"How many calls clients may have in flight, besides watches and what keeps leases "+
			"alive. Further ones are refused as Unavailable, and clients try again. 0 means 5000, or "+
			"one for each MiB of memory if that is less.")
	fs.Int64Var(&c.config.MaxStreams, "max-concurrent-watch-streams", 0,
		"How many streams clients may have that watch or keep leases alive. 0 means 10000, or 500 "+
			"for each store if that is more, or what an eighth of the memory is enough for if that "+
			"is less.")
	fs.Int64Var(&c.config.MaxWatchers, "max-watchers", 0,
		"How many watches clients may have. 0 means 100000, or what a 24th of the memory is "+
			"enough for if that is less.")
	fs.Int64Var(&c.config.MaxStreamWatchers, "max-watchers-per-stream", 10_000,
		"How many watches may be on one stream.")
	fs.Int64Var(&c.config.MaxAnswerBytes, "max-answer-bytes", 0,
		"How large the answers may be together that are not sent yet. Answers that are being made "+
			"count twice. Further reads are refused as Unavailable, and clients try again. 0 means "+
			"2 GiB, or a quarter of the memory if that is less.")
	fs.StringVar(&c.compactionMode, "auto-compaction-mode", "periodic",
		"What --auto-compaction-retention means: periodic for a time, revision for a number of "+
			"revisions.")
	fs.StringVar(&c.compactionRetention, "auto-compaction-retention", "0",
		"How much history is kept: hours or a duration, or a number of revisions. 0 means that "+
			"only clients compact, as kube-apiserver does every five minutes.")
	// kube-apiserver's cache is as old as the last progress, so kubeadm sets it.
	for _, name := range []string{"watch-progress-notify-interval",
		"experimental-watch-progress-notify-interval"} {
		fs.DurationVar(&c.progressInterval, name, 25*time.Second,
			"How often watches that ask for it hear how far they are while nothing else happens.")
	}
	_ = fs.MarkHidden("experimental-watch-progress-notify-interval") // etcd's old name; it is there
}

func (c *etcdCommand) validate() error {
	errs := c.validateDatabase()
	reject := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	reject((c.tls.cert == "") != (c.tls.key == ""), "--cert-file and --key-file go together")
	reject(c.tls.authority != "" && c.tls.cert == "", "--trusted-ca-file needs --cert-file")
	reject(len(c.clientURLs)+len(c.listenStores) == 0,
		"--listen-client-urls names nothing to listen on")
	reject(min(int64(c.config.MaxRequestBytes), int64(c.config.MaxTxnOps),
		int64(c.config.MaxConcurrentStreams), c.config.MaxStreamWatchers) <= 0 ||
		min(c.config.MaxConnections, c.config.MaxStreams, c.config.MaxCalls,
			c.config.MaxWatchers, c.config.MaxAnswerBytes) < 0,
		"the flags --max-* must be greater than 0")
	reject(c.progressInterval <= 0, "--watch-progress-notify-interval must be greater than 0")
	reject(c.config.MaxRequestBytes > etcd.MaxRequestBytes, "--max-request-bytes is at most %d: no "+
		"value is larger here", etcd.MaxRequestBytes)
	errs = append(errs, c.planStores()...)
	reject(c.directory.given() && c.find("default") != nil, "the store \"default\" is in no "+
		"directory: name the store of --listen-client-urls by --store, or give --listen-store alone")
	for _, d := range c.doors {
		e, err := c.endpoint(d.url, d.store.tls)
		if err == nil && e.tls && !e.local && !c.anyClient && d.open() {
			err = fmt.Errorf("without client certificates, %q would let everybody in who reaches "+
				"it: give it --trusted-ca-file, or an address of this machine, or --allow-any-client",
				d.url)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, u := range c.metricsURLs {
		if _, err := c.endpoint(u, &c.tls); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := c.compaction(); err != nil {
		errs = append(errs, err)
	}
	return utilerrors.NewAggregate(errs)
}

// validateDatabase returns what is wrong with the flags that say where the stores are.
func (c *etcdCommand) validateDatabase() []error {
	if !c.directory.given() {
		return c.storage.ValidateDatabase()
	}
	if err := c.directory.validate(); err != nil {
		return []error{err}
	}
	if c.storage.NamesDatabase() {
		return []error{errors.New("--database and --directory exclude each other")}
	}
	c.storage.URL = "memory:" // it is valid, and nobody opens it
	defer func() { c.storage.URL = "" }()
	return c.storage.ValidateDatabase()
}

// anyone is the client name that stands for all.
const anyone = "*"

// planStores reads which stores are served, and where, and returns what is wrong with that.
//
// A certificate must not open another store than the one that it was made for, whichever server
// name its owner asks for, and whichever address they reach. So as soon as there are several
// stores, the common name decides. If clients need no certificate, a server name would keep nobody
// out.
func (c *etcdCommand) planStores() []error {
	c.stores, c.doors = nil, nil
	p := &storePlan{etcdCommand: c, byHost: map[string]*etcdStore{}, allowed: map[string][]string{}}
	if p.findStores(); len(p.errs) > 0 {
		return p.errs
	}
	p.findDoors()
	p.findFiles()
	p.eachOf("store-client-name", c.clientNames, func(s *etcdStore, name string) error {
		p.allowed[s.name] = append(p.allowed[s.name], name)
		return nil
	})
	p.eachOf("store-server-name", c.serverNames, p.addServerName)
	for _, s := range c.stores {
		p.letClientsIn(s)
		p.checkFiles(s)
	}
	return p.errs
}

// storePlan is what planStores has read.
type storePlan struct {
	*etcdCommand
	// byHost are the stores that have server names, by these names.
	byHost map[string]*etcdStore
	// allowed are the values of --store-client-name, by the names of the stores.
	allowed map[string][]string
	errs    []error
}

// each calls use for each value of a flag, which is of the form NAME=VALUE.
func (p *storePlan) each(flag string, values []string, use func(name, value string) error) {
	for _, v := range values {
		name, value, found := strings.Cut(v, "=")
		err := storage.CheckStoreName(name)
		switch {
		case !found || value == "":
			err = errors.New("it is not of the form NAME=VALUE")
		case err == nil:
			err = use(name, value)
		}
		if err != nil {
			p.errs = append(p.errs, fmt.Errorf("--%s %q: %w", flag, v, err))
		}
	}
}

// eachOf is each for a flag whose values describe stores that are served.
func (p *storePlan) eachOf(flag string, values []string,
	use func(s *etcdStore, value string) error) {
	p.each(flag, values, func(name, value string) error {
		s := p.find(name)
		if s == nil {
			return fmt.Errorf("the store %q is not served: see --listen-store and "+
				"--store-server-name", name)
		}
		return use(s, value)
	})
}

// findStores finds out which stores are served.
func (p *storePlan) findStores() {
	serve := func(name, _ string) error {
		if p.find(name) == nil {
			p.stores = append(p.stores, &etcdStore{name: name, tls: &tlsFiles{
				cert: p.tls.cert, key: p.tls.key, authority: p.tls.authority,
				require: p.tls.require}})
		}
		return nil
	}
	if name := p.storage.Store; len(p.clientURLs) > 0 {
		p.each("store", []string{name + "=" + name}, serve)
	}
	p.each("listen-store", p.listenStores, serve)
	p.each("store-server-name", p.serverNames, serve)
}

// findDoors finds out at which URLs clients reach the stores.
func (p *storePlan) findDoors() {
	for _, u := range p.clientURLs {
		p.doors = append(p.doors, &door{url: u, store: p.stores[0], names: p.byHost})
		p.stores[0].urls = append(p.stores[0].urls, reachable(u))
	}
	if len(p.advertised) > 0 {
		p.stores[0].urls = p.advertised
	}
	p.eachOf("listen-store", p.listenStores, func(s *etcdStore, u string) error {
		p.doors = append(p.doors, &door{url: u, store: s})
		s.urls = append(s.urls, reachable(u))
		return nil
	})
}

// reachable is a URL to listen on as clients of other machines can use it: an address that stands
// for all of this machine's would lead each client to its own.
func reachable(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	ip := net.ParseIP(u.Hostname())
	if u.Hostname() != "" && (ip == nil || !ip.IsUnspecified()) || u.Port() == "" {
		return text
	}
	name, err := os.Hostname()
	if err != nil {
		return text
	}
	u.Host = net.JoinHostPort(name, u.Port())
	return u.String()
}

// addServerName gives a store a server name.
func (p *storePlan) addServerName(s *etcdStore, host string) error {
	host = strings.ToLower(host)
	switch other := p.byHost[host]; {
	case len(p.clientURLs) == 0:
		return errors.New("there is no --listen-client-urls for it")
	case other != nil && other != s:
		return fmt.Errorf("it is the server name of the store %q, too", other.name)
	case !s.tls.require && !slices.Contains(p.allowed[s.name], anyone):
		return fmt.Errorf("clients ask for what name they like, so it needs "+
			"--trusted-ca-file, or --store-client-name %s=* to let everybody in", s.name)
	}
	p.byHost[host] = s
	secure := false
	for _, text := range p.clientURLs {
		u, err := url.Parse(text)
		if err == nil && (u.Scheme == "https" || u.Scheme == "unixs") {
			secure = true
			if u.Scheme == "https" {
				u.Host = net.JoinHostPort(host, u.Port())
			}
			s.urls = append(s.urls, u.String())
		}
	}
	if !secure {
		return errors.New("none of --listen-client-urls has TLS")
	}
	return nil
}

// findFiles finds the certificates and keys that stores have for themselves.
func (p *storePlan) findFiles() {
	set := func(field func(*tlsFiles) *string) func(*etcdStore, string) error {
		return func(s *etcdStore, file string) error {
			*field(s.tls) = file
			return nil
		}
	}
	p.eachOf("store-cert-file", p.storeCerts, set(func(f *tlsFiles) *string { return &f.cert }))
	p.eachOf("store-key-file", p.storeKeys, set(func(f *tlsFiles) *string { return &f.key }))
	p.eachOf("store-trusted-ca-file", p.storeAuthorities,
		set(func(f *tlsFiles) *string { return &f.authority }))
	for _, s := range p.stores {
		// As in etcd, who is given an authority trusts nobody else.
		s.tls.require = s.tls.require || s.tls.authority != ""
	}
}

// letClientsIn decides which common names the certificates of a store's clients may have.
func (p *storePlan) letClientsIn(s *etcdStore) {
	s.alone = len(p.stores) == 1
	common := p.allowed[s.name]
	if len(common) == 0 && !s.alone {
		common = []string{s.name}
	}
	if slices.Contains(common, anyone) {
		if other := p.sameAuthority(s); other != nil {
			p.errs = append(p.errs, fmt.Errorf("--store-client-name %s=* would let clients of the "+
				"store %q in, which trusts the same certificates: give %q a "+
				"--store-trusted-ca-file of its own", s.name, other.name, s.name))
		}
		return
	}
	if s.tls.require && len(common) > 0 {
		s.tls.names = map[string]bool{}
		for _, name := range common {
			s.tls.names[name] = true
		}
	}
	if len(p.allowed[s.name]) > 0 {
		p.errs = append(p.errs, p.idleNames(s)...)
	}
}

// checkFiles notes which files a store lacks.
func (p *storePlan) checkFiles(s *etcdStore) {
	if (s.tls.cert == p.tls.cert) != (s.tls.key == p.tls.key) {
		p.errs = append(p.errs, fmt.Errorf("the store %q needs both --store-cert-file and "+
			"--store-key-file", s.name))
	}
	if s.tls.require && s.tls.authority == "" {
		p.errs = append(p.errs, fmt.Errorf("--client-cert-auth needs --trusted-ca-file, or "+
			"--store-trusted-ca-file for the store %q", s.name))
	}
}

// idleNames are the reasons why the common names that are given for a store would keep nobody out.
func (c *etcdCommand) idleNames(s *etcdStore) (errs []error) {
	if !s.tls.require {
		return []error{fmt.Errorf("--store-client-name for the store %q needs --trusted-ca-file: "+
			"without it, clients without a certificate get in", s.name)}
	}
	for _, d := range c.doors {
		u, err := url.Parse(d.url)
		if err == nil && d.store == s && (u.Scheme == "http" || u.Scheme == "unix") {
			errs = append(errs, fmt.Errorf("--store-client-name for the store %q keeps nobody out on "+
				"%s, which has no TLS: use https or unixs there", s.name, d.url))
		}
	}
	return errs
}

// sameAuthority is another store whose clients' certificates s trusts, too, nil if there is none.
func (c *etcdCommand) sameAuthority(s *etcdStore) *etcdStore {
	if s.tls.authority == "" {
		return nil
	}
	for _, other := range c.stores {
		if other != s && (other.tls.authority == s.tls.authority ||
			trustShared(s.tls.authority, other.tls.authority)) {
			return other
		}
	}
	return nil
}

// trustShared tells whether there can be certificates that both files trust: an authority is in
// both, or one has signed one of the other file. It does not matter which file has the upper one,
// since the certificates that the lower one signs are trusted by both. Nor does it matter whether
// they are valid now. A file that cannot be read is told when it is used.
func trustShared(file, other string) bool {
	own, err := cert.CertsFromFile(file)
	others, otherErr := cert.CertsFromFile(other)
	if err != nil || otherErr != nil {
		return false
	}
	signed := func(c, by *x509.Certificate) bool {
		return bytes.Equal(c.RawIssuer, by.RawSubject) && c.CheckSignatureFrom(by) == nil
	}
	return slices.ContainsFunc(own, func(a *x509.Certificate) bool {
		return slices.ContainsFunc(others, func(b *x509.Certificate) bool {
			return a.Equal(b) || signed(a, b) || signed(b, a)
		})
	})
}

func (c *etcdCommand) find(store string) *etcdStore {
	for _, s := range c.stores {
		if s.name == store {
			return s
		}
	}
	return nil
}

// compaction is what the flags --auto-compaction-* say.
func (c *etcdCommand) compaction() (p storage.CompactionPolicy, err error) {
	number, notNumber := strconv.ParseInt(c.compactionRetention, 10, 64)
	switch {
	case notNumber == nil && number == 0:
		return storage.CompactionPolicy{Window: -1}, nil
	case c.compactionMode == "revision" && notNumber == nil && number > 0:
		return storage.CompactionPolicy{Window: time.Nanosecond, Keep: number}, nil
	case c.compactionMode == "periodic" && notNumber == nil && number > 0:
		p.Window = time.Duration(number) * time.Hour
	case c.compactionMode == "periodic":
		p.Window, err = time.ParseDuration(c.compactionRetention)
	default:
		return p, fmt.Errorf("--auto-compaction-mode is periodic or revision, and " +
			"--auto-compaction-retention fits it")
	}
	if err != nil || p.Window <= 0 {
		return p, fmt.Errorf("--auto-compaction-retention %q is no time", c.compactionRetention)
	}
	p.Keep = 1
	return p, nil
}

// endpoint is a URL that is listened on.
type endpoint struct {
	network, address string
	tls              bool
	// local: only this machine reaches it.
	local bool
}

func (c *etcdCommand) endpoint(text string, files *tlsFiles) (e endpoint, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return e, fmt.Errorf("%q is not a URL such as http://127.0.0.1:2379: %w", text, err)
	}
	e = endpoint{network: "tcp", address: u.Host, tls: u.Scheme == "https" || u.Scheme == "unixs"}
	switch u.Scheme {
	case "http", "https":
		if u.Port() == "" {
			return e, fmt.Errorf("the URL %q has no port", text)
		}
	case "unix", "unixs":
		e.network, e.address = "unix", u.Host+u.Path
	default:
		return e, fmt.Errorf("the URL %q is of none of the schemes https, http, unix and unixs", text)
	}
	ip := net.ParseIP(u.Hostname())
	e.local = e.network == "unix" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case e.tls && files.cert == "":
		return e, fmt.Errorf("the URL %q needs --cert-file and --key-file", text)
	case !e.tls && !e.local && !c.plainText:
		return e, fmt.Errorf("without TLS, %q would let everybody in who reaches it: use https:, or "+
			"an address of this machine, or --allow-plain-text", text)
	}
	return e, nil
}

// announce says what is served, to people, and what they can try. Where all clients need a
// certificate, that is a page for operators: whoever has a certificate knows more than this
// process.
func (c *etcdCommand) announce(out io.Writer) {
	try := ""
	for _, d := range c.doors {
		fmt.Fprintf(out, "%s serves etcd's API on %s from %s", program.Title, d.url, c.from())
		if len(c.stores) > 1 {
			fmt.Fprintf(out, ", the store %s", d.store.name)
		}
		fmt.Fprintln(out)
		if e, err := c.endpoint(d.url, d.store.tls); err == nil && !e.tls {
			try = cmp.Or(try, "etcdctl --endpoints "+commandline.Quote(d.url)+
				" get --prefix --keys-only /")
		}
	}
	for _, u := range c.metricsURLs {
		if strings.HasPrefix(u, "http:") {
			try = cmp.Or(try, "curl "+commandline.Quote(strings.TrimSuffix(u, "/")+"/readyz"))
		}
	}
	if try != "" {
		fmt.Fprintf(out, "Try: %s\n", try)
	}
}

// from names where the stores are.
func (c *etcdCommand) from() string {
	if c.directory.given() {
		return "the directory " + c.directory.control.DatabaseName()
	}
	return c.storage.DatabaseName()
}

func (c *etcdCommand) run(ctx context.Context, out io.Writer) (err error) {
	defer func() { // when everything is closed
		if err == nil {
			fmt.Fprintln(out, "stopped")
		}
	}()
	collectSeldom()
	storage.KeepWithinGroup()
	pool, err := c.openStores(ctx, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	registry := prometheus.NewRegistry()
	useless, tried, end := c.begin(ctx, pool, registry)
	defer end()
	select {
	case <-tried:
	case <-time.After(startWait):
	}
	select {
	case err := <-useless:
		return err
	default:
		return c.serve(ctx, out, registry, useless)
	}
}

// begin begins to open the stores, and to answer the connections that they are given, until end is
// called. tried is closed when each has been tried. useless has the error then, if none could be
// opened.
func (c *etcdCommand) begin(ctx context.Context, pool storePool,
	registry *prometheus.Registry) (useless <-chan error, tried <-chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	firsts := make(chan error, len(c.stores))
	var opening sync.WaitGroup
	c.config.Logger = slog.New(logr.ToSlogHandler(klog.Background()))
	process := etcd.NewProcess(c.config, len(c.stores))
	for _, s := range c.stores {
		registry.MustRegister(pool.Collector(s.name))
		s.begin(pool, process)
		registry.MustRegister(s.etcdMetrics(), s.certificates())
		opening.Go(func() { s.keepOpening(ctx, firsts) })
	}
	failed, done := make(chan error, 1), make(chan struct{})
	opening.Go(func() {
		defer close(done)
		if err := firstOpened(ctx, firsts); err != nil {
			failed <- err
		}
	})
	return failed, done, func() {
		cancel()
		opening.Wait()
		var ending sync.WaitGroup
		for _, s := range c.stores {
			ending.Go(s.end)
		}
		ending.Wait()
	}
}

// serve listens where clients connect, until the context ends, a listener fails, or the stores turn
// out to be useless.
func (c *etcdCommand) serve(ctx context.Context, out io.Writer, registry *prometheus.Registry,
	useless <-chan error) error {
	var listening sync.WaitGroup
	defer listening.Wait()
	ended := make(chan error, 1)
	end := func(err error) {
		if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			select {
			case ended <- err:
			default:
			}
		}
	}
	for _, d := range c.doors {
		l, err := c.listen(d.url, d.store.tls, func(serverName string) *tlsFiles {
			return d.leadsTo(serverName).tls
		})
		if err != nil {
			return err
		}
		defer l.Close()
		listening.Go(newSplitter(l, d).run)
		klog.FromContext(ctx).Info("serving etcd's API", "url", d.url, "store", d.store.name)
	}
	httpServer := newHTTPServer(overview(c.stores, registry))
	defer httpServer.Close()
	for _, u := range c.metricsURLs {
		files := &tlsFiles{cert: c.tls.cert, key: c.tls.key}
		l, err := c.listen(u, files, func(string) *tlsFiles { return files })
		if err != nil {
			return err
		}
		l = &newest{Listener: l, most: maxPageConnections}
		listening.Go(func() { end(httpServer.Serve(l)) })
	}
	c.announce(out)
	// systemd may wait for that, and begins what needs this process. Without it, nothing happens.
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		klog.FromContext(ctx).Error(err, "cannot tell systemd that etcd's API is served")
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-useless:
		return err
	case err := <-ended:
		return err
	}
}

// cacheBytes is how much of what was read or written lately the stores keep in memory, all
// together. eventBytes is how much of events they keep, and of writes that wait, but each keeps
// leastEventBytes. They are less if the process has little memory.
const (
	cacheBytes      = 32 << 20
	eventBytes      = 64 << 20
	leastEventBytes = 256 << 10
)

// eventBytesOf is how much of events each store keeps. In a GiB these, the writes that wait and the
// caches fill what the bounds of package etcd leave.
func eventBytesOf(memory int64, stores int) int {
	return max(int(min(eventBytes, memory/32))/stores, leastEventBytes)
}

// pageCacheMiB is SQLite's page cache if the URL does not say how large it is.
const pageCacheMiB = 64

// withPageCache divides that cache among the stores: in SQLite each is a file with a cache of its
// own.
func withPageCache(database string, stores int) string {
	u, err := url.Parse(database)
	if err != nil || u.Scheme != "sqlite" || stores < 2 || u.Query().Has("cache_size") {
		return database
	}
	separator := "?"
	if strings.Contains(database, separator) {
		separator = "&"
	}
	return fmt.Sprintf("%s%scache_size=%dMiB", database, separator, max(pageCacheMiB/stores, 1))
}

// startingWait is how long a database is waited for that is starting up, and startingPause the time
// until it is asked again.
const (
	startingWait  = 5 * time.Minute
	startingPause = time.Second
)

// openStores connects to the database. One that is starting up, as after a crash or beside this
// process, is waited for. Any other fault is for a person, and ends the process.
func (c *etcdCommand) openStores(ctx context.Context, out io.Writer) (storePool, error) {
	config, err := c.storage.Database()
	if err != nil {
		return nil, err
	}
	if config.Compaction, err = c.compaction(); err != nil {
		return nil, err
	}
	config.CacheBytes = cacheBytes / len(c.stores)
	config.EventBytes = eventBytesOf(storage.Memory(), len(c.stores))
	config.URL = withPageCache(config.URL, len(c.stores))
	database := config.Database()
	database.ProgressInterval = c.progressInterval
	open := func() (storePool, error) { return etcd.OpenStores(ctx, database) }
	if c.directory.given() {
		open = func() (storePool, error) { return c.directory.pool(ctx, database) }
	}
	for end, said := time.Now().Add(startingWait), false; ; said = true {
		pool, err := open()
		if !etcd.StartingUp(err) || time.Now().After(end) {
			return pool, err
		}
		if !said {
			fmt.Fprintf(out, "%s waits for the database: %v\n", program.Title, err)
		}
		select {
		case <-time.After(startingPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// listen listens on a URL that was validated. A socket's file that nobody listens on is replaced,
// and no other file.
func (c *etcdCommand) listen(text string, own *tlsFiles,
	files func(serverName string) *tlsFiles) (net.Listener, error) {
	e, err := c.endpoint(text, own)
	if err != nil {
		return nil, err
	}
	if e.network == "unix" {
		if conn, err := net.Dial(e.network, e.address); err == nil {
			conn.Close()
			return nil, fmt.Errorf("another process listens on %s", text)
		}
		switch st, err := os.Lstat(e.address); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		case st.Mode()&os.ModeSocket == 0:
			return nil, fmt.Errorf("%s is no socket: name another path, or remove the file", e.address)
		default:
			if err := os.Remove(e.address); err != nil {
				return nil, err
			}
		}
	}
	l, err := net.Listen(e.network, e.address)
	if err != nil {
		if _, missing := os.Stat(filepath.Dir(e.address)); e.network == "unix" && missing != nil {
			return nil, fmt.Errorf("the directory of the socket %s cannot be used: create it, or "+
				"name another path (%w)", text, missing)
		}
		return nil, fmt.Errorf("cannot listen on %s: %w", text, err)
	}
	if e.network == "unix" {
		// Until then the mode is the umask's, which belongs to the whole process.
		err = os.Chmod(e.address, 0o600)
	}
	if err == nil && e.tls {
		_, err = own.config()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if e.tls {
		l = secure(l, files)
	}
	return l, nil
}
