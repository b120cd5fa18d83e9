// Package testserver takes the place of k8s.io/apiserver/pkg/storage/etcd3/testserver when the
// tests beside that run: it starts "rowkeeper etcd" on an empty database, in place of etcd.
package testserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const (
	// ProgramEnv names the program rowkeeper, and KindEnv the kind of the databases.
	ProgramEnv = "ROWKEEPER_PROGRAM"
	KindEnv    = "ROWKEEPER_KIND"
)

// NewTestConfig returns a configuration of etcd, of which RunEtcd heeds nothing.
func NewTestConfig(testing.TB) *embed.Config { return embed.NewConfig() }

// RunEtcd starts a server on a database of its own, and returns a client of it.
func RunEtcd(t testing.TB, _ *embed.Config) *kubernetes.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd3") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket := filepath.Join(dir, "s")
	var output bytes.Buffer
	server := exec.Command(os.Getenv(ProgramEnv), "etcd", "--database", database(t, dir),
		"--listen-client-urls", "unix://"+socket)
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := server.Wait(); err != nil {
			t.Errorf("the server ends: %v: %s", err, output.String())
		}
	})
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{"unix://" + socket},
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	// The client waits for the server.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err = client.KV.Get(ctx, "ready"); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the server does not answer: %v", err)
		}
	}
	recorder := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, recorder)
	client.Kubernetes = recorder
	return client
}

// database makes an empty database, and returns its URL.
func database(t testing.TB, dir string) string {
	t.Helper()
	kind := programs.Kind(os.Getenv(KindEnv))
	if kind == programs.SQLite {
		return (&url.URL{Scheme: "sqlite", Path: filepath.Join(dir, "state.db")}).String()
	}
	server, err := dbserver.Start(t.Context(), kind, dbserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := "rowkeeper_" + strings.ToLower(rand.Text())
	address, err := server.CreateDatabase(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.DropDatabase(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	return address
}
