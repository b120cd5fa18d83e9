// Package dbserver provides database servers for Rowkeeper's own tests and tools: PostgreSQL,
// MariaDB and MySQL.
//
// A server comes from the first of these that can be had:
//
//  1. an administrator's URL in the environment (ROWKEEPER_TEST_POSTGRES, ROWKEEPER_TEST_MARIADB,
//     ROWKEEPER_TEST_MYSQL);
//  2. a container, where a Docker engine answers and the image is there or can be pulled
//     (ROWKEEPER_TEST_POSTGRES_IMAGE and so on name another image than the default);
//  3. server programs installed on this machine, started on a free port in a temporary directory.
//
// ROWKEEPER_TEST_SOURCE, "container" or "local", leaves out the other.
//
// Servers that were started here end with the process that started them, however it ends.
package dbserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// SourceEnv is the environment variable that restricts where servers come from: "container" or
// "local".
const SourceEnv = "ROWKEEPER_TEST_SOURCE"

// Kind is a kind of database server.
type Kind = programs.Kind

// The kinds of servers.
const (
	Postgres = programs.Postgres
	MariaDB  = programs.MariaDB
	MySQL    = programs.MySQL
)

// Options tell how a server is to be started.
type Options struct {
	// Own asks for a server that nobody else uses: the URL in the environment is passed over.
	Own bool
	// Durable keeps every acknowledged commit over a crash, as servers do by default. Otherwise the
	// server skips what only matters then, which makes tests faster.
	Durable bool
	// Settings are further server settings, by the server's own names, such as max_connections.
	Settings map[string]string
	// TLS, if set, is the server's certificate.
	TLS *TLS
	// Dir, if set, makes the server a program of this machine, with its files in a directory below
	// this one.
	Dir string
}

// TLS is what a server needs for encrypted connections, in PEM.
type TLS struct {
	// CA verifies clients' certificates, Cert and Key are the server's own.
	CA, Cert, Key []byte
}

// Server is a running database server. One goroutine at a time stops and starts it.
type Server struct {
	Kind Kind
	// Version is the server's own, such as "17.5".
	Version string
	// Source tells people where the server came from.
	Source string
	// URL is the administrator's. It stays the same when the server is stopped and started again.
	URL string

	host host
}

// host is where a server of ours runs.
type host interface {
	// start starts the server's process, stop ends it in order, kill as a power failure would.
	start(ctx context.Context) error
	stop(ctx context.Context) error
	kill(ctx context.Context) error
	// pause freezes the server: connections stay open, and nothing answers.
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	// running tells whether the server's process lives.
	running(ctx context.Context) bool
	// remove kills the server and deletes its data.
	remove(ctx context.Context) error
	// logs returns the end of the server's log.
	logs(ctx context.Context) string
}

// Start starts a server or finds one. Its error says for each source why there is none.
func Start(ctx context.Context, kind Kind, opts Options) (*Server, error) {
	// A server that a program started for its tests is not durable.
	transient := os.Getenv(kind.SourceEnv()) != ""
	if url := os.Getenv(kind.Env()); url != "" && !opts.Own && !(opts.Durable && transient) {
		s := &Server{Kind: kind, Source: cmp.Or(os.Getenv(kind.SourceEnv()), kind.Env()), URL: url}
		if err := s.check(ctx); err != nil {
			// A user who names a server wants that one and no other.
			return nil, fmt.Errorf("%s: %w", kind.Env(), err)
		}
		return s, nil
	}
	if reason := os.Getenv(kind.MissingEnv()); reason != "" {
		return nil, errors.New(reason)
	}
	only := os.Getenv(SourceEnv)
	if opts.Dir != "" {
		only = "local"
	}
	var reasons []error
	for _, source := range []struct {
		name  string
		start func(context.Context, Kind, Options) (*Server, error)
	}{{"container", startContainer}, {"local", startLocal}} {
		if only != "" && only != source.name {
			reasons = append(reasons, fmt.Errorf("only %s is wanted, see %s", only, SourceEnv))
			continue
		}
		s, err := source.start(ctx, kind, opts)
		if err != nil {
			reasons = append(reasons, err)
			continue
		}
		if err := s.check(ctx); err != nil {
			reasons = append(reasons, fmt.Errorf("%s: %w; its log ends: %s", s.Source, err,
				s.host.logs(ctx)))
			if err := s.host.remove(ctx); err != nil {
				reasons = append(reasons, err)
			}
			continue
		}
		return s, nil
	}
	return nil, errors.Join(append([]error{fmt.Errorf("%s is not set", kind.Env())}, reasons...)...)
}

// Start starts the server again, on the same port and with the same data, and waits until it
// answers.
func (s *Server) Start(ctx context.Context) error {
	if err := s.host.start(ctx); err != nil {
		return err
	}
	return s.check(ctx)
}

// Stop ends the server in order, as an administrator would: connections are cut.
func (s *Server) Stop(ctx context.Context) error { return s.host.stop(ctx) }

// Kill ends the server as a power failure would.
func (s *Server) Kill(ctx context.Context) error { return s.host.kill(ctx) }

// Pause freezes the server: connections stay open, and nothing answers until Resume.
func (s *Server) Pause(ctx context.Context) error { return s.host.pause(ctx) }

// Resume ends a Pause.
func (s *Server) Resume(ctx context.Context) error { return s.host.resume(ctx) }

// Logs returns the end of the server's log, if it was started here.
func (s *Server) Logs(ctx context.Context) string {
	if s.host == nil {
		return ""
	}
	return s.host.logs(ctx)
}

// Close ends the server and deletes its data, if it was started here.
func (s *Server) Close(ctx context.Context) error {
	if s.host == nil {
		return nil
	}
	return s.host.remove(ctx)
}
