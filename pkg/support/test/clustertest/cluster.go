// Package clustertest is for tests of aggregated servers. A [Cluster] answers what such a server
// asks the cluster it is a part of, and nothing else.
package clustertest

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// FrontProxy is the name in the front proxy's certificate.
const FrontProxy = "front-proxy"

// Cluster knows the token "good" of the user "robot", and the token "weak" of the user "nobody".
// The users "nobody" and "system:anonymous" may do nothing, all others everything. It has the
// namespace "default", and an authority for users and one for the front proxy.
type Cluster struct {
	// Users signs the certificates of users, Proxies those of front proxies.
	Users, Proxies *pki.Pair
	// Kubeconfig is a file by which a server finds the cluster.
	Kubeconfig string

	tb            testing.TB
	away          atomic.Bool
	tokens, asked atomic.Int32
	mu            sync.Mutex
	reviewed      map[string]authorizationv1.SubjectAccessReviewSpec // the last of each user
}

// New starts a cluster, which ends with the test.
func New(tb testing.TB) *Cluster {
	tb.Helper()
	c := &Cluster{
		Users: Authority(tb), Proxies: Authority(tb), tb: tb,
		reviewed: map[string]authorizationv1.SubjectAccessReviewSpec{},
	}
	server := httptest.NewTLSServer(c)
	tb.Cleanup(func() {
		server.CloseClientConnections() // watches
		server.Close()
	})
	ca, err := cert.EncodeCertificates(server.Certificate())
	if err != nil {
		tb.Fatal(err)
	}
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: server.URL, CertificateAuthorityData: ca}
	config.Contexts["c"] = &api.Context{Cluster: "c"}
	config.CurrentContext = "c"
	c.Kubeconfig = filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, c.Kubeconfig); err != nil {
		tb.Fatal(err)
	}
	return c
}

// Leave makes the cluster answer nothing, and Return makes it answer again.
func (c *Cluster) Leave()  { c.away.Store(true) }
func (c *Cluster) Return() { c.away.Store(false) }

// Reviews returns how often the cluster was asked about tokens, and about access.
func (c *Cluster) Reviews() (tokens, access int) {
	return int(c.tokens.Load()), int(c.asked.Load())
}

// Reviewed returns the last question about a user's access.
func (c *Cluster) Reviewed(user string) authorizationv1.SubjectAccessReviewSpec {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reviewed[user]
}

func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.away.Load() {
		panic(http.ErrAbortHandler) // closes the connection
	}
	answer := func(code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(object); err != nil && r.Context().Err() == nil {
			c.tb.Errorf("answer %s: %v", r.URL, err)
		}
	}
	decode := func(into any) {
		if err := json.NewDecoder(r.Body).Decode(into); err != nil {
			c.tb.Errorf("the body of %s: %v", r.URL, err)
		}
	}
	list := func(version, kind string, items ...map[string]any) {
		answer(http.StatusOK, map[string]any{
			"apiVersion": version, "kind": kind + "List",
			"metadata": map[string]any{"resourceVersion": "1"},
			"items":    append([]map[string]any{}, items...),
		})
	}
	refuse := func(code int, reason string) {
		answer(code, map[string]any{
			"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason,
			"code": code,
		})
	}
	switch resource := path.Base(r.URL.Path); {
	case resource == "tokenreviews":
		var review authenticationv1.TokenReview
		decode(&review)
		c.tokens.Add(1)
		users := map[string]string{"good": "robot", "weak": "nobody"}
		review.Status.User.Username, review.Status.Authenticated = users[review.Spec.Token],
			users[review.Spec.Token] != ""
		answer(http.StatusCreated, review)
	case resource == "subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		decode(&review)
		c.asked.Add(1)
		c.mu.Lock()
		c.reviewed[review.Spec.User] = review.Spec
		c.mu.Unlock()
		review.Status.Allowed = review.Spec.User != "nobody" &&
			review.Spec.User != "system:anonymous"
		answer(http.StatusCreated, review)
	// It answers as a server that cannot do it: clients list, and watch then.
	case r.URL.Query().Has("sendInitialEvents"):
		refuse(http.StatusUnprocessableEntity, "Invalid")
	case r.URL.Query().Has("watch"):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case resource == "configmaps":
		list("v1", "ConfigMap", map[string]any{
			"metadata": map[string]any{"namespace": "kube-system",
				"name": "extension-apiserver-authentication"},
			"data": map[string]any{
				"client-ca-file":                     string(c.pem(c.Users)),
				"requestheader-client-ca-file":       string(c.pem(c.Proxies)),
				"requestheader-username-headers":     `["X-Remote-User"]`,
				"requestheader-group-headers":        `["X-Remote-Group"]`,
				"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
				"requestheader-allowed-names":        `["` + FrontProxy + `"]`,
			},
		})
	case resource == "namespaces":
		list("v1", "Namespace", map[string]any{"metadata": map[string]any{"name": "default"}})
	case none[resource] != "":
		parts := strings.Split(r.URL.Path, "/")
		list(parts[2]+"/"+parts[3], none[resource])
	default:
		refuse(http.StatusNotFound, "NotFound")
	}
}

// none are the resources of which the cluster has none, and their kinds.
var none = map[string]string{
	"flowschemas":                       "FlowSchema",
	"prioritylevelconfigurations":       "PriorityLevelConfiguration",
	"mutatingwebhookconfigurations":     "MutatingWebhookConfiguration",
	"validatingwebhookconfigurations":   "ValidatingWebhookConfiguration",
	"mutatingadmissionpolicies":         "MutatingAdmissionPolicy",
	"mutatingadmissionpolicybindings":   "MutatingAdmissionPolicyBinding",
	"validatingadmissionpolicies":       "ValidatingAdmissionPolicy",
	"validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding",
}

func (c *Cluster) pem(p *pki.Pair) []byte {
	certPEM, _, err := p.PEM()
	if err != nil {
		c.tb.Error(err)
	}
	return certPEM
}

// Authority makes an authority for the time of a test.
func Authority(tb testing.TB) *pki.Pair {
	tb.Helper()
	now := time.Now()
	pair, err := pki.NewAuthority("authority of "+tb.Name(), now.Add(-time.Hour),
		now.Add(24*time.Hour))
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// Sign makes a certificate for the time of a test.
func Sign(tb testing.TB, authority *pki.Pair, t pki.Template) tls.Certificate {
	tb.Helper()
	now := time.Now()
	pair, err := authority.Sign(t, now.Add(-time.Hour), now.Add(24*time.Hour))
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}
}

// WritePEM writes an authority's certificate into a file.
func WritePEM(tb testing.TB, authority *pki.Pair) (file string) {
	tb.Helper()
	certPEM, _, err := authority.PEM()
	if err != nil {
		tb.Fatal(err)
	}
	file = filepath.Join(tb.TempDir(), "ca.crt")
	if err := os.WriteFile(file, certPEM, 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}
