package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocketsReplaceNoFiles: a path that is no socket is refused, and its file stays.
func TestSocketsReplaceNoFiles(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "precious")
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &etcdCommand{}
	if l, err := c.listen("unix://"+path, &tlsFiles{}, nil); err == nil ||
		!strings.Contains(err.Error(), "is no socket") {
		t.Errorf("listens on %v, %v", l, err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "kept" {
		t.Errorf("the file has %q, %v", content, err)
	}
	if l, err := c.listen("unix://"+filepath.Join(dir, "missing", "socket"), &tlsFiles{}, nil); err == nil ||
		!strings.Contains(err.Error(), "create it, or name another path") {
		t.Errorf("listens on %v, %v", l, err)
	}
	// A socket that was left behind is replaced.
	left := filepath.Join(dir, "socket")
	for range 2 {
		l, err := c.listen("unix://"+left, &tlsFiles{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if u, ok := l.(interface{ SetUnlinkOnClose(bool) }); ok {
			u.SetUnlinkOnClose(false)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
