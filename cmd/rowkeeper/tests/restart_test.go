package tests

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

func newPipeline(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ci.rowkeeper.dev/v1",
		"kind":       "Pipeline",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{"image": "golang:1.26",
			"steps": []any{map[string]any{"name": "main", "command": []any{"make", name}}}},
	}}
}

func revision(t testing.TB, o interface{ GetResourceVersion() string }) int64 {
	t.Helper()
	r, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// current is the server of a test that restarts it, as its clients find it.
type current struct {
	mu sync.Mutex
	s  *server
}

func (c *current) get() *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.s
}

func (c *current) set(s *server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s = s
}

func (c *current) pipelines(t testing.TB) dynamic.ResourceInterface {
	return c.get().dynamic(t).Resource(pipelines).Namespace("default")
}

// While writers write and a watcher watches, the server is stopped or killed and started again,
// several times. Nothing that was acknowledged is missing, the watcher sees every event once and in
// order, and resourceVersions go on.
func TestRestartUnderLoad(t *testing.T) { eachDatabase(t, testRestartUnderLoad) }

func testRestartUnderLoad(t *testing.T, start func(string, ...string) *server) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			dir := t.TempDir()
			var server current
			server.set(start(dir))
			ctx, stop := context.WithCancel(t.Context())
			defer stop()

			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()

			// The watcher resumes from the last event that it saw, or from a list where the server
			// says that it has to, as informers do: a watch cache has no events from before it was
			// filled.
			var watcher sync.Mutex
			seen := map[string]int64{} // the revision at which a pipeline was created
			last, relists := int64(0), 0
			see := func(o *unstructured.Unstructured) {
				r := revision(t, o)
				if r <= last {
					t.Errorf("the event of %s at %d came after one at %d", o.GetName(), r, last)
				}
				if _, twice := seen[o.GetName()]; twice {
					t.Errorf("another event of %s at %d, which was seen already", o.GetName(), r)
				}
				seen[o.GetName()], last = r, r
			}
			relist := func() error {
				list, err := server.pipelines(t).List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
					return cmp.Compare(revision(t, &a), revision(t, &b))
				})
				for _, item := range list.Items {
					if revision(t, &item) > last {
						see(&item)
					}
				}
				last = max(last, revision(t, list))
				relists++
				return nil
			}
			if err := relist(); err != nil {
				t.Fatal(err)
			}
			watchOn := func() {
				w, err := server.pipelines(t).Watch(ctx,
					metav1.ListOptions{ResourceVersion: strconv.FormatInt(last, 10),
						AllowWatchBookmarks: true})
				if err != nil {
					return // the server is away
				}
				defer w.Stop()
				for e := range w.ResultChan() {
					watcher.Lock()
					switch o, _ := e.Object.(*unstructured.Unstructured); e.Type {
					case watch.Added:
						see(o)
					case watch.Bookmark:
						last = max(last, revision(t, o))
					case watch.Error:
						if err := apierrors.FromObject(e.Object); ctx.Err() == nil &&
							!apierrors.IsResourceExpired(err) {
							t.Errorf("the watch from %d ended with %v", last, err)
						}
						if err := relist(); err != nil && ctx.Err() == nil {
							t.Logf("cannot list yet: %v", err)
						}
					default:
						t.Errorf("an event %s of %s", e.Type, o.GetName())
					}
					watcher.Unlock()
				}
			}
			wg.Go(func() {
				for ctx.Err() == nil {
					watchOn()
				}
			})

			// The writers note what was acknowledged.
			var mu sync.Mutex
			acknowledged := map[string]int64{}
			for n := range 4 {
				wg.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						client := server.pipelines(t)
						for ; ctx.Err() == nil; i++ {
							name := fmt.Sprintf("p-%d-%d-%d", int(signal), n, i)
							o, err := client.Create(ctx, newPipeline(name), metav1.CreateOptions{})
							if err != nil {
								// whether it was done is not known; the name is not used again
								break
							}
							mu.Lock()
							acknowledged[name] = revision(t, o)
							mu.Unlock()
						}
					}
				})
			}
			written := func() int {
				mu.Lock()
				defer mu.Unlock()
				return len(acknowledged)
			}
			more := func() {
				goal := written() + 100
				eventually(t, "the writers go on", func() bool {
					return written() >= goal || ctx.Err() != nil
				})
			}
			more()
			for range 3 {
				code := server.get().signal(t, signal)
				if signal == syscall.SIGTERM && code != 0 {
					t.Errorf("the server exited with %d after SIGTERM", code)
				}
				server.set(start(dir))
				more()
			}

			list, err := server.pipelines(t).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			want := make(map[string]int64, len(acknowledged))
			for name, r := range acknowledged {
				if r <= revision(t, list) {
					want[name] = r
				}
			}
			mu.Unlock()
			eventually(t, "the watcher has seen what the list has", func() bool {
				watcher.Lock()
				defer watcher.Unlock()
				return last >= revision(t, list) || ctx.Err() != nil
			})
			stored := map[string]int64{}
			for _, item := range list.Items {
				stored[item.GetName()] = revision(t, &item)
			}
			watcher.Lock()
			defer watcher.Unlock()
			for name, r := range want {
				if stored[name] != r {
					t.Errorf("%s was acknowledged at %d and is stored at %d", name, r, stored[name])
				}
			}
			for name, r := range stored {
				if seen[name] != r {
					t.Errorf("%s is stored at %d and was seen by the watcher at %d", name, r,
						seen[name])
				}
			}
			t.Logf("%d acknowledged, %d stored, %d seen, %d lists", len(want), len(stored),
				len(seen), relists)
		})
	}
}

// manifests is how many pipelines there are: more than a page of kubectl's lists, which has 500.
// kubectl takes one after the other, so each costs time.
const manifests = 520

// Many pipelines as people write them, by kubectl alone: applied, listed, watched, changed, kept
// over a crash, deleted.
func TestManyManifests(t *testing.T) {
	t.Parallel()
	files := filepath.Join(t.TempDir(), "manifests")
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, root, "", nil, "go", "run", "./cmd/rowkeeper/tests/manifests", "-n",
		strconv.Itoa(manifests), "-namespace", "default", "-o", files); r.code != 0 {
		t.Fatal(r.stderr)
	}
	if written, err := os.ReadDir(files); err != nil || len(written) != manifests {
		t.Fatalf("%d manifests: %v", len(written), err)
	}
	dir := t.TempDir()
	s := start(t, dir)
	watched := s.kubectlBackground(t, "get", "pl", "-w", "--no-headers")
	if out := s.ok(t, "", "apply", "-f", files); strings.Count(out, " created\n") != manifests {
		t.Errorf("not all were created:\n%s", out)
	}
	names := s.ok(t, "", "get", "pl", "-o", "name")
	if n := strings.Count(names, "\n"); n != manifests {
		t.Errorf("%d are listed", n)
	}
	seen := map[string]bool{}
	for len(seen) < manifests {
		name, _, _ := strings.Cut(<-watched.lines, " ")
		seen[name] = true
	}
	watched.stop()
	if out := s.ok(t, "", "label", "pl", "--all", "wave=1"); strings.Count(out,
		" labeled\n") != manifests {
		t.Error("not all were labeled")
	}

	s.signal(t, syscall.SIGKILL)
	s = start(t, dir)
	if got := s.ok(t, "", "get", "pl", "-l", "wave=1", "-o", "name"); got != names {
		t.Error("other pipelines are there after the crash than before")
	}
	if out := s.ok(t, "", "apply", "-f", files); strings.Count(out, " unchanged\n") != manifests {
		t.Errorf("the content has changed:\n%s", out)
	}
	if out := s.ok(t, "", "delete", "pl", "--all", "--wait=false"); strings.Count(out,
		" deleted") != manifests {
		t.Error("not all were deleted")
	}
	if out := s.ok(t, "", "get", "pl", "-o", "name"); out != "" {
		t.Errorf("left over: %s", out)
	}
	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Errorf("the server exited with %d", code)
	}
}

// The write-ahead log is removed. Under a running server nothing is lost. After a kill a backup is
// refused, and the server goes on with a new history, in which no resourceVersion is used again.
func TestRemovedLog(t *testing.T) {
	dir := t.TempDir()
	database := filepath.Join(dir, ".rowkeeper", "state.db")
	remove := func() {
		t.Helper()
		for _, suffix := range []string{"-wal", "-shm"} {
			if err := os.Remove(database + suffix); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := start(t, dir)
	create := func(name string) int64 {
		t.Helper()
		var created *unstructured.Unstructured
		eventually(t, name+" is created", func() (done bool) {
			client := s.dynamic(t).Resource(pipelines).Namespace("default")
			var err error
			created, err = client.Create(t.Context(), newPipeline(name), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) { // an answer of before did not say so
				created, err = client.Get(t.Context(), name, metav1.GetOptions{})
			}
			return err == nil
		})
		return revision(t, created)
	}
	create("before")
	remove()
	last := create("after")
	backup := func() result {
		return run(t, dir, "", nil, rowkeeperProgram, "backup", "--force",
			filepath.Join(dir, "backup"), "--database=sqlite://"+database)
	}
	r := backup()
	if r.code != 0 || !strings.HasPrefix(r.stdout, "backed up 2 objects ") {
		t.Errorf("the log was removed under the server: %d %s%s", r.code, r.stdout, r.stderr)
	}

	s.signal(t, syscall.SIGKILL)
	remove()
	r = backup()
	if r.code != 1 || !strings.Contains(r.stderr, "state.db-wal") ||
		!strings.Contains(r.stderr, "the newest writes are lost") {
		t.Errorf("a backup without the log: %d %s%s", r.code, r.stdout, r.stderr)
	}
	s = start(t, dir)
	if next := create("next"); next < last+1<<31 {
		t.Errorf("the history goes on at %d, after %d was seen", next, last)
	}
}
