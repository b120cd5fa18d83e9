package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// requiredPrograms names programs, with commas between them, without which a test fails.
const requiredPrograms = "ROWKEEPER_TEST_PROGRAMS"

// programPath is where a program is that a test needs. Without it the test is skipped, or fails if
// the program is required.
func programPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path
	case slices.Contains(strings.Split(os.Getenv(requiredPrograms), ","), name):
		t.Fatal(err)
	}
	t.Skipf("there is no %s; %s=%[1]s makes that a failure", name, requiredPrograms)
	return ""
}

// TestBackupByRclone: the commands of docs/operate/backup.md take backups to a remote of rclone and
// back. A pipe that breaks leaves an object that nobody restores.
func TestBackupByRclone(t *testing.T) {
	programPath(t, "rclone")
	dir := t.TempDir()
	env := []string{"RCLONE_CONFIG=" + filepath.Join(dir, "none"), "RCLONE_CONFIG_OBJECTS_TYPE=alias",
		"RCLONE_CONFIG_OBJECTS_REMOTE=" + filepath.Join(dir, "remote"),
		"PATH=" + filepath.Dir(rowkeeperProgram) + ":" + os.Getenv("PATH")}
	shell := func(want, command string) string {
		t.Helper()
		r := run(t, dir, "", env, "bash", "-o", "pipefail", "-c", command)
		if r.code != 0 || !strings.Contains(r.stdout+r.stderr, want) {
			t.Fatalf("%s: %d %s%s, want %q", command, r.code, r.stdout, r.stderr, want)
		}
		return r.stdout
	}
	for name, content := range map[string]string{"url": "sqlite:" + filepath.Join(dir, "a.db"),
		"other-url": "sqlite:" + filepath.Join(dir, "b.db")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, t.TempDir(), "--database=sqlite:"+filepath.Join(dir, "a.db"))
	s.ok(t, manifest("one", "make"), "create", "-f", "-")
	shell("backed up 2 objects",
		`rowkeeper backup --database-file url - | rclone rcat objects:backups/1.backup`)
	shell("2 objects, as in the backup", `rclone cat objects:backups/1.backup | rowkeeper drill -`)
	shell("restored 2 objects",
		`rclone cat objects:backups/1.backup | rowkeeper restore --database-file other-url -`)
	shell("2 objects, as in the backup", `mkdir backups && `+
		`rowkeeper backup --database-file url --keep 14 backups && rclone copy backups objects:backups && `+
		`rclone copy objects:backups fetched && rowkeeper drill --database-file url fetched`)

	whole, err := os.ReadFile(filepath.Join(dir, "remote", "backups", "1.backup"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "remote", "backups", "cut"), whole[:len(whole)-1],
		0o600); err != nil {
		t.Fatal(err)
	}
	shell("the backup cannot be used", `! rclone cat objects:backups/cut | rowkeeper drill -`)
}
