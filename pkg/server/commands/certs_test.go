package commands

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
	testclock "k8s.io/utils/clock/testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// certs runs the command at a time, and returns what it prints.
func certs(t *testing.T, o certsOptions, now time.Time) string {
	t.Helper()
	var out bytes.Buffer
	if err := o.run(&out, testclock.NewFakePassiveClock(now)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// serving loads the serving certificate, and checks that the authorities trust it for a name at a
// time.
func serving(t *testing.T, dir, name string, now time.Time) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots,
		CurrentTime: now}); err != nil {
		t.Errorf("the certificate is not good for %s: %v", name, err)
	}
	return pair.Leaf
}

func TestCerts(t *testing.T) {
	const name = "bookmarks.bookmarks-system.svc"
	o := certsOptions{dir: filepath.Join(t.TempDir(), "certs"), namespace: "bookmarks-system",
		service: "bookmarks"}
	now := time.Now()
	if out := certs(t, o, now); !strings.Contains(out, "new authority") ||
		!strings.Contains(out, "new serving certificate for "+name) {
		t.Errorf("the first run prints %q", out)
	}
	first := serving(t, o.dir, name, now)
	for _, file := range []string{"ca.key", "tls.key"} {
		info, err := os.Stat(filepath.Join(o.dir, file))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", file, info, err)
		}
	}
	if out := certs(t, o, now); strings.Contains(out, "wrote") ||
		!strings.Contains(out, "run this again after "+pki.RenewAt(first).Format("2006-01-02")) {
		t.Errorf("the second run prints %q", out)
	}

	renewed := o
	renewed.renew = true
	certs(t, renewed, now)
	second := serving(t, o.dir, name, now)
	if second.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("--renew leaves the certificate alone")
	}
	hosts := o
	hosts.hosts = []string{"ci.example.com", "192.0.2.7"}
	certs(t, hosts, now)
	serving(t, o.dir, "ci.example.com", now)
	serving(t, o.dir, "192.0.2.7", now)

	now = now.Add(pki.CertificateLifetime * 3 / 4)
	if out := certs(t, hosts, now); strings.Contains(out, "authority") ||
		!strings.Contains(out, "new serving certificate") {
		t.Errorf("a run in the last third of the certificate's lifetime prints %q", out)
	}
	serving(t, o.dir, name, now)
	now = now.Add(pki.AuthorityLifetime * 3 / 4)
	if out := certs(t, hosts, now); !strings.Contains(out, "new authority") ||
		!strings.Contains(out, "new serving certificate") {
		t.Errorf("a run in the last third of the authority's lifetime prints %q", out)
	}
	serving(t, o.dir, name, now)
	if bundle, err := cert.CertsFromFile(filepath.Join(o.dir, "ca.crt")); err != nil ||
		len(bundle) != 2 {
		t.Errorf("ca.crt has %d authorities, %v, want the new and the old one", len(bundle), err)
	}
}

func TestCertsRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--dir", ""}, ExitUsage, "--dir must name a directory"},
		{[]string{"--namespace", "a.b"}, ExitUsage, `--namespace "a.b"`},
		{[]string{"--service", "A"}, ExitUsage, `--service "A"`},
		{[]string{"--host", "a_b"}, ExitUsage, `--host "a_b"`},
		{[]string{"now"}, ExitUsage, `unexpected argument "now"`},
		{[]string{"--dir", dir}, ExitFailure, "ca.key: no such file or directory; mend it, or " +
			"remove both"},
	} {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), bookmarks(), append([]string{"certs"}, test.args...), &stdout, &stderr)
		if code != test.code || !strings.Contains(stderr.String(), test.want) ||
			strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("certs %q: code %d, %q; want code %d and a sentence with %q", test.args, code,
				stderr.String(), test.code, test.want)
		}
	}
}

// A serving certificate that the command has not made stays, with its key. One of the authority in
// the directory is renewed, whoever has made that.
func TestCertsLeavesOthersAlone(t *testing.T) {
	now := time.Now()
	o := certsOptions{dir: t.TempDir(), namespace: "bookmarks-system", service: "bookmarks"}
	file := func(name string) string { return filepath.Join(o.dir, name) }
	others, err := pki.NewAuthority("others", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := others.Sign(pki.Server("shop.example.com"), now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(file("tls.crt"), file("tls.key")); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file("tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, renew := range []bool{false, true} {
		o.renew = renew
		err := o.run(&bytes.Buffer{}, testclock.NewFakePassiveClock(now))
		after, readErr := os.ReadFile(file("tls.key"))
		if err == nil || !strings.Contains(err.Error(), "was not made by this command") ||
			readErr != nil || !bytes.Equal(before, after) {
			t.Errorf("renew %v: %v; the key is replaced: %v (%v)", renew, err,
				!bytes.Equal(before, after), readErr)
		}
		if _, err := os.Stat(file("ca.key")); err == nil {
			t.Error("an authority was made")
		}
	}
	if err := others.Write(file("ca.crt"), file("ca.key")); err != nil {
		t.Fatal(err)
	}
	certs(t, o, now)
}
