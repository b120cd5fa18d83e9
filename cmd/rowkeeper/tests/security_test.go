package tests

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/storage"
)

// storedValues reads the values of the rows below a prefix, those of live objects and those of the
// whole log.
func storedValues(t *testing.T, databaseURL, prefix string) (live, all [][]byte) {
	t.Helper()
	db := openSQL(t, databaseURL)
	read := func(query string) (values [][]byte) {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var key, value []byte
			if err := rows.Scan(&key, &value); err != nil {
				t.Fatal(err)
			}
			// The lock of the garbage collector is none of the objects.
			if bytes.HasPrefix(key, []byte(prefix+"/")) && value != nil &&
				!bytes.HasPrefix(key, []byte(prefix+"/rowkeeper.dev/locks/")) {
				values = append(values, value)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return values
	}
	return read("SELECT l.key, g.value FROM rowkeeper_live l JOIN rowkeeper_log g ON g.revision " +
		"= l.revision"), read("SELECT g.key, g.value FROM rowkeeper_log g")
}

// The rows are encrypted, on every database; keys can be changed while objects are used, and are
// not needed any more after "migrate objects".
func TestEncryptionAtRest(t *testing.T) {
	dir := t.TempDir()
	kinds, urls := databaseURLs(t, dir)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			dir, prefix := t.TempDir(), fmt.Sprintf("/test-%d", prefixes.Add(1))
			const first,
				second = "{name: first, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}",
				"{name: second, secret: ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=}"
			// serve starts the server with keys, of which the first one encrypts.
			serve := func(keys ...string) *server {
				t.Helper()
				file := filepath.Join(dir, "encryption.yaml")
				config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
					"- resources: ['*.*']\n  providers:\n  - aesgcm: {keys: [" +
					strings.Join(keys, ", ") + "]}\n"
				if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
					t.Fatal(err)
				}
				return start(t, dir, "--database="+urls[kind], "--storage-prefix="+prefix,
					"--encryption-provider-config="+file)
			}
			// stored checks that no row can be read, and counts the live ones by the key that they
			// are encrypted with.
			stored := func() map[string]int {
				t.Helper()
				live, all := storedValues(t, urls[kind], prefix)
				byKey := map[string]int{}
				for _, value := range live {
					_, rest, _ := strings.Cut(string(value), "k8s:enc:aesgcm:v1:")
					key, _, _ := strings.Cut(rest, ":")
					byKey[key]++
				}
				for _, value := range all {
					if !bytes.HasPrefix(value, []byte("k8s:enc:aesgcm:v1:")) ||
						bytes.Contains(value, []byte("confidential")) {
						t.Errorf("a row holds %.60q", value)
					}
				}
				return byKey
			}
			s := serve(first)
			for i := range 5 {
				s.ok(t, manifest(fmt.Sprintf("p-%d", i), "make confidential"), "create", "-f", "-")
			}
			s.ok(t, "", "label", "pl", "p-1", "very=confidential")
			s.ok(t, "", "delete", "pl", "p-0")
			if got := stored(); got["first"] != 4 || len(got) != 1 {
				t.Errorf("stored are %v", got)
			}
			s.signal(t, syscall.SIGTERM)

			s = serve(second, first)
			s.ok(t, "", "label", "pl", "p-2", "very=confidential")
			if got := stored(); got["first"] != 3 || got["second"] != 1 || len(got) != 2 {
				t.Errorf("after an update with the second key, stored are %v", got)
			}
			has(t, s.ok(t, "", "get", "pl", "p-3", "-o", "yaml"), "make confidential")
			r := run(t, dir, "", nil, rowkeeperProgram, "migrate", "objects")
			has(t, r.stdout, "pipelines.ci.rowkeeper.dev: 3 of 4 objects rewritten\n")
			if got := stored(); got["second"] != 4 || len(got) != 1 {
				t.Errorf("after the migration, stored are %v", got)
			}
			s.signal(t, syscall.SIGTERM)

			s = serve(second)
			for i := range 4 {
				has(t, s.ok(t, "", "get", "pl", fmt.Sprintf("p-%d", i+1), "-o", "yaml"),
					"make confidential")
			}
			// A row that was put into the place of another one does not decrypt: its key is a part
			// of what is authenticated.
			db := openSQL(t, urls[kind])
			name := func(p string) string {
				return prefix + "/ci.rowkeeper.dev/pipelines/default/" + p
			}
			var value []byte
			query := "SELECT g.value FROM rowkeeper_live l JOIN rowkeeper_log g ON g.revision = " +
				"l.revision WHERE l.key = " + literal(kind, name("p-1"))
			if err := db.QueryRowContext(t.Context(), query).Scan(&value); err != nil {
				t.Fatal(err)
			}
			update := "UPDATE rowkeeper_log SET value = " + literal(kind, string(value)) +
				" WHERE revision = (SELECT revision FROM rowkeeper_live WHERE rowkeeper_live.key = " + literal(kind, name("p-2")) + ")"
			if _, err := db.ExecContext(t.Context(), update); err != nil {
				t.Fatal(err)
			}
			s.signal(t, syscall.SIGTERM)
			s = launch(t, dir, "--database="+urls[kind], "--storage-prefix="+prefix,
				"--encryption-provider-config="+filepath.Join(dir, "encryption.yaml"),
				"--watch-cache=false")
			eventually(t, "the server answers", func() bool {
				return s.kubectl(t, "", "get", "--raw", "/readyz").stdout == "ok"
			})
			s.refused(t, "", "p-2", "get", "pl", "p-2")
			s.ok(t, "", "get", "pl", "p-1")
		})
	}
}

// literal writes bytes as a database takes them in a statement.
func literal(kind, text string) string {
	if kind == "postgres" {
		return fmt.Sprintf(`'\x%x'::bytea`, text)
	}
	return fmt.Sprintf("x'%x'", text)
}

// The password of the database is in none of what a server shows: what it prints and logs, its
// metrics, profiles and configuration, its errors.
func TestNoSecrets(t *testing.T) {
	_, urls := databaseURLs(t, t.TempDir())
	for kind, databaseURL := range urls {
		if kind == "sqlite" {
			continue // it has none
		}
		u, err := url.Parse(databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		if len(password) < 6 {
			t.Fatalf("the password %q of the test's %s could be found by chance", password, kind)
		}
		without, variable := *u, map[string]string{"postgres": "PGPASSWORD"}[kind]
		without.User = url.User(u.User.Username())
		if variable == "" {
			variable = "MYSQL_PWD"
		}
		file := func(name, content string) string {
			name = filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			return name
		}
		parameter := without
		query := parameter.Query()
		query.Set("password_file", file("password", password))
		parameter.RawQuery = query.Encode()
		for name, tc := range map[string]struct{ flag, env string }{
			"in the URL":         {"--database=" + databaseURL, ""},
			"in the URL's file":  {"--database-file=" + file("url", databaseURL), ""},
			"in a file":          {"--database=" + parameter.String(), ""},
			"in the environment": {"--database=" + without.String(), variable + "=" + password},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				if tc.env != "" {
					name, value, _ := strings.Cut(tc.env, "=")
					t.Setenv(name, value)
				}
				dir := t.TempDir()
				s := start(t, dir, tc.flag, fmt.Sprintf("--storage-prefix=/test-%d",
					prefixes.Add(1)), "-v=6")
				s.ok(t, manifest("one", "make"), "create", "-f", "-")
				for _, path := range []string{"/", "/metrics", "/metrics/slis", "/configz",
					"/flagz", "/statusz", "/version", "/livez?verbose", "/readyz?verbose",
					"/healthz?verbose", "/debug/pprof/", "/debug/pprof/cmdline",
					"/debug/pprof/heap?debug=1", "/debug/pprof/heap",
					"/debug/pprof/goroutine?debug=2", "/debug/pprof/allocs",
					"/debug/pprof/profile?seconds=1", "/debug/pprof/symbol", "/debug/flags/v",
					"/openapi/v2", "/logs/", "/apis"} {
					for _, accept := range []string{"*/*", "text/plain", "application/json"} {
						if strings.Contains(path, "seconds=") && accept != "*/*" {
							continue // a profile has one form, and takes its time
						}
						body := s.get(t, path, accept)
						if unzipped, err := gzip.NewReader(strings.NewReader(body)); err == nil {
							more, _ := io.ReadAll(unzipped)
							body += string(more)
						}
						if strings.Contains(body, password) {
							t.Errorf("%s shows the password", path)
						}
					}
				}
				if code := s.signal(t, syscall.SIGTERM); code != 0 {
					t.Errorf("the server exited with %d", code)
				}
				if strings.Contains(s.stdout.String()+s.stderr.String(), password) {
					t.Error("the server writes the password")
				}
				err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
					if err != nil || d.IsDir() {
						return err
					}
					if content, err := os.ReadFile(path); err != nil ||
						bytes.Contains(content, []byte(password)) {
						t.Errorf("%s holds the password: %v", path, err)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}

		// Errors of all commands, with URLs that are wrong in different places.
		const secret = "Tr0ub4dor"
		scheme := u.Scheme
		for _, wrong := range []string{
			scheme + "://user:" + secret + "@127.0.0.1:1/db", scheme + "://user:" + secret +
				"@127.0.0.1:port/db", scheme + "://user:" + secret + "@[::1/db",
			scheme + "://user:" + secret + "%zz@127.0.0.1/db", scheme + "://us er:" + secret +
				"@127.0.0.1/db", scheme + "://user:" + secret + "/x@127.0.0.1/db",
			scheme + "://user:" + secret + "#x@127.0.0.1/db", scheme + "://user:" + secret + "@" +
				u.Host + u.Path, scheme + "://user:" + secret + "@" + u.Host +
				"/nothing?unknown_parameter=1",
			scheme + ":" + secret, "nothing://user:" + secret + "@host/db", secret, "user:" +
				secret + "@tcp(127.0.0.1:1)/db", scheme + "://user@host/db?password=" + secret +
				"&connect_timeout=x",
			scheme + "://user:" + secret + "@nowhere.invalid/db", scheme + "://user:@/" + secret +
				"@" + u.Host + u.Path,
		} {
			for _, args := range [][]string{
				{"serve", "--example", "--secure-port=0", "-v=6"}, {"migrate", "up"}, {"migrate", "status"},
				{"fence"}, {"backup", "-"}, {"backup", filepath.Join(t.TempDir(), "b")},
			} {
				r := run(t, t.TempDir(), "", nil, rowkeeperProgram,
					append(args, "--database="+wrong, "--database-timeout=2s")...)
				if r.code == 0 || strings.Contains(r.stdout+r.stderr, secret) {
					t.Errorf("%v --database=%s: %d %s%s", args, wrong, r.code, r.stdout, r.stderr)
				}
			}
		}
	}
}

// TestTLSVersions: nothing older than TLS 1.2 is spoken.
func TestTLSVersions(t *testing.T) {
	oldest := func(s *server, version uint16) error {
		config := s.config(t)
		address := strings.TrimPrefix(config.Host, "https://")
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(config.CAData)
		conn, err := tls.Dial("tcp", address,
			&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: version})
		if err == nil {
			conn.Close()
		}
		return err
	}
	s := start(t, t.TempDir())
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false,
		tls.VersionTLS12: true, tls.VersionTLS13: true} {
		if err := oldest(s, version); (err == nil) != want {
			t.Errorf("%s: %v, want it to be accepted: %t", tls.VersionName(version), err, want)
		}
	}
	s = start(t, t.TempDir(), "--tls-min-version=VersionTLS13")
	if err := oldest(s, tls.VersionTLS12); err == nil {
		t.Error("TLS 1.2 is accepted with --tls-min-version=VersionTLS13")
	}
}

// TestRequestLimits: how large a request may be, and how many there may be at a time.
func TestRequestLimits(t *testing.T) {
	s := start(t, t.TempDir(), "--max-mutating-requests-inflight=1")
	admin, err := rest.HTTPClientFor(s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	url := s.config(t).Host + v1Path + "pipelines"
	post := func(ctx context.Context, client *http.Client, body io.Reader) (int,
		http.Header, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/yaml")
		response, err := client.Do(request)
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return 0, nil, ""
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		return response.StatusCode, response.Header, string(text)
	}
	filler := func(n int) io.Reader {
		return strings.NewReader(manifest("large", "make", "annotations: {}") + "# " +
			strings.Repeat("x", n))
	}
	if code, _, body := post(t.Context(), admin,
		filler(3<<20)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of more than 3 MiB: %d %s", code, body)
	}
	if code, _, body := post(t.Context(), admin, filler(2<<20)); code != http.StatusCreated {
		t.Errorf("a body of 2 MiB, most of it a comment: %d %s", code, body)
	}

	// The administrator's request holds the one place; his own further ones pass, as the group
	// system:masters always does, and somebody else's do not.
	authority, _, err := pki.EnsureAuthority(filepath.Join(s.dir, ".rowkeeper", "pki", "ca.crt"),
		filepath.Join(s.dir, ".rowkeeper", "pki", "ca.key"), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(t.TempDir(), "user.crt"), filepath.Join(t.TempDir(), "user.key")
	if err := authority.Issue(pki.Certificate{CertFile: cert, KeyFile: key,
		Template: pki.Client("somebody")}); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, cert, key
	somebody, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, body := post(t.Context(), somebody, filler(1)); code != http.StatusForbidden {
		t.Errorf("somebody else's request: %d %s", code, body)
	}
	// A place is free again only a moment after the answer, and an administrator's request that
	// finds none passes without one: so a slow request may hold none, and another one tries.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tries := 0
	eventually(t, "there is no place for somebody else's request", func() bool {
		tries++
		reader, writer := io.Pipe()
		done := make(chan int)
		go func() {
			code, _, _ := post(ctx, admin, reader)
			done <- code
		}()
		if _, err := io.WriteString(writer, manifest(fmt.Sprintf("slow-%d", tries),
			"make")); err != nil {
			t.Fatal(err)
		}
		code, header, body := post(t.Context(), somebody, filler(1))
		if code == http.StatusTooManyRequests && header.Get("Retry-After") == "" {
			t.Errorf("429 without Retry-After: %s", body)
		}
		writer.Close()
		if code := <-done; code != http.StatusCreated {
			t.Errorf("the slow request: %d", code)
		}
		return code == http.StatusTooManyRequests
	})
	eventually(t, "there is a place again", func() bool {
		code, _, _ := post(t.Context(), somebody, filler(1))
		return code == http.StatusForbidden
	})
}

// After "migrate objects" nothing needs the old key: no Secret, no definition and none of its
// objects.
func TestRotationOfEverything(t *testing.T) {
	dir := t.TempDir()
	const first, second = "{name: first, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}",
		"{name: second, secret: ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=}"
	file := filepath.Join(dir, "encryption.yaml")
	serve := func(keys ...string) *server {
		t.Helper()
		config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
			"- resources: ['*.*']\n  providers:\n  - aesgcm: {keys: [" + strings.Join(keys, ", ") +
			"]}\n"
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return start(t, dir, "--enable-crds", "--encryption-provider-config="+file)
	}
	// stored counts the live rows by the key that they are encrypted with.
	stored := func() map[string]int {
		t.Helper()
		live, _ := storedValues(t, "sqlite://"+filepath.Join(dir, ".rowkeeper", "state.db"),
			storage.DefaultPrefix)
		byKey := map[string]int{}
		for _, value := range live {
			_, rest, _ := strings.Cut(string(value), "k8s:enc:aesgcm:v1:")
			key, _, _ := strings.Cut(rest, ":")
			byKey[key]++
		}
		return byKey
	}
	migrate := func(args ...string) string {
		t.Helper()
		r := run(t, dir, "", nil, rowkeeperProgram,
			append([]string{"migrate", "objects"}, args...)...)
		if r.code != 0 {
			t.Fatal(r.stderr)
		}
		return r.stdout
	}

	s := serve(first)
	s.define(t, widgets, "widgets.factory.example.com")
	s.ok(t, widget("one"), "create", "-f", "-")
	s.ok(t, "", "create", "secret", "generic", "token", "--from-literal=token=confidential")
	s.ok(t, manifest("one", "make"), "create", "-f", "-")
	s.ok(t, "", "create", "namespace", "team")
	// A controller makes this one, and nothing else is written by itself.
	s.ok(t, "", "wait", "--namespace=team", "--for=create", "--timeout=60s", "serviceaccount/default")
	before := stored()
	if before["first"] < 5 || len(before) != 1 {
		t.Fatalf("stored are %v", before)
	}
	s.signal(t, syscall.SIGTERM)
	s = serve(first, second)
	s.signal(t, syscall.SIGTERM)
	s = serve(second, first)
	// Groups can be named.
	out := migrate("--groups=core")
	has(t, out, "secrets: 1 of 1 objects rewritten\n")
	if strings.Contains(out, "pipelines") || stored()["first"] == 0 {
		t.Errorf("more than what was named is rewritten:\n%s", out)
	}
	has(t, migrate(), "secrets: 0 of 1 objects rewritten\n",
		"pipelines.ci.rowkeeper.dev: 1 of 1 objects rewritten\n",
		"customresourcedefinitions.apiextensions.k8s.io: 1 of 1 objects rewritten\n",
		"widgets.factory.example.com: 1 of 1 objects rewritten\n")
	if got := stored(); got["second"] != before["first"] || len(got) != 1 {
		t.Errorf("after the migration, stored are %v, and %v before", got, before)
	}
	s.signal(t, syscall.SIGTERM)

	s = serve(second)
	if got := s.ok(t, "", "get", "secret", "token", "-o",
		"jsonpath={.data.token}"); got != "Y29uZmlkZW50aWFs" {
		t.Errorf("the secret is %s", got)
	}
	s.ok(t, "", "get", "pl/one", "crd/widgets.factory.example.com", "wg/one", "ns/team")
	if r := run(t, dir, "", nil, rowkeeperProgram, "migrate", "objects",
		"--groups="); r.code == 0 ||
		!strings.Contains(r.stderr, "--groups must name at least one API group") {
		t.Errorf("no group: %d %s", r.code, r.stderr)
	}
	s.signal(t, syscall.SIGTERM)

	// A server without the key says so, and does not start.
	config := func(resources, keys string) string {
		file := filepath.Join(t.TempDir(), "encryption.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\n"+
			"kind: EncryptionConfiguration\nresources:\n- resources: ["+resources+"]\n  providers:\n"+
			"  - aesgcm: {keys: ["+keys+"]}\n  - identity: {}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--encryption-provider-config=" + file
	}
	for name, flags := range map[string][]string{
		"no configuration":     {"--enable-crds"},
		"another key":          {"--enable-crds", config("'*.*'", first)},
		"another key, by name": {"--enable-crds", config("'*.*'", strings.Replace(first, "first", "second", 1))},
		"other resources":      {"--enable-crds", config("configmaps", second)},
		"one kind without": {"--enable-crds", config("'*.', '*.ci.rowkeeper.dev', "+
			"'*.apiextensions.k8s.io', '*.rbac.authorization.k8s.io', '*.coordination.k8s.io', "+
			"'*.flowcontrol.apiserver.k8s.io'", second)},
		"without definitions": {"--watch-cache=false"},
	} {
		s := launch(t, dir, flags...)
		code, log := s.exit(t), s.stderr.String()
		// Upstream's transformers log what they could not decrypt, before.
		if code != 1 || strings.Count(log, "\n") > 4 || !strings.Contains(log, "rowkeeper: give a "+
			"file with the keys of all stored objects by --encryption-provider-config: the objects "+
			"below /registry/") || !strings.Contains(log, `by aesgcm with the key "second"`) {
			t.Errorf("%s: exit code %d: %s", name, code, log)
		}
		if name == "one kind without" && !strings.Contains(log, "/registry/factory.example.com/widgets") {
			t.Errorf("%s: %s", name, log)
		}
	}
}
