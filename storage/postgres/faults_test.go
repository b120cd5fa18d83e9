package postgres_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// with adds parameters to a database URL.
func with(t testing.TB, database string, params ...string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(params); i += 2 {
		q.Set(params[i], params[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func newToken() (t contract.Token) {
	rand.Read(t[:])
	return t
}

func group(seen contract.Position, keys ...contract.Key) *contract.Group {
	g := &contract.Group{Token: newToken(), Seen: seen}
	for _, k := range keys {
		g.Mutations = append(g.Mutations, &contract.Mutation{Key: k, Value: []byte("value of " + k)})
	}
	return g
}

func head(t testing.TB, b contract.Backend) contract.Position {
	t.Helper()
	s, err := b.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Head
}

func wantClass(t testing.TB, err error, class contract.Class) {
	t.Helper()
	if err == nil || contract.ClassOf(err) != class {
		t.Fatalf("the error is %v of class %v, want class %v", err, contract.ClassOf(err), class)
	}
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	const deadline = 30 * time.Second
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("waited %v for %s", deadline, what)
		}
	}
}

// lockStore takes the commit lock, as another process's group would, and returns what releases it.
func lockStore(t testing.TB, conn *pgx.Conn) (release func()) {
	t.Helper()
	exec(t, conn, "BEGIN", "SELECT FROM rowkeeper_store FOR UPDATE")
	return func() { exec(t, conn, "COMMIT") }
}

// waiting counts the sessions of the driver that wait for the commit lock.
func waiting(t testing.TB, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'rowkeeper' AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

type committed struct {
	res *contract.GroupResult
	err error
}

// commitSoon commits in the background.
func commitSoon(ctx context.Context, b contract.Backend, g *contract.Group) <-chan committed {
	done := make(chan committed, 1)
	go func() {
		res, err := b.Commit(ctx, g)
		done <- committed{res, err}
	}()
	return done
}

// A group sees what was committed while it waited for the lock, though its parameters were bound
// before.
func TestGroupSeesWhatItWaitedFor(t *testing.T) {
	url := migrated(t)
	b, admin, watcher := openURL(t, url), connect(t, url), connect(t, url)
	defer b.Close()
	seen := head(t, b)
	release := lockStore(t, admin)
	done := commitSoon(t.Context(), b, group(seen, "a", "b"))
	eventually(t, "the group to wait for the lock", func() bool { return waiting(t, watcher) == 1 })
	exec(t, admin,
		`INSERT INTO rowkeeper_log (store, revision, prev_revision, create_revision, version, lease, time, deleted, key, token, value)
		 VALUES (1, 2, 0, 2, 1, 0, 1, false, 'a', uuid_send(gen_random_uuid()), 'another')`,
		`INSERT INTO rowkeeper_live (store, key, revision, create_revision, version, lease) VALUES (1, 'a', 2, 2, 1, 0)`)
	release()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if o := r.res.Outcomes; r.res.Before.Revision != 2 || o[0].Accepted || o[0].Revision != 2 ||
		!o[1].Accepted || o[1].Revision != 3 {
		t.Errorf("the group was after %d, and its outcomes are %+v", r.res.Before.Revision, o)
	}
	if r.res.LockWait <= 0 {
		t.Errorf("the group waited %v for the lock", r.res.LockWait)
	}
}

// sessions counts the sessions of an application in the database.
func sessions(t testing.TB, conn *pgx.Conn, application string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, application).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A client that stops in the middle of sending a group does not hold the lock meanwhile.
func TestSlowSenderHoldsNoLock(t *testing.T) {
	url := migrated(t)
	p, through := newProxy(t, url)
	slow, quick := openURL(t, with(t, through, "application_name", "slow")), openURL(t, url)
	defer slow.Close()
	defer quick.Close()
	seen := head(t, slow)
	if _, err := slow.Commit(t.Context(), group(seen, "warm up")); err != nil {
		t.Fatal(err)
	}
	g := group(seen, "slow")
	g.Mutations[0].Value = bytes.Repeat([]byte("slow"), 500_000)
	p.pass(1_000_000)
	ctx, cancel := context.WithCancel(t.Context())
	done := commitSoon(ctx, slow, g)
	eventually(t, "the group to get stuck", p.holding)
	if _, err := quick.Commit(t.Context(), group(seen, "quick")); err != nil {
		t.Fatal(err)
	}
	cancel()
	wantClass(t, (<-done).err, contract.Unknown)
}

// A zombie is a group that comes to write when its client is gone.
func TestZombies(t *testing.T) {
	for _, prepared := range []string{"true", "false"} {
		t.Run("prepared_statements="+prepared, func(t *testing.T) {
			t.Run("waiting for the lock", func(t *testing.T) {
				url := migrated(t)
				b, admin, watcher := openURL(t, with(t, url, "prepared_statements", prepared)),
					connect(t, url), connect(t, url)
				defer b.Close()
				seen := head(t, b)
				release := lockStore(t, admin)
				g := group(seen, "zombie")
				ctx, cancel := context.WithCancel(t.Context())
				done := commitSoon(ctx, b, g)
				eventually(t, "the group to wait for the lock", func() bool {
					return waiting(t, watcher) == 1
				})
				cancel()
				wantClass(t, (<-done).err, contract.Unknown)
				resolved := make(chan error, 1)
				var r *contract.Resolution
				go func() {
					var err error
					r, err = contract.ResolveGroup(t.Context(), b, g.Token, seen)
					resolved <- err
				}()
				eventually(t, "the resolution to wait behind the group", func() bool {
					return waiting(t, watcher) == 2
				})
				release()
				if err := <-resolved; err != nil {
					t.Fatal(err)
				}
				// The group was first in the queue for the lock, so it has committed though nobody
				// was told.
				row, _, err := b.Get(t.Context(), "zombie")
				if err != nil || !r.Committed || r.Aborted || row == nil || len(r.Rows) != 1 ||
					r.Rows[0].Revision != row.Revision {
					t.Errorf("the resolution is %+v, and the key %+v, %v", r, row, err)
				}
			})
			t.Run("arriving late", func(t *testing.T) {
				url := migrated(t)
				p, through := newProxy(t, url)
				b, other, watcher := openURL(t, with(t, through, "prepared_statements", prepared,
					"application_name", "zombie")), openURL(t, url), connect(t, url)
				defer b.Close()
				defer other.Close()
				seen := head(t, b)
				if _, err := b.Commit(t.Context(), group(seen, "warm up")); err != nil {
					t.Fatal(err)
				}
				g := group(seen, "zombie")
				p.pass(0)
				ctx, cancel := context.WithCancel(t.Context())
				done := commitSoon(ctx, b, g)
				eventually(t, "the group to get stuck", p.holding)
				cancel()
				wantClass(t, (<-done).err, contract.Unknown)
				r, err := contract.ResolveGroup(t.Context(), other, g.Token, seen)
				if err != nil || !r.Aborted || r.Committed {
					t.Fatalf("the resolution is %+v, %v", r, err)
				}
				p.pass(-1)
				p.cut()
				// The server ends a session when it has done all that it has received.
				eventually(t, "the zombie to end", func() bool {
					return sessions(t, watcher, "zombie") == 0
				})
				if row, _, err := other.Get(t.Context(), "zombie"); err != nil || row != nil {
					t.Errorf("the key of the aborted group is %+v, %v", row, err)
				}
				if again, err := contract.ResolveGroup(t.Context(), other, g.Token, seen); err != nil ||
					!again.Aborted {
					t.Errorf("the second resolution is %+v, %v", again, err)
				}
			})
		})
	}
}

// Sessions are killed under load. A write that was acknowledged is there, one that was refused is
// not, and an unknown one is one or the other for good.
func TestTerminatedSessions(t *testing.T) {
	url := migrated(t)
	b, admin := openURL(t, url), connect(t, url)
	defer b.Close()
	stop := make(chan struct{})
	want := map[contract.Key]bool{}
	classes := map[contract.Class]int{}
	var wg sync.WaitGroup
	seen := head(t, b)
	var progress atomic.Int64
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			g := group(seen, contract.Key(fmt.Sprintf("k%06d", i)))
			res, err := b.Commit(t.Context(), g)
			if err == nil {
				seen, want[g.Mutations[0].Key] = res.State.Head, true
				progress.Add(1)
				continue
			}
			class := contract.ClassOf(err)
			classes[class]++
			switch class {
			case contract.Unavailable:
			case contract.Unknown:
				var r *contract.Resolution
				for r == nil {
					if r, err = contract.ResolveGroup(t.Context(), b, g.Token, seen); err != nil &&
						!slices.Contains([]contract.Class{contract.Transient, contract.Unavailable},
							contract.ClassOf(err)) {
						t.Errorf("resolve: %v", err)
						return
					}
				}
				if r.Committed == r.Aborted {
					t.Errorf("the resolution is %+v", r)
				}
				want[g.Mutations[0].Key] = r.Committed
			default:
				t.Errorf("commit: %v", err)
				return
			}
		}
	})
	kills := 0
	for kills < 30 {
		before := progress.Load()
		eventually(t, "commits to go on", func() bool { return progress.Load() > before })
		var n int
		if err := admin.QueryRow(t.Context(),
			`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'rowkeeper' AND (state <> 'idle' OR query = 'COMMIT')`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		kills += n
	}
	close(stop)
	wg.Wait()
	page, err := b.Page(t.Context(), contract.PageQuery{Start: "k", End: "l", Limit: 1 << 20,
		KeysOnly: true})
	for err != nil && contract.ClassOf(err) == contract.Unavailable {
		page, err = b.Page(t.Context(), contract.PageQuery{Start: "k", End: "l", Limit: 1 << 20,
			KeysOnly: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Rows {
		if !want[r.Key] {
			t.Errorf("the key %q is there, though its group was not committed", r.Key)
		}
		delete(want, r.Key)
	}
	for key, committed := range want {
		if committed {
			t.Errorf("the key %q is lost", key)
		}
	}
	t.Logf("%d keys, %d sessions killed, failures by class: %v", len(page.Rows), kills, classes)
}

// The connection that listens is killed alone.
func TestListenerIsKilled(t *testing.T) {
	url := migrated(t)
	b, other, admin := openURL(t, with(t, url, "application_name", "listening")), openURL(t, url),
		connect(t, url)
	defer b.Close()
	defer other.Close()
	var (
		mu     sync.Mutex
		heard  contract.Revision
		asked  int
		states []error
	)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.(contract.Notifier).Listen(ctx, func(r contract.Revision) {
			mu.Lock()
			defer mu.Unlock()
			if heard = max(heard, r); r == 0 {
				asked++
			}
		}, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, err)
		})
	}()
	flowing := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return asked == n && len(states) > 0 && states[len(states)-1] == nil
		}
	}
	seen := head(t, other)
	for i := 1; i <= 3; i++ {
		eventually(t, "notifications to flow", flowing(i))
		res, err := other.Commit(t.Context(), group(seen, contract.Key(fmt.Sprint(i))))
		if err != nil {
			t.Fatal(err)
		}
		seen = res.State.Head
		if err := other.(contract.Notifier).Announce(t.Context(),
			[]contract.Announced{{Store: other, Revision: seen.Revision}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the notification", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return heard == seen.Revision
		})
		exec(t, admin,
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listening' AND query LIKE '%pg_try_advisory%'`)
	}
	eventually(t, "notifications to flow", flowing(4))
	cancel()
	<-done
	mu.Lock()
	defer mu.Unlock()
	failures := 0
	for _, err := range states {
		if err != nil {
			failures++
		}
	}
	if failures != 3 {
		t.Errorf("the states were %v, want three failures", states)
	}
}

// A commit notifies nobody: the first notification is the one that was announced.
func TestAnnounce(t *testing.T) {
	url := migrated(t)
	b, admin := openURL(t, url), connect(t, url)
	defer b.Close()
	var table int64
	if err := admin.QueryRow(t.Context(), `SELECT 'rowkeeper_log'::regclass::oid::bigint`).Scan(
		&table); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, fmt.Sprint(`LISTEN rowkeeper_`, table))
	seen := head(t, b)
	for _, key := range []contract.Key{"a", "b"} {
		res, err := b.Commit(t.Context(), group(seen, key))
		if err != nil {
			t.Fatal(err)
		}
		seen = res.State.Head
	}
	if err := b.(contract.Notifier).Announce(t.Context(),
		[]contract.Announced{{Store: b, Revision: seen.Revision}}); err != nil {
		t.Fatal(err)
	}
	n, err := admin.WaitForNotification(t.Context())
	if err != nil || !strings.HasSuffix(n.Payload, fmt.Sprint(" 1 ", seen.Revision)) {
		t.Errorf("the first notification is %+v, %v, want %d", n, err, seen.Revision)
	}
}

// A holder of the lock makes others wait, but not for ever, and their failure is certain.
func TestLockTimeout(t *testing.T) {
	for _, prepared := range []string{"true", "false"} {
		url := migrated(t)
		opts := options(t)
		opts.Timeout = 3 * time.Second
		b, err := contract.OpenBackend(t.Context(), postgres.Driver,
			with(t, url, "prepared_statements", prepared), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		seen := head(t, b)
		release := lockStore(t, connect(t, url))
		_, err = b.Commit(t.Context(), group(seen, "a"))
		wantClass(t, err, contract.Transient)
		release()
		if _, err := b.Commit(t.Context(), group(seen, "a")); err != nil {
			t.Error(err)
		}
	}
}

// A session that holds the lock and does nothing is ended by the server.
func TestIdleHolderIsEnded(t *testing.T) {
	url := migrated(t)
	opts := options(t)
	opts.Timeout = 6 * time.Second
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, url, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	seen := head(t, b)
	err = postgres.Session(t.Context(), b, true, func(conn *pgx.Conn) error {
		lockStore(t, conn)
		_, err := b.Commit(t.Context(), group(seen, "a"))
		return err
	})
	if err != nil {
		t.Errorf("a group failed behind an idle holder of the lock: %v", err)
	}
}

// A commit that waits for a synchronous standby is not confirmed before the standby has it, however
// long that takes.
func TestSynchronousStandby(t *testing.T) {
	s := dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{})
	db := s.Open()
	opts := options(t)
	opts.Timeout = 3 * time.Second
	if _, err := postgres.Driver.Migrate(t.Context(), db.URL, opts); err != nil {
		t.Fatal(err)
	}
	b, err := contract.OpenBackend(t.Context(), postgres.Driver, db.URL, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s.Exec(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`)
	// The setting works once somebody waits.
	admin, prober := connect(t, db.URL), connect(t, db.URL)
	var probing sync.WaitGroup
	defer probing.Wait()
	stop := make(chan struct{})
	defer close(stop)
	probing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Only a transaction that writes to the log waits for a standby.
			if _, err := prober.Exec(t.Context(),
				`SELECT pg_logical_emit_message(true, '', '')`); err != nil {
				t.Error(err)
				return
			}
		}
	})
	eventually(t, "commits to wait for a standby", func() bool {
		var n int
		return admin.QueryRow(t.Context(),
			`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&n) == nil &&
			n > 0
	})
	seen := head(t, b)
	g := group(seen, "a")
	_, err = b.Commit(t.Context(), g)
	wantClass(t, err, contract.Unknown)
	exec(t, admin, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	var r *contract.Resolution
	eventually(t, "the resolution", func() bool {
		r, err = contract.ResolveGroup(t.Context(), b, g.Token, seen)
		return err == nil
	})
	if !r.Committed {
		t.Errorf("the resolution is %+v", r)
	}
}

// The server is restarted, in order and not.
func TestServerRestarts(t *testing.T) {
	s := dbtest.NewServer(t, dbtest.Postgres, dbserver.Options{})
	db := s.Open()
	if _, err := postgres.Driver.Migrate(t.Context(), db.URL, options(t)); err != nil {
		t.Fatal(err)
	}
	b := openURL(t, db.URL)
	defer b.Close()
	seen := head(t, b)
	for i, end := range []func(){s.Stop, s.Kill} {
		res, err := b.Commit(t.Context(), group(seen, contract.Key(fmt.Sprintf("before %d", i))))
		if err != nil {
			t.Fatal(err)
		}
		seen = res.State.Head
		end()
		_, err = b.Commit(t.Context(), group(seen, "while it is away"))
		if class := contract.ClassOf(err); err == nil || class != contract.Unavailable && class != contract.Unknown {
			t.Errorf("a commit to a server that is away: %v of class %v", err, class)
		}
		if _, err = b.State(t.Context()); err == nil {
			t.Error("a server that is away has a state")
		}
		wantClass(t, err, contract.Unavailable)
		s.Start()
		eventually(t, "the server to answer", func() bool {
			_, err := b.State(t.Context())
			return err == nil
		})
		if got := head(t, b); got != seen {
			t.Errorf("the head is %+v, want %+v", got, seen)
		}
		eventually(t, "commits to work", func() bool {
			res, err := b.Commit(t.Context(), group(seen, contract.Key(fmt.Sprintf("after %d", i))))
			if err == nil {
				seen = res.State.Head
			}
			return err == nil
		})
	}
}
