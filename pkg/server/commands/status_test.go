package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
	"github.com/rowkeeper/rowkeeper/storage"
)

// TestStatusAndDoctor: what they say of a database in order, of one that is not, and of none.
func TestStatusAndDoctor(t *testing.T) {
	dir := t.TempDir()
	file, backup := filepath.Join(dir, "state.db"), filepath.Join(dir, "backup")
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	database := "--database=sqlite://" + file
	now := time.Now()
	pair, err := pki.SelfSigned(pki.Server("example.com"), now, now.Add(10*24*time.Hour+time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"status", database}, ExitFailure, "empty database by `rowkeeper migrate up`"},
		{[]string{"doctor", database}, ExitFailure, "empty database by `rowkeeper migrate up`"},
		{[]string{"migrate", "up", database}, ExitOK, "applied"},
		{[]string{"status", database, "-o", "xml"}, ExitUsage, "--output is text or json"},
		{[]string{"doctor", database, "-o", "xml"}, ExitUsage, "--output is text or json"},
		{[]string{"status", database, "--interval=0s"}, ExitUsage, "--interval is longer than nothing"},
		{[]string{"status", database, "--store=team"}, ExitFailure, `no store "team"`},
		{[]string{"status", "--database=memory:"}, ExitUsage, "memory: names no database"},
		{[]string{"status", database, "--backup", cert}, ExitFailure, "the backup cannot be used"},
		{[]string{"status", database, "--certificate", file}, ExitFailure, "cannot read the certificates"},
		{[]string{"status", database}, ExitOK, "epoch 1, fences: 0"},
		{[]string{"fence", database}, ExitOK, "the history goes on"},
		{[]string{"status", database}, ExitOK, "epoch 2, fences: 1"},
		{[]string{"status", database}, ExitOK, "unknown: name its file by --backup"},
		{[]string{"backup", database, backup}, ExitOK, "backed up 0 objects"},
		{[]string{"status", database, "--backup", backup}, ExitOK, "last backup   " + backup + ", "},
		{[]string{"status", database, "--certificate", cert}, ExitOK, "ends in 10 days"},
		{[]string{"status", database, "-o", "json"}, ExitOK, `"epoch": 2`},
		{[]string{"doctor", database}, ExitOK, "nothing was found"},
		{[]string{"doctor", database + "?synchronous=NORMAL"}, ExitWarning,
			"WARNING durability-synchronous: synchronous is NORMAL"},
		{[]string{"doctor", database + "?synchronous=OFF"}, ExitError, "or the whole file"},
		{[]string{"doctor", database + "?synchronous=OFF", "-o", "json"}, ExitError, `"severity": "error"`},
		{[]string{"doctor", database, "--redacted"}, ExitOK, `"where": "…"`},
		{[]string{"doctor", database, "--repair", "--quick"}, ExitOK, "nothing was found"},
	} {
		var out bytes.Buffer
		exit := Run(t.Context(), bookmarks(), test.args, &out, &out)
		// A disk of this machine that is full is found, too.
		if exit != test.exit && !strings.Contains(out.String(), "disk-full") ||
			!strings.Contains(out.String(), test.want) && !strings.Contains(out.String(), "disk-full") {
			t.Errorf("%v exits with %d and says %q, want %d and %q", test.args, exit, out.String(),
				test.exit, test.want)
		}
	}
}

// TestStatusIsRefreshed: --watch shows the status again until it is interrupted.
func TestStatusIsRefreshed(t *testing.T) {
	database := "--database=sqlite://" + filepath.Join(t.TempDir(), "state.db")
	if exit := Run(t.Context(), bookmarks(), []string{"migrate", "up", database}, io.Discard,
		os.Stderr); exit != ExitOK {
		t.Fatal(exit)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, bookmarks(), []string{"status", database, "--watch", "--interval=1ms", "-o=json"}, w, os.Stderr)
		w.Close()
	}()
	in := json.NewDecoder(r)
	for range 3 {
		var s storage.DatabaseStatus
		if err := in.Decode(&s); err != nil || s.Head != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if exit := <-done; exit != ExitOK {
		t.Errorf("it exits with %d", exit)
	}
}
