package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// startPgBouncer puts a pooler before a database, and returns the database's URL through it.
func startPgBouncer(t testing.TB, database, mode string) string {
	t.Helper()
	return newPgBouncer(t, database, mode).URL
}

// pgBouncer is a pooler.
type pgBouncer struct {
	// URL is the database's, through the pooler.
	URL string

	database, mode, config string
	port                   int
	process                *os.Process
}

// configure writes the configuration, which leads to the database at a URL.
func (p *pgBouncer) configure(t testing.TB, url *url.URL) {
	t.Helper()
	password, _ := url.User.Password()
	ini := fmt.Sprintf("[databases]\n%s = host=%s port=%s user=%s password=%s dbname=%s\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\nunix_socket_dir=\nauth_type=any\npool_mode=%s\ndefault_pool_size=3\n",
		p.database, url.Hostname(), url.Port(), url.User.Username(), password, url.Path[1:], p.port,
		p.mode)
	if err := os.WriteFile(p.config, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
}

// lead leads the connections that there are to another database.
func (p *pgBouncer) lead(t testing.TB, database string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	p.configure(t, u)
	if err := p.process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

func newPgBouncer(t testing.TB, database, mode string) *pgBouncer {
	t.Helper()
	program, err := osexec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
		if _, err := os.Stat(program); err != nil {
			t.Skip("pgbouncer is not installed")
		}
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	port, err := programs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &pgBouncer{database: u.Path[1:], mode: mode, config: filepath.Join(dir, "pgbouncer.ini"),
		port: port}
	p.configure(t, u)
	cmd := osexec.Command(program, p.config)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if os.Geteuid() == 0 {
		// It does not run as root.
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Skipf("pgbouncer does not run as root: %v", err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid),
			Gid: uint32(gid)}}
		for d := dir; d != filepath.Dir(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
			if d != os.TempDir() {
				if err := os.Chmod(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	p.process = cmd.Process
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	u.RawQuery = "sslmode=disable"
	p.URL = u.String()
	eventually(t, "pgbouncer to listen", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return p
}

// A pooler goes over to another server, and keeps the connections to it. Nothing that the other
// server answers is believed, and nothing is written there, before the store was fenced.
func TestPoolerChangesServer(t *testing.T) {
	first := dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{}).Open()
	second := dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{}).Open()
	for _, db := range []dbtest.DB{first, second} {
		if _, err := postgres.Driver.Migrate(t.Context(), db.URL, options(t)); err != nil {
			t.Fatal(err)
		}
	}
	pooler := newPgBouncer(t, first.URL, "transaction")
	b := openURL(t, with(t, pooler.URL, "prepared_statements", "false"))
	defer b.Close()
	before, err := b.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := contract.RecordFingerprint(t.Context(), b, before.Actual); err != nil {
		t.Fatal(err)
	}
	seen := head(t, b)
	// The other one holds the same store and as many revisions, as a standby does that was
	// promoted.
	exec(t, connect(t, second.URL), `UPDATE rowkeeper_store SET identity = '`+before.Store+`'`)
	asks := map[string]func(b contract.Backend) error{
		"state": func(b contract.Backend) error { _, err := b.State(t.Context()); return err },
		"get":   func(b contract.Backend) error { _, _, err := b.Get(t.Context(), "a"); return err },
		"page": func(b contract.Backend) error {
			_, err := b.Page(t.Context(), contract.PageQuery{Start: "a", End: "b", Limit: 1})
			return err
		},
		"tail": func(b contract.Backend) error {
			_, err := b.Tail(t.Context(), 1, 10, contract.PrevOfAll)
			return err
		},
		"poll": func(b contract.Backend) error {
			polled, err := b.(contract.Shared).Poll(t.Context(), []contract.Backend{b}, 1)
			if err == nil {
				err = polled[0].Err
			}
			return err
		},
		"commit": func(b contract.Backend) error {
			_, err := b.Commit(t.Context(), group(seen, "never"))
			return err
		},
		"sweep": func(b contract.Backend) error {
			_, err := b.Sweep(t.Context(), &contract.SweepPlan{Epoch: seen.Epoch,
				Rows: []contract.RowID{1}})
			return err
		},
		"locked": func(b contract.Backend) error {
			return b.Locked(t.Context(), contract.LockOptions{}, func(tx contract.Tx) error {
				return tx.Abort(newToken(), seen.Revision)
			})
		},
	}
	// Each has a process of its own, whose connections are all there.
	backends := map[string]contract.Backend{}
	for name := range asks {
		b := openURL(t, with(t, pooler.URL, "prepared_statements", "false"))
		defer b.Close()
		res, err := b.Commit(t.Context(), group(head(t, b), contract.Key(name)))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.Get(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		backends[name], seen = b, res.State.Head
	}
	pooler.lead(t, second.URL)
	eventually(t, "the pooler to go over", func() bool { return asks["state"](b) != nil })
	for name, ask := range asks {
		err := ask(backends[name])
		if !errors.Is(err, contract.ErrAnotherServer) {
			t.Errorf("%s: %v, want that it was led to another server", name, err)
		}
		eventually(t, name+" to say that it is fenced", func() bool {
			err = ask(backends[name])
			return err == nil || contract.ClassOf(err) != contract.Unavailable
		})
		wantClass(t, err, contract.Fenced)
	}
	if _, err := contract.StartEpoch(t.Context(), b, contract.Fence{Seen: seen, Replaces: seen.Epoch,
		Token: newToken(), Jump: 1 << 32, Fingerprint: "second"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(t.Context(), group(head(t, b), "a")); err != nil {
		t.Error(err)
	}
}

// Through a pooler in transaction mode, all but notifications works, and that they do not is
// noticed.
func TestTransactionPooler(t *testing.T) {
	direct := migrated(t)
	pooled := startPgBouncer(t, direct, "transaction")
	backends := []contract.Backend{openURL(t, with(t, pooled, "prepared_statements", "false")),
		openURL(t, with(t, pooled, "prepared_statements", "false")), openURL(t, direct)}
	for _, b := range backends {
		defer b.Close()
	}
	const groups = 30
	var wg sync.WaitGroup
	for i, b := range backends {
		wg.Go(func() {
			seen := head(t, b)
			for n := range groups {
				keys := []contract.Key{contract.Key(fmt.Sprintf("k/%d/%03d", i, n)),
					contract.Key(fmt.Sprintf("shared/%03d", n))}
				res, err := b.Commit(t.Context(), group(seen, keys...))
				for errors.Is(err, contract.ErrOvertaken) {
					res, err = b.Commit(t.Context(), group(head(t, b), keys...))
				}
				if err != nil {
					t.Errorf("commit: %v", err)
					return
				}
				seen = res.State.Head
				if row, _, err := b.Get(t.Context(),
					contract.Key(fmt.Sprintf("k/%d/%03d", i, n))); err != nil || row == nil {
					t.Errorf("get: %+v, %v", row, err)
				}
				if n%10 == 0 {
					if _, err := contract.RaiseCompacted(t.Context(), b, seen.Revision/2); err != nil {
						t.Errorf("compact: %v", err)
					}
				}
				if _, _, err := contract.SweepBatch(t.Context(), b, 5); err != nil {
					t.Errorf("sweep: %v", err)
				}
				if r, err := contract.ResolveGroup(t.Context(), b, newToken(),
					head(t, b)); err != nil || !r.Aborted {
					t.Errorf("resolve: %+v, %v", r, err)
				}
			}
		})
	}
	wg.Wait()
	for _, b := range backends {
		n, s, err := b.Count(t.Context(), "k/", "z", 0, 0)
		if err != nil || n != 4*groups || s.Head.Revision != 1+4*groups {
			t.Errorf("%d keys at %d, %v", n, s.Head.Revision, err)
		}
		tail, err := b.Tail(t.Context(), s.Head.Revision-20, 100, contract.PrevOfAll)
		if err != nil || len(tail.Rows) != 21 {
			t.Errorf("the tail has %d rows, %v", len(tail.Rows), err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	status := make(chan error, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		backends[0].(contract.Notifier).Listen(ctx, func(contract.Revision) {}, func(err error) {
			status <- err
		})
	}()
	if err := <-status; err == nil || !strings.Contains(err.Error(), "LISTEN is without effect") {
		t.Errorf("the status of notifications is %v", err)
	}
	cancel()
	<-done
}

// Without the parameter, the error names it.
func TestTransactionPoolerWithPreparedStatements(t *testing.T) {
	direct := migrated(t)
	pooled := startPgBouncer(t, direct, "transaction")
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, pooled, options(t))
	if err == nil {
		defer b.Close()
		// Sessions change hands when there is more than one client.
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			seen []error
		)
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if _, err := b.State(t.Context()); err != nil {
						mu.Lock()
						seen = append(seen, err)
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if len(seen) == 0 {
			t.Skip("this pgbouncer keeps prepared statements apart")
		}
		err = seen[0]
	}
	wantClass(t, err, contract.Denied)
	if !strings.Contains(err.Error(), "prepared_statements=false") {
		t.Errorf("the error is %v", err)
	}
}

// A pooler in session mode is like the database itself.
func TestSessionPooler(t *testing.T) {
	pooled := startPgBouncer(t, migrated(t), "session")
	b := openURL(t, with(t, pooled, "pool_max_conns", "1"))
	defer b.Close()
	res, err := b.Commit(t.Context(), group(head(t, b), "a"))
	if err != nil {
		t.Fatal(err)
	}
	if row, _, err := b.Get(t.Context(), "a"); err != nil || row.Revision != res.State.Head.Revision {
		t.Errorf("get: %+v, %v", row, err)
	}
}
