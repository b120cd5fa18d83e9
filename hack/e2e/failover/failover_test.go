// Package failover follows docs/how-to/postgres.md: two servers on a primary of PostgreSQL, whose
// synchronous standby takes over. It also follows docs/how-to/mysql.md: a server on MySQL and on
// MariaDB.
package failover

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/e2e/internal/balancer"
	"github.com/rowkeeper/rowkeeper/hack/verify/readme"
	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const patience = 3 * time.Minute

func TestPage(t *testing.T) {
	bin, err := programs.FindPostgres()
	if err != nil {
		missing(t, programs.Postgres,
			fmt.Errorf("a primary and a standby need PostgreSQL's programs on this machine: %w", err))
	}
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	walk := walkOf(t, clone, "postgres.md")

	authority, certificate, key := certificates(t)
	db1 := newNode(t, bin)
	db1.run(t, "initdb", "--pgdata", db1.data(), "--username=postgres", "--auth=trust",
		"--encoding=UTF8", "--locale=C", "--no-sync")
	db1.write(t, "server.crt", certificate)
	db1.write(t, "server.key", key)
	db1.write(t, "pg_hba.conf", "hostssl all rowkeeper all scram-sha-256\n"+
		"host all postgres all trust\nhost replication postgres all trust\n")
	db1.write(t, "postgresql.auto.conf", "ssl = on\npassword_encryption = 'scram-sha-256'\n"+
		"synchronous_standby_names = 'ANY 1 (db2)'\n")
	db1.start(t)
	db2 := newNode(t, bin)
	db2.run(t, "pg_basebackup", "--pgdata", db2.data(), "--write-recovery-conf", "--checkpoint=fast",
		"--no-sync", "--dbname", "host=127.0.0.1 user=postgres application_name=db2 port="+db1.port)
	db2.start(t)

	below := t.TempDir()
	port1, port2 := freePort(t), freePort(t)
	public := balance(t, port1, port2)
	data1, api1 := apiServer(t, below, "api1", authority, port1, public)
	data2, api2 := apiServer(t, below, "api2", authority, port2, public)
	guide := readme.Guide{
		Clone: clone,
		Env: append(os.Environ(), "HOME="+t.TempDir(), "PATH="+filepath.Join(clone, "bin", "cluster")+
			string(os.PathListSeparator)+os.Getenv("PATH")),
		Replace: map[string]string{
			"scp ":                    "cp ",
			"api1:/var/lib/rowkeeper": data1,
			"api2:/var/lib/rowkeeper": data2,
			"db1:5432":                "127.0.0.1:" + db1.port,
			"db2:5432":                "127.0.0.1:" + db2.port,
		},
		On: map[string]map[string]string{"api1": api1, "api2": api2, "db1": db1.commands(),
			"db2": db2.commands()},
		Log: t.Logf,
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := guide.Follow(ctx, walk, below); err != nil {
		t.Fatalf("docs/how-to/postgres.md: %v", err)
	}
}

// missing skips a test whose database is missing, or fails it if the database has to be there.
func missing(t *testing.T, kind programs.Kind, err error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), string(kind)) {
		t.Fatal(err)
	}
	t.Skip(err)
}

// walkOf returns the walk of a page of docs/how-to.
func walkOf(t *testing.T, clone, name string) readme.Walk {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(clone, "docs", "how-to", name))
	if err != nil {
		t.Fatal(err)
	}
	walks, err := readme.Walks(string(page))
	if err != nil || len(walks) != 1 {
		t.Fatalf("%d walks, error %v; want one", len(walks), err)
	}
	return walks[0]
}

// apiServer prepares the machine of a server below a directory. It listens on a port, and is public
// on another one. It returns its data directory, and what is typed in place of what the page says.
func apiServer(t *testing.T, below, name, authority, port, public string) (dir string,
	replace map[string]string) {
	t.Helper()
	dir = filepath.Join(below, "walk", name)
	file := filepath.Join(dir, "etc", "db.crt")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
		os.WriteFile(file, []byte(authority), 0o600)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "var"), map[string]string{
		"/etc/rowkeeper":       filepath.Join(dir, "etc"),
		"/var/lib/rowkeeper":   filepath.Join(dir, "var"),
		"0.0.0.0":              "127.0.0.1",
		"8443":                 port,
		"api.example.org":      "localhost",
		"api.example.org:8443": "localhost:" + public,
	}
}

// node is a server of PostgreSQL in a directory of its own.
type node struct {
	*programs.Program
	bin, port string
}

func newNode(t *testing.T, bin string) *node {
	t.Helper()
	n := &node{&programs.Program{Dir: t.TempDir(), Signal: syscall.SIGINT}, bin, freePort(t)}
	// Its user must get through to its directory.
	if err := errors.Join(os.Chmod(filepath.Dir(n.Dir), 0o755), n.RunAs("postgres")); err != nil {
		t.Fatal(err)
	}
	n.Command = []string{filepath.Join(bin, "postgres"), "-D", n.data(), "-p", n.port, "-c",
		"listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
	return n
}

func (n *node) data() string { return filepath.Join(n.Dir, "data") }

func (n *node) run(t *testing.T, program string, args ...string) {
	t.Helper()
	if err := n.Run(append([]string{filepath.Join(n.bin, program)}, args...)...); err != nil {
		t.Fatal(err)
	}
}

func (n *node) write(t *testing.T, file, content string) {
	t.Helper()
	if _, err := n.Write(filepath.Join("data", file), []byte(content)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) start(t *testing.T) {
	t.Helper()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.Await(t.Context(), func(context.Context) error {
		return n.Run(filepath.Join(n.bin, "pg_isready"), "-h", "127.0.0.1", "-p", n.port)
	}); err != nil {
		t.Fatal(err)
	}
}

// commands has what is typed in place of the page's commands for PostgreSQL.
func (n *node) commands() map[string]string {
	as := ""
	if os.Geteuid() == 0 {
		as = "runuser -u postgres -- "
	}
	return map[string]string{
		"psql -c": filepath.Join(n.bin, "psql") + " -h 127.0.0.1 -U postgres -p " + n.port + " -c",
		"pg_ctl ": as + filepath.Join(n.bin, "pg_ctl") + " ",
		"$PGDATA": n.data(),
	}
}

// certificates makes an authority, and the certificate and key of a server at 127.0.0.1, in PEM.
func certificates(t *testing.T) (authority, certificate, key string) {
	t.Helper()
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	ca, err := pki.NewAuthority("databases", from, to)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Sign(pki.Server("127.0.0.1"), from, to)
	if err != nil {
		t.Fatal(err)
	}
	trusted, _, caErr := ca.PEM()
	served, secret, err := pair.PEM()
	if err := errors.Join(caErr, err); err != nil {
		t.Fatal(err)
	}
	return string(trusted), string(served), string(secret)
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// balance stands in for a load balancer on the port that it returns. A server gets connections
// while it answers that it is ready, without a certificate.
func balance(t *testing.T, ports ...string) (port string) {
	t.Helper()
	b, err := balancer.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	b.Ready = func(address string) bool {
		res, err := client.Get("https://" + address + "/readyz")
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}
	var addresses []string
	for _, p := range ports {
		addresses = append(addresses, "127.0.0.1:"+p)
	}
	b.Set(addresses...)
	return strconv.Itoa(b.Port())
}
