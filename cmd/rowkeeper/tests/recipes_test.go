package tests

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"

	"github.com/rowkeeper/rowkeeper/hack/verify/markdown"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// The databases' own tools make and restore backups by the commands of docs/operate/database.md,
// which are taken from there. After the fence no client misses what was undone: watches end with
// 410, informers list again, writes go on, and no resourceVersion is given twice.
func TestDocumentedBackups(t *testing.T) {
	_, urls := databaseURLs(t, t.TempDir())
	for _, tc := range []struct {
		kind, backup, restore, elsewhere string
		programs                         map[string]string
		// quiet is set where a backup does not end while others write.
		quiet bool
	}{
		{"sqlite", "sqlite backup", "sqlite restore", "", map[string]string{"sqlite3": "sqlite3"},
			true},
		{"sqlite", "sqlite vacuum", "sqlite restore", "", map[string]string{"sqlite3": "sqlite3"},
			false},
		{"postgres", "postgres backup", "postgres restore", "postgres elsewhere",
			map[string]string{"pg_dump": "pg_dump", "pg_restore": "pg_restore",
				"createdb": "createdb"}, false},
		{"mariadb", "mariadb backup", "mariadb restore", "mariadb elsewhere",
			map[string]string{"mariadb-dump": "mariadb-dump", "mariadb": "mariadb"}, false},
		{"mysql", "mariadb backup", "mariadb restore", "mariadb elsewhere",
			map[string]string{"mariadb-dump": "mysqldump", "mariadb": "mysql"}, false},
	} {
		if urls[tc.kind] == "" {
			continue // databaseURLs has said why
		}
		t.Run(tc.kind+" by "+tc.backup, func(t *testing.T) {
			o := newOperator(t, tc.kind, urls[tc.kind], tc.programs)
			u := undoing{url: o.url, quiet: tc.quiet, backup: func(*server) {
				o.do(t, tc.backup)
			}, restore: func() string { return o.do(t, tc.restore) }}
			if tc.elsewhere != "" {
				u.elsewhere = o.restoredURL
				u.restoreElsewhere = func() string { return o.do(t, tc.elsewhere) }
			}
			testUndoing(t, u)
		})
	}
}

// Snapshots of the volumes are set back in the documented order: servers, database, snapshot,
// database, fence, servers.
func TestSnapshotsOfVolumes(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		if only := os.Getenv("ROWKEEPER_TEST_ONLY"); only != "" &&
			!strings.Contains(only, "sqlite") {
			t.Skip("sqlite: ROWKEEPER_TEST_ONLY leaves it out")
		}
		file := filepath.Join(t.TempDir(), "state.db")
		snapshot := map[string][]byte{}
		testUndoing(t, undoing{
			url: "sqlite://" + file,
			backup: func(s *server) {
				// Both files at one moment, at which nobody writes.
				send := func(signal syscall.Signal) {
					if err := s.cmd.Process.Signal(signal); err != nil {
						t.Fatal(err)
					}
				}
				send(syscall.SIGSTOP)
				defer send(syscall.SIGCONT)
				for _, suffix := range []string{"", "-wal"} {
					content, err := os.ReadFile(file + suffix)
					if err != nil {
						t.Fatal(err)
					}
					snapshot[file+suffix] = content
				}
			},
			restore: func() string {
				for name, content := range snapshot {
					// It is written into the same file: a volume that is set back keeps its files.
					if err := os.WriteFile(name, content, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				return run(t, t.TempDir(), "", nil, rowkeeperProgram, "fence",
					"--database=sqlite://"+file).stdout
			},
		})
	})
	for kind, data := range map[string]string{"postgres": "/var/lib/postgresql/rowkeeper",
		"mariadb": "/var/lib/mysql", "mysql": "/var/lib/mysql"} {
		t.Run(kind, func(t *testing.T) {
			_, urls := databaseURLs(t, t.TempDir())
			if urls[kind] == "" {
				t.Skipf("%s cannot be had, or is left out", kind) // databaseURLs has said why
			}
			databaseURL, database := ownServer(t, programs.Kind(kind))
			u, err := url.Parse(databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			container := containerAt(t, u.Port())
			if container == "" {
				t.Skipf("%s runs on this machine, and not in a container, whose volume could be "+
					"set back", kind)
			}
			snapshot := filepath.Join(t.TempDir(), "snapshot.tar")
			docker := func(script string) {
				t.Helper()
				r := run(t, t.TempDir(), "", []string{"CONTAINER=" + container, "DATA=" + data,
					"SNAPSHOT=" + snapshot}, "bash", "-euc", script)
				if r.code != 0 {
					t.Fatalf("%s: exit code %d\n%s%s", script, r.code, r.stdout, r.stderr)
				}
			}
			do := func(command func(context.Context) error) {
				t.Helper()
				if err := command(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			testUndoing(t, undoing{
				url: databaseURL,
				// A writer would wait for the frozen database for longer than it may.
				quiet: true,
				backup: func(*server) {
					do(database.Pause)
					docker(`docker cp "$CONTAINER:$DATA" - > "$SNAPSHOT"`)
					do(database.Resume)
				},
				restore: func() string {
					docker(`docker exec "$CONTAINER" sh -c "rm -rf $DATA/*"`)
					do(database.Kill)
					docker(`docker cp - "$CONTAINER:$(dirname "$DATA")" < "$SNAPSHOT"`)
					do(database.Start)
					return run(t, t.TempDir(), "", nil, rowkeeperProgram, "fence", "--database="+
						databaseURL).stdout
				},
			})
		})
	}
}

// ownServer starts a database server that no other test uses.
func ownServer(t *testing.T, kind programs.Kind) (databaseURL string, server *dbserver.Server) {
	t.Helper()
	server, databaseURL, err := serveDatabase(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return databaseURL, server
}

// undoing is a backup of a database and its restore, by whatever means.
type undoing struct {
	url    string
	backup func(*server)
	// quiet is set where nobody may write during the backup.
	quiet bool
	// restore restores the backup when no server runs, and fences. It returns what is printed.
	restore func() string
	// restoreElsewhere restores it into another database, if it is not nil.
	elsewhere        string
	restoreElsewhere func() string
}

// testUndoing backs a database up, and undoes by a restore what was written since, under the eyes
// of a watch and an informer.
func testUndoing(t *testing.T, u undoing) {
	dir, prefix := t.TempDir(), fmt.Sprintf("--storage-prefix=/test-%d", prefixes.Add(1))
	s := start(t, dir, "--database="+u.url, "--database-migrate=true", prefix)
	h := &written{by: map[int64]string{}}
	h.create(t, s, "kept", "changed", "deleted")

	// A client goes on during the backup, which has what was written up to one moment.
	var during []string
	some, client := make(chan struct{}), sync.WaitGroup{}
	defer client.Wait()
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	client.Go(func() {
		for i := 0; writing.Err() == nil; i++ {
			during = append(during, fmt.Sprintf("during-%05d", i))
			if !h.create(t, s, during[i]) {
				return
			}
			if i == 2 {
				close(some)
			}
		}
	})
	<-some
	if u.quiet {
		stop()
		client.Wait()
	}
	before := s.content(t)
	u.backup(s)
	stop()
	client.Wait()

	h.create(t, s, "undone")
	h.patch(t, s, "changed", "undone")
	if err := s.pipelines(t).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// A watch and an informer have seen what is undone.
	list, err := s.pipelines(t).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(s.dynamic(t), pipelines, "default", 0,
		nil, nil).Informer()
	running, end := context.WithCancel(t.Context())
	var informed sync.WaitGroup
	informed.Go(func() { informer.Run(running.Done()) })
	defer informed.Wait()
	defer end()
	informs := func(name string) bool {
		_, there, err := informer.GetStore().GetByKey("default/" + name)
		return there && err == nil
	}
	eventually(t, "the informer has what will be undone", func() bool {
		return informer.HasSynced() && informs("undone")
	})

	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Fatalf("the server exited with %d", code)
	}
	has(t, u.restore(), "the history goes on at revision ")
	fenced := time.Now()
	address, err := url.Parse(s.config(t).Host)
	if err != nil {
		t.Fatal(err)
	}
	s = start(t, dir, "--database="+u.url, prefix, "--secure-port="+address.Port())

	check := func(s *server) {
		t.Helper()
		after := s.content(t)
		last := 0
		for name, text := range after {
			if was, there := before[name]; there && was != text {
				t.Errorf("%s was restored as\n%s\nand was\n%s", name, text, was)
			}
			if strings.HasPrefix(name, "during-") {
				last = max(last, slices.Index(during, name)+1)
			}
		}
		for _, name := range append(slices.Collect(maps.Keys(before)), during[:last]...) {
			if after[name] == "" {
				t.Errorf("%s is missing, which was there before the backup, or was written "+
					"before what is there", name)
			}
		}
		if after["undone"] != "" {
			t.Error("what was created after the backup is there")
		}
		if w, err := s.pipelines(t).Watch(t.Context(),
			metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}); err == nil {
			select {
			case event := <-w.ResultChan():
				err = apierrors.FromObject(event.Object)
			case <-time.After(patience):
			}
			w.Stop()
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("a watch of before gets %v", err)
			}
		} else if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("a watch of before is refused by %v", err)
		}
		h.create(t, s, "undone")
		h.patch(t, s, "changed", "again")
	}
	check(s)
	eventually(t, "the informer has what is there", func() bool {
		items, names := s.content(t), informer.GetStore().ListKeys()
		for name := range items {
			if !informs(name) {
				return false
			}
		}
		return len(items) == len(names)
	})
	if u.restoreElsewhere == nil {
		return
	}
	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Fatalf("the server exited with %d", code)
	}
	// Revisions of copies that are fenced within one second are different, but in no order.
	eventually(t, "the next second begins", func() bool {
		return time.Now().Unix() > fenced.Unix()
	})
	has(t, u.restoreElsewhere(), "the history goes on at revision ")
	check(start(t, t.TempDir(), "--database="+u.elsewhere, "--database-migrate=true", prefix))
}

func (s *server) pipelines(t testing.TB) dynamic.ResourceInterface {
	return s.dynamic(t).Resource(pipelines).Namespace("default")
}

// written are all writes of a test, by their resourceVersions, which have to rise.
type written struct {
	mu   sync.Mutex
	by   map[int64]string
	last int64
}

func (w *written) add(t *testing.T, revision int64, what string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, there := w.by[revision]; there || revision <= w.last {
		t.Errorf("%s got the resourceVersion %d, after %d; it was given before to %q", what,
			revision, w.last, was)
	}
	w.by[revision], w.last = what, max(w.last, revision)
}

// create creates pipelines, and reports whether it could.
func (w *written) create(t *testing.T, s *server, names ...string) bool {
	t.Helper()
	client := s.pipelines(t)
	for _, name := range names {
		o, err := client.Create(context.WithoutCancel(t.Context()), newPipeline(name),
			metav1.CreateOptions{})
		if err != nil {
			t.Error(err)
			return false
		}
		w.add(t, revision(t, o), "the creation of "+name)
	}
	return true
}

func (w *written) patch(t *testing.T, s *server, name, label string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"is":%q}}}`, label)
	o, err := s.pipelines(t).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.add(t, revision(t, o), "the change of "+name)
}

// operator runs the documented commands: those of the database's tools where the server runs, in
// its container or on this machine, and rowkeeper's here.
type operator struct {
	// url and restoredURL are the databases', as they are called on this machine.
	url, restoredURL string
	// container is the server's, "" if it runs on this machine.
	container string
	// dir stands for /backup on this machine, files for /var/lib/rowkeeper.
	dir, files string
	env        []string
	programs   map[string]string
}

func newOperator(t *testing.T, kind, databaseURL string, programs map[string]string) *operator {
	t.Helper()
	o := &operator{url: databaseURL, dir: t.TempDir(), files: t.TempDir(), programs: programs}
	if kind == "sqlite" {
		o.url = "sqlite://" + filepath.Join(o.files, "state.db")
	} else {
		u, err := url.Parse(databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		restored := *u
		restored.Path = "/restored"
		o.restoredURL = restored.String()
		o.container = containerAt(t, u.Port())
		t.Cleanup(func() {
			if _, err := openSQL(t, databaseURL).ExecContext(context.WithoutCancel(t.Context()),
				"DROP DATABASE IF EXISTS restored"); err != nil {
				t.Error(err)
			}
		})
		inside := *u
		if o.container != "" {
			// Some images have no programs for clients: then this machine's are used, at the port
			// that the container has here.
			for _, program := range programs {
				if exec.Command("docker", "exec", o.container, "sh", "-c", "command -v "+
					program).Run() != nil {
					t.Logf("the container of %s has no %s: this machine's is used", kind, program)
					o.container = ""
					break
				}
			}
		}
		if o.container != "" {
			inside.Host = "127.0.0.1:" + map[string]string{"postgres": "5432", "mariadb": "3306",
				"mysql": "3306"}[kind]
		}
		password, _ := u.User.Password()
		host := "127.0.0.1"
		if o.container != "" {
			// where root has this password, which it has not on the loopback interface of every
			// image
			host = "$HOSTNAME"
		}
		options := fmt.Sprintf("[client]\nhost=%s\nport=%s\nuser=%s\npassword=%s\n", host,
			inside.Port(), u.User.Username(), password)
		restored = inside
		restored.Path = "/restored"
		o.env = []string{"URL=" + inside.String(), "RESTORED_URL=" + restored.String(),
			"HOME=" + o.dir}
		if o.container != "" {
			o.env[2] = "HOME=/backup"
		}
		o.shell(t, "mkdir -p /backup && cat > /backup/.my.cnf <<END\n"+options+"END\n")
		if o.container != "" {
			container := o.container
			t.Cleanup(func() {
				if out, err := exec.Command("docker", "exec", container, "rm", "-rf",
					"/backup").CombinedOutput(); err != nil {
					t.Errorf("remove the backup from the container: %v\n%s", err, out)
				}
			})
		}
	}
	if o.container == "" {
		for _, program := range programs {
			if _, err := exec.LookPath(program); err == nil {
				continue
			}
			reason := fmt.Sprintf("the documented commands for %s cannot be tested: %s is "+
				"neither in a container of the server nor installed here", kind, program)
			if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), kind) {
				t.Fatal(reason)
			}
			t.Skip(reason)
		}
	}
	return o
}

// containerAt returns the container that answers at a port of this machine, "" if none does.
func containerAt(t *testing.T, port string) string {
	t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		return ""
	}
	out, err := exec.CommandContext(t.Context(), "docker", "ps", "--quiet", "--filter", "publish="+
		port).Output()
	if err != nil {
		return "" // no engine runs
	}
	return strings.TrimSpace(string(out))
}

// recipe returns the documented commands of a name.
func recipe(t *testing.T, name string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "operate", "database.md"))
	if err != nil {
		t.Fatal(err)
	}
	block, err := markdown.Marked(page, "recipe: "+name)
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for line := range strings.Lines(block) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok {
			commands = append(commands, command)
		}
	}
	if len(commands) == 0 {
		t.Fatalf("the page has no commands for %q", name)
	}
	return commands
}

// do runs the commands of a recipe, which have to succeed, and returns what they print.
func (o *operator) do(t *testing.T, name string) string {
	t.Helper()
	var out strings.Builder
	var script []string
	flush := func() {
		if len(script) > 0 {
			out.WriteString(o.shell(t, strings.Join(script, "\n")))
			script = nil
		}
	}
	for _, command := range recipe(t, name) {
		if !strings.HasPrefix(command, "rowkeeper ") {
			for documented, program := range o.programs {
				if rest, ok := strings.CutPrefix(command, documented+" "); ok {
					command = program + " " + rest
					break
				}
			}
			script = append(script, command)
			continue
		}
		flush()
		out.WriteString(o.local(t, command,
			[]string{"URL=" + o.url, "RESTORED_URL=" + o.restoredURL}))
	}
	flush()
	return out.String()
}

// shell runs a script where the server runs.
func (o *operator) shell(t *testing.T, script string) string {
	t.Helper()
	if o.container == "" {
		return o.local(t, script, o.env)
	}
	args := []string{"exec"}
	for _, e := range o.env {
		args = append(args, "--env", e)
	}
	r := run(t, o.dir, "", nil, "docker", append(args, o.container, "bash", "-euc", script)...)
	if r.code != 0 {
		t.Fatalf("%s\nin the container: exit code %d\n%s%s", script, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// local runs a script on this machine, where the documented directories are the test's own.
func (o *operator) local(t *testing.T, script string, env []string) string {
	t.Helper()
	script = strings.NewReplacer("/var/lib/rowkeeper", o.files, "/backup", o.dir).Replace(script)
	env = append([]string{"PATH=" + filepath.Dir(rowkeeperProgram) + ":" + os.Getenv("PATH")},
		env...)
	r := run(t, o.dir, "", env, "bash", "-euc", script)
	if r.code != 0 {
		t.Fatalf("%s\nexit code %d\n%s%s", script, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}
