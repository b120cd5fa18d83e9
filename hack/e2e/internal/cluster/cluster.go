// Package cluster runs a Kubernetes control plane on the loopback interface: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, as upstream's own programs, with certificates and
// RBAC, and without containers or privileges.
package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/process"
	"github.com/rowkeeper/rowkeeper/pkg/server/pki"
)

const (
	// Host is the address at which everything listens.
	Host = "127.0.0.1"
	// FrontProxyName is the name in the certificate with which kube-apiserver proves to extension
	// API servers who it is.
	FrontProxyName = "front-proxy-client"

	startTimeout = 2 * time.Minute
)

// controllers are what the tests need of kube-controller-manager. The rest would only take time
// from them.
var controllers = []string{
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
	// Etcd is the URL of the cluster's etcd.
	Etcd string
	// Port is kube-apiserver's.
	Port int
	// APIServer is kube-apiserver.
	APIServer *process.Process
	// AuditLog is the file in which kube-apiserver writes what service accounts ask of it, other
	// than those of its own namespace.
	AuditLog string

	bin, dir string
	started  []*process.Process
}

// Start starts a control plane from the programs in the directory bin, and waits until
// kube-apiserver is ready. All files are made below dir.
func Start(ctx context.Context, bin, dir string) (*Cluster, error) {
	c := &Cluster{bin: bin, dir: dir}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	for _, dir := range []string{c.Logs(), c.path("pki"), c.path("etcd")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := c.writeCertificates(); err != nil {
		return fmt.Errorf("make the cluster's certificates: %w", err)
	}
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := c.startController(name); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the control plane, the last started first.
func (c *Cluster) Close() error {
	var errs []error
	for i := len(c.started) - 1; i >= 0; i-- {
		errs = append(errs, c.started[i].Kill())
	}
	c.started = nil
	return errors.Join(errs...)
}

// CPUSoFar is the processor time that the control plane has taken.
func (c *Cluster) CPUSoFar() (total time.Duration, err error) {
	for _, p := range c.started {
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
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *Cluster) run(name string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Spec{Name: name,
		Command: append([]string{filepath.Join(c.bin, name)}, args...), Env: os.Environ(),
		Dir: c.dir, Logs: c.Logs()})
	if err == nil {
		c.started = append(c.started, p)
	}
	return p, err
}

func (c *Cluster) writeCertificates() error {
	var err error
	from, to := validity()
	if c.CA, err = pki.NewAuthority("cluster-ca", from, to); err != nil {
		return err
	}
	if c.FrontProxyCA, err = pki.NewAuthority("front-proxy-ca", from, to); err != nil {
		return err
	}
	serving, err := Sign(c.CA, pki.Server("kube-apiserver", Host, "localhost", "kubernetes",
		"kubernetes.default", "kubernetes.default.svc"))
	if err != nil {
		return err
	}
	proxy, err := Sign(c.FrontProxyCA, pki.Client(FrontProxyName))
	if err != nil {
		return err
	}
	dir := c.path("pki")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tokens, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return errors.Join(
		Write(c.CA, dir, "ca"), Write(c.FrontProxyCA, dir, "front-proxy-ca"),
		Write(serving, dir, "apiserver"), Write(proxy, dir, "front-proxy"),
		os.WriteFile(filepath.Join(dir, "tokens.key"), tokens, 0o600),
	)
}

// Sign makes a certificate that is valid while the tests run. Without an authority it is signed by
// itself.
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
	return now.Add(-time.Minute), now.Add(24 * time.Hour)
}

func (c *Cluster) startEtcd() error {
	client, err := process.FreePort()
	if err != nil {
		return err
	}
	peer, err := process.FreePort()
	if err != nil {
		return err
	}
	c.Etcd = "http://" + net.JoinHostPort(Host, strconv.Itoa(client))
	peerURL := "http://" + net.JoinHostPort(Host, strconv.Itoa(peer))
	_, err = c.run("etcd", "--name=etcd", "--log-level=warn", "--data-dir="+c.path("etcd"),
		"--listen-client-urls="+c.Etcd, "--advertise-client-urls="+c.Etcd,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=etcd="+peerURL)
	return err
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	var err error
	if c.Port, err = process.FreePort(); err != nil {
		return err
	}
	if c.Admin, c.Kubeconfig, err = c.User("admin", "system:masters"); err != nil {
		return err
	}
	c.AuditLog = filepath.Join(c.Logs(), "audit.log")
	policy := c.path("audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	file := func(name string) string { return c.path("pki", name) }
	c.APIServer, err = c.run("kube-apiserver",
		"--etcd-servers="+c.Etcd, "--bind-address="+Host, "--advertise-address="+Host,
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
		"--enable-aggregator-routing=false",
		"--audit-policy-file="+policy, "--audit-log-path="+c.AuditLog,
	)
	if err != nil {
		return err
	}
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
		args = append(args, "--controllers="+strings.Join(controllers, ","),
			"--use-service-account-credentials=true", "--root-ca-file="+c.path("pki", "ca.crt"),
			// What it does shall take its time, and not what it is allowed to ask for by default.
			"--kube-api-qps=10000", "--kube-api-burst=10000",
			"--service-account-private-key-file="+c.path("pki", "tokens.key"))
	}
	_, err = c.run(name, args...)
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
	ca, _, err := c.CA.PEM()
	if err != nil {
		return nil, "", err
	}
	config := api.NewConfig()
	config.Clusters["e2e"] = &api.Cluster{Server: c.URL(), CertificateAuthorityData: ca}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts["e2e"] = &api.Context{Cluster: "e2e", AuthInfo: name, Namespace: "default"}
	config.CurrentContext = "e2e"
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
