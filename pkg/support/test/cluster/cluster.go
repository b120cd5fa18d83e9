// Package cluster runs a Kubernetes control plane on the loopback interface: kube-apiserver,
// kube-controller-manager and kube-scheduler, as upstream's own programs, with certificates and
// RBAC, and without containers or privileges. kube-apiserver's objects are in a database that
// "rowkeeper etcd" serves, or in etcd.
//
// It is the one place that knows the flags and certificates of a control plane, for package
// controlplane, make cluster and the tests in hack/e2e.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/executable"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const (
	// Host is the address at which everything listens.
	Host = "127.0.0.1"
	// FrontProxyName is the name in the certificate with which kube-apiserver proves to extension
	// API servers who it is.
	FrontProxyName = "front-proxy-client"

	startTimeout = 2 * time.Minute
)

// Etcd is a [Config].Database that is etcd itself, for comparison.
const Etcd = "etcd"

// Name is what kubeconfigs call the cluster and its context.
const Name = "rowkeeper"

// Config says what is run.
type Config struct {
	// Bin is the directory of the programs that hack/e2e/build.sh builds. Without it, they are
	// looked for in the directories of PATH.
	Bin string
	// Dir is the directory of all files. A control plane that is started there again has the
	// certificates, the keys and the database that it had.
	Dir string
	// Database is the URL of the database that has kube-apiserver's objects, or [Etcd]. By default
	// it is SQLite in Dir.
	Database string
	// Endpoint is a URL where somebody else serves the database by etcd's API, without TLS.
	Endpoint string
	// Servers is how many processes serve the database, 1 by default.
	Servers int
	// Port is kube-apiserver's, by default one that is free.
	Port int
	// Controllers are the controllers that kube-controller-manager runs, by default all that it
	// runs by default.
	Controllers []string
	// NoScheduler leaves kube-scheduler out.
	NoScheduler bool
	// APIServerFlags are flags of kube-apiserver besides the ones that it always has. They win.
	APIServerFlags []string
	// Audit makes kube-apiserver write [Cluster.AuditLog].
	Audit bool
}

// Controllers are what most tests need of kube-controller-manager. The rest would only take time
// from them.
var Controllers = []string{
	"clusterrole-aggregation-controller",
	"deployment-controller",
	"disruption-controller",
	"garbage-collector-controller",
	"namespace-controller",
	"persistentvolume-binder-controller",
	"persistentvolumeclaim-protection-controller",
	"replicaset-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
}

// Cluster is a running control plane.
type Cluster struct {
	// CA signs the certificates of the servers and of the users, FrontProxyCA that of the front
	// proxy.
	CA, FrontProxyCA *pki.Pair
	// Admin is the configuration of a client that may do everything, Kubeconfig a file with the
	// same.
	Admin      *rest.Config
	Kubeconfig string
	// Port is kube-apiserver's.
	Port int
	// APIServer is kube-apiserver.
	APIServer *executable.Process
	// AuditLog is the file in which kube-apiserver writes what service accounts ask of it, other
	// than those of its own namespace.
	AuditLog string

	config Config
	// programs are the programs that run, in the order in which they were started, stores the ones
	// that serve the database.
	programs, stores []*program
}

// program is a program with what it was started with.
type program struct {
	executable.Spec
	*executable.Process
	// url is where clients of etcd connect to it, if they do.
	url string
}

// Start starts a control plane, and waits until kube-apiserver is ready and pods can be created in
// the namespace default.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{config: config}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	for _, dir := range []string{c.Logs(), c.path("pki")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := c.writeCertificates(); err != nil {
		return fmt.Errorf("make the cluster's certificates: %w", err)
	}
	storage, err := c.startStores(ctx)
	if err != nil {
		return err
	}
	if err := c.startAPIServer(ctx, storage); err != nil {
		return err
	}
	if err := c.startController("kube-controller-manager"); err != nil {
		return err
	}
	if !c.config.NoScheduler {
		if err := c.startController("kube-scheduler"); err != nil {
			return err
		}
	}
	return c.awaitServiceAccount(ctx)
}

// awaitServiceAccount waits for the service account of the namespace default, without which
// kube-apiserver takes no pod there, if there is the controller that makes it.
func (c *Cluster) awaitServiceAccount(ctx context.Context) error {
	if !slices.Contains(c.controllers(), "*") &&
		!slices.Contains(c.controllers(), "serviceaccount-controller") {
		return nil
	}
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	manager := c.programs[slices.IndexFunc(c.programs, func(p *program) bool {
		return p.Name == "kube-controller-manager"
	})]
	return manager.WaitFor(ctx, "at work", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (c *Cluster) controllers() []string {
	if len(c.config.Controllers) == 0 {
		return []string{"*"}
	}
	return c.config.Controllers
}

// Close ends the control plane at once, the last started first.
func (c *Cluster) Close() error { return c.end((*executable.Process).Kill) }

// Stop asks the programs to end, the last started first, and waits for the end of each.
func (c *Cluster) Stop() error { return c.end((*executable.Process).Stop) }

func (c *Cluster) end(how func(*executable.Process) error) error {
	var errs []error
	for _, p := range slices.Backward(c.programs) {
		errs = append(errs, how(p.Process))
	}
	c.programs, c.stores = nil, nil
	return errors.Join(errs...)
}

// StopKubernetes asks all programs to end but the ones that serve the database.
func (c *Cluster) StopKubernetes() error {
	stores := c.stores
	c.programs = slices.DeleteFunc(c.programs, func(p *program) bool {
		return slices.Contains(stores, p)
	})
	err := c.Stop()
	c.programs, c.stores = stores, stores
	return err
}

// Wait waits until ctx ends, or one of the programs does, which is an error.
func (c *Cluster) Wait(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan *program)
	for _, p := range c.programs {
		go func() {
			select {
			case <-p.Exited():
				select {
				case ended <- p:
				case <-ctx.Done():
				}
			case <-ctx.Done():
			}
		}()
	}
	select {
	case p := <-ended:
		return p.died()
	case <-ctx.Done():
		return nil
	}
}

// Died returns an error if one of the programs has ended.
func (c *Cluster) Died() error {
	for _, p := range c.programs {
		select {
		case <-p.Exited():
			return p.died()
		default:
		}
	}
	return nil
}

func (p *program) died() error {
	return fmt.Errorf("%s has ended (%s); its log ends:\n%s", p.Name, p.Result(), p.Tail())
}

// Stores are the URLs of the processes that serve the database.
func (c *Cluster) Stores() (urls []string) {
	for _, p := range c.stores {
		urls = append(urls, p.url)
	}
	return urls
}

// RestartStore kills one of the processes that serve the database, and starts it again.
func (c *Cluster) RestartStore(i int) error {
	p := c.stores[i]
	if err := p.Kill(); err != nil {
		return err
	}
	again, err := executable.Start(p.Spec)
	if err == nil {
		p.Process = again
	}
	return err
}

// CPUSoFar is the processor time that the control plane has taken.
func (c *Cluster) CPUSoFar() (total time.Duration, err error) {
	for _, p := range c.programs {
		used, err := p.CPUSoFar()
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// Logs is the directory of the logs.
func (c *Cluster) Logs() string { return c.path("logs") }

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.config.Dir}, elem...)...)
}

// run starts a program, of which several may run under different names.
func (c *Cluster) run(name, file string, args ...string) (*program, error) {
	path, err := c.find(file)
	if err != nil {
		return nil, err
	}
	spec := executable.Spec{Name: name, Command: append([]string{path}, args...), Env: os.Environ(),
		Dir: c.config.Dir, Logs: c.Logs()}
	started, err := executable.Start(spec)
	if err != nil {
		return nil, err
	}
	p := &program{Spec: spec, Process: started}
	c.programs = append(c.programs, p)
	return p, nil
}

// find finds the file of a program.
func (c *Cluster) find(file string) (string, error) {
	path, err := exec.LookPath(filepath.Join(c.config.Bin, file))
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("cannot find the program %s, which hack/e2e/build.sh builds: %w", file,
			err)
	}
	return path, nil
}

// writeCertificates makes the certificates and keys that are not there, or that are old.
func (c *Cluster) writeCertificates() error {
	var store *pki.Pair
	for _, authority := range []struct {
		name string
		pair **pki.Pair
		sign []pki.Certificate
	}{
		{"ca", &c.CA, []pki.Certificate{c.certificate("apiserver", pki.Server("kube-apiserver", Host,
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"))}},
		{"front-proxy-ca", &c.FrontProxyCA, []pki.Certificate{
			c.certificate("front-proxy", pki.Client(FrontProxyName))}},
		// A client with a certificate of this one can read and write everything.
		{"etcd-ca", &store, []pki.Certificate{
			c.certificate("etcd", pki.Server("etcd", Host, "localhost")),
			c.certificate("etcd-client", pki.Client("kube-apiserver"))}},
	} {
		a, _, err := pki.EnsureAuthority(c.path("pki", authority.name+".crt"),
			c.path("pki", authority.name+".key"), clock.RealClock{})
		if err != nil {
			return err
		}
		*authority.pair = a.Pair()
		for _, wanted := range authority.sign {
			if _, err := a.Ensure(wanted); err != nil {
				return err
			}
		}
	}
	file := c.path("pki", "tokens.key")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return keyutil.WriteKey(file, key)
}

func (c *Cluster) certificate(name string, t pki.Template) pki.Certificate {
	return pki.Certificate{CertFile: c.path("pki", name+".crt"), KeyFile: c.path("pki", name+".key"),
		Template: t}
}

// Sign makes a certificate that is valid from now on. Without an authority it is signed by itself.
func Sign(authority *pki.Pair, t pki.Template) (*pki.Pair, error) {
	from, to := validity()
	if authority == nil {
		return pki.SelfSigned(t, from, to)
	}
	return authority.Sign(t, from, to)
}

// Write writes DIR/NAME.crt and DIR/NAME.key.
func Write(p *pki.Pair, dir, name string) error {
	return p.Write(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
}

func validity() (from, to time.Time) {
	now := time.Now()
	return now.Add(-time.Minute), now.Add(pki.CertificateLifetime)
}

// startStores starts what keeps kube-apiserver's objects, and returns the flags with which an API
// server uses it.
func (c *Cluster) startStores(ctx context.Context) (flags []string, err error) {
	switch {
	case c.config.Endpoint != "":
		return []string{"--etcd-servers=" + c.config.Endpoint}, nil
	case c.config.Database == Etcd:
		return c.StartEtcd(ctx, "etcd")
	}
	file := url.URL{Scheme: "sqlite", Path: filepath.ToSlash(c.path("state.db"))}
	database := cmp.Or(c.config.Database, file.String())
	var urls []string
	for i := range max(c.config.Servers, 1) {
		name := "rowkeeper"
		if i > 0 {
			name += "-" + strconv.Itoa(i+1)
		}
		u, err := c.startStore(ctx, name, "rowkeeper", "etcd", "--name="+name,
			"--database="+database)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	return c.storageFlags(urls...), nil
}

// StartEtcd starts an etcd with data in the directory of its name, which ends with the cluster, and
// returns the flags with which an API server uses it.
func (c *Cluster) StartEtcd(ctx context.Context, name string) (flags []string, err error) {
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	peer := "http://" + net.JoinHostPort(Host, strconv.Itoa(port))
	u, err := c.startStore(ctx, name, "etcd", "--name="+name, "--log-level=warn",
		"--data-dir="+c.path(name), "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster="+name+"="+peer)
	if err != nil {
		return nil, err
	}
	return c.storageFlags(u), nil
}

// startStore starts a program that serves etcd's API, by flags that etcd and ours share, and waits
// until it listens.
func (c *Cluster) startStore(ctx context.Context, name, file string,
	args ...string) (string, error) {
	port, err := programs.FreePort()
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort(Host, strconv.Itoa(port))
	u := "https://" + address
	p, err := c.run(name, file, append(args, "--listen-client-urls="+u,
		"--advertise-client-urls="+u, "--cert-file="+c.path("pki", "etcd.crt"),
		"--key-file="+c.path("pki", "etcd.key"), "--trusted-ca-file="+c.path("pki", "etcd-ca.crt"),
		"--client-cert-auth")...)
	if err != nil {
		return "", err
	}
	p.url = u
	c.stores = append(c.stores, p)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return u, p.WaitFor(ctx, "listening", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (c *Cluster) storageFlags(urls ...string) []string {
	return []string{"--etcd-servers=" + strings.Join(urls, ","),
		"--etcd-cafile=" + c.path("pki", "etcd-ca.crt"),
		"--etcd-certfile=" + c.path("pki", "etcd-client.crt"),
		"--etcd-keyfile=" + c.path("pki", "etcd-client.key")}
}

// startAPIServer starts kube-apiserver with flags besides the ones that it always has.
func (c *Cluster) startAPIServer(ctx context.Context, flags []string) error {
	var err error
	if c.Port = c.config.Port; c.Port == 0 {
		if c.Port, err = programs.FreePort(); err != nil {
			return err
		}
	}
	if c.Admin, c.Kubeconfig, err = c.User("admin", "system:masters"); err != nil {
		return err
	}
	if c.config.Audit {
		c.AuditLog = filepath.Join(c.Logs(), "audit.log")
		policy := c.path("audit-policy.yaml")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			return err
		}
		flags = append(flags, "--audit-policy-file="+policy, "--audit-log-path="+c.AuditLog)
	}
	file := func(name string) string { return c.path("pki", name) }
	flags = append(flags,
		"--bind-address="+Host, "--advertise-address="+Host,
		"--secure-port="+strconv.Itoa(c.Port),
		// There are no nodes that would need to find it under the Service's address.
		"--endpoint-reconciler-type=none",
		"--tls-cert-file="+file("apiserver.crt"), "--tls-private-key-file="+file("apiserver.key"),
		"--client-ca-file="+file("ca.crt"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+
			file("tokens.key"), "--service-account-signing-key-file="+file("tokens.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		// The aggregation layer, as kubeadm sets it up. The addresses of Services are used, not
		// those of pods.
		"--requestheader-client-ca-file="+file("front-proxy-ca.crt"),
		"--requestheader-allowed-names="+FrontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+file("front-proxy.crt"), "--proxy-client-key-file="+
			file("front-proxy.key"),
		"--enable-aggregator-routing=false")
	server, err := c.run("kube-apiserver", "kube-apiserver",
		append(flags, c.config.APIServerFlags...)...)
	if err != nil {
		return err
	}
	c.APIServer = server.Process
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return c.APIServer.WaitFor(ctx, "ready", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *Cluster) startController(name string) error {
	_, kubeconfig, err := c.User("system:" + name)
	if err != nil {
		return err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		// One of each, and nobody asks it for metrics.
		"--leader-elect=false", "--secure-port=0",
	}
	if name == "kube-controller-manager" {
		args = append(args,
			"--controllers="+strings.Join(c.controllers(), ","),
			"--use-service-account-credentials=true", "--root-ca-file="+c.path("pki", "ca.crt"),
			"--cluster-signing-cert-file="+c.path("pki", "ca.crt"),
			"--cluster-signing-key-file="+c.path("pki", "ca.key"),
			// Its work shall take its time, and not the rate of requests that it is allowed by
			// default.
			"--kube-api-qps=10000", "--kube-api-burst=10000",
			"--service-account-private-key-file="+c.path("pki", "tokens.key"))
	}
	_, err = c.run(name, name, args...)
	return err
}

// auditPolicy lets kube-apiserver write down who asked for what, if he is a service account and
// none of Kubernetes itself.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:serviceaccounts:kube-system"]}
- {level: Metadata, userGroups: ["system:serviceaccounts"]}
- {level: None}
`

// URL is kube-apiserver's.
func (c *Cluster) URL() string { return "https://" + net.JoinHostPort(Host, strconv.Itoa(c.Port)) }

// User issues a certificate for a user, and returns it as a client's configuration and as a
// kubeconfig.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, string, error) {
	pair, err := Sign(c.CA, pki.Client(name, groups...))
	if err != nil {
		return nil, "", err
	}
	certificate, key, err := pair.PEM()
	if err != nil {
		return nil, "", err
	}
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return nil, "", err
	}
	config := api.NewConfig()
	config.Clusters[Name] = &api.Cluster{Server: c.URL(), CertificateAuthorityData: ca}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts[Name] = &api.Context{Cluster: Name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = Name
	file := c.path(strings.ReplaceAll(name, ":", "-") + ".kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return nil, "", err
	}
	client, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, "", err
	}
	// The tests measure servers, not how long a client makes itself wait.
	client.QPS = -1
	return client, file, nil
}
