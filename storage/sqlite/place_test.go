package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// identityOf opens a store and reads its identity.
func identityOf(t *testing.T, path string) contract.Identity {
	t.Helper()
	b := open(t, "sqlite://"+path)
	defer b.Close()
	id, err := b.Identity(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestFingerprint tells what takes a stopped server's database for another one, and what does not.
func TestFingerprint(t *testing.T) {
	mkdir := func(t *testing.T, dir string) string {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for _, test := range []struct {
		name string
		// do does something to the file state.db in a directory data, and returns where it is then.
		do   func(t *testing.T, dir, path string) string
		same bool
	}{
		{"nothing", func(_ *testing.T, _, path string) string { return path }, true},
		{"a symbolic link to the file", func(t *testing.T, dir, path string) string {
			link := filepath.Join(dir, "link.db")
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			return link
		}, true},
		{"another path of the directory", func(t *testing.T, dir, path string) string {
			rename(t, filepath.Dir(path), filepath.Join(dir, "mounted elsewhere"))
			return filepath.Join(dir, "mounted elsewhere", "state.db")
		}, true},
		{"renamed", func(t *testing.T, _, path string) string {
			rename(t, path, path+".old")
			return path + ".old"
		}, false},
		{"moved", func(t *testing.T, dir, path string) string {
			moved := filepath.Join(mkdir(t, filepath.Join(dir, "other")), "state.db")
			rename(t, path, moved)
			return moved
		}, false},
		{"replaced by a copy", func(t *testing.T, _, path string) string {
			copyFile(t, path, path+".copy")
			rename(t, path+".copy", path)
			return path
		}, false},
		// These changes cannot be noticed; see the package's documentation.
		{"overwritten", func(t *testing.T, _, path string) string {
			copyFile(t, path, path+".copy")
			copyFile(t, path+".copy", path)
			return path
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(mkdir(t, filepath.Join(dir, "data")), "state.db")
			migrate(t, "sqlite://"+path)
			before := identityOf(t, path)
			after := identityOf(t, test.do(t, dir, path))
			if same := before.Actual == after.Actual; same != test.same {
				t.Errorf("the fingerprint is %s, it was %s", after.Actual, before.Actual)
			}
		})
	}
}

// TestFingerprintHasNoDevice: the device number of a volume changes when it is attached elsewhere.
// In a process it does not, and tells a file of another volume that was mounted over the first one.
func TestFingerprintHasNoDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	migrate(t, "sqlite://"+path)
	b := open(t, "sqlite://"+path).(*backend)
	defer b.Close()
	before := b.fingerprint()
	b.file.device++
	b.place.directory.device++
	if after := b.fingerprint(); after != before {
		t.Errorf("the fingerprint is %s, it was %s", after, before)
	}
	if b.displaced() == nil {
		t.Error("a file on another device is taken for the one that is open")
	}
	b.file.device--
}

// TestDrillsCopy serves a copy at another place, fences it there, and moves it over the file while
// no server runs: the fingerprint that it has recorded is its own.
func TestDrillsCopy(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	path, drill := filepath.Join(dir, "state.db"), filepath.Join(dir, "drill.db")
	filled(t, path, 10)
	copyFile(t, path, drill)
	b := open(t, "sqlite://"+drill)
	id, err := b.Identity(ctx)
	if err != nil {
		t.Fatal(err)
	}
	st, err := b.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = contract.StartEpoch(ctx, b, contract.Fence{Seen: st.Head, Token: newToken(), Jump: 1 << 32,
		Fingerprint: id.Actual})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if id = identityOf(t, drill); id.Recorded != id.Actual {
		t.Fatalf("the fence has recorded %q, not %q", id.Recorded, id.Actual)
	}
	rename(t, drill, path)
	if id = identityOf(t, path); id.Recorded == id.Actual {
		t.Errorf("the copy's fingerprint is %q here as well", id.Actual)
	}
}
