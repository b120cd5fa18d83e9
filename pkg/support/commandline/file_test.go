package commandline

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBackupReplacesOnlyBackups: what is in the place of the new file is another backup, or stays.
func TestBackupReplacesOnlyBackups(t *testing.T) {
	dir := t.TempDir()
	writeNew := func(f *os.File) error { _, err := f.WriteString("new"); return err }
	for name, tc := range map[string]struct{ before, words string }{
		"backup":   {"rowkeeper-backup 1\nold", ""},
		"empty":    {"", ""},
		"database": {"SQLite format 3\x00 and more", "exists and is no backup"},
		"short":    {"x", "exists and is no backup"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(tc.before), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "backup" {
			err := CreateFile(file, false, writeNew)
			kept, readErr := os.ReadFile(file)
			if err == nil || !strings.Contains(err.Error(), "--force") || readErr != nil ||
				string(kept) != tc.before {
				t.Errorf("without force: %v, and the file is %q (%v)", err, kept, readErr)
			}
		}
		err := CreateFile(file, true, writeNew)
		content, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if tc.words == "" && (err != nil || string(content) != "new") ||
			tc.words != "" && (err == nil || !strings.Contains(err.Error(), tc.words) ||
				string(content) != tc.before) {
			t.Errorf("%s: %v, and the file is %q", name, err, content)
		}
	}
	fresh := filepath.Join(dir, "fresh")
	if err := CreateFile(fresh, false, writeNew); err != nil {
		t.Error(err)
	}
	// Another backup comes to have the name while this one is written.
	if err := os.Remove(fresh); err != nil {
		t.Fatal(err)
	}
	const other = "rowkeeper-backup 1\nother"
	err := CreateFile(fresh, false, func(f *os.File) error {
		return errors.Join(writeNew(f), os.WriteFile(fresh, []byte(other), 0o600))
	})
	if content, readErr := os.ReadFile(fresh); err == nil || readErr != nil ||
		string(content) != other {
		t.Errorf("beside another backup: %v, and the file is %q (%v)", err, content, readErr)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	if err := CreateFile(dir, true, writeNew); err == nil ||
		!strings.Contains(err.Error(), "no file that a backup could replace") {
		t.Errorf("a directory: %v", err)
	}
}
