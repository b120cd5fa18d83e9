// Package database has the databases of the runs: how they are started, reached by each server, and
// hurt.
package database

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Kind is a kind of database.
type Kind string

// The kinds.
const (
	SQLite   Kind = "sqlite"
	Postgres Kind = "postgres"
	MariaDB  Kind = "mariadb"
	MySQL    Kind = "mysql"
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{SQLite, Postgres, MariaDB, MySQL} }

// Database is a database that several servers share.
type Database interface {
	// Version tells people what it is.
	Version() string
	// URL is where a server finds it, and Direct where nothing lies between.
	URL(server int) string
	Direct() string
	// Network is what lies between the servers and the database, nil if nothing does.
	Network() *Network
	Close() error
}

// Process is a database that is a process of its own.
type Process interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Kill(ctx context.Context) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// sqlite is a file.
type sqlite struct{ path string }

// NewSQLite makes a database of a file in a directory.
func NewSQLite(dir string) Database { return &sqlite{filepath.Join(dir, "state.db")} }

func (s *sqlite) Version() string   { return "SQLite" }
func (s *sqlite) URL(int) string    { return s.Direct() }
func (s *sqlite) Direct() string    { return (&url.URL{Scheme: "sqlite", Path: s.path}).String() }
func (s *sqlite) Network() *Network { return nil }
func (s *sqlite) Close() error      { return nil }

// given is a database that somebody else runs.
type given struct {
	url     string
	network *Network
}

// NewGiven takes the database of a URL.
func NewGiven(rawURL string, servers int) (Database, error) {
	g := &given{url: rawURL}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("the URL of the database cannot be parsed")
	}
	if u.Host != "" {
		g.network, err = NewNetwork(u.Host, servers)
	}
	return g, err
}

func (g *given) Version() string       { return "given" }
func (g *given) Direct() string        { return g.url }
func (g *given) Network() *Network     { return g.network }
func (g *given) URL(server int) string { return g.network.through(g.url, server) }
func (g *given) Close() error          { return g.network.Close() }

// Missing is an error that says why a kind of database cannot be had here.
type Missing struct{ Reason string }

func (e *Missing) Error() string { return e.Reason }

// Served is a server that package dbserver of the storage's tests runs, by its program dbserve.
type Served struct {
	version, url string
	network      *Network

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// NewServed starts a server of a kind, with settings of its own. env is added to its environment.
func NewServed(dbserve string, kind Kind, servers int, env []string,
	settings ...string) (*Served, error) {
	if reason := os.Getenv("ROWKEEPER_TEST_" + strings.ToUpper(string(kind)) +
		"_MISSING"); reason != "" {
		return nil, &Missing{reason}
	}
	s := &Served{cmd: exec.Command(dbserve, append([]string{string(kind)}, settings...)...)}
	s.cmd.Env = append(os.Environ(), env...)
	// An interrupt on the terminal is for this process, which ends the server when it ends.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	s.cmd.Stderr = &stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(stdout)
	first, err := s.answer()
	if err != nil {
		_ = s.stdin.Close()
		_ = s.cmd.Wait() // it has said why
		if errors.Is(err, io.EOF) {
			return nil, &Missing{fmt.Sprintf("%s: %s", kind,
				strings.Join(strings.Fields(stderr.String()), " "))}
		}
		return nil, err
	}
	s.version, s.url = string(kind)+" "+first.Version, first.URL
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.network, err = NewNetwork(u.Host, servers); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

type answer struct{ Version, Source, URL, Error string }

func (s *Served) answer() (answer, error) {
	line, err := s.out.ReadBytes('\n')
	var a answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

func (s *Served) command(command string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.stdin, command+"\n"); err != nil {
		return err
	}
	if _, err := s.answer(); err != nil {
		return fmt.Errorf("%s the database: %w", command, err)
	}
	return nil
}

// Version implements Database.
func (s *Served) Version() string { return s.version }

// Direct implements Database.
func (s *Served) Direct() string { return s.url }

// Network implements Database.
func (s *Served) Network() *Network { return s.network }

// URL implements Database.
func (s *Served) URL(server int) string { return s.network.through(s.url, server) }

// Start implements Process.
func (s *Served) Start(context.Context) error { return s.command("start") }

// Stop implements Process.
func (s *Served) Stop(context.Context) error { return s.command("stop") }

// Kill implements Process.
func (s *Served) Kill(context.Context) error { return s.command("kill") }

// Pause implements Process.
func (s *Served) Pause(context.Context) error { return s.command("pause") }

// Resume implements Process.
func (s *Served) Resume(context.Context) error { return s.command("resume") }

// Close removes the server.
func (s *Served) Close() error {
	err := s.network.Close()
	_ = s.stdin.Close()
	return errors.Join(err, s.cmd.Wait())
}
