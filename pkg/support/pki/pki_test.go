package pki

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// obstruct puts a directory where a file would be renamed to, so that the rename fails, as if the
// process had ended before it. The old files come back when the obstacle is cleared.
func obstruct(t *testing.T, file string) (clear func()) {
	t.Helper()
	aside := filepath.Join(t.TempDir(), "aside")
	existed := os.Rename(file, aside) == nil
	if err := os.MkdirAll(filepath.Join(file, "obstacle"), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if existed {
			if err := os.Rename(aside, file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestInterruptedReplacementLeavesAPair interrupts the replacement of each file of a pair, on the
// first start, when there is no pair yet, and on a renewal.
func TestInterruptedReplacementLeavesAPair(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	for _, renewal := range []bool{false, true} {
		for _, interrupted := range []string{"serving.crt", "serving.key"} {
			name := "first start, " + interrupted
			if renewal {
				name = "renewal, " + interrupted
			}
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				a, _, err := EnsureAuthority(filepath.Join(dir, "ca.crt"),
					filepath.Join(dir, "ca.key"), clock)
				if err != nil {
					t.Fatal(err)
				}
				wanted := Certificate{
					CertFile: filepath.Join(dir, "serving.crt"),
					KeyFile:  filepath.Join(dir, "serving.key"),
					Template: Server("localhost"),
				}
				if renewal {
					if err := a.Issue(wanted); err != nil {
						t.Fatal(err)
					}
				}
				clear := obstruct(t, filepath.Join(dir, interrupted))
				if err := a.Issue(wanted); err == nil {
					t.Fatal("nothing interrupted the replacement")
				}
				clear()
				fresh, err := a.Ensure(wanted)
				if err != nil {
					t.Fatalf("the next start refuses what is left: %v", err)
				}
				if fresh {
					t.Error("the next start made another certificate, though the new one was " +
						"complete")
				}
				if _, err := tls.LoadX509KeyPair(wanted.CertFile, wanted.KeyFile); err != nil {
					t.Error(err)
				}
				if left, err := filepath.Glob(filepath.Join(dir, "*"+next)); err != nil ||
					len(left) > 0 {
					t.Errorf("files are left: %v %v", left, err)
				}
			})
		}
	}
}

// TestInterruptedWritingIsForgotten: what was not complete when a process ended does not mix with
// the pair that a later one makes.
func TestInterruptedWritingIsForgotten(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	first, _, err := EnsureAuthority(cert, key, clock)
	if err != nil {
		t.Fatal(err)
	}
	// The key of a new pair was written, its certificate was not.
	if err := os.WriteFile(key+next, []byte("half of a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, fresh, err := EnsureAuthority(cert, key, clock)
	if err != nil || fresh || !again.pair.Cert.Equal(first.pair.Cert) {
		t.Fatalf("the pair in place is not the one before: fresh %v, %v", fresh, err)
	}
	// It is renewed after a complete pair was left by somebody who then lost the new key's file.
	if err := os.WriteFile(cert+next, []byte("of another key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writePair(cert, key, Chain{Key: first.pair.Key}); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(cert); err != nil || len(content) > 0 {
		t.Errorf("the certificates are %q, %v; want those of the last pair", content, err)
	}
}
