package sqlite

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

func TestMigrateRefusesToTouch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	sqlExec(t, path, "CREATE TABLE notes (id INTEGER)", "INSERT INTO notes VALUES (1)")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Driver.Migrate(context.Background(), "sqlite://"+path, options(t))
	oneSentence(t, err, contract.Invalid, "of another program")
	_, err = Driver.Status(context.Background(), "sqlite://"+path, options(t))
	oneSentence(t, err, contract.Invalid, "of another program")
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("another program's database was changed")
	}
}

func TestMigrateAndStatus(t *testing.T) {
	ctx := context.Background()
	url := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
	_, err := Driver.Status(ctx, url, options(t))
	oneSentence(t, err, contract.Invalid, "there is no database file")
	done, err := Driver.Migrate(ctx, url, options(t))
	if err != nil || len(done) == 0 || done[0].Version != 1 || done[0].Applied.IsZero() {
		t.Fatalf("migrate ran %+v, %v", done, err)
	}
	if done, err = Driver.Migrate(ctx, url, options(t)); err != nil || len(done) != 0 {
		t.Fatalf("a second migrate ran %+v, %v", done, err)
	}
	for _, url := range []string{url, "memory:"} {
		list, err := Driver.Status(ctx, url, options(t))
		if err != nil || len(list) == 0 || list[0].Name != "initial" || list[0].Applied.IsZero() {
			t.Errorf("the status of %s is %+v, %v", url, list, err)
		}
	}
	if done, err = Driver.Migrate(ctx, "memory:", options(t)); err != nil || len(done) != 0 {
		t.Errorf("migrate of a store in memory ran %+v, %v", done, err)
	}
	// Only this user can read what is in the store.
	b := open(t, url)
	filler := filler{store: b, value: []byte("secret")}
	filler.grow(t, 1)
	for _, suffix := range []string{"", "-wal"} {
		fi, err := os.Stat(strings.TrimPrefix(url, "sqlite://") + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has the permissions %v", fi.Name(), fi.Mode())
		}
	}
	b.Close()
	for _, p := range []struct{ pragma, want string }{{"journal_mode", "wal"}, {"auto_vacuum", "2"},
		{"page_size", "8192"}, {"application_id", "1382772850"}} {
		if got := sqlQuery(t, strings.TrimPrefix(url, "sqlite://"), "PRAGMA "+
			p.pragma); got != p.want {
			t.Errorf("%s is %s, want %s", p.pragma, got, p.want)
		}
	}
}
