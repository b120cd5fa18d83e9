// Package kubectl runs kubectl for tests.
package kubectl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// program is built once. Tests run in the directory of their package, which may be one of another
// module than the library's.
var program = sync.OnceValues(func() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/rowkeeper/rowkeeper").Output()
	if err != nil {
		return "", fmt.Errorf("find the library's module, by go list: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	path := filepath.Join(dir, "bin", "compat", "kubectl")
	build := exec.Command("go", "build", "-C", filepath.Join(dir, "hack", "tools", "kubectl"),
		"-ldflags", "-X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", path, ".")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", build.Args, err, out)
	}
	return path, nil
})

// Run returns what kubectl prints, with several blanks as one.
func Run(t *testing.T, kubeconfig, stdin string, args ...string) (string, error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	var lines []string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n"), err
}
