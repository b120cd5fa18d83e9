package commands

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage"
)

// TestNamed: only names that this program gives to backups of this store are taken for such.
func TestNamed(t *testing.T) {
	at := time.Date(2026, 11, 20, 19, 0, 2, 0, time.UTC)
	for _, store := range []string{"default", "team-a", "team-20261120t190002z-5"} {
		name := nameOf(store, storage.Backup{Time: at.Add(time.Millisecond), Revision: 9120377})
		if k, ok := named(store, name); !ok || k != (kept{name, at, 9120377}) {
			t.Errorf("%s: %+v %t", name, k, ok)
		}
	}
	for _, name := range []string{"default", "default-20261120T190002Z-9", "team-20261120T190002Z-9.backup",
		"default-20261120T190002Z.backup", "default-20261120T190002Z-09.backup",
		"default-20261120T190002Z-9-9.backup", "default-2026-9.backup", ".default.backup.1.partial",
		"default-x-20261120T190002Z-9.backup", "default-20261120T190002Z-9.backup.old", ""} {
		if k, ok := named("default", name); ok {
			t.Errorf("%q is taken for %+v", name, k)
		}
	}
}

// TestSurplus: the newest backups stay, and the one that was just made, whatever its time.
func TestSurplus(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	a, b := kept{"a", day(1), 10}, kept{"b", day(2), 20}
	c, later := kept{"c", day(3), 30}, kept{"later", day(3), 31}
	for _, tc := range []struct {
		all  []kept
		made string
		keep int
		want string
	}{
		{nil, "a", 1, ""},
		{[]kept{a}, "a", 1, ""},
		{[]kept{a, b, c}, "c", 3, ""},
		{[]kept{c, a, b}, "c", 2, "a"},
		{[]kept{c, a, b}, "c", 1, "a b"},
		{[]kept{later, c, b}, "later", 2, "b"},
		{[]kept{b, later, c}, "later", 1, "b c"},
		// The clock was set back, or the file is gone already.
		{[]kept{a, b, c}, "a", 2, "b"},
		{[]kept{a, b, c}, "a", 1, "b c"},
		{[]kept{a, b}, "c", 1, "a b"},
		{[]kept{a, b}, "c", 9, ""},
	} {
		before := slices.Clone(tc.all)
		if got := strings.Join(surplus(tc.all, tc.made, tc.keep), " "); got != tc.want ||
			!slices.Equal(before, tc.all) {
			t.Errorf("of %v, with %s made, keep %d: %q, want %q", before, tc.made, tc.keep, got, tc.want)
		}
	}
}

// TestBackupsInADirectory: backups get names, the oldest ones go when a new one is complete, and
// never those of another store or database, nor what is none. Drills take the newest one.
func TestBackupsInADirectory(t *testing.T) {
	dir, shelf, scratch := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", scratch)
	first, second := "--database=sqlite://"+filepath.Join(dir, "a.db"), "--database=sqlite://"+filepath.Join(dir, "b.db")
	do := func(exit int, want string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		if got := Run(t.Context(), bookmarks(), args, &out, &out); got != exit ||
			!strings.Contains(out.String(), want) {
			t.Errorf("%v exits with %d and says %q, want %d and %q", args, got, out.String(), exit, want)
		}
	}
	names := func() string {
		t.Helper()
		entries, err := os.ReadDir(shelf)
		if err != nil {
			t.Fatal(err)
		}
		var revisions []string
		for _, e := range entries {
			if k, ok := named("default", e.Name()); ok {
				revisions = append(revisions, e.Name())
				if k.revision < 1 {
					t.Errorf("%+v", k)
				}
			}
		}
		return strings.Join(revisions, " ")
	}
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(shelf, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	do(ExitOK, "applied", "migrate", "up", first)
	do(ExitOK, "applied", "migrate", "up", second)
	do(ExitFailure, "has no backup of the store", "drill", shelf)
	do(ExitOK, "backed up 0 objects", "backup", second, shelf)
	foreign := names()
	broken := write("default-20200101T000000Z-1.backup", "no backup")
	other := write("team-20200101T000000Z-1.backup", "of another store")
	left := write(".default.backup.123.partial", "half")
	active := write(".default.backup.456.partial", "half, of a backup that goes on")
	old := time.Now().Add(-abandonedAfter - time.Minute)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	// A fence moves the revision, so each backup has another name.
	var made []string
	for range 3 {
		before := strings.Fields(names())
		do(ExitOK, "history goes on", "fence", first)
		do(ExitOK, "backed up 0 objects", "backup", first, shelf)
		for _, name := range strings.Fields(names()) {
			if !slices.Contains(before, name) {
				made = append(made, name)
			}
		}
	}
	if _, err := os.Stat(left); err != nil {
		t.Errorf("without --keep nothing is removed: %v", err)
	}
	do(ExitOK, "history goes on", "fence", first)
	do(ExitOK, "removed 2 older, to keep 2\n", "backup", first, "--keep=2", shelf)
	for _, name := range append(made[:2:2], filepath.Base(left)) {
		if _, err := os.Stat(filepath.Join(shelf, name)); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	for _, name := range []string{made[2], foreign, filepath.Base(broken), filepath.Base(other),
		filepath.Base(active)} {
		if _, err := os.Stat(filepath.Join(shelf, name)); err != nil {
			t.Error(err)
		}
	}
	// A backup that fails removes nothing.
	before := names()
	do(ExitFailure, "", "backup", "--database=sqlite://"+filepath.Join(dir, "missing.db"), "--keep=1", shelf)
	if names() != before {
		t.Errorf("%s, before %s", names(), before)
	}

	do(ExitOK, "0 objects, as in the backup", "drill", shelf)
	do(ExitOK, "compared with the database: 0 objects, as in the backup", "drill", first, "--max-age=1h", shelf)
	do(ExitFailure, "--max-age is 1ns", "drill", "--max-age=1ns", shelf)
	do(ExitFailure, "the backup cannot be used", "drill", broken)
	do(ExitFailure, "has no backup of the store \"none\": make one by `bookmarks backup --store none "+
		shelf+"`", "drill", "--store=none", shelf)
	do(ExitFailure, "cannot read the backup", "drill", filepath.Join(shelf, "missing"))
	do(ExitUsage, "--max-age must not be negative", "drill", "--max-age=-1h", shelf)
	do(ExitUsage, "--store", "drill", "--store=No", shelf)
	do(ExitUsage, "--keep has to be greater than 0", "backup", first, "--keep=0", shelf)
	do(ExitUsage, "--keep needs a directory", "backup", first, "--keep=2", filepath.Join(shelf, "missing"))
	do(ExitUsage, "--keep needs a directory", "backup", first, "--keep=2", "-")
	if entries, err := os.ReadDir(scratch); err != nil || len(entries) > 0 {
		t.Errorf("drills have left %v, %v", entries, err)
	}
}
