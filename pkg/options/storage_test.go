package options_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	exampleinstall "k8s.io/apiserver/pkg/apis/example/install"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	encryptionconfigcontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// Note is what the servers of these tests serve.
type Note struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Text string `json:"text,omitempty"`
}

func (n *Note) DeepCopyObject() runtime.Object { return kinds.DeepCopy(n) }

var notes = schema.GroupVersionResource{Group: "notes.example.com", Version: "v1",
	Resource: "notes"}

// patience is how long anything may take that a test waits for.
const patience = time.Minute

func newAPI(t *testing.T) *kinds.API {
	t.Helper()
	api, err := kinds.New(kinds.Group{Name: notes.Group, Versions: []string{notes.Version},
		Kinds: []kinds.Definition{kinds.Define(kinds.Kind[Note]{})}})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// start serves notes; change is for the options.
func start(t *testing.T, o testkit.Options, change func(*options.StorageOptions)) *testkit.Server {
	t.Helper()
	api := newAPI(t)
	o.Storage = change
	return testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, o)
}

func client(config *rest.Config) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(config).Resource(notes).Namespace("default")
}

func note(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": notes.GroupVersion().String(), "kind": "Note",
		"metadata": map[string]any{"name": name}, "text": "the secret of " + name,
	}}
}

func create(t *testing.T, c dynamic.ResourceInterface, name string) {
	t.Helper()
	if _, err := c.Create(t.Context(), note(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, c dynamic.ResourceInterface) string {
	t.Helper()
	list, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, n := range list.Items {
		all = append(all, n.GetName())
	}
	return strings.Join(all, " ")
}

// get returns the status and the body of a page.
func get(t *testing.T, s *testkit.Server, path string) (int, string) {
	t.Helper()
	code, _, body := ask(t, s, path)
	return code, body
}

// ask returns the answer to a request.
func ask(t *testing.T, s *testkit.Server, path string) (code int, header http.Header, body string) {
	t.Helper()
	c, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Get(s.Config.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header, string(content)
}

// metric returns the value of a metric, whose name and labels a pattern matches.
func metric(t *testing.T, s *testkit.Server, pattern string) string {
	t.Helper()
	_, page := get(t, s, "/metrics")
	if found := regexp.MustCompile(`(?m)^` + pattern +
		` (\S+)$`).FindStringSubmatch(page); found != nil {
		return found[1]
	}
	return ""
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// TestHealthAndReadiness: a server without its database is neither healthy nor ready, and is not to
// be restarted.
func TestHealthAndReadiness(t *testing.T) {
	s := start(t, testkit.Options{Database: testkit.Memory}, nil)
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := get(t, s, path+"?verbose"); status != http.StatusOK ||
			!strings.Contains(body, "[+]storage ok") {
			t.Errorf("%s: %d\n%s", path, status, body)
		}
	}
	if err := s.Store.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := get(t, s, path+"?verbose"); status != http.StatusInternalServerError ||
			!strings.Contains(body, "[-]storage failed") {
			t.Errorf("without a database, %s: %d\n%s", path, status, body)
		}
	}
	if status, body := get(t, s, "/livez"); status != http.StatusOK {
		t.Errorf("without a database, /livez: %d\n%s", status, body)
	}
}

// TestMetricsAndCounts: the size, the number of objects, what the storage counts itself, and the
// tracker by which requests are weighed.
func TestMetricsAndCounts(t *testing.T) {
	api := newAPI(t)
	var config *genericapiserver.RecommendedConfig
	s := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig,
		New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer,
			error) {
			config = c
			return api.New(c)
		},
	}, testkit.Options{Storage: func(o *options.StorageOptions) {
		o.CountInterval = 10 * time.Millisecond
	}})
	create(t, client(s.Config), "a")
	create(t, client(s.Config), "b")
	eventually(t, "the tracker counts the notes", func() bool {
		stats, err := config.StorageObjectCountTracker.Get(notes.GroupResource().String())
		return err == nil && stats.ObjectCount == 2
	})
	eventually(t, "the metric counts the notes", func() bool {
		return metric(t, s,
			`apiserver_resource_objects\{group="notes\.example\.com",resource="notes"\}`) == "2"
	})
	if size := metric(t, s, `apiserver_storage_size_bytes\{[^}]*\}`); size == "" || size == "0" {
		t.Errorf("the size is %q", size)
	}
	if count := metric(t, s,
		`rowkeeper_commit_duration_seconds_count(?:\{[^}]*\})?`); count == "" || count == "0" {
		t.Errorf("%q commits were counted", count)
	}
}

// TestConsistentReads: a list without a resourceVersion comes from the watch cache.
func TestConsistentReads(t *testing.T) {
	s := start(t, testkit.Options{Database: testkit.Memory}, nil)
	c := client(s.Config)
	read := func() string {
		return metric(t, s,
			`apiserver_watch_cache_consistent_read_total\{fallback="false",group="notes\.example\.com",resource="notes",success="true"\}`)
	}
	before := read()
	create(t, c, "a")
	if got := names(t, c); got != "a" {
		t.Errorf("listed %q", got)
	}
	if after := read(); after == before {
		t.Errorf("consistent reads from the cache: %q, then %q", before, after)
	}
}

const encryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [notes.notes.example.com]
  providers:
`

func secretbox(name string) string {
	secrets := map[string]string{"first": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
		"second": "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="}
	return fmt.Sprintf("  - {secretbox: {keys: [{name: %s, secret: %s}]}}\n", name, secrets[name])
}

// stored returns how the newest values of the file begin, by what they are about.
func stored(t *testing.T, dir string) map[string]string {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "state.db")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT log.key, log.value FROM rowkeeper_live "+
		"live JOIN rowkeeper_log log USING (revision)")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	values := map[string]string{}
	for rows.Next() {
		var key, value []byte
		if err := rows.Scan(&key, &value); err != nil {
			t.Fatal(err)
		}
		begin := value
		if strings.Contains(string(value), "secret of") {
			begin = []byte("plain")
		} else if len(value) > 30 {
			begin = value[:30]
		}
		values[filepath.Base(string(key))] = string(begin)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return values
}

// TestEncryptionReload changes the key, and then the file to one that cannot be read, while the
// server runs.
func TestEncryptionReload(t *testing.T) {
	encryptionconfigcontroller.EncryptionConfigFileChangePollDuration = 10 * time.Millisecond
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "encryption.yaml")
	write := func(content string) {
		t.Helper()
		// At once, as a file in the middle of being written is none.
		if err := os.WriteFile(file+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	encrypted := func(o *options.StorageOptions) {
		o.EncryptionConfig, o.EncryptionConfigReload = file, true
	}
	plain := start(t, testkit.Options{Dir: dir}, nil)
	create(t, client(plain.Config), "plain")
	plain.Stop()

	write(encryption + secretbox("first") + "  - {identity: {}}\n")
	s := start(t, testkit.Options{Dir: dir}, encrypted)
	c := client(s.Config)
	create(t, c, "first")
	if status, body := get(t, s, "/readyz?verbose"); status != http.StatusOK ||
		!strings.Contains(body, "[+]kms-providers ok") {
		t.Errorf("ready: %d\n%s", status, body)
	}
	write(encryption + secretbox("second") + secretbox("first") + "  - {identity: {}}\n")
	n := 0
	eventually(t, "new notes are encrypted with the second key", func() bool {
		n++
		create(t, c, fmt.Sprint("second-", n))
		return strings.HasPrefix(stored(t, dir)[fmt.Sprint("second-", n)],
			"k8s:enc:secretbox:v1:second:")
	})
	values := stored(t, dir)
	if !strings.HasPrefix(values["first"], "k8s:enc:secretbox:v1:first:") ||
		values["plain"] != "plain" {
		t.Errorf("stored is %q", values)
	}
	// A file that makes no sense changes nothing, and is counted.
	failures := func() string {
		return metric(t, s,
			`apiserver_encryption_config_controller_automatic_reloads_total\{[^}]*status="failure"\}`)
	}
	before := failures()
	write("resources: [")
	eventually(t, "the failure is counted", func() bool { return failures() != before })
	create(t, c, "after")
	for _, name := range []string{"plain", "first", "after", fmt.Sprint("second-", n)} {
		got, err := c.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.Object["text"] != "the secret of "+name {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got := stored(t, dir)["after"]; !strings.HasPrefix(got, "k8s:enc:secretbox:v1:second:") {
		t.Errorf("after the failure, stored is %q", got)
	}
	s.Stop()

	// Without the key that an object was written with, no server starts, and the object is still
	// there.
	write(encryption + secretbox("second"))
	api := newAPI(t)
	if wrong, err := testkit.Launch(t.Context(), testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{Dir: dir,
		Storage: func(o *options.StorageOptions) { o.EncryptionConfig = file }}); err == nil {
		t.Error("a server starts without the key", wrong.Stop())
	} else if !strings.Contains(err.Error(), "by --encryption-provider-config: the objects below "+
		`/registry/notes.example.com/notes are encrypted by secretbox with the key "first"`) {
		t.Error(err)
	}
	if !strings.HasPrefix(stored(t, dir)["first"], "k8s:enc:secretbox:v1:first:") {
		t.Error("the object is lost")
	}
}

// TestMediaTypes stores in protobuf what has code for it, as upstream's example types have, and
// refuses to where a type has none.
func TestMediaTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	exampleinstall.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	store, err := storage.Open(t.Context(),
		storage.Config{URL: "memory:", Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	o := options.NewStorageOptions("/registry", scheme, codecs, sqlite.Driver)
	o.URL, o.MediaType = "memory:", runtime.ContentTypeProtobuf
	if err := errors.Join(o.Validate()...); err != nil {
		t.Fatal(err)
	}
	config := newAPI(t).NewConfig()
	if err := o.ApplyTo(&config.Config, store); err != nil {
		t.Fatal(err)
	}
	pods, err := config.RESTOptionsGetter.GetRESTOptions(example.Resource("pods"), &example.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: example.PodSpec{NodeName: "here"}}
	codec := pods.StorageConfig.Codec
	encoded, err := runtime.Encode(codec, pod)
	if err != nil || !strings.HasPrefix(string(encoded), "k8s\x00") {
		t.Fatalf("%q is stored: %v", encoded, err)
	}
	decoded, err := runtime.Decode(codec, encoded)
	if err != nil || decoded.(*example.Pod).Spec.NodeName != "here" {
		t.Errorf("%v comes back: %v", decoded, err)
	}

	api := newAPI(t)
	o = options.NewStorageOptions("/registry", api.Scheme, api.Codecs, sqlite.Driver)
	o.URL, o.MediaType = "memory:", runtime.ContentTypeProtobuf
	if err := errors.Join(o.Validate()...); err == nil || !strings.Contains(err.Error(),
		`"application/vnd.kubernetes.protobuf" is not one of application/json, application/yaml`) {
		t.Errorf("types without code for protobuf: %v", err)
	}
}

// handler makes a server of the options, without connections. It stops with the test.
func handler(t *testing.T, api *kinds.API, store *storage.Store, prefix string) http.Handler {
	t.Helper()
	o := options.NewStorageOptions(prefix, api.Scheme, api.Codecs)
	config := api.NewConfig()
	config.LoopbackClientConfig = &rest.Config{}
	config.ExternalAddress = "127.0.0.1:443"
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	if err := o.ApplyTo(&config.Config, store); err != nil {
		t.Fatal(err)
	}
	server, err := api.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	server.PrepareRun().RunPostStartHooks(ctx)
	t.Cleanup(func() {
		if err := server.RunPreShutdownHooks(); err != nil {
			t.Error(err)
		}
		cancel()
		server.Destroy()
	})
	return server.Handler
}

// TestServersOnOneDatabase runs several servers on one open database, of which some have the same
// prefix, and closes everything without a goroutine being left.
func TestServersOnOneDatabase(t *testing.T) {
	use := func(t *testing.T) {
		store, err := storage.Open(t.Context(),
			storage.Config{URL: "memory:", Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		clients := map[string]dynamic.ResourceInterface{}
		for name, prefix := range map[string]string{"one": "/registry/one",
			"replica": "/registry/one", "two": "/registry/two", "deep": "/registry/one/deep"} {
			s := httptest.NewServer(handler(t, newAPI(t), store, prefix))
			t.Cleanup(s.Close)
			config := &rest.Config{Host: s.URL, QPS: -1}
			c, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.CloseIdleConnections)
			d, err := dynamic.NewForConfigAndClient(config, c)
			if err != nil {
				t.Fatal(err)
			}
			clients[name] = d.Resource(notes).Namespace("default")
		}
		// All write the same name, but for the replicas.
		for _, name := range []string{"one", "two", "deep"} {
			create(t, clients[name], "same")
			create(t, clients[name], name)
		}
		create(t, clients["replica"], "replica")
		for name, want := range map[string]string{"one": "one replica same",
			"replica": "one replica same", "two": "same two", "deep": "deep same"} {
			if got := names(t, clients[name]); got != want {
				t.Errorf("%s lists %q, want %q", name, got, want)
			}
		}
	}
	// Goroutines that the API machinery starts once for a process are there after the first use.
	t.Run("first", use)
	known := goleak.IgnoreCurrent()
	t.Run("again", use)
	// A watch cache that was read consistently keeps a timer of three seconds for each wait.
	var left error
	t.Cleanup(func() {
		if left != nil {
			t.Log(left)
		}
	})
	eventually(t, "no goroutine is left", func() bool {
		left = goleak.Find(known)
		return left == nil
	})
}

func TestApplyToRefuses(t *testing.T) {
	api := newAPI(t)
	store, err := storage.Open(t.Context(),
		storage.Config{URL: "memory:", Drivers: []storage.Driver{sqlite.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	for name, tc := range map[string]struct {
		store  *storage.Store
		change func(*options.StorageOptions)
		want   string
	}{
		"no database": {nil, func(*options.StorageOptions) {}, "open one first"},
		"no scheme": {store, func(o *options.StorageOptions) {
			o.Scheme = nil
		}, "needs a scheme and a serializer"},
		"no codec": {store, func(o *options.StorageOptions) {
			o.Serializer = nil
		}, "needs a scheme and a serializer"},
		"a watch cache size": {store, func(o *options.StorageOptions) {
			o.WatchCacheSizes = []string{"notes"}
		}, "not of the form resource.group#size"},
		"no encryption file": {store, func(o *options.StorageOptions) {
			o.EncryptionConfig = "/nowhere/encryption.yaml"
		}, "cannot use --encryption-provider-config"},
		"an encryption directory": {store, func(o *options.StorageOptions) {
			o.EncryptionConfig = t.TempDir()
		}, "cannot use --encryption-provider-config"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options.NewStorageOptions("/registry", api.Scheme, api.Codecs)
			tc.change(o)
			if err := o.ApplyTo(&api.NewConfig().Config, tc.store); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
		})
	}
	// Options that are not there change nothing, as upstream's.
	var none *options.StorageOptions
	config := api.NewConfig()
	if err := none.ApplyTo(&config.Config, store); err != nil || config.RESTOptionsGetter != nil ||
		len(none.Validate()) != 0 {
		t.Errorf("no options: %v", err)
	}
}

// The file with the URL is read again when a connection is made.
func TestDatabaseFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	write := func(url string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("postgres://first@h/db")
	o := options.StorageOptions{URLFile: file}
	c, err := o.Database()
	if err != nil || c.URL != "postgres://first@h/db" {
		t.Fatalf("the URL is %q, %v", c.URL, err)
	}
	write("postgres://second@h/db")
	if now, err := c.Login(t.Context()); err != nil || now.URL != "postgres://second@h/db" {
		t.Errorf("the login is now %v, %v", now, err)
	}
	if name := o.DatabaseName(); !strings.HasSuffix(name, file) {
		t.Errorf("the database is shown as %q", name)
	}
}

func TestDatabaseEnv(t *testing.T) {
	o := options.StorageOptions{URLEnv: "URL_OF_THE_TEST"}
	if _, err := o.Database(); err == nil || !strings.Contains(err.Error(), "URL_OF_THE_TEST is not set") {
		t.Errorf("without the variable: %v", err)
	}
	t.Setenv("URL_OF_THE_TEST", "postgres://first:secret@h/db\n")
	c, err := o.Database()
	if err != nil || c.URL != "postgres://first:secret@h/db" {
		t.Fatalf("the URL is %q, %v", c.URL, err)
	}
	if name := o.DatabaseName(); name != "the database of $URL_OF_THE_TEST" {
		t.Errorf("the database is shown as %q", name)
	}
}

// The program of a login is run once for all connections, and what it says takes the place of the
// URL's user.
func TestDatabaseLogin(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "login")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho run >>\"$1\"\n"+
		`echo '{"user": "'$2'", "password": "p"}'`+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := options.StorageOptions{URL: "postgres://h/db", Login: script + "  " + dir + "/runs someone "}
	c, err := o.Database()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := c.Login(t.Context()); err != nil || got.User != "someone" || got.Password != "p" {
			t.Errorf("the login is %v, %v", got, err)
		}
	}
	if runs, err := os.ReadFile(dir + "/runs"); err != nil || string(runs) != "run\n" {
		t.Errorf("%q, %v", runs, err)
	}
	for _, url := range []string{"sqlite:x.db", "memory:"} {
		o.URL = url
		if _, err := o.Database(); err == nil || !strings.Contains(err.Error(), "has no users") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestValidateURL(t *testing.T) {
	for want, o := range map[string]options.StorageOptions{
		"no target is named: give --to, --to-file or --to-env": {Login: "x"},
		"--to, --to-file and --to-env exclude each other":      {URLFile: "x", URLEnv: "X"},
		"--to-login names no program":                          {URL: "x", Login: " "},
		"<nil>":                                                {URLEnv: "X", Login: "x"},
	} {
		if err := o.ValidateURL("to", "target"); fmt.Sprint(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
		if got := o.NamesDatabase(); got != (o.URL+o.URLFile+o.URLEnv != "") {
			t.Errorf("%+v names a database: %t", o, got)
		}
	}
}
