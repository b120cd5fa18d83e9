package testkit

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Server is an API server that belongs to a test, which fails where an [Instance] returns an error.
type Server struct {
	*Instance
	t testing.TB
}

// Start starts a server, waits until it is ready, and stops it when the test ends. It fails the
// test if that is not possible.
func Start(t testing.TB, api API, o Options) *Server {
	t.Helper()
	started, err := Launch(t.Context(), api, o)
	if err != nil {
		t.Fatalf("cannot start the API server: %v", err)
	}
	s := &Server{Instance: started, t: t}
	t.Cleanup(func() {
		t.Helper()
		s.Stop()
	})
	return s
}

// Stop stops the server before the test ends.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.Instance.Stop(); err != nil {
		s.t.Errorf("cannot stop the API server: %v", err)
	}
}

// Snapshot is [Instance.Snapshot].
func (s *Server) Snapshot() Snapshot {
	s.t.Helper()
	ctx, cancel := s.context()
	defer cancel()
	taken, err := s.Instance.Snapshot(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return taken
}

// Rollback is [Instance.Rollback].
func (s *Server) Rollback(to Snapshot) {
	s.t.Helper()
	ctx, cancel := s.context()
	defer cancel()
	if err := s.Instance.Rollback(ctx, to); err != nil {
		s.t.Fatal(err)
	}
}

// Advance is [Instance.Advance].
func (s *Server) Advance(d time.Duration) {
	s.t.Helper()
	ctx, cancel := s.context()
	defer cancel()
	if err := s.Instance.Advance(ctx, d); err != nil {
		s.t.Fatal(err)
	}
}

// Kubeconfig returns the name of a file for kubectl and other programs, with a configuration's
// content.
func (s *Server) Kubeconfig(config *rest.Config) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := WriteKubeconfig(config, path); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// context is for what the test asks of the database. It does not end with the test's, which has
// ended when its cleanups run.
func (s *Server) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.t.Context()), startWait)
}
