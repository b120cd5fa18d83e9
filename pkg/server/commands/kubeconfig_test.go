package commands

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/standalone"
)

// A user's kubeconfig has the server of the administrator's, and a certificate of its own. The
// directory may be in use.
func TestKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	dir, err := standalone.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	files := standalone.NewPKI(dir, standalone.Names{DNS: []string{"localhost"}}, clock.RealClock{})
	if _, err := files.Ensure(); err != nil {
		t.Fatal(err)
	}
	if err := files.WriteKubeconfig("https://127.0.0.1:1234", ""); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := Run(t.Context(), bookmarks(), []string{"kubeconfig", "--data-dir", path, "--user",
		"jane, of dev", "--group", "dev", "--group", "a,b", "--lifetime", "1h"}, &stdout,
		&stderr); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	// In a file the key is its owner's alone, also if others could read what was there.
	file := filepath.Join(t.TempDir(), "jane")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var nothing bytes.Buffer
	if code := Run(t.Context(), bookmarks(), []string{"kubeconfig", "--data-dir", path, "--user",
		"jane", "--output", file}, &nothing, &stderr); code != ExitOK || nothing.Len() > 0 {
		t.Fatalf("exit code %d: %s%s", code, nothing.String(), stderr.String())
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v %v, want mode 0600", info, err)
	}
	if _, err := clientcmd.LoadFromFile(file); err != nil {
		t.Error(err)
	}
	testOthersStay(t, path)
	config, err := clientcmd.RESTConfigFromKubeConfig(stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.CAData) || config.Host != "https://127.0.0.1:1234" {
		t.Errorf("the server is %s, with the authority %q", config.Host, config.CAData)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("the certificate is not good: %v", err)
	}
	if s := pair.Leaf.Subject; s.CommonName != "jane, of dev" || len(s.Organization) != 2 ||
		!slices.Contains(s.Organization, "dev") || !slices.Contains(s.Organization, "a,b") {
		t.Errorf("the certificate is for %v", s)
	}
	if left := time.Until(pair.Leaf.NotAfter); left > time.Hour || left < 50*time.Minute {
		t.Errorf("the certificate is good for %v", left)
	}
}

// testOthersStay: a file that has a content is replaced only on demand, and nothing but a file is.
func testOthersStay(t *testing.T, data string) {
	t.Helper()
	const others = "the kubeconfig of other servers"
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(others), 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(name string, more ...string) (int, string) {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), bookmarks(), append([]string{"kubeconfig", "--data-dir", data,
			"--user", "jane", "--output", name}, more...), &stdout, &stderr)
		return code, stderr.String()
	}
	code, says := write(file)
	kept, err := os.ReadFile(file)
	if code != ExitFailure || !strings.Contains(says, "--force") || err != nil ||
		string(kept) != others {
		t.Errorf("exit code %d, %q, and the file is %q (%v)", code, says, kept, err)
	}
	if code, says := write(file, "--force"); code != ExitOK {
		t.Errorf("with --force: exit code %d, %q", code, says)
	}
	if _, err := clientcmd.LoadFromFile(file); err != nil {
		t.Error(err)
	}
	if code, says := write(filepath.Dir(file), "--force"); code != ExitFailure ||
		!strings.Contains(says, "no file that a kubeconfig could replace") {
		t.Errorf("a directory: exit code %d, %q", code, says)
	}
}

func TestKubeconfigRefuses(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, ExitUsage, "--user must name a user"},
		{[]string{"--service-account", "a/b", "--user", "jane"}, ExitUsage,
			"--service-account excludes --user and --group"},
		{[]string{"--service-account", "b"}, ExitUsage,
			`--service-account "b" is not a NAMESPACE/NAME`},
		{[]string{"--service-account", "a/b", "--data-dir", absent}, ExitFailure,
			"is not the data directory of a server that has run"},
		{[]string{"--user", "jane", "--group", ""}, ExitUsage, "--group must name a group"},
		{[]string{"--user", "jane", "--lifetime", "-1h"}, ExitUsage, "--lifetime must be"},
		{[]string{"--user", "jane", "--data-dir", absent}, ExitFailure, absent +
			" is not the data directory of a server that has run: name it by --data-dir, or " +
			"start the server first"},
	} {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), bookmarks(), append([]string{"kubeconfig"}, test.args...), &stdout,
			&stderr)
		if code != test.code || !strings.Contains(stderr.String(), test.want) ||
			strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, %q, %q", test.args, code, stdout.String(), stderr.String())
		}
	}
	if _, err := os.Stat(absent); err == nil {
		t.Error("the directory was made")
	}
}
