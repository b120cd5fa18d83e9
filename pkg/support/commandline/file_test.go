package commandline

import (
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
		err := CreateFile(file, writeNew)
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
	if err := CreateFile(filepath.Join(dir, "fresh"), writeNew); err != nil {
		t.Error(err)
	}
	if err := CreateFile(dir, writeNew); err == nil ||
		!strings.Contains(err.Error(), "no file that a backup could replace") {
		t.Errorf("a directory: %v", err)
	}
}
