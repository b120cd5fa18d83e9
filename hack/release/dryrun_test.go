package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDryRun: the commands of docs/SECURITY.md that check the files of a release work on what "make
// release" has made. Those that need a signature are not among them, since nothing signs it.
func TestDryRun(t *testing.T) {
	sums, err := filepath.Abs("../../bin/release/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(sums)
	if os.IsNotExist(err) && os.Getenv("ROWKEEPER_TEST_RELEASE") == "" {
		t.Skip("make release has made nothing")
	}
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`rowkeeper_(\S+)_linux_amd64\.tar\.gz`).FindSubmatch(list)
	if version == nil {
		t.Fatalf("no program for Linux is in\n%s", list)
	}
	page, err := os.ReadFile("../../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)<!-- readme: tested hack/release/dryrun_test.go -->\n"+
		"```console\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) == 0 {
		t.Fatal("the page has no commands")
	}
	// The commands write, so they get links to the files.
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(sums), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Symlink(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			t.Fatal(err)
		}
	}
	for _, block := range blocks {
		var script, shown strings.Builder
		for line := range strings.Lines(string(block[1])) {
			line = strings.ReplaceAll(line, "v0.1.0", string(version[1]))
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				script.WriteString(command)
			} else {
				shown.WriteString(line)
			}
		}
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", script.String())
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script.String(), err, out)
		}
		for line := range strings.Lines(shown.String()) {
			if before, after, _ := strings.Cut(line, "..."); !strings.Contains(string(out), before) ||
				!strings.Contains(string(out), strings.TrimSpace(after)) {
				t.Errorf("%sprints\n%sand not %s", script.String(), out, line)
			}
		}
	}
}
