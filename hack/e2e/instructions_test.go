package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// instructions are the commands that a chapter of a document tells its reader to give: the lines of
// its blocks of code, without the prompt.
func instructions(t *testing.T, file, chapter string) []string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var commands []string
	inside := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "## ") {
			inside = line == "## "+chapter
			continue
		}
		command := strings.TrimPrefix(line, "$ ")
		if name, _, _ := strings.Cut(command, " "); inside &&
			slices.Contains([]string{"make", "bin/rowkeeper", "$EDITOR", "crane", "kubectl"},
				name) {
			commands = append(commands, command)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no commands in the chapter %q", file, chapter)
	}
	return commands
}

// follow does what the installation chapter of the README says, for an overlay, in the directory
// that has the copy of deploy/.
func (i *installation) follow(t *testing.T, overlay string) {
	t.Helper()
	done := map[string]int{}
	for _, command := range instructions(t, "../../README.md", "In a cluster") {
		if overlay != "postgres" {
			// The same, with another name; and there is no database to be named for SQLite.
			if overlay == "sqlite" && strings.HasPrefix(command, "$EDITOR ") {
				continue
			}
			command = strings.ReplaceAll(command, "overlays/postgres", "overlays/"+overlay)
		}
		if strings.HasPrefix(command, "kubectl wait ") {
			i.waitAvailable(t) // for all of them, and for the time that it takes
		}
		done[i.execute(t, command)]++
	}
	for _, what := range []string{"make", "bin/rowkeeper", "kubectl apply", "kubectl wait",
		"kubectl get"} {
		if done[what] == 0 {
			t.Errorf("the README's installation chapter has no command %q", what)
		}
	}
}

// execute executes one command of the documentation, and returns which it was.
func (i *installation) execute(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	root := filepath.Dir(i.dir)
	switch words[0] {
	case "make":
		// Its results are there, since these tests are a target that needs it; so it is only
		// checked that there are such targets.
		cmd := exec.CommandContext(t.Context(), "make",
			append([]string{"--dry-run"}, words[1:]...)...)
		cmd.Dir = "../.."
		run(t, cmd)
	case "bin/rowkeeper":
		cmd := exec.CommandContext(t.Context(), env.rowkeeper(), words[1:]...)
		cmd.Dir = root
		run(t, cmd)
	case "$EDITOR":
		for _, file := range words[1:] {
			content, ok := i.edits[strings.TrimPrefix(file, "deploy/")]
			if !ok {
				t.Fatalf("%q edits %s, which needs no edit", command, file)
			}
			write(t, filepath.Join(root, file), content)
		}
	case "crane":
		// Where it would push the image to is not there. The image that it would push must be.
		if _, err := os.Stat(filepath.Join("../..", words[2], "index.json")); words[1] != "push" ||
			err != nil {
			t.Errorf("%q: %v", command, err)
		}
	case "kubectl":
		args := slices.Clone(words[1:])
		for n, arg := range args {
			// The overlay on top, which is about the address of the Service only.
			if overlay, err := filepath.Rel(root, i.overlay); err == nil &&
				strings.HasPrefix(arg, "deploy/overlays/") {
				args[n] = overlay
			}
		}
		if out, err := kubectlIn(t, root, "", args...); err != nil {
			t.Fatalf("%q: %v: %s", command, err, out)
		}
		return "kubectl " + words[1]
	default:
		t.Fatalf("%q is no command that this test knows", command)
	}
	return words[0]
}

// testInstructions follows the longer description of the installation, which has a dry run and the
// examples besides.
func testInstructions(t *testing.T) {
	i := env.installation
	for _, command := range instructions(t, "../../deploy/README.md", "Install") {
		i.execute(t, command)
	}
	for _, example := range []string{"pipeline.ci.rowkeeper.dev/hello\n",
		"pipeline.ci.rowkeeper.dev/hello-v1alpha1\n"} {
		if out := kubectl(t, "get", "pipelines", "-o", "name"); !strings.Contains(out, example) {
			t.Errorf("after the installation as described kubectl get pipelines prints %q, want "+
				"%q among it", out, example)
		}
	}
	kubectl(t, "delete", "-f", filepath.Join(i.dir, "examples"))
}
