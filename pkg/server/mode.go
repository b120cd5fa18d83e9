package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/internal/access"
	"github.com/rowkeeper/rowkeeper/pkg/internal/authz"
	"github.com/rowkeeper/rowkeeper/pkg/internal/readiness"
	"github.com/rowkeeper/rowkeeper/pkg/internal/rotation"
	"github.com/rowkeeper/rowkeeper/pkg/internal/signin"
	"github.com/rowkeeper/rowkeeper/pkg/support/commandline"
	"github.com/rowkeeper/rowkeeper/pkg/support/monitoring"
	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
	"github.com/rowkeeper/rowkeeper/storage"
)

// mode is what differs between a server that stands alone and one that is a part of a cluster: who
// may use it, and how they find it. Its methods are called once each, in this order.
type mode interface {
	// open takes what the server needs for itself.
	open() error
	// certify makes sure that there is a serving certificate. The address is known by then.
	certify() error
	// applyTo says who may do what.
	applyTo(*genericapiserver.RecommendedConfig) error
	// begin is called when the server, made from the configuration, can serve from the database.
	begin(*genericapiserver.GenericAPIServer, *genericapiserver.RecommendedConfig,
		*storage.Store) error
	// close gives back what open has taken.
	close()
}

// aggregatedMode is a part of a cluster.
type aggregatedMode struct {
	*Server
	// rotator makes the serving certificate. It is nil if files have it.
	rotator *rotation.Rotator
}

func (m *aggregatedMode) open() error { return nil }

// certify leaves the certificate to those who tell the cluster to trust it, or to the rotator.
func (m *aggregatedMode) certify() error { return nil }

func (m *aggregatedMode) applyTo(c *genericapiserver.RecommendedConfig) (err error) {
	if err := m.Aggregated.ApplyTo(c, m.features); err != nil || m.service == "" {
		return err
	}
	namespace, name, _ := strings.Cut(m.service, "/")
	m.rotator, err = rotation.New(c.ClientConfig, rotation.Options{Namespace: namespace,
		Service: name})
	if err == nil {
		c.SecureServing.Cert = m.rotator
	}
	return err
}

func (m *aggregatedMode) begin(server *genericapiserver.GenericAPIServer,
	_ *genericapiserver.RecommendedConfig, _ *storage.Store) error {
	if m.rotator == nil {
		return nil
	}
	if err := server.AddReadyzChecks(healthz.NamedCheck("serving-certificate",
		m.rotator.Check)); err != nil {
		return err
	}
	return server.AddPostStartHook("serving-certificate",
		func(hook genericapiserver.PostStartHookContext) error {
			go m.rotator.Run(hook)
			return nil
		})
}

func (m *aggregatedMode) close() {}

// standaloneMode is a server with an authority and a user of its own.
type standaloneMode struct {
	*Server
	out io.Writer
	dir *standalone.Dir
	pki *standalone.PKI
	// signIn is nil if users sign in by certificates alone.
	signIn *signin.File
	// otherCert is the serving certificate, if it is not one of ours.
	otherCert string
	// first is set if the data directory, with the database in it, was used by no server before.
	first bool
}

func (m *standaloneMode) open() (err error) {
	if m.dir, err = standalone.OpenDir(m.dataDir); err != nil {
		return err
	}
	_, err = os.Stat(m.dir.KubeconfigFile())
	m.first = m.ownDatabase && errors.Is(err, fs.ErrNotExist)
	if m.signInFile != "" {
		var own []string
		if m.enableCRDs {
			own = m.serviceAccounts.WithDefaults().Issuers
		}
		if m.signIn, err = signin.Open(m.signInFile, own...); err != nil {
			m.close()
			return fmt.Errorf("cannot use --%s: %w", signInFlag, err)
		}
	}
	if m.authorizationFile != "" {
		if m.authorization, err = authz.Open(m.authorizationFile, m.enableCRDs); err != nil {
			m.close()
			return fmt.Errorf("cannot use --%s: %w", authorizationFlag, err)
		}
	}
	return nil
}

func (m *standaloneMode) certify() error {
	m.pki = standalone.NewPKI(m.dir, m.names(), clock.RealClock{})
	if _, err := m.pki.Ensure(); err != nil {
		return err
	}
	if m.otherCert = m.serving.ServerCert.CertKey.CertFile; m.otherCert == "" {
		m.serving.ServerCert.CertKey = genericoptions.CertKey{CertFile: m.pki.ServingCert(),
			KeyFile: m.pki.ServingKey()}
	}
	return nil
}

func (m *standaloneMode) applyTo(c *genericapiserver.RecommendedConfig) error {
	if err := m.features.ApplyTo(&c.Config, nil, nil); err != nil {
		return err
	}
	if err := m.pki.ApplyTo(&c.Config,
		m.Aggregated.Authentication.ClientCert.ClientCA, access.Standalone); err != nil {
		return err
	}
	if m.enableCRDs {
		c.Authentication.APIAudiences = m.serviceAccounts.WithDefaults().Issuers
	}
	if m.signIn != nil {
		c.Authentication.Authenticator = m.signIn.Beside(c.Authentication.Authenticator,
			c.Authentication.APIAudiences)
	}
	if m.authorization != nil && !m.enableCRDs {
		c.Authorization.Authorizer, c.RuleResolver = m.authorization.With(nil)
	}
	return nil
}

func (m *standaloneMode) begin(server *genericapiserver.GenericAPIServer,
	c *genericapiserver.RecommendedConfig, store *storage.Store) error {
	if err := m.writeKubeconfig(); err != nil {
		return err
	}
	if m.collectGarbage {
		if err := m.addCollector(server, c, store); err != nil {
			return err
		}
	}
	return server.AddPostStartHook("standalone",
		func(hook genericapiserver.PostStartHookContext) error {
			discover, err := discovery.NewDiscoveryClientForConfig(hook.LoopbackClientConfig)
			if err != nil {
				return err
			}
			go func() {
				// The announcement proposes a command, which should find everything there. That may
				// take long, as when the database is away; /readyz and the log tell why.
				_ = readiness.Await(hook, discover, announceWithin)
				if m.program.First != nil && m.first {
					m.program.First(hook, hook.LoopbackClientConfig)
				}
				if hook.Err() == nil {
					m.announce()
				}
			}()
			go m.pki.Renew(hook, m.writeKubeconfig)
			if m.signIn != nil {
				go m.signIn.Run(hook)
			}
			if m.authorization != nil {
				go m.authorization.Run(hook)
			}
			return nil
		})
}

func (m *standaloneMode) close() {
	m.dir.Close()
	if m.signIn != nil {
		m.signIn.Close()
	}
}

func (m *standaloneMode) writeKubeconfig() error {
	return m.pki.WriteKubeconfig(m.url(), m.otherCert)
}

// announceWithin is how long the announcement waits for a server to be ready.
const announceWithin = 5 * time.Second

func (m *standaloneMode) announce() {
	kubeconfig := m.dir.KubeconfigFile() // with its whole path, which is right in every directory
	fmt.Fprintf(m.out, "%s serves %s from %s\nThe kubeconfig is %s\n",
		cmp.Or(m.program.Title, m.program.Name), m.url(), m.Storage.DatabaseName(), kubeconfig)
	if m.program.Try == nil {
		return
	}
	if try := m.program.Try(); try != "" {
		fmt.Fprintf(m.out, "Try: kubectl --kubeconfig %s %s\n", commandline.Quote(kubeconfig), try)
	}
}

// certificates are those whose end an operator should see come: the server's own, and the
// authorities by which it knows users, unless a cluster says them.
func (s *Server) certificates(c *genericapiserver.RecommendedConfig,
	m mode) (list monitoring.Certificates) {
	if c.SecureServing != nil && c.SecureServing.Cert != nil {
		list = append(list, monitoring.Certificate{Name: "serving",
			Content: func() ([]byte, error) {
				content, _ := c.SecureServing.Cert.CurrentCertKeyContent()
				return content, nil
			}})
	}
	file := s.Aggregated.Authentication.ClientCert.ClientCA
	if file != "" {
		list = append(list, monitoring.File("client-ca", file))
	}
	if alone, ok := m.(*standaloneMode); ok {
		list = append(list, monitoring.File("authority", alone.pki.AuthorityFile()))
	}
	return list
}

// run serves until ctx ends.
func (s *Server) run(ctx context.Context, out io.Writer) (err error) {
	var m mode = &standaloneMode{Server: s, out: out}
	if s.Aggregated.Enabled {
		m = &aggregatedMode{Server: s}
	} else {
		defer func() { // when everything is closed
			if err == nil {
				fmt.Fprintln(out, "stopped")
			}
		}()
	}
	if err := m.open(); err != nil {
		return err
	}
	defer m.close()
	if err := s.listen(); err != nil {
		return err
	}
	defer s.serving.Listener.Close()
	if err := m.certify(); err != nil {
		return err
	}
	store, err := s.Storage.Open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()

	config, err := s.config(store)
	if err != nil {
		return err
	}
	if err := m.applyTo(config); err != nil {
		return err
	}
	monitoring.Serve(s.certificates(config, m))
	server, err := s.newServer(config, store)
	if err != nil {
		return err
	}
	if err := m.begin(server, config, store); err != nil {
		return err
	}
	return server.PrepareRun().RunWithContext(ctx)
}
