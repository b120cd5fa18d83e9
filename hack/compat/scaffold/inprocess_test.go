package scaffold

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInProcess: a project that kubebuilder has just made is changed as the page says, and its
// "make test" then passes, without envtest's programs.
func TestInProcess(t *testing.T) {
	if os.Getenv("ROWKEEPER_TEST_SCAFFOLD") == "" {
		t.Skip("it compiles for minutes; ROWKEEPER_TEST_SCAFFOLD=1 runs it")
	}
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, filepath.Join(clone, "docs/coming-from/envtest.md"))
	blocks := regexp.MustCompile(
		"(?s)<!-- readme: tested hack/compat/scaffold/inprocess_test.go -->\n```diff\n(.*?)```").
		FindAllStringSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d changes, want that of the suites and that of the Makefile",
			len(blocks))
	}
	programs, below := t.TempDir(), t.TempDir()
	run(t, ".", "go", "build", "-o", programs, "sigs.k8s.io/kubebuilder/v4")
	t.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	if err := os.Symlink(clone, filepath.Join(below, "rowkeeper")); err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(below, "harbor")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"init --domain example.com --repo example.com/harbor",
		"create api --group crew --version v1 --kind Captain --controller --resource --make=false",
		"create webhook --group crew --version v1 --kind Captain --defaulting --make=false",
	} {
		run(t, project, "kubebuilder", strings.Fields(args)...)
	}

	for _, suite := range []string{"internal/controller/suite_test.go",
		"internal/webhook/v1/webhook_suite_test.go"} {
		change(t, filepath.Join(project, suite), blocks[0][1])
	}
	change(t, filepath.Join(project, "Makefile"), blocks[1][1])
	for path, dir := range map[string]string{"": "", "/pkg/crds": "/pkg/crds"} {
		run(t, project, "go", "mod", "edit", "-require", "github.com/rowkeeper/rowkeeper"+path+"@v0.1.0",
			"-replace", "github.com/rowkeeper/rowkeeper"+path+"=../rowkeeper"+dir)
	}
	run(t, project, "go", "mod", "tidy")
	t.Setenv("KUBEBUILDER_ASSETS", "/nowhere")
	run(t, project, "make", "test")
	if _, err := os.Stat(filepath.Join(project, "bin/setup-envtest")); err == nil {
		t.Error("make test has still installed setup-envtest")
	}
}

// change makes the change that a diff shows. The lines of a part, which ends with "@@", are in
// the file one after the other.
func change(t *testing.T, file, diff string) {
	t.Helper()
	text := read(t, file)
	for part := range strings.SplitSeq(diff, "@@\n") {
		var before, after strings.Builder
		for line := range strings.Lines(part) {
			if line[0] != '+' {
				before.WriteString(line[1:])
			}
			if line[0] != '-' {
				after.WriteString(line[1:])
			}
		}
		if strings.Count(text, before.String()) != 1 {
			t.Fatalf("%s does not have once:\n%s", file, before.String())
		}
		text = strings.Replace(text, before.String(), after.String(), 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
