// Package frontend starts "rowkeeper etcd" for tests of other people's clients of etcd.
package frontend

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// FrontEnd is a server.
type FrontEnd struct {
	*programs.Program
	// Address is where it listens, without TLS.
	Address string

	t *testing.T
}

// build builds the program, once.
var build = sync.OnceValues(func() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/rowkeeper/rowkeeper").Output()
	if err != nil {
		return "", err
	}
	dir := string(root[:max(len(root)-1, 0)])
	program := filepath.Join(dir, "bin", "compat", "clients", "rowkeeper")
	build := exec.Command("go", "build", "-C", dir, "-o", program, "./cmd/rowkeeper")
	build.Env = append(os.Environ(), "GOWORK=") // the program is in the workspace
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return program, nil
})

// Start starts a server on a new SQLite file. It ends with the test.
func Start(t *testing.T) *FrontEnd {
	t.Helper()
	return StartOn(t, "sqlite://"+filepath.Join(t.TempDir(), "state.db"))
}

// StartOn starts a server on a database. It ends with the test.
func StartOn(t *testing.T, database string) *FrontEnd {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	f := &FrontEnd{t: t, Address: Address(t), Program: &programs.Program{Dir: t.TempDir(),
		Signal: syscall.SIGTERM}}
	f.Command = []string{program, "etcd", "--database", database, "--listen-client-urls",
		"http://" + f.Address}
	f.StartAgain()
	t.Cleanup(func() {
		if err := f.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the front end: %s", f.Log())
		}
	})
	return f
}

// StartAgain starts the server, and waits until it answers.
func (f *FrontEnd) StartAgain() {
	f.t.Helper()
	err := f.Program.Start()
	if err == nil {
		err = f.Await(f.t.Context(), func(ctx context.Context) error {
			return get(ctx, "http://"+f.Address+"/readyz")
		})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// Address is one where nobody listens.
func Address(t *testing.T) string {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}

func get(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); answer.StatusCode != http.StatusOK || err != nil {
		return fmt.Errorf("%s: %s %w", url, answer.Status, err)
	}
	return nil
}
