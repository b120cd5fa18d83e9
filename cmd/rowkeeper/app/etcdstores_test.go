package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// tenants is a process that serves several stores, and an authority that signs for their clients.
type tenants struct {
	t         *testing.T
	dir, url  string
	authority *pki.Pair
	roots     *x509.CertPool
}

func newTenants(t *testing.T) *tenants {
	t.Helper()
	now := time.Now()
	authority, err := pki.NewAuthority("tenants", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	n := &tenants{t: t, dir: t.TempDir(), authority: authority, roots: x509.NewCertPool()}
	n.url = (&url.URL{Scheme: "sqlite", Path: filepath.Join(n.dir, "state.db")}).String()
	if err := authority.Write(n.file("ca.crt"), n.file("ca.key")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(n.file("ca.crt"))
	if err != nil || !n.roots.AppendCertsFromPEM(content) {
		t.Fatal(err)
	}
	n.sign("server", pki.Server("127.0.0.1", "a.example", "b.example"))
	return n
}

func (n *tenants) file(name string) string { return filepath.Join(n.dir, name) }

func (n *tenants) sign(name string, template pki.Template) {
	n.t.Helper()
	now := time.Now()
	pair, err := n.authority.Sign(template, now.Add(-time.Hour), now.Add(time.Hour))
	if err == nil {
		err = pair.Write(n.file(name+".crt"), n.file(name+".key"))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// run runs a command on the database.
func (n *tenants) run(args ...string) {
	n.t.Helper()
	var stderr bytes.Buffer
	if code := Run(n.t.Context(), append(args, "--database", n.url), io.Discard,
		&stderr); code != 0 {
		n.t.Fatalf("%v: exit code %d: %s", args, code, stderr.String())
	}
}

// start serves until the end of the test.
func (n *tenants) start(flags ...string) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	var stderr bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, append([]string{"etcd", "--database", n.url, "--cert-file",
			n.file("server.crt"), "--key-file", n.file("server.key")}, flags...), io.Discard, &stderr)
	}()
	n.t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			n.t.Errorf("exit code %d: %s", code, stderr.String())
		}
	})
}

// tls is the configuration of a client that asks for a server name, with a certificate of a common
// name if it is not empty.
func (n *tenants) tls(serverName, commonName string) *tls.Config {
	n.t.Helper()
	c := &tls.Config{RootCAs: n.roots, ServerName: serverName, MinVersion: tls.VersionTLS12}
	if commonName != "" {
		n.sign("client", pki.Client(commonName))
		pair, err := tls.LoadX509KeyPair(n.file("client.crt"), n.file("client.key"))
		if err != nil {
			n.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// get asks for a page.
func (n *tenants) get(address string, config *tls.Config) (string, error) {
	n.t.Helper()
	return n.ask(http.MethodGet, address, "", config)
}

func (n *tenants) ask(method, address, body string, config *tls.Config) (string, error) {
	n.t.Helper()
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(n.t.Context(), method, address,
		strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s", answer.StatusCode, content), err
}

// await asks for a page until it says what is wanted.
func (n *tenants) await(address string, config *tls.Config, want string) {
	n.t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for {
		body, err := n.get(address, config)
		if err == nil && strings.Contains(body, want) {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("%s says %s, %v, and not %s", address, body, err, want)
		}
	}
}

// client is one of etcd's API. It asks for the server name of its URL, as kube-apiserver does.
func (n *tenants) client(address string, config *tls.Config) *clientv3.Client {
	n.t.Helper()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(address, "https://"))
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + config.ServerName + ":" + port}, TLS: config,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(
			func(ctx context.Context, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+port)
			})},
		Logger: zap.NewNop()})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c
}

// TestEtcdAuthority: --trusted-ca-file closes every store to clients without a certificate, and to
// those of other stores, as --client-cert-auth does.
func TestEtcdAuthority(t *testing.T) {
	n := newTenants(t)
	n.run("stores", "create", "a")
	shared, own := "https://"+freeAddress(t), "https://"+freeAddress(t)
	n.start("--listen-client-urls", shared, "--listen-store", "a="+own, "--trusted-ca-file",
		n.file("ca.crt"))
	n.await(shared+"/readyz", n.tls("127.0.0.1", "default"), "200 ok")
	n.await(own+"/readyz", n.tls("127.0.0.1", "a"), "200 ok")
	for _, address := range []string{shared, own} {
		for _, name := range []string{"", "b"} {
			if body, err := n.get(address+"/metrics", n.tls("127.0.0.1", name)); err == nil {
				t.Errorf("%s: a client with the certificate %q got in: %s", address, name, body)
			}
		}
	}
}

// TestEtcdSharedAuthority: a store that lets every certificate in trusts none that opens another
// store, whatever else is in the files of both.
func TestEtcdSharedAuthority(t *testing.T) {
	n := newTenants(t)
	now := time.Now()
	pem := func(p *pki.Pair) []byte {
		t.Helper()
		content, _, err := p.PEM()
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	fresh, err := pki.NewAuthority("another", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	below, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject: pkix.Name{CommonName: "below"}, NotBefore: now.Add(-time.Hour), IsCA: true,
		NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true},
		n.authority.Cert, fresh.Key.Public(), n.authority.Key)
	if err != nil {
		t.Fatal(err)
	}
	lower, err := x509.ParseCertificate(below)
	if err != nil {
		t.Fatal(err)
	}
	future, err := pki.NewAuthority("later", now.Add(time.Hour), now.Add(2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	shared, own := pem(n.authority), pem(fresh)
	signed, later := pem(&pki.Pair{Cert: lower, Key: fresh.Key}), pem(future)
	for name, test := range map[string]struct {
		a, others []byte
		refused   bool
	}{
		"the same":       {shared, append([]byte("# of all\n"), shared...), true},
		"one of its own": {own, shared, false},
		"both":           {slices.Concat(own, shared), shared, true},
		"one of both":    {own, slices.Concat(shared, own), true},
		"an upper one":   {shared, signed, true},
		"a lower one":    {signed, shared, true},
		"a later one":    {slices.Concat(own, later), slices.Concat(shared, later), true},
	} {
		for file, content := range map[string][]byte{"a.crt": test.a, "others.crt": test.others} {
			if err := os.WriteFile(n.file(file), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := &etcdCommand{storage: &options.StorageOptions{Store: "default"},
			tls:          tlsFiles{cert: "a", key: "b", authority: n.file("others.crt")},
			clientURLs:   []string{"https://127.0.0.1:1"},
			listenStores: []string{"a=https://127.0.0.1:2"}, clientNames: []string{"a=*"},
			storeAuthorities: []string{"a=" + n.file("a.crt")}}
		errs := c.planStores()
		if refused := len(errs) > 0; refused != test.refused ||
			refused && !strings.Contains(errs[0].Error(), "trusts the same certificates") {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// TestEtcdStores: one process serves several stores, by server name and on a URL of its own. A
// certificate opens the store that it was made for and no other. A fault of one store is told, and
// leaves the others alone.
func TestEtcdStores(t *testing.T) {
	n := newTenants(t)
	for _, store := range []string{"a", "b"} {
		n.run("stores", "create", store)
	}
	shared, own := "https://"+freeAddress(t), "https://"+freeAddress(t)
	metrics := "http://" + freeAddress(t)
	n.start("--listen-client-urls", shared, "--store-server-name", "a=a.example,b=B.example",
		"--listen-store", "late="+own, "--listen-metrics-urls", metrics, "--client-cert-auth",
		"--trusted-ca-file", n.file("ca.crt"), "--store-client-name", "a=a,a=admin")
	n.await(metrics+"/readyz", nil, "200 ok")

	for _, test := range []struct {
		address, serverName, commonName, store string
	}{
		{shared, "127.0.0.1", "default", "default"},
		{shared, "a.example", "a", "a"},
		{shared, "a.example", "admin", "a"},
		{shared, "A.example", "a", "a"},
		{shared, "b.example", "b", "b"},
		{shared, "a.example", "b", ""},
		{shared, "b.example", "a", ""},
		{shared, "b.example", "admin", ""},
		{shared, "127.0.0.1", "a", ""},
		{shared, "a.example", "default", ""},
		{shared, "a.example", "", ""},
		{own, "127.0.0.1", "a", ""},
		{own, "a.example", "a", ""},
	} {
		body, err := n.get(test.address+"/metrics", n.tls(test.serverName, test.commonName))
		switch {
		case test.store == "" && err == nil:
			t.Errorf("%+v: the client got in: %s", test, body)
		case test.store != "" && err != nil:
			t.Errorf("%+v: %v", test, err)
		case test.store != "" && strings.Count(body, `store="`) !=
			strings.Count(body, `store="`+test.store+`"`):
			t.Errorf("%+v: it sees other stores: %s", test, body)
		}
	}

	a := n.client(shared, n.tls("a.example", "a"))
	b := n.client(shared, n.tls("b.example", "b"))
	for value, c := range map[string]*clientv3.Client{"1": a, "2": b} {
		if _, err := c.Put(t.Context(), "k", value); err != nil {
			t.Fatal(err)
		}
	}
	value := func(c *clientv3.Client) string {
		res, err := c.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Kvs) == 0 {
			return ""
		}
		return string(res.Kvs[0].Value)
	}
	if value(a) != "1" || value(b) != "2" {
		t.Errorf("the stores are mixed up: %s, %s", value(a), value(b))
	}
	// The gateway leads to the store that the certificate opens, and to no other.
	for name, want := range map[string]string{"a": `"value":"MQ=="`, "b": `"value":"Mg=="`} {
		for _, asked := range []string{"a", "b"} {
			got, err := n.ask(http.MethodPost, shared+"/v3/kv/range", `{"key":"aw=="}`,
				n.tls(asked+".example", name))
			got = strings.ReplaceAll(got, " ", "")
			if entered := err == nil; entered != (asked == name) ||
				entered && !strings.Contains(got, want) {
				t.Errorf("the certificate of %s at the gateway of %s: %s, %v", name, asked, got, err)
			}
		}
	}
	if got, err := n.ask(http.MethodPost, metrics+"/v3/kv/range", `{"key":"aw=="}`,
		nil); err != nil || !strings.HasPrefix(got, "404") {
		t.Errorf("the URL of metrics has a gateway: %s, %v", got, err)
	}
	members, err := b.MemberList(t.Context())
	if want := strings.Replace(shared, "127.0.0.1", "b.example", 1); err != nil ||
		members.Members[0].ClientURLs[0] != want {
		t.Errorf("%v, %v, not %s", members, err, want)
	}

	watch := a.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	if res := <-watch; !res.Created {
		t.Fatalf("%+v", res)
	}
	n.run("stores", "drop", "b", "--confirm", "b")
	n.await(metrics+"/readyz?store=b", nil, "503 b: ")
	n.await(metrics+"/readyz?store=b", nil, "rowkeeper stores create")
	n.await(metrics+"/health", nil, "; b: ")
	n.await(own+"/readyz", n.tls("127.0.0.1", "late"), "503 the store \"late\" cannot be used now")
	n.run("stores", "create", "b")
	n.run("stores", "create", "late")
	n.await(own+"/readyz", n.tls("127.0.0.1", "late"), "200 ok")
	n.await(shared+"/readyz", n.tls("b.example", "b"), "200 ok")
	for _, store := range []string{"late", "a", "b"} {
		n.await(metrics+"/metrics", nil, `store="`+store+`"`)
	}
	if value(b) != "" {
		t.Errorf("the new store holds %s", value(b))
	}
	if _, err := a.Put(t.Context(), "k", "3"); err != nil {
		t.Fatal(err)
	}
	if res := <-watch; res.Err() != nil || len(res.Events) != 1 {
		t.Errorf("the watch of the other store has ended: %+v, %v", res, res.Err())
	}
}

// TestEtcdSlowStore: a store that takes long to open keeps nobody from the others. Its clients are
// told that it cannot be used, and the operator why. Then it is served.
func TestEtcdSlowStore(t *testing.T) {
	n := newTenants(t)
	for _, store := range []string{"default", "slow"} {
		n.run("stores", "create", store)
	}
	file := n.file("state.db") + ".stores/slow.db"
	lock, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	lock.SetMaxOpenConns(1)
	defer lock.Close()
	for _, statement := range []string{"PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"} {
		if _, err := lock.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	fast, slow, metrics := freeAddress(t), freeAddress(t), "http://"+freeAddress(t)
	n.start("--listen-client-urls", "http://"+fast, "--listen-store", "slow=http://"+slow,
		"--listen-metrics-urls", metrics)
	n.await("http://"+fast+"/readyz", nil, "200 ok")
	n.await(metrics+"/readyz", nil, "200 ok\nslow: the store is being opened")
	n.await("http://"+slow+"/readyz", nil, "503 the store \"slow\" cannot be used now")
	n.await("http://"+slow+"/health", nil, `"health":"false"`)
	// Each call has a connection of its own: one that was there before ends when the store is open.
	put := func() error {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + slow},
			Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Put(t.Context(), "k", "v")
		return err
	}
	if err := put(); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "cannot be used now") {
		t.Errorf("a store that is not open answers %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	n.await("http://"+slow+"/readyz", nil, "200 ok")
	if err := put(); err != nil {
		t.Error(err)
	}
}

// TestEtcdNothingToServe: if no store can be opened, the process says why, each reason once, and
// ends.
func TestEtcdNothingToServe(t *testing.T) {
	n := newTenants(t)
	flags := []string{"etcd", "--database", n.url, "--listen-store",
		"a=http://" + freeAddress(t) + ",b=http://" + freeAddress(t)}
	refused := func(want string) {
		t.Helper()
		var stderr bytes.Buffer
		code := Run(t.Context(), flags, io.Discard, &stderr)
		if code == 0 || strings.Count(stderr.String(), want) != 1 {
			t.Errorf("exit code %d, not because of %q: %s", code, want, stderr.String())
		}
	}
	refused("rowkeeper stores create b")
}

// anySession resumes whatever session there was, under whichever server name.
type anySession struct {
	tls.ClientSessionCache
}

func (c anySession) Get(string) (*tls.ClientSessionState, bool) {
	return c.ClientSessionCache.Get("")
}

func (c anySession) Put(_ string, s *tls.ClientSessionState) { c.ClientSessionCache.Put("", s) }

// TestEtcdResumption: a TLS session that began with one store is not resumed with another one.
func TestEtcdResumption(t *testing.T) {
	n := newTenants(t)
	n.run("stores", "create", "a")
	n.run("stores", "create", "b")
	shared := freeAddress(t)
	n.start("--listen-client-urls", "https://"+shared, "--client-cert-auth", "--trusted-ca-file",
		n.file("ca.crt"), "--store-server-name", "a=a.example,b=b.example")
	n.await("https://"+shared+"/readyz", n.tls("a.example", "a"), "200 ok")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := anySession{tls.NewLRUClientSessionCache(1)}
		for _, name := range []string{"b", "b", "a"} {
			config := n.tls(name+".example", name)
			config.ClientSessionCache, config.MaxVersion = cache, version
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", shared, config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "GET /livez HTTP/1.0\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(conn); err != nil {
				t.Fatal(err)
			}
			if conn.ConnectionState().DidResume {
				t.Errorf("the session was resumed by %s", name)
			}
			conn.Close()
		}
	}
}

// TestEtcdReasonLoggedOnce: a store that is open and not ready is told of once, however often it is
// asked for, and though opening it works. A fault that was over is told of again.
func TestEtcdReasonLoggedOnce(t *testing.T) {
	var s etcdStore
	s.failed.Store(&errOpening)
	s.tried(nil)
	reason := errors.New("the database does not answer")
	for range 2 {
		s.log(reason)
		s.tried(nil)
		if s.logged.Load() != reason.Error() {
			t.Fatal("the reason would be logged again")
		}
	}
	s.tried(reason)
	s.tried(nil)
	if s.logged.Load() != "" {
		t.Error("the store was opened again, and its next outage for the same reason is not logged")
	}
}
