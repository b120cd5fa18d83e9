package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	_ "modernc.org/sqlite"
)

func openSQLite(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(30000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// steps returns a set of n migrations, each of which fails when it is run twice.
func steps(n int, extra map[int]string) Set {
	s := SQLite
	files := fstest.MapFS{}
	first, err := fs.ReadFile(SQLite.files, "sqlite/00001_initial.sql")
	if err != nil {
		panic(err)
	}
	files["sqlite/00001_initial.sql"] = &fstest.MapFile{Data: first}
	for i := 2; i <= n; i++ {
		text := fmt.Sprintf("-- +goose Up\nCREATE TABLE step%d (n INTEGER);\nINSERT INTO step%d VALUES (%d);\n%s", i, i, i, extra[i])
		files[fmt.Sprintf("sqlite/%05d_step.sql", i)] = &fstest.MapFile{Data: []byte(text)}
	}
	s.files = files
	return s
}

func versions(list []Migration) string {
	var out []string
	for _, m := range list {
		state := "pending"
		if !m.Applied.IsZero() {
			state = "applied"
		}
		out = append(out, fmt.Sprintf("%d %q %s", m.Version, m.Name, state))
	}
	return strings.Join(out, ", ")
}

func TestUpAndStatus(t *testing.T) {
	ctx := context.Background()
	db := openSQLite(t, filepath.Join(t.TempDir(), "db"))
	list, err := Status(ctx, db, SQLite)
	if err != nil || versions(list) != `1 "initial" pending` {
		t.Fatalf("status of an empty database: %v, %v", versions(list), err)
	}
	var tables int
	if err := db.QueryRow(`SELECT count(*) FROM sqlite_master`).Scan(&tables); err != nil ||
		tables != 0 {
		t.Fatalf("status created %d tables, %v", tables, err)
	}
	before := time.Now()
	done, err := Up(ctx, db, SQLite, nil)
	if err != nil || versions(done) != `1 "initial" applied` {
		t.Fatalf("up: %v, %v", versions(done), err)
	}
	if done, err = Up(ctx, db, SQLite, nil); err != nil || len(done) != 0 {
		t.Fatalf("a second up ran %v, %v", versions(done), err)
	}
	list, err = Status(ctx, db, SQLite)
	if err != nil || versions(list) != `1 "initial" applied` {
		t.Fatalf("status: %v, %v", versions(list), err)
	}
	if d := list[0].Applied.Sub(before); d < -2*time.Second || d > time.Hour {
		t.Errorf("applied %v after the beginning", d)
	}
	if err := SQLite.Check(ctx, db); err != nil {
		t.Error(err)
	}

	var (
		identity                                       string
		epoch, compacted, swept, oldest, logs, micros  int64
		revision, prev, create, deleted, key, tokenLen int64
		value                                          []byte
	)
	if err := db.QueryRow(`SELECT identity, epoch, compacted, swept, oldest_writer FROM rowkeeper_store`).Scan(&identity, &epoch, &compacted, &swept, &oldest); err != nil {
		t.Fatal(err)
	}
	if len(identity) != 32 || epoch != 1 || compacted != 0 || swept != 0 || oldest != 1 {
		t.Errorf("the store row is %q %d %d %d %d", identity, epoch, compacted, swept, oldest)
	}
	if err := db.QueryRow(`SELECT count(*) OVER (), revision, length(key), prev_revision, create_revision, length(token), time, deleted, value FROM rowkeeper_log`).
		Scan(&logs, &revision, &key, &prev, &create, &tokenLen, &micros, &deleted,
			&value); err != nil {
		t.Fatal(err)
	}
	if logs != 1 || revision != 1 || key != 0 || prev != 0 || create != 0 || tokenLen != 16 ||
		deleted != 1 || value != nil {
		t.Errorf("the first marker is %d %d %d %d %d %d %d %q", logs, revision, key, prev, create,
			tokenLen, deleted, value)
	}
	if d := time.UnixMicro(micros).Sub(before); d < -2*time.Second || d > time.Hour {
		t.Errorf("the first marker was written %v after the beginning", d)
	}
}

func TestCheck(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name          string
		has, know     int
		extra         map[int]string
		want          string
		upWant        string
		upRuns, upHas int
	}{
		{name: "empty", has: 0, know: 1, want: "holds no rowkeeper store yet", upRuns: 1, upHas: 1},
		{name: "same", has: 3, know: 3, upHas: 3},
		{name: "older", has: 2, know: 4, want: "schema is version 2, older than version 4 that " +
			"this program needs: run `rowkeeper migrate up`", upRuns: 2, upHas: 4},
		{name: "newer, expanded only", has: 4, know: 2, upHas: 4},
		{
			name: "newer, contracted", has: 4, know: 2,
			extra: map[int]string{4: "UPDATE rowkeeper_store SET oldest_writer = 3;"},
			want: "schema is version 4, newer than version 2 that this program knows; use a " +
				"newer rowkeeper", upWant: "newer than version 2", upHas: 4,
		},
		{name: "newer, contracted below us", has: 4, know: 3,
			extra: map[int]string{4: "UPDATE rowkeeper_store SET oldest_writer = 3;"}, upHas: 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := openSQLite(t, filepath.Join(t.TempDir(), "db"))
			if tc.has > 0 {
				if _, err := Up(ctx, db, steps(tc.has, tc.extra), nil); err != nil {
					t.Fatal(err)
				}
			}
			program := steps(tc.know, tc.extra)
			matches(t, "check", program.Check(ctx, db), tc.want)
			done, err := Up(ctx, db, program, nil)
			matches(t, "up", err, tc.upWant)
			if len(done) != tc.upRuns {
				t.Errorf("up ran %v", versions(done))
			}
			list, err := Status(ctx, db, program)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range list {
				if m.Version != int64(i+1) || m.Applied.IsZero() ||
					(m.Name == "") != (i >= tc.know) {
					t.Errorf("status: %v", versions(list))
				}
			}
			if len(list) != tc.upHas {
				t.Errorf("status: %v", versions(list))
			}
		})
	}
}

func matches(t *testing.T, what string, err error, want string) {
	t.Helper()
	var version *VersionError
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
		!errors.As(err, &version)):
		t.Errorf("%s: %v, want a VersionError with %q", what, err, want)
	}
}

func TestFailedMigration(t *testing.T) {
	ctx := context.Background()
	db := openSQLite(t, filepath.Join(t.TempDir(), "db"))
	s := steps(4, map[int]string{3: "INSERT INTO nowhere VALUES (1);"})
	done, err := Up(ctx, db, s, nil)
	if err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Fatalf("up: %v", err)
	}
	if versions(done) != `1 "initial" applied, 2 "step" applied` {
		t.Errorf("up ran %v", versions(done))
	}
	list, err := Status(ctx, db, s)
	if err != nil ||
		versions(list) != `1 "initial" applied, 2 "step" applied, 3 "step" pending, 4 "step" pending` {
		t.Errorf("status: %v, %v", versions(list), err)
	}
	if _, err := db.Exec(`SELECT * FROM step3`); err == nil {
		t.Error("the failed migration left a table behind")
	}
}

func TestLockIsRequired(t *testing.T) {
	s := SQLite
	s.optimistic = false
	if _, err := Up(context.Background(), openSQLite(t, filepath.Join(t.TempDir(), "db")), s,
		nil); err == nil {
		t.Error("a set that needs a lock ran without one")
	}
}

// TestConcurrentUp lets many connections and processes migrate one empty file at once: each
// migration runs once.
func TestConcurrentUp(t *testing.T) {
	const env, migrations = "ROWKEEPER_TEST_MIGRATE", 8
	ctx := context.Background()
	s := steps(migrations, nil)
	up := func(path string, connections int) (int, error) {
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			total int
			errs  []error
		)
		for range connections {
			db := openSQLite(t, path)
			wg.Go(func() {
				done, err := Up(ctx, db, s, nil)
				mu.Lock()
				defer mu.Unlock()
				total += len(done)
				errs = append(errs, err)
			})
		}
		wg.Wait()
		return total, errors.Join(errs...)
	}
	if path := os.Getenv(env); path != "" {
		total, err := up(path, 4)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("ran=%d\n", total)
		return
	}

	path := filepath.Join(t.TempDir(), "db")
	const processes = 4
	outputs := make([]strings.Builder, processes)
	var children []*exec.Cmd
	for i := range processes {
		child := exec.Command(os.Args[0], "-test.run=^TestConcurrentUp$", "-test.v")
		child.Env = append(os.Environ(), env+"="+path)
		child.Stdout, child.Stderr = &outputs[i], &outputs[i]
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		children = append(children, child)
	}
	total, err := up(path, 4)
	if err != nil {
		t.Error(err)
	}
	for i, child := range children {
		if err := child.Wait(); err != nil {
			t.Fatalf("%v:\n%s", err, outputs[i].String())
		}
		_, rest, ok := strings.Cut(outputs[i].String(), "ran=")
		var n int
		if _, err := fmt.Sscan(rest, &n); !ok || err != nil {
			t.Fatalf("no count in:\n%s", outputs[i].String())
		}
		total += n
	}
	if total != migrations {
		t.Errorf("%d migrations were run, want %d", total, migrations)
	}
	db := openSQLite(t, path)
	for i := 2; i <= migrations; i++ {
		var rows int
		if err := db.QueryRow(fmt.Sprintf(`SELECT count(*) FROM step%d`,
			i)).Scan(&rows); err != nil || rows != 1 {
			t.Errorf("migration %d ran %d times, %v", i, rows, err)
		}
	}
}

// TestFiles keeps the rules of the package comment.
func TestFiles(t *testing.T) {
	for _, s := range []Set{SQLite} {
		known, err := s.known()
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range known {
			if m.Version != int64(i+1) || m.Name == "" {
				t.Errorf("%s: migration %d is number %d with the name %q", s.dialect, i+1,
					m.Version, m.Name)
			}
		}
		if s.Newest() != int64(len(known)) || len(known) == 0 {
			t.Errorf("%s: the newest of %d is %d", s.dialect, len(known), s.Newest())
		}
		err = fs.WalkDir(s.files, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(s.files, path)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(string(text), "-- +goose Up\n") {
				t.Errorf("%s does not begin with \"-- +goose Up\"", path)
			}
			if strings.Contains(string(text), "+goose Down") {
				t.Errorf("%s has a way down", path)
			}
			if s.optimistic && strings.Contains(string(text), "+goose NO TRANSACTION") {
				t.Errorf("%s runs without a transaction, which is this database's only lock", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
