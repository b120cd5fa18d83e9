package kinds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/cli"
	"k8s.io/utils/clock"
	netutils "k8s.io/utils/net"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/standalone"
	"github.com/rowkeeper/rowkeeper/storage"
)

// Main is a whole program that serves the groups. It does not return.
//
// Without flags it serves on https://127.0.0.1:8443, stores in a SQLite file, and keeps that file, its certificates and the
// administrator's kubeconfig in the directory .name. With --database it stores elsewhere. With --kubeconfig or --aggregated it is a part of a cluster, behind the
// cluster's API server, with the users and rights of the cluster, which may come later: until then the program runs and is not ready. --help lists all flags.
// What is wrong with the groups or the flags is said in a sentence, and the program ends with exit code 1.
func Main(name string, drivers []storage.Driver, groups ...Group) {
	api, err := New(groups...)
	if err == nil {
		err = cli.RunNoErrOutput(api.Command(name, drivers...))
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) { // each says what is wrong with something else
			fmt.Fprintf(os.Stderr, "%s: %s\n", cmp.Or(name, filepath.Base(os.Args[0])), strings.TrimSuffix(line, "\n"))
		}
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns the command that [Main] runs, for programs that have others besides.
func (a *API) Command(name string, drivers ...storage.Driver) *cobra.Command {
	p := &program{
		api:        a,
		name:       name,
		dir:        "." + name,
		storage:    options.NewStorageOptions(storage.DefaultPrefix, a.Scheme, a.Codecs, drivers...),
		serving:    genericoptions.NewSecureServingOptions(),
		aggregated: options.NewAggregatedOptions(),
	}
	p.serving.BindAddress = netutils.ParseIPSloppy("127.0.0.1")
	p.serving.BindPort = 8443
	cmd := &cobra.Command{
		Use:           name,
		Short:         "Serve the API of " + a.groups[0].Name,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.Flags().StringVar(&p.dir, "data-dir", p.dir,
		"Directory of the SQLite file, the certificates and the administrator's kubeconfig, of a server that is not a part of a cluster.")
	p.storage.AddFlags(cmd.Flags())
	p.serving.AddFlags(cmd.Flags())
	var cluster pflag.FlagSet
	p.aggregated.AddFlags(&cluster)
	cmd.Flags().AddFlagSet(&cluster)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second signal ends the program at once
		return p.run(ctx, cmd.Flags().Changed("data-dir"), &cluster)
	}
	return cmd
}

// program is the command's state.
type program struct {
	api        *API
	name, dir  string
	storage    *options.StorageOptions
	serving    *genericoptions.SecureServingOptions
	aggregated *options.AggregatedOptions
}

// validate returns what is wrong with the options: those of a server in a cluster are not those of one that stands alone.
func (p *program) validate(inCluster, dirGiven bool, cluster *pflag.FlagSet) error {
	var errs []error
	if p.name == "" || filepath.Base(p.name) != p.name || p.name[0] == '.' {
		errs = append(errs, fmt.Errorf("the program cannot be named %q: give kinds.Main a name that a directory can have, such as bookmarks", p.name))
	}
	if len(p.storage.Drivers) == 0 {
		errs = append(errs, errors.New("the program has no database to store in: give kinds.Main drivers, such as sqlite.Driver"))
	}
	errs = append(errs, p.storage.Validate()...)
	own := p.serving.ServerCert.CertKey
	if (own.CertFile == "") != (own.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file need each other"))
	}
	errs = append(errs, p.serving.Validate()...)
	if !inCluster {
		if p.dir == "" {
			errs = append(errs, errors.New("--data-dir must name a directory"))
		}
		cluster.VisitAll(func(f *pflag.Flag) {
			if f.Changed {
				errs = append(errs, fmt.Errorf("--%s is only for a server in a cluster: give --aggregated or --kubeconfig, too", f.Name))
			}
		})
		return errors.Join(errs...)
	}
	if dirGiven {
		errs = append(errs, errors.New("--data-dir is only for a server that is not in a cluster: leave it out"))
	}
	if own.CertFile == "" && own.KeyFile == "" {
		errs = append(errs, errors.New("a server in a cluster needs --tls-cert-file and --tls-private-key-file"))
	}
	return errors.Join(append(errs, p.aggregated.Validate()...)...)
}

func (p *program) run(ctx context.Context, dirGiven bool, cluster *pflag.FlagSet) error {
	inCluster := p.aggregated.Complete()
	p.storage.EnableGarbageCollection = inCluster // where a garbage collector runs
	if !inCluster && p.storage.URL == "" && p.storage.URLFile == "" {
		file, err := filepath.Abs(filepath.Join(p.dir, "state.db"))
		if err != nil {
			return fmt.Errorf("cannot find --data-dir: %w", err)
		}
		p.storage.URL = (&url.URL{Scheme: "sqlite", Path: filepath.ToSlash(file)}).String()
	}
	if err := p.validate(inCluster, dirGiven, cluster); err != nil {
		return err
	}
	var dir *standalone.Dir
	if !inCluster {
		var err error
		if dir, err = standalone.OpenDir(p.dir); err != nil {
			return err
		}
		defer dir.Close()
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(p.serving.BindAddress.String(), strconv.Itoa(p.serving.BindPort)))
	if err != nil {
		return fmt.Errorf("cannot serve: %w; choose another --secure-port or --bind-address", err)
	}
	defer listener.Close()
	p.serving.Listener = listener
	p.serving.BindPort = listener.Addr().(*net.TCPAddr).Port

	db, err := p.storage.Open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	config := p.api.NewConfig()
	if config.PublicAddress = p.serving.BindAddress; config.PublicAddress.IsUnspecified() {
		config.PublicAddress = netutils.ParseIPSloppy("127.0.0.1")
	}
	if err := p.storage.ApplyTo(&config.Config, db); err != nil {
		return err
	}
	admit := p.joinCluster
	if !inCluster {
		admit = func(c *genericapiserver.RecommendedConfig) error { return p.standAlone(c, dir) }
	}
	if err := admit(config); err != nil {
		return err
	}
	server, err := p.api.New(config)
	if err != nil {
		return err
	}
	return server.PrepareRun().RunWithContext(ctx)
}

// joinCluster makes the server ask the cluster who its users are and what they may do.
func (p *program) joinCluster(c *genericapiserver.RecommendedConfig) error {
	if err := options.ApplySecureServing(p.serving, &c.Config); err != nil {
		return err
	}
	return p.aggregated.ApplyTo(c, genericoptions.NewFeatureOptions())
}

// standAlone gives the server an authority and an administrator of its own.
func (p *program) standAlone(c *genericapiserver.RecommendedConfig, dir *standalone.Dir) error {
	names := standalone.Names{DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
	if !p.serving.BindAddress.IsUnspecified() {
		names.IPs = append(names.IPs, p.serving.BindAddress)
	}
	pki := standalone.NewPKI(dir, names, clock.RealClock{})
	if _, err := pki.Ensure(); err != nil {
		return err
	}
	own := &p.serving.ServerCert.CertKey
	other := own.CertFile
	if other == "" {
		*own = genericoptions.CertKey{CertFile: pki.ServingCert(), KeyFile: pki.ServingKey()}
	}
	if err := options.ApplySecureServing(p.serving, &c.Config); err != nil {
		return err
	}
	if err := pki.ApplyTo(&c.Config); err != nil {
		return err
	}
	address := "https://" + net.JoinHostPort(c.PublicAddress.String(), strconv.Itoa(p.serving.BindPort))
	write := func() error { return pki.WriteKubeconfig(address, other) }
	if err := write(); err != nil {
		return err
	}
	return c.AddPostStartHook("standalone", func(hook genericapiserver.PostStartHookContext) error {
		fmt.Printf("%s serves %s\nThe kubeconfig is %s\n", p.name, address, fromHere(dir.KubeconfigFile()))
		go pki.Renew(hook, write)
		return nil
	})
}

// fromHere names a file from the working directory, if it is below that.
func fromHere(file string) string {
	if here, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(here, file); err == nil && filepath.IsLocal(relative) {
			return relative
		}
	}
	return file
}
