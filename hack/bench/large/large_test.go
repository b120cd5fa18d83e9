package large

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	group, plural = "bench.example.com", "things"
	// fillers write the objects, and clients read them.
	fillers, clients = 256, 64
	// measured is how long each phase of reads lasts, and paced how many reads a second there are
	// in one that is not flat out.
	measured = 30 * time.Second
	paced    = 1_000
	// Of each familyEvery families of objects, all of one but its first belong to that.
	family, familyEvery = 1_000, 100
	// lost belongs to an owner that never was, and comes last: when it is gone, the collector has
	// been through all objects.
	lost = "zzz"
)

var resource = schema.GroupResource{Group: group, Resource: plural}

// TestLarge fills a database, starts a server on it, and reads while the garbage collector goes
// through all objects, and after that.
func TestLarge(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("ROWKEEPER_TEST_LARGE"))
	if err != nil || n < family {
		t.Skip("ROWKEEPER_TEST_LARGE does not say how many objects there are, at least 1,000")
	}
	program := filepath.Join(t.TempDir(), "rowkeeper")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "../../../cmd/rowkeeper"
	build.Env = append(os.Environ(), "GOWORK=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"rowkeeper-sqlite", "rowkeeper-postgres", "rowkeeper-mariadb",
		"rowkeeper-mysql"} {
		t.Run(name, func(t *testing.T) { (&run{T: t, n: n, program: program}).all(name) })
	}
}

type run struct {
	*testing.T
	n            int
	program, dir string
	database     string
	server       *exec.Cmd
	client       *http.Client
	url          string
}

func (x *run) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *run) all(name string) {
	found, err := target.Find([]string{name})
	x.must(err)
	p := target.FindPrograms()
	if missing := found[0].Missing(p); missing != "" {
		x.Skipf("%s is not installed", missing)
	}
	// The servers run as other users, who could not enter the test's own directory.
	x.dir, err = os.MkdirTemp(os.Getenv("ROWKEEPER_TEST_LARGE_DIR"), "rowkeeper-large-*")
	x.must(err)
	x.Cleanup(func() { os.RemoveAll(x.dir) })
	x.must(os.Chmod(x.dir, 0o755))
	data := filepath.Join(x.dir, "database")
	x.must(os.Mkdir(data, 0o755))
	db, err := found[0].Serve(x.Context(), data, p)
	x.must(err)
	x.Cleanup(func() { _ = db.Stop() })
	x.database = db.Address()

	x.start()
	x.define()
	x.until("the index of the owners is ready", func() bool {
		all, err := storage.Indexes(x.Context(), x.config())
		return err == nil && len(all) == 1 && all[0].Ready
	})
	x.stop()
	began := time.Now()
	x.fill()
	disk, _, err := measure.DirSize(data)
	x.must(err)
	x.Logf("%d objects were written in %s, and take %d MB of disk", x.n,
		time.Since(began).Round(time.Second), disk>>20)

	began = time.Now()
	x.start()
	x.Logf("ready after %s, %d MB", time.Since(began).Round(time.Millisecond), x.memory()>>20)
	began = time.Now()
	peak := x.watchMemory()
	x.reads("while the collector goes through all objects", 0)
	x.until("the collector has been through all objects", func() bool {
		return x.request(http.MethodGet, x.path("default", lost), nil, nil) == http.StatusNotFound
	})
	x.Logf("the collector has been through all objects after %s; the server took %d MB at most",
		time.Since(began).Round(time.Second), peak()>>20)
	peak = x.watchMemory()
	x.reads("flat out", 0)
	x.reads(fmt.Sprintf("%d/s", paced), paced)
	x.pages()
	x.collect()
	x.Logf("the server took %d MB at most, and %d MB now", peak()>>20, x.memory()>>20)
	x.stop()
}

func (x *run) config() storage.Config {
	return storage.Config{URL: x.database,
		Drivers: []storage.Driver{sqlite.Driver, postgres.Driver, mysql.Driver}}
}

// start starts the server, and waits until it is ready.
func (x *run) start() {
	x.Helper()
	port, err := programs.FreePort()
	x.must(err)
	home := filepath.Join(x.dir, "server")
	output, err := os.Create(filepath.Join(x.dir, "serve.log"))
	x.must(err)
	defer output.Close()
	x.server = exec.Command(x.program, "serve", "--enable-crds", "--data-dir="+home,
		"--database="+x.database, fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1",
		fmt.Sprintf("--watch-cache-sizes=%s.%s#0", plural, group))
	x.server.Stdout, x.server.Stderr = output, output
	x.must(x.server.Start())
	server := x.server
	x.Cleanup(func() { _ = server.Process.Kill() })
	x.until("the server is ready", func() bool {
		kubeconfig, err := clientcmd.BuildConfigFromFlags("", filepath.Join(home, "kubeconfig"))
		if err != nil {
			return false
		}
		if x.client, err = rest.HTTPClientFor(kubeconfig); err != nil {
			return false
		}
		x.url = kubeconfig.Host
		return strings.HasSuffix(x.url, fmt.Sprint(":", port)) &&
			x.request(http.MethodGet, "/readyz", nil, nil) == http.StatusOK
	})
}

func (x *run) stop() {
	x.Helper()
	x.must(x.server.Process.Signal(syscall.SIGTERM))
	x.must(x.server.Wait())
}

// until waits for a state, which is asked for since other programs make it.
func (x *run) until(what string, is func() bool) {
	x.Helper()
	for tick := time.NewTicker(100 * time.Millisecond); !is(); {
		select {
		case <-tick.C:
		case <-x.Context().Done():
			x.Fatalf("it did not come to this: %s", what)
		}
	}
}

func (x *run) path(namespace, name string) string {
	return "/apis/" + group + "/v1/namespaces/" + namespace + "/" + plural + "/" + name
}

// request returns the status of an answer, 0 if there is none, and reads it into out.
func (x *run) request(method, path string, in any, out *[]byte) int {
	body, err := json.Marshal(in)
	x.must(err)
	r, err := http.NewRequestWithContext(x.Context(), method, x.url+path, bytes.NewReader(body))
	x.must(err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := x.client.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	if out != nil {
		*out = answer
	}
	return resp.StatusCode
}

func (x *run) define() {
	x.Helper()
	definition := map[string]any{"apiVersion": "apiextensions.k8s.io/v1",
		"kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "kind": "Thing"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
					"x-kubernetes-preserve-unknown-fields": true}}}}}}
	if status := x.request(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		definition, nil); status != http.StatusCreated {
		x.Fatalf("the definition: %d", status)
	}
	x.until("the kind is served", func() bool {
		return x.request(http.MethodGet, x.path("default", "none"), nil, nil) == http.StatusNotFound &&
			x.request(http.MethodGet, "/apis/"+group+"/v1", nil, nil) == http.StatusOK
	})
}

func name(i int) string { return fmt.Sprintf("thing-%010d", i) }

func uid(i int) types.UID { return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)) }

// fill writes the objects as the server would.
func (x *run) fill() {
	x.Helper()
	store, err := storage.Open(x.Context(), x.config())
	x.must(err)
	defer store.Close()
	things, release, err := store.Resource(storage.ResourceConfig{
		Codec: unstructured.UnstructuredJSONScheme, NewFunc: func() runtime.Object {
			return &unstructured.Unstructured{}
		}, ResourcePrefix: "/" + group + "/" + plural, GroupResource: resource})
	x.must(err)
	defer release()
	write := func(name string, id types.UID, owner *metav1.OwnerReference, payload string) error {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": payload}}
		o.SetAPIVersion(group + "/v1")
		o.SetKind("Thing")
		o.SetNamespace("default")
		o.SetName(name)
		o.SetUID(id)
		o.SetGeneration(1)
		o.SetCreationTimestamp(metav1.Now())
		if owner != nil {
			o.SetOwnerReferences([]metav1.OwnerReference{*owner})
		}
		return things.Create(x.Context(), "/"+group+"/"+plural+"/default/"+name, o, nil, 0)
	}
	owner := func(i int) *metav1.OwnerReference {
		return &metav1.OwnerReference{APIVersion: group + "/v1", Kind: "Thing", Name: name(i),
			UID: uid(i)}
	}
	var next atomic.Int64
	var filling sync.WaitGroup
	for range fillers {
		filling.Go(func() {
			random := make([]byte, 700)
			for i := int(next.Add(1)) - 1; i < x.n && !x.Failed(); i = int(next.Add(1)) - 1 {
				for j := range random {
					random[j] = 'a' + byte(rand.IntN(26))
				}
				var of *metav1.OwnerReference
				if first := i / family * family; first%(family*familyEvery) == 0 && i != first {
					of = owner(first)
				}
				if err := write(name(i), uid(i), of, string(random)); err != nil {
					x.Error(err)
				}
			}
		})
	}
	filling.Wait()
	x.must(write(lost, uid(x.n), owner(x.n+1), ""))
}

func (x *run) memory() int64 {
	x.Helper()
	bytes, err := measure.Memory([]int{x.server.Process.Pid})
	x.must(err)
	return bytes
}

// watchMemory returns what ends it and tells the peak of the server's memory.
func (x *run) watchMemory() (peak func() int64) {
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		bytes, _, err := measure.PeakMemory([]int{x.server.Process.Pid}, func() error {
			<-stop
			return nil
		})
		if err != nil {
			x.Error(err)
		}
		most <- bytes
	}()
	return func() int64 {
		close(stop)
		return <-most
	}
}

// reads gets objects at random, flat out or so many a second.
func (x *run) reads(how string, rate int) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), measured)
	defer cancel()
	var all measure.Latencies
	var mu sync.Mutex
	var reading sync.WaitGroup
	for range clients {
		reading.Go(func() {
			var own measure.Latencies
			for due := time.Now(); ctx.Err() == nil; {
				if rate > 0 {
					due = due.Add(time.Duration(rand.Int64N(2*int64(time.Second)*clients/int64(rate) + 1)))
					select {
					case <-time.After(time.Until(due)):
					case <-ctx.Done():
						continue
					}
				}
				began := time.Now()
				if status := x.request(http.MethodGet, x.path("default", name(rand.IntN(x.n))), nil,
					nil); status != http.StatusOK {
					x.Errorf("get: %d", status)
					return
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	reading.Wait()
	x.Logf("%d clients get, %s: %.0f/s, p50 %.2f ms, p99 %.2f ms", clients, how,
		float64(len(all))/measured.Seconds(), measure.Milliseconds(all.Percentile(50)),
		measure.Milliseconds(all.Percentile(99)))
}

// pages reads the first pages of a list.
func (x *run) pages() {
	x.Helper()
	token := ""
	for i := range 3 {
		began := time.Now()
		var page []byte
		if status := x.request(http.MethodGet, x.path("default", "?limit=500&continue="+token), nil,
			&page); status != http.StatusOK {
			x.Fatalf("page: %d", status)
		}
		var list metav1.PartialObjectMetadataList
		x.must(json.Unmarshal(page, &list))
		token = list.Continue
		x.Logf("page %d of 500: %.1f ms", i+1, measure.Milliseconds(time.Since(began)))
	}
}

// collect deletes an owner, and waits until its dependents are gone.
func (x *run) collect() {
	x.Helper()
	began := time.Now()
	if status := x.request(http.MethodDelete, x.path("default", name(0)), nil,
		nil); status != http.StatusOK {
		x.Fatalf("delete: %d", status)
	}
	x.until("the dependents are gone", func() bool {
		for i := family - 1; i > 0; i-- {
			if x.request(http.MethodGet, x.path("default", name(i)), nil,
				nil) != http.StatusNotFound {
				return false
			}
		}
		return true
	})
	x.Logf("the %d dependents of an owner are gone after %s", family-1,
		time.Since(began).Round(time.Millisecond))
}
