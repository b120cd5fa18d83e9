package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Galera is a cluster of three MariaDB nodes, with a server on each. It is [Clocked].
type Galera struct {
	dir     string
	nodes   []*galeraNode
	network *Network
}

type galeraNode struct {
	*programs.Program
	port  int
	group string
}

const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// NewGalera starts a cluster.
func NewGalera(ctx context.Context, dir string) (*Galera, error) {
	for _, path := range []string{galeraLibrary, "/usr/sbin/mariadbd",
		"/usr/bin/mariadb-install-db", "/usr/bin/rsync"} {
		if _, err := os.Stat(path); err != nil {
			return nil, &Missing{fmt.Sprintf("a Galera cluster needs the packages "+
				"mariadb-server, galera-4 and rsync on this machine: %v", err)}
		}
	}
	g := &Galera{dir: dir}
	for range 3 {
		if err := g.add(ctx); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	err := g.exec(ctx, 0, "CREATE DATABASE rowkeeper")
	if err == nil {
		g.network, err = NewNetwork(g.address(0), g.address(1), g.address(2))
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	g.network.Rewrite(mysqlClock)
	return g, nil
}

func (g *Galera) address(node int) string { return fmt.Sprintf("127.0.0.1:%d", g.nodes[node].port) }

func (g *Galera) open(node int) (*sql.DB, error) {
	c := mysql.NewConfig()
	c.Logger = &mysql.NopLogger{}
	c.User, c.Passwd, c.Net, c.Addr, c.Timeout = "rk", "secret", "tcp", g.address(node),
		5*time.Second
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func (g *Galera) exec(ctx context.Context, node int, query string) error {
	db, err := g.open(node)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, query)
	return err
}

// status reads one of a node's status variables.
func (g *Galera) status(ctx context.Context, node int, name string) (string, error) {
	db, err := g.open(node)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var value string
	return value, db.QueryRowContext(ctx, "SHOW STATUS LIKE '"+name+"'").Scan(&name, &value)
}

// add starts a node, and waits until it takes part.
func (g *Galera) add(ctx context.Context) error {
	i := len(g.nodes)
	dir := filepath.Join(g.dir, fmt.Sprint("galera", i))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	n := &galeraNode{Program: program(dir)}
	err := n.RunAs("mysql")
	if err != nil {
		return &Missing{err.Error()}
	}
	data := filepath.Join(dir, "data")
	if i == 0 {
		err = n.Run("/usr/bin/mariadb-install-db", "--no-defaults", "--datadir="+data,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	} else {
		err = n.Run("mkdir", data) // the first node sends its own
	}
	if err != nil {
		return err
	}
	var ports [4]int
	for k := range ports {
		if ports[k], err = programs.FreePort(); err != nil {
			return err
		}
	}
	n.port, n.group = ports[0], fmt.Sprintf("127.0.0.1:%d", ports[1])
	initial := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(initial,
		[]byte("CREATE USER IF NOT EXISTS 'rk'@'%' IDENTIFIED BY 'secret';\nGRANT ALL ON *.* TO 'rk'@'%';\n"), 0o644); err != nil {
		return err
	}
	n.Command = []string{"/usr/sbin/mariadbd", "--no-defaults", "--datadir=" + data, "--socket=" +
		filepath.Join(dir, "socket"), fmt.Sprint("--port=", n.port), "--bind-address=127.0.0.1",
		"--skip-name-resolve", fmt.Sprint("--server-id=", i+1), "--innodb-buffer-pool-size=64M",
		"--innodb-flush-log-at-trx-commit=0",
		"--max-connections=300", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
		"--wsrep-on=ON", "--wsrep-provider=" + galeraLibrary, "--wsrep-cluster-name=torture",
		"--wsrep-node-address=" + n.group, "--wsrep-sst-method=rsync",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", ports[2]),
		fmt.Sprintf("--wsrep-provider-options=base_port=%d;gmcast.listen_addr=tcp://%s;ist.recv_addr=127.0.0.1:%d", ports[1], n.group, ports[3])}
	if i == 0 {
		n.Command = append(n.Command, "--wsrep-cluster-address=gcomm://", "--init-file="+initial)
	} else {
		n.Command = append(n.Command, "--wsrep-cluster-address=gcomm://"+g.nodes[0].group)
	}
	if err := n.Start(); err != nil {
		return err
	}
	g.nodes = append(g.nodes, n)
	return n.Await(ctx, g.ready(i))
}

func (g *Galera) ready(node int) func(context.Context) error {
	return func(ctx context.Context) error {
		ready, err := g.status(ctx, node, "wsrep_ready")
		if err == nil && ready != "ON" {
			err = errors.New("the node does not take part")
		}
		return err
	}
}

// Isolate cuts a node off from the others, and returns what ends that.
func (g *Galera) Isolate(ctx context.Context, node int) (end func() error, err error) {
	return func() error { return g.isolate(ctx, node, false) }, g.isolate(ctx, node, true)
}

func (g *Galera) isolate(ctx context.Context, node int, isolated bool) error {
	value := 0
	if isolated {
		value = 1
	}
	if err := g.exec(ctx, node,
		fmt.Sprintf("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=%d'", value)); err != nil {
		return err
	}
	return g.nodes[node].Await(ctx, func(ctx context.Context) error {
		err := g.ready(node)(ctx)
		if isolated && err == nil {
			return errors.New("the node does not notice that it is alone")
		}
		if isolated {
			return nil
		}
		return err
	})
}

// Crash kills a node, and returns what starts it again and waits until it takes part.
func (g *Galera) Crash(ctx context.Context, node int) (end func() error, err error) {
	n := g.nodes[node]
	return func() error {
		if err := n.Start(); err != nil {
			return err
		}
		return n.Await(ctx, g.ready(node))
	}, n.Kill(ctx)
}

// Freeze freezes a node, and returns what lets it go on and waits until it takes part. The others
// exclude it after some seconds.
func (g *Galera) Freeze(ctx context.Context, node int) (end func() error, err error) {
	n := g.nodes[node]
	return func() error {
		if err := n.Resume(); err != nil {
			return err
		}
		return n.Await(ctx, g.ready(node))
	}, n.Pause()
}

// SetClock implements Clocked.
func (g *Galera) SetClock(ctx context.Context, node int, offset time.Duration) error {
	return g.exec(ctx, node, setMySQLClock(offset))
}

// Version implements Database.
func (g *Galera) Version() string { return "mariadb, Galera of three nodes" }

// URL implements Database.
func (g *Galera) URL(server int) string {
	return g.network.Through(galeraURL(g.address(0)), server)
}

func galeraURL(address string) string {
	return "mysql://rk:secret@" + address + "/rowkeeper?tls=false"
}

// Direct implements Database. A read there waits for what other nodes have committed.
func (g *Galera) Direct() string { return galeraURL(g.address(0)) + "&wsrep_sync_wait=15" }

// Network implements Database.
func (g *Galera) Network() *Network { return g.network }

// Close ends all nodes.
func (g *Galera) Close() error {
	errs := []error{g.network.Close()}
	for _, n := range g.nodes {
		errs = append(errs, n.Kill(context.Background()))
	}
	return errors.Join(errs...)
}
