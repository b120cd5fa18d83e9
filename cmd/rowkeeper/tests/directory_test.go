package tests

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServeDirectory: a server goes on where a store has moved, and back, within the same process.
// Objects keep their resourceVersions, a watch is told that it is too old, and writes go on beyond
// what was there.
func TestServeDirectory(t *testing.T) {
	dir := t.TempDir()
	databases := filepath.Join(dir, "databases")
	lines := fmt.Sprintf("db-1 sqlite://%[1]s/one.db\ndb-2 sqlite://%[1]s/two.db\n", dir)
	if err := os.WriteFile(databases, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--directory=sqlite://" + dir + "/control.db", "--databases-file=" + databases}
	command := func(want string, args ...string) {
		t.Helper()
		if r := run(t, dir, "", nil, rowkeeperProgram, append(args, flags...)...); r.code != 0 ||
			!strings.Contains(r.stdout, want) {
			t.Fatalf("%v: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
		}
	}
	command("", "directory", "migrate")
	command("created the store", "directory", "place", "team-a", "--in=db-1")
	l, err := net.Listen("tcp", "127.0.0.1:0") // the port stays when the server begins anew
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := start(t, dir, append(flags, "--store=team-a", "--secure-port="+port)...)
	objects := s.dynamic(t).Resource(pipelines).Namespace("default")
	revision := func(text string) int64 {
		t.Helper()
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	create := func(name string) (at string) {
		t.Helper()
		p, err := objects.Create(t.Context(), newPipeline(name), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.GetResourceVersion()
	}
	first := create("first")
	last := first
	for i, to := range []string{"db-2", "db-1"} {
		from := []string{"db-1", "db-2"}[i]
		command("moved the store", "stores", "move-to", "team-a", "--to="+to)
		eventually(t, "the server begins anew", func() bool {
			_, after, left := strings.Cut(s.stdout.String(), fmt.Sprintf("has left the database %q", from))
			return left && strings.Contains(after, "Try: ")
		})
		p, err := objects.Get(t.Context(), "first", metav1.GetOptions{})
		if err != nil || p.GetResourceVersion() != first {
			t.Errorf("in %s the object is %v, %v, want the resourceVersion %s", to, p, err, first)
		}
		w, err := objects.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
		if err == nil {
			e := <-w.ResultChan()
			err = apierrors.FromObject(e.Object)
			w.Stop()
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("in %s a watch that goes on is told %v", to, err)
		}
		if at := create("in-" + to); revision(at) <= revision(last) {
			t.Errorf("in %s a write is at %s, after %s", to, at, last)
		} else {
			last = at
		}
	}
	if code := s.signal(t, syscall.SIGINT); code != 0 {
		t.Errorf("the server exited with %d", code)
	}
}
