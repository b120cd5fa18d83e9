package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMove: what is served by etcd's API is moved into a new database and into no other, and from
// there into another one. No message shows a password.
func TestMove(t *testing.T) {
	address := serveEtcd(t)
	dir := t.TempDir()
	one, two := "sqlite://"+filepath.Join(dir, "one.db"), "sqlite://"+filepath.Join(dir, "two.db")
	file := filepath.Join(dir, "url")
	if err := os.WriteFile(file, []byte(one+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := "--from=etcd://" + address
	t.Setenv("MOVED_DATABASE", one)
	for _, step := range []struct {
		args string
		code int
		want string
	}{
		{"--to=" + one, exitUsage, "no source is named"},
		{from, exitUsage, "no target is named"},
		{from + " --from-file=" + file + " --to=" + one, exitUsage, "exclude each other"},
		{from + " --to-env=SOME --to=" + one, exitUsage, "--to, --to-file and --to-env exclude each other"},
		{from + " --from-login=x --to=" + one, exitUsage, "--from-login is for a database of Rowkeeper"},
		{"--from-env=NOT_SET --to=" + one, exitFailure, "variable NOT_SET is not set"},
		{from + " --to=" + one + " --finish --undo", exitUsage, "exclude each other"},
		{from + " --to=memory:", exitUsage, "names no database"},
		{from + " --cert=a --to=" + one, exitUsage, "go together"},
		{"--from=kine:sqlite:" + dir + "/none.db --to=" + one, exitFailure, "cannot open kine's"},
		{"--from=kine:postgres://u:secret@127.0.0.1:1/x --to=" + one, exitFailure,
			"cannot look for kine's table in postgres://127.0.0.1:1/x"},
		{"--from=kine:mysql://u:secret@tcp(127.0.0.1:1)/x --to=" + one, exitFailure,
			"cannot look for kine's table in mysql://127.0.0.1:1/x"},
		{from + " --to-file=" + file + " --finish --still=1ms", exitOK, "moved 1 object at revision 2 "},
		{from + " --to=" + one + " --finish --still=1ms", exitFailure, "was written before"},
		{"--from=" + one + " --to=" + two + " --undo", exitFailure, "there is no database file"},
		{"--from-file=" + file + " --to=" + two + " --finish", exitOK, "have the same keys"},
		{"--from-file=" + file + " --to=" + two + " --undo", exitFailure, "no move to undo"},
		{"--from-env=MOVED_DATABASE --to=" + two + " --undo", exitFailure, "no move to undo"},
	} {
		var out bytes.Buffer
		code := Run(t.Context(), append([]string{"move"}, strings.Fields(step.args)...), &out, &out)
		if code != step.code || !strings.Contains(out.String(), step.want) ||
			strings.Contains(out.String(), "secret") {
			t.Errorf("%s: exit code %d, %s", step.args, code, out.String())
		}
	}
	var out bytes.Buffer
	if code := Run(t.Context(), []string{"fence", "--database=" + one}, &out, &out); code != exitFailure ||
		!strings.Contains(out.String(), "is one end of a move") {
		t.Errorf("the source can be used: %d, %s", code, out.String())
	}
}
