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

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// startPgBouncer puts a pooler before a database, and returns the database's URL through it.
func startPgBouncer(t testing.TB, database, mode string) string {
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
	password, _ := u.User.Password()
	ini := fmt.Sprintf("[databases]\n* = host=%s port=%s user=%s password=%s\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\nunix_socket_dir=\nauth_type=any\npool_mode=%s\ndefault_pool_size=3\n",
		u.Hostname(), u.Port(), u.User.Username(), password, port, mode)
	config := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(program, config)
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
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	u.RawQuery = "sslmode=disable"
	eventually(t, "pgbouncer to listen", func() bool {
		conn, err := net.Dial("tcp", u.Host)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return u.String()
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
