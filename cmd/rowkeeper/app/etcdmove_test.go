package app

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// TestEtcdMove: what is served by etcd's API is imported into an empty database and into no other,
// and is exported into a file that replaces nothing.
func TestEtcdMove(t *testing.T) {
	address := serveEtcd(t)
	dir := t.TempDir()
	database := "--database=sqlite://" + filepath.Join(dir, "state.db")
	snapshot, other := filepath.Join(dir, "snapshot.db"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		args string
		code int
		want string
	}{
		{"import", exitUsage, "name the client URLs"},
		{"import http://" + address + " --database=memory:", exitUsage, "names no database"},
		{"import http://" + address + " --cert=a " + database, exitUsage, "go together"},
		{"import https://" + address + " --cacert=" + other + " " + database, exitFailure,
			"has no certificate"},
		{"import http://" + address + " " + database, exitOK, "imported 1 object at revision 2 "},
		{"import http://" + address + " " + database, exitFailure, "holds objects already"},
		{"export - " + database, exitUsage, "to a file"},
		{"export " + other + " " + database, exitFailure, "exists and is no"},
		{"export " + snapshot + " " + database, exitOK, "exported 1 keys"},
	} {
		var out bytes.Buffer
		code := Run(t.Context(), append([]string{"etcd"}, strings.Fields(step.args)...), &out, &out)
		if code != step.code || !strings.Contains(out.String(), step.want) {
			t.Errorf("%s: exit code %d, %s", step.args, code, out.String())
		}
	}
	if info, err := os.Stat(snapshot); err != nil || info.Size() == 0 ||
		info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// serveEtcd serves etcd's API from memory, with one key, and returns the address.
func serveEtcd(t *testing.T) (address string) {
	t.Helper()
	address = freeAddress(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, []string{"etcd", "--database=memory:", "--listen-client-urls",
			"http://" + address}, io.Discard, io.Discard)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	limited, cancelPut := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancelPut()
	// The client waits until the server listens.
	for _, err = c.Put(limited, "/k", "v"); err != nil && limited.Err() == nil; {
		_, err = c.Put(limited, "/k", "v")
	}
	if err != nil {
		t.Fatal(err)
	}
	return address
}
