package backends

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/etcd"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/physical/etcd"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/miekg/dns"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/hack/compat/internal/frontend"
)

// wanted skips a test that nobody has asked for.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("ROWKEEPER_TEST_BACKENDS") == "" {
		t.Skip("other people's programs take minutes to compile: set ROWKEEPER_TEST_BACKENDS")
	}
}

// TestVault has Vault's own exercises for backends done by two servers with one storage. They have
// a user and a password, which do not matter here. Each asks for the list of members first.
func TestVault(t *testing.T) {
	wanted(t)
	settings := map[string]string{"address": "http://" + frontend.Start(t).Address, "path": "secrets",
		"ha_enabled": "true", "username": "vault", "password": "letmein"}
	var servers [2]physical.Backend
	for i := range servers {
		var err error
		if servers[i], err = etcd.NewEtcdBackend(settings, hclog.NewNullLogger()); err != nil {
			t.Fatal(err)
		}
	}
	physical.ExerciseBackend(t, servers[0])
	physical.ExerciseBackend_ListPrefix(t, servers[0])
	physical.ExerciseHABackend(t, servers[0].(physical.HABackend), servers[1].(physical.HABackend))
}

// TestCoreDNS: a CoreDNS answers from what is in the store, follows changes, and forgets a name
// with its lease.
func TestCoreDNS(t *testing.T) {
	wanted(t)
	f := frontend.Start(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{f.Address}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	caddy.Quiet, dnsserver.Quiet = true, true
	server, err := caddy.Start(caddy.CaddyfileInput{ServerTypeName: "dns", Contents: fmt.Appendf(nil,
		"example.test:0 10.in-addr.arpa:0 {\n bind 127.0.0.1\n etcd {\n  endpoint http://%s\n"+
			"  credentials dns letmein\n }\n}\n", f.Address)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	address := netip.MustParseAddrPort(server.Servers()[0].LocalAddr().String())

	put := func(path string, record map[string]any, options ...clientv3.OpOption) {
		t.Helper()
		text, err := json.Marshal(record)
		if err == nil {
			_, err = client.Put(t.Context(), "/skydns/"+path, string(text), options...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ask := func(name string, kind uint16, want ...string) {
		t.Helper()
		question := new(dns.Msg)
		question.SetQuestion(name, kind)
		answer, err := dns.Exchange(question, address.String())
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, record := range answer.Answer {
			got = append(got, strings.TrimPrefix(record.String(), record.Header().String()))
		}
		slices.Sort(got)
		if answer.Rcode == dns.RcodeNameError {
			got = []string{"no such name"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s %s: %q, not %q", name, dns.TypeToString[kind], got, want)
		}
	}

	lease, err := client.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	put("test/example/web/a", map[string]any{"host": "10.0.0.1", "port": 80})
	put("test/example/web/b", map[string]any{"host": "10.0.0.2", "port": 80},
		clientv3.WithLease(lease.ID))
	put("test/example/six", map[string]any{"host": "::1"})
	put("test/example/note", map[string]any{"text": "noted"})
	put("arpa/in-addr/10/0/0/1", map[string]any{"host": "web.example.test"})
	ask("web.example.test.", dns.TypeA, "10.0.0.1", "10.0.0.2")
	ask("a.web.example.test.", dns.TypeA, "10.0.0.1")
	ask("web.example.test.", dns.TypeSRV, "10 50 80 a.web.example.test.",
		"10 50 80 b.web.example.test.")
	ask("six.example.test.", dns.TypeAAAA, "::1")
	ask("note.example.test.", dns.TypeTXT, `"noted"`)
	ask("1.0.0.10.in-addr.arpa.", dns.TypePTR, "web.example.test.")
	ask("missing.example.test.", dns.TypeA, "no such name")
	put("test/example/web/a", map[string]any{"host": "10.0.0.3"})
	ask("a.web.example.test.", dns.TypeA, "10.0.0.3")
	if _, err := client.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	ask("b.web.example.test.", dns.TypeA, "no such name")
	ask("web.example.test.", dns.TypeA, "10.0.0.3")
}

// unfit are the tests of Cilium that fail here, with the reason.
var unfit = map[string]string{
	"TestUserManagement": "there are no users and roles",
}

// TestCilium runs Cilium's own tests of its key-value store, unchanged.
func TestCilium(t *testing.T) {
	wanted(t)
	const module = "github.com/cilium/cilium/pkg/kvstore"
	for _, name := range []string{"", "/store", "/allocator"} {
		t.Run("kvstore"+name, func(t *testing.T) {
			address := "http://" + frontend.Start(t).Address
			tests := filepath.Join(t.TempDir(), "tests")
			if out, err := exec.Command("go", "test", "-c", "-vet=off", "-o", tests, "-ldflags=-w -X "+
				module+".etcdDummyAddress="+address, module+name).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			cmd := exec.Command(tests, "-test.v", "-test.timeout=5m")
			cmd.Env = append(os.Environ(), "INTEGRATION_TESTS=true")
			dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", module+name).Output()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Dir = strings.TrimSpace(string(dir))
			out, err := cmd.CombinedOutput()
			passed := 0
			for line := range strings.Lines(string(out)) {
				fields := strings.Fields(line)
				if len(fields) < 3 || fields[0] != "---" || strings.HasPrefix(line, " ") {
					continue
				}
				test := fields[2]
				switch reason := unfit[test]; {
				case fields[1] == "PASS:" && reason != "":
					t.Errorf("%s passes, though %s: take it off the list", test, reason)
				case fields[1] == "PASS:":
					passed++
				case fields[1] == "FAIL:" && reason == "":
					t.Errorf("%s fails", test)
				}
			}
			if passed == 0 || bytes.Contains(out, []byte("\npanic: ")) {
				err = fmt.Errorf("the tests did not end: %w", err)
				t.Error(err)
			}
			t.Logf("%d tests of Cilium passed", passed)
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}
