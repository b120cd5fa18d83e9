package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/rowkeeper/rowkeeper/pkg/options"
)

// TestEtcd: one port serves etcd's API and what is asked for by HTTP, with and without TLS, and a
// certificate that was replaced is used for the next connection.
func TestEtcd(t *testing.T) {
	dir := certFiles(t)
	certificate := filepath.Join(dir, "tls.crt")
	plain, secure := freeAddress(t), freeAddress(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var stdout, stderr bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, []string{"etcd", "--database=memory:", "--listen-client-urls",
			"http://" + plain + ",https://" + secure, "--cert-file", certificate, "--key-file",
			filepath.Join(dir, "tls.key")}, &stdout, &stderr)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("exit code %d: %s", code, stderr.String())
		}
		said := program.Title + " serves etcd's API on "
		if want := said + "http://" + plain + " from memory:\n" + said + "https://" + secure +
			" from memory:\nTry: etcdctl --endpoints http://" + plain +
			" get --prefix --keys-only /\nstopped\n"; stdout.String() != want {
			t.Errorf("it says\n%swant\n%s", stdout.String(), want)
		}
	})
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	for _, url := range []string{"http://" + plain, "https://" + secure} {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, TLS: config,
			Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		limited, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		// The client waits until the server listens.
		for _, err = c.Get(limited, "k"); err != nil && limited.Err() == nil; {
			_, err = c.Get(limited, "k")
		}
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config,
			ForceAttemptHTTP2: true}} // as most clients do
		for path, want := range map[string]string{"/version": `"etcdserver":"3.`,
			"/health": `"health":"true"`, "/readyz": "ok", "/metrics": "rowkeeper_"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err != nil || !strings.Contains(string(body), want) {
				t.Errorf("%s%s: %s, %v", url, path, body, err)
			}
		}
		client.CloseIdleConnections()
	}
	serial := func() string {
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", secure,
			&tls.Config{InsecureSkipVerify: true}) // another authority signs the next certificate
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before, other := serial(), certFiles(t)
	for _, name := range []string{"tls.crt", "tls.key"} {
		content, err := os.ReadFile(filepath.Join(other, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if after := serial(); after == before {
		t.Error("the certificate is still the old one")
	}
}

// TestShares: what stores keep in memory is divided among them, and follows from the memory that
// there is.
func TestShares(t *testing.T) {
	for _, test := range []struct {
		memory int64
		stores int
		want   int
	}{{1 << 40, 1, 64 << 20}, {2 << 30, 1, 64 << 20}, {256 << 20, 1, 8 << 20},
		{1 << 40, 6, 64 << 20 / 6}, {1 << 40, 5_000, 256 << 10}} {
		if got := eventBytesOf(test.memory, test.stores); got != test.want {
			t.Errorf("%d stores in %d bytes keep %d of events each, want %d", test.stores,
				test.memory, got, test.want)
		}
	}
	const memory = 1 << 30
	if all := 2*eventBytesOf(memory, 1) + cacheBytes + pageCacheMiB<<20; all > memory*5/32 {
		t.Errorf("a store in a GiB keeps %d bytes", all)
	}
	for database, want := range map[string]string{
		"sqlite:///a/state.db":                "sqlite:///a/state.db?cache_size=10MiB",
		"sqlite:state.db?synchronous=OFF":     "sqlite:state.db?synchronous=OFF&cache_size=10MiB",
		"sqlite:state.db?cache_size=1MiB":     "sqlite:state.db?cache_size=1MiB",
		"postgres://user@host/database?x=y":   "postgres://user@host/database?x=y",
		"memory:":                             "memory:",
		"mysql://user:%zz@host:3306/database": "mysql://user:%zz@host:3306/database",
	} {
		if got := withPageCache(database, 6); got != want {
			t.Errorf("%s becomes %s, want %s", database, got, want)
		}
		if got := withPageCache(database, 1); got != database {
			t.Errorf("%s becomes %s for one store", database, got)
		}
	}
}

// TestEtcdFlags: what would be unsafe or means nothing is refused before the database is opened.
// TestReachableURLs: the list of members names no address that each machine takes for its own.
func TestReachableURLs(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for listens, want := range map[string]string{
		"http://127.0.0.1:2379":   "http://127.0.0.1:2379",
		"https://db.example:2379": "https://db.example:2379",
		"https://[fd00::1]:2379":  "https://[fd00::1]:2379",
		"unix:///run/etcd.sock":   "unix:///run/etcd.sock",
		"https://0.0.0.0:2379":    "https://" + net.JoinHostPort(name, "2379"),
		"https://[::]:2379":       "https://" + net.JoinHostPort(name, "2379"),
		"https://:2379":           "https://" + net.JoinHostPort(name, "2379"),
	} {
		plan := &storePlan{etcdCommand: &etcdCommand{clientURLs: []string{listens},
			storage: &options.StorageOptions{Store: "default"}}, byHost: map[string]*etcdStore{}}
		plan.findStores()
		plan.findDoors()
		if got := plan.stores[0].urls; len(got) != 1 || got[0] != want {
			t.Errorf("what listens on %s is %s, want %s", listens, got, want)
		}
	}
}

func TestEtcdFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--listen-client-urls=http://0.0.0.0:2379":                       "without TLS",
		"--listen-client-urls=https://127.0.0.1:2379":                    "needs --cert-file",
		"--listen-client-urls=ftp://127.0.0.1:2379":                      "of none of the schemes",
		"--listen-client-urls=http://127.0.0.1":                          "has no port",
		"--cert-file=a":                                                  "go together",
		"--client-cert-auth":                                             "needs --trusted-ca-file",
		"--auto-compaction-retention=soon":                               "is no time",
		"--auto-compaction-mode=revision --auto-compaction-retention=5m": "fits it",
		"--watch-progress-notify-interval=0s":                            "greater than 0",
		"--max-txn-ops=0":                                                "greater than 0",
		"--max-request-bytes=1572865":                                    "at most 1572864",
		"--listen-store=a":                                               "of the form NAME=VALUE",
		"--listen-store=A=http://127.0.0.1:1":                            "no store can have the name",
		"--listen-store=a=http://0.0.0.0:1":                              "without TLS",
		"--listen-store=a=https://127.0.0.1:1":                           "needs --cert-file",
		"--store-client-name=a=b":                                        "is not served",
		"--store-server-name=a=a.example":                                "needs --trusted-ca-file",
		"--store-server-name=a=a.example --store-client-name=a=*":        "has TLS",
		"--listen-store=a=http://127.0.0.1:1 --store-cert-file=a=b":      "needs both",
		"--store-client-name=default=x":                                  "needs --trusted-ca-file",
		"--client-cert-auth --store-client-name=default=x":               "which has no TLS",
		"--store-server-name=a=a.b,b=A.b --store-client-name=a=*,b=*":    "of the store \"a\", too",
		"--cert-file=a --key-file=b --listen-client-urls=https://0.0.0.0:2379": "client " +
			"certificates",
		"--cert-file=a --key-file=b --listen-store=a=https://10.0.0.1:1": "client certificates",
		"--cert-file=a --key-file=b --trusted-ca-file=c --listen-client-urls=https://127.0.0.1:1 " +
			"--listen-store=a=https://127.0.0.1:2 --store-client-name=a=*": "trusts the same",
	} {
		var stderr bytes.Buffer
		args := append([]string{"etcd", "--database=memory:"}, strings.Fields(flags)...)
		if code := Run(t.Context(), args, io.Discard, &stderr); code != exitUsage ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d: %s", flags, code, stderr.String())
		}
	}
}
