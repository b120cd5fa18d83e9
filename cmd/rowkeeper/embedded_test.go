package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"
)

// TestEmbeddedAuthorities looks, in a process that finds no certificate authorities on the machine,
// whether the program has its own.
func TestEmbeddedAuthorities(t *testing.T) {
	const child = "ROWKEEPER_TEST_EMBEDDED_AUTHORITIES"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run",
			"^TestEmbeddedAuthorities$")
		cmd.Env = []string{child + "=1", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	roots, err := x509.SystemCertPool()
	if err != nil || roots.Equal(x509.NewCertPool()) {
		t.Errorf("there are no certificate authorities: %v", err)
	}
}
