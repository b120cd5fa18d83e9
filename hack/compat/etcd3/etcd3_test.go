package etcd3

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/compat/etcd3/testserver"
	"github.com/rowkeeper/rowkeeper/hack/compat/internal/patched"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const (
	upstream = "k8s.io/apiserver"
	tested   = "pkg/storage/etcd3"
)

// fewest is how many tests there are at least.
const fewest = 70

// TestUpstream runs upstream's tests on a database of each kind. A test that fails is run again by
// itself, once. Some tests count the reads of a while. On a busy machine they count the first read
// of the compactor, too, which upstream starts in the background: "unexpected reads: 3, want: 2".
func TestUpstream(t *testing.T) {
	module := copied(t)
	tests := filepath.Join(t.TempDir(), "etcd3.test")
	patched.Run(t, "go", "test", "-c", "-mod=mod", "-modfile="+patched.Modfile(t, upstream, module),
		"-o", tests, upstream+"/"+tested)
	program, err := filepath.Abs("../../../bin/compat/rowkeeper")
	if err != nil {
		t.Fatal(err)
	}
	// The program is in the workspace. This module is not.
	patched.Run(t, "env", "GOWORK=", "go", "build", "-C", "../../..", "-o", program,
		"./cmd/rowkeeper")
	for _, kind := range programs.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			wanted(t, kind)
			t.Parallel() // they wait most of the time
			try := func(names string) (passed, failed []string, out []byte, err error) {
				cmd := exec.Command(tests, "-test.v", "-test.timeout=15m", "-test.run="+names)
				cmd.Dir = filepath.Join(module, tested)
				cmd.Env = append(os.Environ(), testserver.ProgramEnv+"="+program,
					testserver.KindEnv+"="+string(kind))
				out, err = cmd.CombinedOutput()
				return results(out, "PASS"), results(out, "FAIL"), out, err
			}
			passed, failed, out, err := try(".")
			t.Logf("%d tests passed, %d failed %q", len(passed), len(failed), failed)
			if len(failed) > 0 {
				t.Logf("%s", out)
				var again []string
				again, failed, out, err = try("^(" + strings.Join(failed, "|") + ")$")
				passed = append(passed, again...)
			}
			if err != nil || len(failed) > 0 || len(passed) < fewest {
				t.Errorf("%d tests passed, %d failed twice %q: %v\n%s", len(passed), len(failed), failed, err,
					out)
			}
		})
	}
}

// results returns the names of the tests that ended so, without those of their parts.
func results(out []byte, result string) (names []string) {
	for _, found := range regexp.MustCompile(`(?m)^--- `+result+`: (\S+)`).FindAllSubmatch(out, -1) {
		names = append(names, string(found[1]))
	}
	return names
}

// wanted skips the test if there is no server of the kind, or fails it if one is required.
func wanted(t *testing.T, kind programs.Kind) {
	t.Helper()
	if kind == programs.SQLite || os.Getenv(kind.Env()) != "" {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("ROWKEEPER_TEST_REQUIRE"), ","), string(kind)) {
		t.Fatalf("%s is required, and %s names no server", kind, kind.Env())
	}
	t.Skipf("%s names no server", kind.Env())
}

// copied copies upstream's module, with our test server in the place of its own, and returns the
// directory.
func copied(t *testing.T) string {
	t.Helper()
	to := patched.Copy(t, upstream)
	server, err := os.ReadFile("testserver/test_server.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(to, tested, "testserver")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "test_server.go"), server, 0o644); err != nil {
		t.Fatal(err)
	}
	patient(t, filepath.Join(to, tested, "compact_test.go"))
	return to
}

// patient lets upstream's tests of the compactor wait 3 s for a compaction. Theirs is of an etcd on
// an idle disk, 100 ms.
func patient(t *testing.T, file string) {
	t.Helper()
	const theirs, ours = "waitTimeout = 100 * waitDelay", "waitTimeout = 3000 * waitDelay"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(content), theirs) != 1 {
		t.Fatalf("%s does not say %q", file, theirs)
	}
	content = []byte(strings.Replace(string(content), theirs, ours, 1))
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
}
