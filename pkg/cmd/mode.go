package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/apiserver"
	"github.com/rowkeeper/rowkeeper/pkg/customresources"
	"github.com/rowkeeper/rowkeeper/pkg/standalone"
	"github.com/rowkeeper/rowkeeper/pkg/version"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// mode is what differs between a server that runs by itself and one that is a part of a cluster: who may use it, and how he finds it. Its methods are
// called once each, in this order.
type mode interface {
	// open takes what the server needs for itself.
	open() error
	// certify makes sure that there is a serving certificate. The address is known by then.
	certify() error
	// applyTo says who may do what.
	applyTo(c *genericapiserver.RecommendedConfig) error
	// begin is called when the server can serve.
	begin(server *genericapiserver.GenericAPIServer) error
	// close gives back what open has taken.
	close()
}

// aggregatedMode is a part of a cluster.
type aggregatedMode struct{ *serveOptions }

func (m aggregatedMode) open() error { return nil }

// certify leaves the certificate to those who tell the cluster to trust it.
func (m aggregatedMode) certify() error { return nil }

func (m aggregatedMode) applyTo(c *genericapiserver.RecommendedConfig) error {
	return m.aggregated.ApplyTo(c, m.features)
}

func (m aggregatedMode) begin(*genericapiserver.GenericAPIServer) error { return nil }

func (m aggregatedMode) close() {}

// standaloneMode is a server with an authority and a user of its own.
type standaloneMode struct {
	*serveOptions
	out io.Writer
	dir *standalone.Dir
	pki *standalone.PKI
	// otherCert is the serving certificate, if it is not one of ours.
	otherCert string
}

func (m *standaloneMode) open() (err error) {
	m.dir, err = standalone.OpenDir(m.dataDir)
	return err
}

func (m *standaloneMode) certify() error {
	m.pki = standalone.NewPKI(m.dir, m.names(), clock.RealClock{})
	if _, err := m.pki.Ensure(); err != nil {
		return err
	}
	if m.otherCert = m.serving.ServerCert.CertKey.CertFile; m.otherCert == "" {
		m.serving.ServerCert.CertKey = genericoptions.CertKey{CertFile: m.pki.ServingCert(), KeyFile: m.pki.ServingKey()}
	}
	return nil
}

func (m *standaloneMode) applyTo(c *genericapiserver.RecommendedConfig) error {
	if err := m.features.ApplyTo(&c.Config, nil, nil); err != nil {
		return err
	}
	return m.pki.ApplyTo(&c.Config)
}

func (m *standaloneMode) begin(server *genericapiserver.GenericAPIServer) error {
	if err := m.writeKubeconfig(); err != nil {
		return err
	}
	return server.AddPostStartHook("standalone", func(hook genericapiserver.PostStartHookContext) error {
		discover, err := discovery.NewDiscoveryClientForConfig(hook.LoopbackClientConfig)
		if err != nil {
			return err
		}
		go func() {
			// Who is told to try something finds everything there. If the database is away, say, that may take long, and /readyz and the log tell why.
			_ = awaitReady(hook, discover, announceWithin)
			if hook.Err() == nil {
				m.announce()
			}
		}()
		go m.pki.Renew(hook, m.writeKubeconfig)
		return nil
	})
}

func (m *standaloneMode) close() { m.dir.Close() }

func (m *standaloneMode) writeKubeconfig() error { return m.pki.WriteKubeconfig(m.url(), m.otherCert) }

// announceWithin is how long the announcement waits for a server to be ready.
const announceWithin = 5 * time.Second

func (m *standaloneMode) announce() {
	kubeconfig := m.dir.KubeconfigFile()
	if cwd, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(cwd, kubeconfig); err == nil && filepath.IsLocal(relative) {
			kubeconfig = relative
		}
	}
	fmt.Fprintf(m.out, "Rowkeeper %s serves %s from %s\nThe kubeconfig is %s\nTry: kubectl --kubeconfig %s get pipelines -A\n",
		version.Get().Version, m.url(), m.databaseName(), kubeconfig, kubeconfig)
}

// run serves until ctx ends.
func (o *serveOptions) run(ctx context.Context, out io.Writer) error {
	var m mode = &standaloneMode{serveOptions: o, out: out}
	if o.aggregated.Enabled {
		m = aggregatedMode{o}
	}
	if err := m.open(); err != nil {
		return err
	}
	defer m.close()
	if err := o.listen(); err != nil {
		return err
	}
	defer o.serving.Listener.Close()
	if err := m.certify(); err != nil {
		return err
	}
	db, err := o.storage.Open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()

	config, err := o.config(db)
	if err != nil {
		return err
	}
	if err := m.applyTo(config.Generic); err != nil {
		return err
	}
	server, err := o.server(config, db)
	if err != nil {
		return err
	}
	if err := m.begin(server); err != nil {
		return err
	}
	return server.PrepareRun().RunWithContext(ctx)
}

// server makes the server, with CustomResourceDefinitions if they are asked for.
func (o *serveOptions) server(config *apiserver.Config, db *storage.Database) (*genericapiserver.GenericAPIServer, error) {
	if !o.enableCRDs {
		return config.New()
	}
	database, err := o.storage.Database()
	if err != nil {
		return nil, err
	}
	scheme, _, _ := strings.Cut(database.URL, ":")
	extension, err := customresources.Prepare(config.Generic, customresources.Options{
		Storage: o.storage, Database: db, Schemes: []*runtime.Scheme{apiserver.Scheme},
		// SQLite is for one machine, where others learn of a definition at once.
		SingleServer: slices.Contains(sqlite.Driver.Schemes(), scheme),
	})
	if err != nil {
		return nil, err
	}
	server, err := config.New()
	if err != nil {
		return nil, err
	}
	return extension.Extend(server)
}
