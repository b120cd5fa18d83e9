package tests

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// databaseURLs are the databases that can be had, SQLite first: a file in the directory.
func databaseURLs(t *testing.T, dir string) (kinds []string, urls map[string]string) {
	t.Helper()
	kinds, urls = []string{"sqlite"},
		map[string]string{"sqlite": "sqlite://" + filepath.Join(dir, "state.db")}
	for _, kind := range programs.Servers() {
		kind := string(kind)
		if only := os.Getenv("ROWKEEPER_TEST_ONLY"); only != "" && !strings.Contains(only, kind) {
			t.Logf("%s is left out: ROWKEEPER_TEST_ONLY", kind)
			continue
		}
		url, err := databaseServers[kind]()
		if err != nil && strings.Contains(os.Getenv("ROWKEEPER_TEST_REQUIRE"), kind) {
			t.Fatal(err)
		}
		if err != nil {
			t.Logf("%s is left out: %v", kind, err)
			continue
		}
		kinds, urls[kind] = append(kinds, kind), url
	}
	return kinds, urls
}

// openSQL opens a database as an administrator does.
func openSQL(t *testing.T, databaseURL string) *sql.DB {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	driver, dsn := "pgx", databaseURL
	switch u.Scheme {
	case "sqlite":
		driver, dsn = "sqlite", "file:"+u.Path+"?_pragma=busy_timeout(10000)"
	case "mysql":
		c := mysql.NewConfig()
		c.User = u.User.Username()
		c.Passwd, _ = u.User.Password()
		c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
		driver, dsn = "mysql", c.FormatDSN()
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// content is what clients see of all pipelines, by their names.
func (s *server) content(t *testing.T) map[string]string {
	t.Helper()
	list, err := s.dynamic(t).Resource(pipelines).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, item := range list.Items {
		text, err := json.Marshal(item.Object)
		if err != nil {
			t.Fatal(err)
		}
		content[item.GetName()] = string(text)
	}
	return content
}

// withoutVersions is content without the resourceVersions, and these.
func withoutVersions(t *testing.T,
	content map[string]string) (objects map[string]string, versions []int64) {
	t.Helper()
	objects = map[string]string{}
	for name, text := range content {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		version, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, version)
		object.SetResourceVersion("")
		stripped, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		objects[name] = string(stripped)
	}
	return objects, versions
}

func sameContent(t *testing.T, where string, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: there are %d objects, want %d", where, len(got), len(want))
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: %s is\n%s\nwant\n%s", where, name, got[name], text)
			return
		}
	}
}

// A backup goes from each kind of database to the next, which has been written before, under
// running servers and their watches; what clients see is the same to the byte, but for the
// resourceVersions, which are all new. At last it goes into a database that has not, and they are
// the same, too.
func TestBackupAndRestore(t *testing.T) {
	dir := t.TempDir()
	kinds, urls := databaseURLs(t, dir)
	rowkeeper := func(stdin string, args ...string) result {
		return run(t, dir, stdin, nil, rowkeeperProgram, args...)
	}

	first := start(t, t.TempDir(), "--database="+urls["sqlite"], "--database-migrate=true")
	for i := range 20 {
		first.ok(t, manifest(fmt.Sprintf("p-%02d", i), "make"), "create", "-f", "-")
	}
	first.ok(t, "", "label", "pl", "p-03", "p-04", "touched=yes")
	first.ok(t, "", "delete", "pl", "p-05")
	want, known := withoutVersions(t, first.content(t))

	from := "sqlite"
	for round, to := range append(kinds[1:], "sqlite") {
		file := filepath.Join(dir, fmt.Sprintf("backup-%d", round))
		r := rowkeeper("", "backup", file, "--database="+urls[from])
		// One of them is the lock of the garbage collector.
		if r.code != 0 || !strings.HasPrefix(r.stdout, "backed up 20 objects at revision ") ||
			strings.Contains(r.stderr, "\r") || informs(r.stderr) {
			t.Fatalf("backup of %s: %d %s%s", from, r.code, r.stdout, r.stderr)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the backup: %v %v, want mode 0600", info, err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".backup-*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}

		// The next database has a server, with objects that are not those of the backup, and a
		// client that watches.
		if to == "sqlite" {
			urls[to] = "sqlite://" + filepath.Join(dir, "back.db")
		}
		s := start(t, t.TempDir(), "--database="+urls[to])
		s.ok(t, manifest("unwanted", "make"), "create", "-f", "-")
		watch := s.kubectlBackground(t, "get", "pl", "-w", "--output-watch-events", "--no-headers")
		watch.next(t, "ADDED", "unwanted")
		r = rowkeeper("", "restore", file, "--database="+urls[to])
		if r.code != 1 || !strings.HasSuffix(r.stderr,
			"rowkeeper: nothing was restored: the database holds objects; give --replace to remove them\n") {
			t.Errorf("restore into a database that is not empty: %d %s", r.code, r.stderr)
		}
		s.ok(t, "", "get", "pl", "unwanted")
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, stdin := file, ""
		if round%2 == 1 {
			name, stdin = "-", string(content)
		}
		r = rowkeeper(stdin, "restore", name, "--replace", "--database="+urls[to])
		if r.code != 0 || !strings.HasPrefix(r.stdout, "restored 20 objects at revision ") ||
			!strings.Contains(r.stdout, "with new resourceVersions") ||
			informs(r.stderr) {
			t.Fatalf("restore from %s to %s: %d %s%s", from, to, r.code, r.stdout, r.stderr)
		}
		eventually(t, "the server serves what was restored", func() bool {
			return len(s.content(t)) == len(want)
		})
		restored, versions := withoutVersions(t, s.content(t))
		sameContent(t, from+" to "+to, restored, want)
		if slices.Min(versions) <= slices.Max(known) {
			t.Errorf("%s to %s: a resourceVersion of before stands for something else: %d of %d",
				from, to, slices.Min(versions), slices.Max(known))
		}
		known = append(known, versions...)
		// The watch of kubectl ends, or has begun anew; either way a new one begins at the new
		// state, and what is written is seen.
		again := s.kubectlBackground(t, "get", "pl", "-w", "--output-watch-events", "--no-headers")
		again.next(t, "ADDED", "p-19")
		s.ok(t, manifest("after", "make"), "create", "-f", "-")
		again.next(t, "ADDED", "after")
		s.ok(t, "", "delete", "pl", "after")
		restored, _ = withoutVersions(t, s.content(t))
		sameContent(t, "after a write", restored, want)
		from = to
	}

	whole, err := os.ReadFile(filepath.Join(dir, "backup-0"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	before := first.content(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"restore", write("short", string(whole[:len(whole)/2])), "--replace"}, 1,
			"the backup cannot be used: it is "},
		{[]string{"restore", write("newer", "rowkeeper-backup 7\n"+string(whole[19:])),
			"--replace"}, 1, "it is of version 7 of the format"},
		{[]string{"restore", write("text", "no backup"), "--replace"}, 1,
			"it does not begin as a backup by rowkeeper does"},
		{[]string{"restore", filepath.Join(dir, "missing"), "--replace"}, 1,
			"cannot read the backup: open "},
		{[]string{"restore"}, 2, "a file has to be named"},
		{[]string{"backup"}, 2, "a file has to be named"},
		{[]string{"backup", filepath.Join(dir, "backup-0")}, 1, "replaces it with --force"},
		{[]string{"backup", "a", "b"}, 2, `unexpected argument "b"`},
		{[]string{"backup", filepath.Join(dir, "no", "such", "directory")}, 1,
			"cannot write the file: "},
	} {
		r := rowkeeper("", append(tc.args, "--database="+urls["sqlite"])...)
		if r.code != tc.code || !strings.Contains(r.stderr, tc.want) ||
			strings.Count(r.stderr, "rowkeeper: ") != 1 || r.stdout != "" {
			t.Errorf("%v: %d %s%s", tc.args, r.code, r.stdout, r.stderr)
		}
	}
	sameContent(t, "after what was refused", first.content(t), before)
	if r := rowkeeper("", "backup", "-", "--database=memory:"); r.code != 2 {
		t.Errorf("a backup of memory: %d %s", r.code, r.stderr)
	}
	fresh := "sqlite://" + filepath.Join(dir, "fresh.db")
	if r := rowkeeper("", "restore", write("bad", "no backup"), "--database="+fresh); r.code != 1 {
		t.Errorf("a file that is none: %d %s", r.code, r.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "fresh.db")); !os.IsNotExist(err) {
		t.Errorf("a database was created for a backup that cannot be used: %v", err)
	}
	r := rowkeeper(rowkeeper("", "backup", "-", "--database="+urls["sqlite"]).stdout, "restore",
		"-", "--database="+fresh)
	if r.code != 0 || strings.Contains(r.stdout, "new resourceVersions") {
		t.Errorf("from standard output to standard input: %d %s%s", r.code, r.stdout, r.stderr)
	}
	back := start(t, t.TempDir(), "--database="+urls["sqlite"])
	sameContent(t, "in a fresh database", start(t, t.TempDir(), "--database="+fresh).content(t),
		back.content(t))
}

// informs says whether a log has lines that only inform.
func informs(log string) bool {
	return regexp.MustCompile(`(?m)^I\d{4} `).MatchString(log)
}
