package tests

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// accountFile makes the kubeconfig of a service account.
func (s *server) accountFile(t testing.TB, account string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "account")
	made := run(t, s.dir, "", nil, rowkeeperProgram, "kubeconfig", "--service-account", account,
		"--lifetime", "24h", "--output", file)
	if made.code != 0 {
		t.Fatal(made.stderr)
	}
	return file
}

// A service account signs in by a token, on each replica, and has the rights of its roles and no
// others, until it is deleted. Nobody reads the token, or the keys, in the log.
func TestServiceAccounts(t *testing.T) {
	anyDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		s := start(t.TempDir(), "--enable-crds", "-v=10")
		other := start(t.TempDir(), append(sameDatabase(s), "--enable-crds", "-v=10")...)
		s.ok(t, "", "create", "namespace", "team")
		eventually(t, "the namespace has a default account", func() bool {
			return s.kubectl(t, "", "get", "serviceaccount", "default", "-n", "team").code == 0
		})
		s.ok(t, "", "create", "rolebinding", "view", "--clusterrole=view",
			"--serviceaccount=team:default", "-n", "team")
		file := s.accountFile(t, "team/default")
		as := func(s *server, args ...string) result {
			return s.kubectl(t, "", append([]string{"--kubeconfig", file, "--server",
				s.config(t).Host, "--insecure-skip-tls-verify"}, args...)...)
		}
		for _, of := range []*server{s, other} {
			if who := as(of, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} "+
				"{.status.userInfo.groups}"); who.stdout != "system:serviceaccount:team:default "+
				`["system:serviceaccounts","system:serviceaccounts:team","system:authenticated"]` {
				t.Errorf("the account is %+v", who)
			}
			eventually(t, "the account may see config maps", func() bool {
				return as(of, "get", "configmaps", "-n", "team").code == 0
			})
			for _, args := range [][]string{{"get", "secrets", "-n", "team"},
				{"get", "configmaps", "-n", "default"}, {"create", "token", "default", "-n", "team"}} {
				if r := as(of, args...); !strings.Contains(r.stderr, "forbidden") {
					t.Errorf("the account's %q: %+v", args, r)
				}
			}
			var keys struct{ Keys []map[string]string }
			published := as(of, "get", "--raw", "/openid/v1/jwks")
			if err := json.Unmarshal([]byte(published.stdout), &keys); err != nil ||
				len(keys.Keys) != 1 || keys.Keys[0]["d"] != "" {
				t.Errorf("the account is told of the keys %+v, %v", published, err)
			}
			has(t, as(of, "get", "--raw", "/.well-known/openid-configuration").stdout,
				`"issuer":"https://kubernetes.default.svc"`)
		}
		token := strings.TrimSpace(other.ok(t, "", "create", "token", "default", "-n", "team",
			"--duration=10m"))
		const authenticated = "jsonpath={.status.authenticated} {.status.user.username}"
		review := `{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: ` +
			token + `}}`
		if r := s.ok(t, review, "create", "-f", "-", "-o", authenticated); r !=
			"true system:serviceaccount:team:default" {
			t.Errorf("the review of a token says %s", r)
		}
		of := strings.TrimSpace(s.ok(t, "", "create", "token", "default", "-n", "team",
			"--audience=vault"))
		review = strings.ReplaceAll(review, token, of)
		if r := s.ok(t, review, "create", "-f", "-", "-o", authenticated); r != " " {
			t.Errorf("the review of a token for others says %s", r)
		}
		review = strings.ReplaceAll(review, "}}", ", audiences: [vault]}}")
		if r := other.ok(t, review, "create", "-f", "-", "-o", authenticated); r !=
			"true system:serviceaccount:team:default" {
			t.Errorf("the review of a token by those whom it is for says %s", r)
		}
		// Who may make tokens is said by roles, also among the members of a team.
		mary := s.userFile(t, "mary")
		s.ok(t, "", "create", "role", "issuer", "--verb=create", "--resource=serviceaccounts/token",
			"--resource-name=default", "-n", "team")
		if r := s.kubectl(t, "", "--kubeconfig", mary, "create", "token", "default", "-n",
			"team"); !strings.Contains(r.stderr, "forbidden") {
			t.Errorf("mary makes a token without a role: %+v", r)
		}
		s.ok(t, "", "create", "rolebinding", "issuer", "--role=issuer", "--user=mary", "-n", "team")
		eventually(t, "mary makes tokens by a role", func() bool {
			return s.kubectl(t, "", "--kubeconfig", mary, "create", "token", "default", "-n",
				"team").code == 0
		})

		other.ok(t, "", "delete", "serviceaccount", "default", "-n", "team")
		for _, of := range []*server{s, other} {
			if r := as(of, "get", "configmaps", "-n", "team"); !strings.Contains(r.stderr,
				"Unauthorized") && !strings.Contains(r.stderr, "logged in") {
				t.Errorf("an account that was deleted: %+v", r)
			}
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, written, _ := strings.Cut(string(content), "token: ")
		for _, of := range []*server{s, other} {
			of.signal(t, syscall.SIGTERM)
			log := of.stdout.String() + of.stderr.String()
			for _, secret := range []string{token, strings.TrimSpace(written), "PRIVATE KEY"} {
				// A signature is enough to tell.
				if i := strings.LastIndex(secret, "."); strings.Contains(log, secret[i+1:]) {
					t.Error("the log has a token or a key")
				}
			}
		}
	})
}

// Whoever brings a key has it sign. Tokens of an earlier key are accepted if it is named, and a
// server that has neither accepts none of them.
func TestKeysOfUsers(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{}
	for _, name := range []string{"first", "second"} {
		pair, err := pki.SelfSigned(pki.Server("test"), time.Now(), time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		text, err := keyutil.MarshalPrivateKeyToPEM(pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	who := func(s *server, token string) string {
		return s.kubectl(t, "", "--kubeconfig", os.DevNull, "--server", s.config(t).Host,
			"--insecure-skip-tls-verify", "--token", token, "auth", "whoami", "-o",
			"jsonpath={.status.userInfo.username}").stdout
	}
	const account = "system:serviceaccount:default:default"
	token := func(s *server) string {
		return strings.TrimSpace(s.ok(t, "", "create", "token", "default"))
	}
	s := start(t, home, "--enable-crds", "--service-account-signing-key-file="+files["first"],
		"--service-account-issuer=https://old.example.com")
	first := token(s)
	if who(s, first) != account {
		t.Error("a token by a key of a file is not accepted")
	}
	s.signal(t, syscall.SIGTERM)
	s = start(t, home, "--enable-crds", "--service-account-signing-key-file="+files["second"],
		"--service-account-key-file="+files["first"],
		"--service-account-issuer=https://new.example.com",
		"--service-account-issuer=https://old.example.com")
	second := token(s)
	if who(s, first) != account || who(s, second) != account {
		t.Error("tokens by the keys of two files are not accepted")
	}
	has(t, s.ok(t, "", "get", "--raw", "/.well-known/openid-configuration"), "https://new.example.com")
	s.signal(t, syscall.SIGTERM)
	s = start(t, home, "--enable-crds", "--service-account-issuer=https://new.example.com")
	if third := token(s); who(s, third) != account {
		t.Error("a token by the servers' own key is not accepted")
	}
	for _, earlier := range []string{first, second} {
		if who(s, earlier) != "" {
			t.Error("a token by a key that the server was not told of is accepted")
		}
	}
	s.signal(t, syscall.SIGTERM)
	broken := launch(t, t.TempDir(), "--enable-crds", "--service-account-key-file="+os.DevNull)
	if code := broken.exit(t); code == 0 || !strings.Contains(broken.stderr.String(), os.DevNull) {
		t.Errorf("a file without a key: exit code %d, %s", code, broken.stderr.String())
	}
	// A key that cannot sign ends the start, and not only the requests for tokens.
	_, edwards, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(edwards)
	if err != nil {
		t.Fatal(err)
	}
	cannot := filepath.Join(dir, "edwards")
	if err := os.WriteFile(cannot, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		0o600); err != nil {
		t.Fatal(err)
	}
	unable := launch(t, t.TempDir(), "--enable-crds", "--service-account-signing-key-file="+cannot)
	if code := unable.exit(t); code == 0 || !strings.Contains(unable.stderr.String(), cannot) {
		t.Errorf("a key that cannot sign: exit code %d, %s", code, unable.stderr.String())
	}
	// Tokens of the server's own issuer would never come to an issuer of the same name.
	const same = "https://tokens.example.com"
	config := filepath.Join(dir, "authentication.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: apiserver.config.k8s.io/v1\n"+
		"kind: AuthenticationConfiguration\njwt:\n- issuer: {url: \""+same+"\", audiences: [a]}\n"+
		"  claimMappings: {username: {claim: sub, prefix: \"\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	both := launch(t, t.TempDir(), "--enable-crds", "--service-account-issuer="+same,
		"--authentication-config="+config)
	if code := both.exit(t); code == 0 || !strings.Contains(both.stderr.String(), same) {
		t.Errorf("an issuer of both: exit code %d, %s", code, both.stderr.String())
	}
	twice := launch(t, t.TempDir(), "--enable-crds", "--service-account-issuer="+same,
		"--service-account-issuer="+same)
	if code := twice.exit(t); code != 2 || !strings.Contains(twice.stderr.String(), same) {
		t.Errorf("an issuer twice: exit code %d, %s", code, twice.stderr.String())
	}
	apart := launch(t, t.TempDir(), "--service-account-issuer=https://new.example.com")
	if code := apart.exit(t); code != 2 || !strings.Contains(apart.stderr.String(),
		"--service-account-issuer needs --enable-crds") {
		t.Errorf("an issuer without accounts: exit code %d, %s", code, apart.stderr.String())
	}
}
