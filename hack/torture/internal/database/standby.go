package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Pair is a Postgres primary with a standby. Servers find the primary of the moment by one address,
// as by that of a virtual IP.
type Pair struct {
	bin, dir    string
	synchronous bool
	count       int
	primary     *node
	standby     *node
	network     *Network
}

type node struct {
	*programs.Program
	port int
}

func (n *node) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

func (n *node) url(name string) string {
	return (&url.URL{Scheme: "postgres", User: url.User("rowkeeper"), Host: n.address(), Path: "/" +
		name, RawQuery: "sslmode=disable"}).String()
}

// exec runs an administrator's statement.
func (n *node) exec(ctx context.Context, query string) error {
	db, err := sql.Open("pgx", n.url("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, query)
	return err
}

// ask reads a number.
func (n *node) ask(ctx context.Context, name, query string) (int64, error) {
	db, err := sql.Open("pgx", n.url(name))
	if err != nil {
		return 0, err
	}
	defer db.Close()
	var v int64
	return v, db.QueryRowContext(ctx, query).Scan(&v)
}

// program is a server program that does not outlive this process.
func program(dir string) *programs.Program {
	return &programs.Program{Dir: dir,
		Attributes: syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
}

// NewPair starts a primary and a standby. If the replication is synchronous, a commit is
// acknowledged when the standby has it.
func NewPair(ctx context.Context, dir string, servers int, synchronous bool) (*Pair, error) {
	p := &Pair{dir: dir, synchronous: synchronous}
	var err error
	if p.bin, err = programs.FindPostgres(); err != nil {
		return nil, &Missing{fmt.Sprintf("a primary and a standby need Postgres' programs on this "+
			"machine: %v", err)}
	}
	if p.primary, err = p.newNode(); err != nil {
		return nil, err
	}
	data := filepath.Join(p.primary.Dir, "data")
	if err := p.primary.Run(filepath.Join(p.bin, "initdb"), "--pgdata="+data,
		"--username=rowkeeper", "--auth=trust", "--encoding=UTF8", "--locale=C",
		"--no-sync"); err != nil {
		return nil, err
	}
	if err := p.serve(ctx, p.primary); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.primary.exec(ctx, "CREATE DATABASE rowkeeper"); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.Renew(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.network, err = NewNetwork(slices.Repeat([]string{p.primary.address()}, servers)...)
	return p, err
}

func (p *Pair) newNode() (*node, error) {
	dir := filepath.Join(p.dir, fmt.Sprint("node", p.count))
	p.count++
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	n := &node{Program: program(dir)}
	if err := n.RunAs("postgres"); err != nil {
		return nil, &Missing{err.Error()}
	}
	var err error
	if n.port, err = programs.FreePort(); err != nil {
		return nil, err
	}
	n.Command = []string{filepath.Join(p.bin, "postgres"), "-D", filepath.Join(dir, "data"), "-p",
		strconv.Itoa(n.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "max_connections=300", "-c", "wal_level=replica", "-c", "hot_standby=on", "-c",
		"wal_keep_size=256MB",
		"-c", "wal_receiver_status_interval=1s", "-c", "wal_retrieve_retry_interval=200ms"}
	return n, nil
}

func (p *Pair) serve(ctx context.Context, n *node) error {
	if err := n.Start(); err != nil {
		return err
	}
	return n.Await(ctx, func(ctx context.Context) error { return n.exec(ctx, "SELECT 1") })
}

// Renew gives the primary a new standby, and waits until it follows.
func (p *Pair) Renew(ctx context.Context) error {
	n, err := p.newNode()
	if err != nil {
		return err
	}
	if err := n.Run(filepath.Join(p.bin, "pg_basebackup"), "-D", filepath.Join(n.Dir, "data"), "-R",
		"-X", "stream", "-c", "fast", "--no-sync", "-h", "127.0.0.1", "-p",
		strconv.Itoa(p.primary.port), "-U", "rowkeeper"); err != nil {
		return err
	}
	p.standby = n
	if err := p.serve(ctx, n); err != nil {
		return err
	}
	if err := p.primary.Await(ctx, func(ctx context.Context) error {
		following, err := p.primary.ask(ctx, "postgres",
			"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
		if err == nil && following == 0 {
			err = errors.New("the standby does not follow")
		}
		return err
	}); err != nil || !p.synchronous {
		return err
	}
	if err := p.primary.exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '*'"); err != nil {
		return err
	}
	if err := p.primary.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return p.primary.Await(ctx, func(ctx context.Context) error {
		synchronous, err := p.primary.ask(ctx, "postgres",
			"SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
		if err == nil && synchronous == 0 {
			err = errors.New("the standby is not synchronous")
		}
		return err
	})
}

// Detach lets the standby receive no more.
func (p *Pair) Detach(ctx context.Context) error {
	for _, query := range []string{"ALTER SYSTEM SET primary_conninfo = ''",
		"SELECT pg_reload_conf()"} {
		if err := p.standby.exec(ctx, query); err != nil {
			return err
		}
	}
	return p.standby.Await(ctx, func(ctx context.Context) error {
		receiving, err := p.standby.ask(ctx, "postgres",
			"SELECT count(*) FROM pg_stat_wal_receiver")
		if err == nil && receiving > 0 {
			err = errors.New("the standby goes on receiving")
		}
		return err
	})
}

// KillPrimary ends the primary as a power failure would.
func (p *Pair) KillPrimary() error { return p.primary.Kill(context.Background()) }

// StandbyHead is the newest revision of a store that the standby has.
func (p *Pair) StandbyHead(ctx context.Context, store string) (int64, error) {
	return p.standby.ask(ctx, "rowkeeper", "SELECT max(revision) FROM rowkeeper_log WHERE store = "+
		"(SELECT id FROM rowkeeper_store WHERE name = '"+store+"')")
}

// Promote makes the standby the primary, and leads the servers to it.
func (p *Pair) Promote(ctx context.Context) error {
	// A standby that was to become synchronous's own setting is that it has one, too.
	if err := p.standby.exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = ''"); err != nil {
		return err
	}
	if err := p.standby.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	if err := p.standby.exec(ctx, "SELECT pg_promote()"); err != nil {
		return err
	}
	p.primary, p.standby = p.standby, nil
	return p.network.Point(p.primary.address())
}

// Version implements Database.
func (p *Pair) Version() string {
	replication := "asynchronous"
	if p.synchronous {
		replication = "synchronous"
	}
	return fmt.Sprintf("postgres %s, %s standby", strings.Split(p.bin, "/")[4], replication)
}

// URL implements Database.
func (p *Pair) URL(server int) string { return p.network.Through(p.Direct(), server) }

// Direct implements Database.
func (p *Pair) Direct() string { return p.primary.url("rowkeeper") }

// Network implements Database.
func (p *Pair) Network() *Network { return p.network }

// Close ends both.
func (p *Pair) Close() error {
	errs := []error{p.network.Close()}
	for _, n := range []*node{p.primary, p.standby} {
		if n != nil {
			errs = append(errs, n.Kill(context.Background()))
		}
	}
	return errors.Join(errs...)
}
