package standalone

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	testclock "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

func openDir(t *testing.T) *Dir {
	t.Helper()
	dir, err := OpenDir(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func TestDirIsPrivateAndLocked(t *testing.T) {
	dir := openDir(t)
	info, err := os.Stat(dir.Path())
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o700 {
		t.Errorf("the directory has mode %v, want 0700", mode)
	}
	_, err = OpenDir(dir.Path())
	if err == nil || !strings.Contains(err.Error(), "in use by the server with process id ") {
		t.Errorf("a second server got %v, want an error that names the first", err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenDir(dir.Path())
	if err != nil {
		t.Fatalf("the directory is still locked after Close: %v", err)
	}
	again.Close()
}

// The owner of the directory could make anybody an administrator.
func TestDirOfAnother(t *testing.T) {
	for _, c := range []struct {
		owner, user int
		trusted     bool
	}{{1000, 1000, true}, {0, 1000, true}, {0, 0, true}, {-1, 1000, true}, {1000, 0, false},
		{1000, 1001, false}} {
		if got := trusted(c.owner, c.user); got != c.trusted {
			t.Errorf("a directory of %d is trusted by %d: %v", c.owner, c.user, got)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	path := t.TempDir()
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(path); err == nil ||
		!strings.Contains(err.Error(), "belongs to the user with id 65534") {
		t.Errorf("a directory of somebody else: %v", err)
	}
}

func TestDirErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(filepath.Join(file, "data")); err == nil ||
		!strings.Contains(err.Error(), "cannot create the data directory") {
		t.Errorf("a directory below a file: %v", err)
	}
}

var names = Names{DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}

func read(t *testing.T, p *PKI) map[string]string {
	t.Helper()
	contents := map[string]string{}
	for _, file := range []string{p.AuthorityFile(), p.authorityKey(), p.ServingCert(),
		p.ServingKey(), p.AdminCert(), p.AdminKey()} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		contents[filepath.Base(file)] = string(content)
	}
	return contents
}

func ensure(t *testing.T, p *PKI, want bool) {
	t.Helper()
	changed, err := p.Ensure()
	if err != nil {
		t.Fatal(err)
	}
	if changed != want {
		t.Errorf("Ensure changed something: %v, want %v", changed, want)
	}
}

// verify makes a TLS connection with what is in the files, the client's part from the kubeconfig.
func verify(t *testing.T, p *PKI, serverName string) {
	t.Helper()
	if err := p.WriteKubeconfig("https://localhost", ""); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(p.dir.KubeconfigFile())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Clusters["rowkeeper"].CertificateAuthorityData)
	admin, err := tls.X509KeyPair(config.AuthInfos[AdminUser].ClientCertificateData,
		config.AuthInfos[AdminUser].ClientKeyData)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := tls.LoadX509KeyPair(p.ServingCert(), p.ServingKey())
	if err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	serverSide := tls.Server(server, &tls.Config{Certificates: []tls.Certificate{serving},
		ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert, Time: p.clock.Now})
	done := make(chan error, 1)
	go func() { done <- serverSide.Handshake() }()
	if err := tls.Client(client, &tls.Config{RootCAs: roots, ServerName: serverName,
		Certificates: []tls.Certificate{admin}, Time: p.clock.Now}).Handshake(); err != nil {
		t.Fatalf("the client does not trust the server: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("the server does not trust the client: %v", err)
	}
	subject := serverSide.ConnectionState().PeerCertificates[0].Subject
	if subject.CommonName != AdminUser || len(subject.Organization) != 1 ||
		subject.Organization[0] != user.SystemPrivilegedGroup {
		t.Errorf("the administrator's certificate is for %v", subject)
	}
}

func TestCertificatesAreMadeOnceAndReused(t *testing.T) {
	p := NewPKI(openDir(t), names, testclock.NewFakeClock(time.Now()))
	ensure(t, p, true)
	first := read(t, p)
	for _, file := range []string{p.authorityKey(), p.ServingKey(), p.AdminKey()} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 0600", file, info.Mode(), err)
		}
	}
	verify(t, p, "localhost")
	verify(t, p, "127.0.0.1")
	if info, err := os.Stat(p.dir.KubeconfigFile()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig: %v %v, want mode 0600", info.Mode(), err)
	}
	ensure(t, p, false)
	for file, content := range read(t, p) {
		if content != first[file] {
			t.Errorf("%s was made again", file)
		}
	}
}

func TestServingCertificateFollowsTheNames(t *testing.T) {
	dir := openDir(t)
	clock := testclock.NewFakeClock(time.Now())
	p := NewPKI(dir, names, clock)
	ensure(t, p, true)
	first := read(t, p)
	p = NewPKI(dir, Names{DNS: []string{"localhost", "ci.example.com"}, IPs: names.IPs}, clock)
	ensure(t, p, true)
	verify(t, p, "ci.example.com")
	if read(t, p)["admin.crt"] != first["admin.crt"] {
		t.Error("another name made another administrator")
	}
}

func TestCertificatesAreRenewedBeforeTheyExpire(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	p := NewPKI(openDir(t), names, clock)
	ensure(t, p, true)
	first := read(t, p)

	clock.Step(pki.CertificateLifetime / 2)
	ensure(t, p, false)
	clock.Step(pki.CertificateLifetime / 4)
	ensure(t, p, true)
	verify(t, p, "localhost")
	second := read(t, p)
	for _, file := range []string{"serving.crt", "admin.crt"} {
		if second[file] == first[file] {
			t.Errorf("%s was not renewed in the last third of its lifetime", file)
		}
	}
	if second["ca.crt"] != first["ca.crt"] {
		t.Error("the authority was renewed long before it is old")
	}

	// A new authority: those who still have the old one's certificates go on.
	clock.Step(pki.AuthorityLifetime * 3 / 4)
	ensure(t, p, true)
	verify(t, p, "localhost")
	bundle, err := cert.CertsFromFile(p.AuthorityFile())
	if err != nil {
		t.Fatal(err)
	}
	if len(bundle) != 2 {
		t.Errorf("the authority's file has %d certificates, want the new one and the old one",
			len(bundle))
	}

	clock.Step(pki.AuthorityLifetime * 3 / 4) // the first has expired now
	ensure(t, p, true)
	if bundle, err = cert.CertsFromFile(p.AuthorityFile()); err != nil || len(bundle) != 2 {
		t.Errorf("the authority's file has %d certificates, want 2 without the expired one: %v",
			len(bundle), err)
	}
}

func TestRenewGoesOnWhileTheServerRuns(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	p := NewPKI(openDir(t), names, clock)
	ensure(t, p, true)
	ctx, cancel := context.WithCancel(t.Context())
	renewed := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Renew(ctx, func() error { renewed <- struct{}{}; return nil })
	}()
	for !clock.HasWaiters() {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	clock.Step(pki.CertificateLifetime * 3 / 4)
	<-renewed
	cancel()
	<-done
}

func TestUnusableFilesAreAnErrorAndKept(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(t *testing.T, p *PKI)
		want   string
	}{
		"a certificate that is none": {func(t *testing.T, p *PKI) {
			if err := os.WriteFile(p.ServingCert(), []byte("nonsense"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "cannot use "},
		"a key that is lost": {func(t *testing.T, p *PKI) {
			if err := os.Remove(p.authorityKey()); err != nil {
				t.Fatal(err)
			}
		}, "ca.key: no such file"},
		"another key": {func(t *testing.T, p *PKI) {
			key, err := os.ReadFile(p.ServingKey())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.AdminKey(), key, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "does not belong to the certificate"},
		"a certificate that cannot be read": {func(t *testing.T, p *PKI) {
			if err := os.Remove(p.AdminCert()); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(p.AdminCert(), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "admin.crt: is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPKI(openDir(t), names, testclock.NewFakeClock(time.Now()))
			ensure(t, p, true)
			tc.damage(t, p)
			_, err := p.Ensure()
			if err == nil || !strings.Contains(err.Error(), tc.want) ||
				!strings.Contains(err.Error(), "to have new ones made") {
				t.Errorf("got %v, want an error with %q that says what to do", err, tc.want)
			}
		})
	}
}
