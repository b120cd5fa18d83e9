// Package patched copies a module of other people, for a test that changes some of it and compiles
// it then. Go does not take a package of a module from elsewhere, so the module is copied whole.
package patched

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Copy copies a module, and returns the directory. It lasts as long as the test.
func Copy(t *testing.T, module string) (dir string) {
	t.Helper()
	from := strings.TrimSpace(Run(t, "go", "list", "-m", "-f", "{{.Dir}}", module))
	dir = filepath.Join(t.TempDir(), filepath.Base(module))
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Modfile copies go.mod and go.sum of the test's module, with the copy in the place of the other
// module, and returns the path of go.mod.
func Modfile(t *testing.T, module, dir string) string {
	t.Helper()
	const ours = "github.com/rowkeeper/rowkeeper"
	root := strings.TrimSpace(Run(t, "go", "list", "-m", "-f", "{{.Dir}}", ours))
	file := filepath.Join(t.TempDir(), "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(file), name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	Run(t, "go", "mod", "edit", "-replace="+module+"="+dir, "-replace="+ours+"="+root, file)
	return file
}

// Run runs a command, and returns its output.
func Run(t *testing.T, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	return string(out)
}
