package mysql_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
)

// cluster is a Galera cluster of MariaDB servers, started from the programs of this machine.
type cluster struct {
	t          testing.TB
	dir        string
	credential *syscall.Credential
	nodes      []*node
}

type node struct {
	// url is that of the database "store" on this node.
	url string
	// group is the address at which the others find it.
	group string
	leash io.Closer
	cmd   *osexec.Cmd
}

// kill ends a node as a power failure would.
func (n *node) kill() {
	n.leash.Close()
	n.cmd.Wait()
}

const galeraLibrary = "/usr/lib/galera/libgalera_smm.so"

// newCluster starts three nodes, with an empty database on them.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	if os.Getenv("ROWKEEPER_TEST_SOURCE") == "container" {
		t.Skip("no Galera cluster: ROWKEEPER_TEST_SOURCE leaves out the programs of this machine")
	}
	c := &cluster{t: t}
	for _, path := range []string{galeraLibrary, "/usr/sbin/mariadbd",
		"/usr/bin/mariadb-install-db", "/usr/bin/rsync"} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("no Galera cluster: %v", err)
		}
	}
	var err error
	//nolint:usetesting // the servers run as another user, who could not enter the test's own directory
	if c.dir, err = os.MkdirTemp("", "rowkeeper-galera-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(c.dir) })
	if os.Geteuid() == 0 {
		// Servers do not run as root.
		u, err := user.Lookup("mysql")
		if err != nil {
			t.Skipf("no Galera cluster: %v", err)
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			t.Fatal(err)
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			t.Fatal(err)
		}
		c.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(c.dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		c.start()
	}
	db, err := admin(t, c.nodes[0].url+"mysql").Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE store"); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		other := admin(t, n.url+"mysql")
		eventually(t, "the database to be at all nodes", func() bool {
			var there bool
			if err := other.QueryRowContext(t.Context(),
				"SELECT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = "+
					"'store')").Scan(&there); err != nil {
				t.Fatal(err)
			}
			return there
		})
		n.url += "store"
	}
	// All at once, as servers do that are started together.
	var migrations sync.WaitGroup
	for _, n := range c.nodes {
		migrations.Go(func() {
			if _, err := mysql.Driver.Migrate(t.Context(), n.url, options(t)); err != nil {
				t.Errorf("migrate by %s: %v", n.url, err)
			}
		})
	}
	migrations.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return c
}

// command prepares a program to run as the servers' user. It ends, with the servers, when its
// standard input is closed, which also happens when this process ends.
func (c *cluster) command(args ...string) *osexec.Cmd {
	cmd := osexec.Command("sh",
		append([]string{"-c", `"$@" & cat >/dev/null; kill -9 $! 2>/dev/null`, "sh"}, args...)...)
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.credential, Setpgid: true}
	return cmd
}

// start adds a node, and waits until it takes part.
func (c *cluster) start() {
	t, i := c.t, len(c.nodes)
	t.Helper()
	data := filepath.Join(c.dir, fmt.Sprint("data", i))
	install := osexec.Command("/usr/bin/mariadb-install-db", "--no-defaults", "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	if i > 0 {
		install = osexec.Command("mkdir", data) // the first node sends its own
	}
	install.Dir, install.SysProcAttr = c.dir, &syscall.SysProcAttr{Credential: c.credential}
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	initial := filepath.Join(c.dir, "init.sql")
	if err := os.WriteFile(initial,
		[]byte("CREATE USER 'rk'@'%' IDENTIFIED BY 'secret';\nGRANT ALL ON *.* TO 'rk'@'%';\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	port, group, sst, ist := freePort(t), freePort(t), freePort(t), freePort(t)
	n := &node{url: fmt.Sprintf("mysql://rk:secret@127.0.0.1:%d/", port),
		group: fmt.Sprintf("127.0.0.1:%d", group)}
	args := []string{"/usr/sbin/mariadbd", "--no-defaults", "--datadir=" + data,
		fmt.Sprint("--socket=", data, ".socket"), fmt.Sprint("--port=", port),
		"--bind-address=127.0.0.1", "--skip-name-resolve", fmt.Sprint("--log-error=", data, ".log"),
		fmt.Sprint("--server-id=", i+1),
		"--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0",
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
		"--wsrep-on=ON", "--wsrep-provider=" + galeraLibrary, "--wsrep-cluster-name=rowkeeper",
		"--wsrep-node-address=" + n.group, "--wsrep-sst-method=rsync",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", sst),
		fmt.Sprintf("--wsrep-provider-options=base_port=%d;gmcast.listen_addr=tcp://%s;ist.recv_addr=127.0.0.1:%d", group, n.group, ist)}
	if i == 0 {
		args = append(args, "--wsrep-cluster-address=gcomm://", "--init-file="+initial)
	} else {
		args = append(args, "--wsrep-cluster-address=gcomm://"+c.nodes[0].group)
	}
	n.cmd = c.command(args...)
	var err error
	if n.leash, err = n.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.kill)
	c.nodes = append(c.nodes, n)
	db := admin(t, n.url+"mysql")
	eventually(t, "a node to take part", func() bool {
		var name, ready string
		err := db.QueryRow("SHOW STATUS LIKE 'wsrep_ready'").Scan(&name, &ready)
		return err == nil && ready == "ON"
	})
}

func freePort(t testing.TB) int {
	t.Helper()
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// testGaleraTurns: of nodes that have a migration before them, one begins, and the others wait for
// it. If it does not migrate, their turn comes.
func testGaleraTurns(t *testing.T, c *cluster) {
	if _, err := admin(t, c.nodes[0].url).ExecContext(t.Context(),
		"CREATE DATABASE turns"); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, n := range c.nodes {
		url := strings.TrimSuffix(n.url, "store") + "turns"
		db := admin(t, url)
		eventually(t, "a node to have the database", func() bool {
			return db.PingContext(t.Context()) == nil
		})
		urls = append(urls, url)
	}
	begins := make(chan string, len(urls))
	for _, turn := range []time.Duration{time.Millisecond, time.Hour} {
		for _, url := range urls {
			go func() {
				if err := mysql.LetFirstNode(t.Context(), url, options(t), turn); err != nil {
					t.Error(err)
				}
				begins <- url
			}()
		}
		for i := range urls {
			url := <-begins
			if turn == time.Hour && i == 0 {
				if _, err := mysql.Driver.Migrate(t.Context(), url, options(t)); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestGalera lets backends on all nodes of a cluster commit, fence and resolve at once. There, the
// commit lock of a node is not one of the others.
func TestGalera(t *testing.T) {
	c := newCluster(t)
	var backends []contract.Backend
	for _, n := range c.nodes {
		backends = append(backends, open(t, n.url))
	}
	t.Run("migrations take turns", func(t *testing.T) { testGaleraTurns(t, c) })
	t.Run("one history", func(t *testing.T) { testGaleraHistory(t, backends) })

	t.Run("reads see what was acknowledged", func(t *testing.T) {
		for i := range 100 {
			r := mustPut(t, backends[i%3], contract.Key(fmt.Sprint("read/", i)))
			if st := state(t, backends[(i+1)%3]); st.Head.Revision < r {
				t.Fatalf("after %d was acknowledged by one node, another is at %d", r,
					st.Head.Revision)
			}
		}
	})

	t.Run("resolved by another node", func(t *testing.T) {
		p := newProxy(t, c.nodes[0].url)
		victim := open(t, p.URL)
		for i := range 30 {
			v := []verdict{deliver, cut, deliver}[i%3]
			lost := make(chan *link, 1)
			p.on(func(l *link, q string) verdict {
				if q == "COMMIT" { // statements are sent to Galera one by one
					lost <- l
					return v
				}
				return forward
			})
			seen := state(t, victim).Head
			g := newGroup(seen, put(contract.Key(fmt.Sprint("resolved/", i)), 0, ""))
			_, err := victim.Commit(t.Context(), g)
			wantClass(t, err, contract.Unknown)
			p.on(nil)
			l := <-lost
			if i%3 == 0 {
				<-l.answered // else the resolution races with the commit
			}
			r := resolve(t, backends[1], g.Token, seen)
			if r.Aborted == r.Committed || i%3 == 0 && !r.Committed || v == cut && r.Committed {
				t.Fatalf("the resolution is %+v", r)
			}
			<-l.answered
			row, _, err := backends[2].Get(t.Context(), g.Mutations[0].Key)
			if err != nil || (row != nil) != r.Committed {
				t.Fatalf("the resolution is %+v, and the key is %+v, %v", r, row, err)
			}
			if r.Aborted {
				_, err = victim.Commit(t.Context(), g)
				wantClass(t, err, contract.Aborted)
			}
		}
	})

	t.Run("without a quorum", func(t *testing.T) {
		c.nodes[1].kill()
		c.nodes[2].kill()
		var err error
		eventually(t, "the node to find itself alone", func() bool {
			_, err = backends[0].State(t.Context())
			return err != nil && contract.ClassOf(err) == contract.ReadOnly
		})
		eventually(t, "the database to be refused", func() bool {
			b, err := contract.OpenBackend(t.Context(), mysql.Driver, c.nodes[0].url, options(t))
			if err == nil {
				b.Close()
			}
			return contract.ClassOf(err) == contract.ReadOnly &&
				strings.Contains(err.Error(), "the Galera node is not ready")
		})
	})
}

// resolve tries until it is not rolled back for another node's transaction.
func resolve(t *testing.T, b contract.Backend, token contract.Token, after contract.Position) *contract.Resolution {
	t.Helper()
	for {
		r, err := contract.ResolveGroup(t.Context(), b, token, after)
		if err == nil {
			return r
		}
		wantClass(t, err, contract.Transient)
	}
}

func testGaleraHistory(t *testing.T, backends []contract.Backend) {
	const writers, writes = 2, 60
	var (
		mu           sync.Mutex
		acknowledged = map[contract.Revision]contract.Key{}
		fences       int
		unknown      atomic.Int64
		wg, fencing  sync.WaitGroup
	)
	known := func(key contract.Key, r contract.Revision) {
		mu.Lock()
		defer mu.Unlock()
		if other, ok := acknowledged[r]; ok {
			t.Errorf("%q at %d was acknowledged, and so was %q", key, r, other)
		}
		acknowledged[r] = key
	}
	done := make(chan struct{})
	for i, b := range backends {
		for w := range writers {
			wg.Go(func() {
				seen := state(t, b).Head
				for n := 0; n < writes && !t.Failed(); {
					key := contract.Key(fmt.Sprintf("%d/%d/%d", i, w, n))
					g := newGroup(seen, put(key, 0, ""))
					r, err := b.Commit(t.Context(), g)
					switch class := contract.ClassOf(err); {
					case err == nil && !r.Outcomes[0].Accepted:
						t.Errorf("%q was refused: %+v", key, r.Outcomes[0])
					case err == nil:
						known(key, r.Outcomes[0].Revision)
						seen = r.State.Head
						n++
					case class == contract.Fenced:
						seen = state(t, b).Head
					case class == contract.Unknown:
						r := resolve(t, b, g.Token, seen)
						unknown.Add(1)
						if r.Committed {
							known(key, r.Rows[0].Revision)
							n++
						} else if !r.Aborted {
							// A fence came in between.
							if row, _, err := b.Get(t.Context(), key); err != nil {
								t.Error(err)
							} else if row != nil {
								known(key, row.Revision)
								n++
							}
						}
					case class != contract.Transient:
						t.Errorf("%v of class %v", err, class)
					}
				}
			})
		}
	}
	fencing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			b := backends[n%len(backends)]
			f := contract.Fence{Seen: state(t, b).Head, Jump: 1 << 32}
			f.Token[0] = byte(n + 1)
			switch _, err := contract.StartEpoch(t.Context(), b, f); {
			case err == nil:
				fences++
			case contract.ClassOf(err) != contract.Transient:
				t.Errorf("fence: %v", err)
			}
		}
	})
	wg.Wait()
	close(done)
	fencing.Wait()
	if len(acknowledged) != len(backends)*writers*writes || fences == 0 {
		t.Errorf("%d writes were acknowledged, and %d fences", len(acknowledged), fences)
	}
	t.Logf("%d fences, %d unknown outcomes", fences, unknown.Load())
	for i, b := range backends {
		tail, err := b.Tail(t.Context(), 1, 1<<20, contract.PrevOfAll)
		if err != nil {
			t.Fatal(err)
		}
		found, last := map[contract.Revision]contract.Key{}, contract.Revision(0)
		for _, r := range tail.Rows {
			if r.Revision != last+1 && !r.Marker() {
				t.Errorf("node %d has %d after %d", i, r.Revision, last)
			}
			last = r.Revision
			if !r.Marker() {
				found[r.Revision] = r.Key
			}
		}
		if !maps.Equal(found, acknowledged) {
			t.Errorf("node %d has other rows than were acknowledged", i)
		}
	}
}
