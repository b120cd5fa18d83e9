package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLitestream: Litestream copies the file of a server that is written all the time. What it
// restores after the server has ended holds each object, by the commands of
// docs/operate/backup.md, and a server goes on with it.
func TestLitestream(t *testing.T) {
	litestream := programPath(t, "litestream")
	dir := t.TempDir()
	database, replica := filepath.Join(dir, "state.db"), "file://"+filepath.Join(dir, "replica")
	s := start(t, t.TempDir(), "--database=sqlite:"+database)
	copying := exec.Command(litestream, "replicate", database, replica)
	var said output
	copying.Stdout, copying.Stderr = &said, &said
	if err := copying.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- copying.Wait() }()
	t.Cleanup(func() { copying.Process.Kill() })
	eventually(t, "Litestream has copied the file", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("Litestream ends with %v:\n%s", err, said.String())
		default:
		}
		return strings.Contains(said.String(), "snapshot complete")
	})
	var pipelines strings.Builder
	for i := range 60 {
		pipelines.WriteString(manifest("p-"+string(rune('a'+i%26))+string(rune('a'+i/26)), "make") + "---\n")
	}
	s.ok(t, pipelines.String(), "create", "-f", "-")
	s.ok(t, "", "label", "pl", "--all", "touched=yes")
	s.ok(t, "", "delete", "pl", "p-aa", "p-bb")
	// The server ends first, since it would renew its lease. Litestream copies what is left when it
	// is told to end.
	if code := s.signal(t, syscall.SIGTERM); code != 0 {
		t.Errorf("the server exits with %d", code)
	}
	if strings.Contains(s.stderr.String(), "write-ahead log") {
		t.Errorf("the server says of its log:\n%s", s.stderr.String())
	}
	if err := copying.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatalf("Litestream ends with %v:\n%s", err, said.String())
	}
	do := func(want, program string, args ...string) {
		t.Helper()
		if r := run(t, dir, "", nil, program, args...); r.code != 0 ||
			!strings.Contains(r.stdout+r.stderr, want) {
			t.Fatalf("%s %v: %d %s%s", program, args, r.code, r.stdout, r.stderr)
		}
	}
	do("backed up 59 objects", rowkeeperProgram, "backup", "--database=sqlite:"+database, "before.backup")

	do("", litestream, "restore", "-o", "restored.db", replica)
	for _, end := range []string{"-wal", "-shm"} {
		if err := os.Remove(database + end); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "restored.db"), database); err != nil {
		t.Fatal(err)
	}
	do("", rowkeeperProgram, "migrate", "up", "--database=sqlite:"+database)
	do("the history goes on", rowkeeperProgram, "fence", "--database=sqlite:"+database)
	do("compared with the database: 59 objects, as in the backup; changed, deleted or expired since: 0",
		rowkeeperProgram, "drill", "--database=sqlite:"+database, "before.backup")
	again := start(t, t.TempDir(), "--database=sqlite:"+database)
	if n := len(again.content(t)); n != 58 {
		t.Errorf("there are %d pipelines, want 58", n)
	}
	again.ok(t, manifest("after", "make"), "create", "-f", "-")
}
