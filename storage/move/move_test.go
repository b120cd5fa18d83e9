package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	front "github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// config names an empty database, of which it brings the schema to the newest version.
func config(t *testing.T, kind dbtest.Kind) Config {
	t.Helper()
	d := dbtest.Open(t, kind)
	c := Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Migrate: true,
		Logger:     slog.New(slog.DiscardHandler),
		Compaction: database.CompactionPolicy{Window: -1}}
	if _, err := database.Migrate(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

func open(t *testing.T, c Config) (*database.Store, *mvcc.Engine) {
	t.Helper()
	s, err := database.Open(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, database.Engine(s)
}

// held describes what a store holds, and says how many keys expire by themselves.
func held(t *testing.T, c Config) (all map[string]string, expiring int) {
	t.Helper()
	b, err := database.OpenBackend(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	all = map[string]string{}
	err = b.Snapshot(t.Context(), func(_ context.Context, s contract.Snapshot) error {
		return s.Records(func(r *contract.Record) error {
			if r.Expiry > 0 {
				expiring++
			}
			all[string(r.Key)] = fmt.Sprintf("%s@%d.%d create %d lease %d", r.Value, r.Revision, r.Part,
				r.Create, r.Lease)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, expiring
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			t.Errorf("%s is %q, want %q", key, got[key], want[key])
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s is there: %q", key, got[key])
		}
	}
}

// mover runs a move that follows, in the background.
type mover struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	upto    int64
	passes  int
	changed chan struct{}
}

func begin(t *testing.T, from source, to Config) *mover {
	ctx, cancel := context.WithCancel(t.Context())
	m := &mover{t: t, cancel: cancel, done: make(chan error, 1), changed: make(chan struct{}, 1)}
	told := func(f func()) {
		m.mu.Lock()
		f()
		m.mu.Unlock()
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
	go func() {
		_, err := Run(ctx, Options{From: &Source{from}, To: to,
			Following: func(upto, _ int64) { told(func() { m.upto = upto }) },
			Copied:    func(int64, int64) { told(func() { m.passes++ }) }})
		m.done <- err
	}()
	return m
}

// until waits until the target has everything up to a revision, after so many passes.
func (m *mover) until(upto int64, passes int) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	for {
		m.mu.Lock()
		at, n := m.upto, m.passes
		m.mu.Unlock()
		if at >= upto && n >= passes {
			return
		}
		select {
		case <-m.changed:
		case err := <-m.done:
			m.t.Fatalf("the move has ended at %d, after %d passes: %v", at, n, err)
		case <-ctx.Done():
			m.t.Fatalf("the target is at revision %d after %d passes, want %d after %d", at, n, upto,
				passes)
		}
	}
}

func (m *mover) stop() {
	m.t.Helper()
	m.cancel()
	if err := <-m.done; !errors.Is(err, ErrFollowed) {
		m.t.Fatalf("the move that was stopped said %v", err)
	}
}

// finish ends a move.
func finish(t *testing.T, from source, to Config) Moved {
	t.Helper()
	m, err := Run(t.Context(), Options{From: &Source{from}, To: to, Finish: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// closedTo tells that no server can use a store.
func closedTo(t *testing.T, c Config) {
	t.Helper()
	s, err := database.Open(t.Context(), c, nil)
	if !errors.Is(err, contract.ErrDropped) {
		t.Errorf("a server has opened one end of a move: %v", err)
	}
	if err == nil {
		s.Close()
	}
}

// opened checks that a store is used, and that no revision of its source can be read in it.
func opened(t *testing.T, c Config, m Moved) *mvcc.Engine {
	t.Helper()
	_, e := open(t, c)
	head, err := e.Head(t.Context())
	if err != nil || int64(head) != m.Head || m.Head <= m.Revision {
		t.Errorf("the head is %d, %v, and the move said %+v", head, err, m)
	}
	_, err = e.Watch(t.Context(), mvcc.WatchOptions{Start: "\x00", End: "\xff",
		After: contract.Revision(m.Revision)})
	if !errors.Is(err, contract.ErrCompacted) {
		t.Errorf("a watch from the last revision of the source: %v", err)
	}
	return e
}

// schemas are kine's tables, as its documentation has them.
var schemas = map[string][]string{
	"sqlite": {`CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER,
		deleted INTEGER, create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`},
	"postgres": {`CREATE TABLE kine (id BIGSERIAL PRIMARY KEY, name text COLLATE "C", created INTEGER,
		deleted INTEGER, create_revision BIGINT, prev_revision BIGINT, lease INTEGER, value bytea, old_value bytea)`},
	"mysql": {`CREATE TABLE kine (id BIGINT UNSIGNED AUTO_INCREMENT, name VARCHAR(630) CHARACTER SET ascii,
		created INTEGER, deleted INTEGER, create_revision BIGINT UNSIGNED, prev_revision BIGINT UNSIGNED,
		lease INTEGER, value MEDIUMBLOB, old_value MEDIUMBLOB, PRIMARY KEY (id))`},
}

// kineTest is a kine's table that the test writes.
type kineTest struct {
	*kine
	t *testing.T
}

func newKine(t *testing.T, kind dbtest.Kind) *kineTest {
	t.Helper()
	d := dbtest.Open(t, kind)
	if name, ok := strings.CutPrefix(d.URL, "sqlite://"); ok {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := openKine(d.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	x := &kineTest{k, t}
	for _, s := range append(schemas[d.Driver.Name()],
		`CREATE INDEX kine_name_id_index ON kine (name,id)`,
		`CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision)`) {
		x.exec(s)
	}
	if d.Driver.Name() == "sqlite" {
		x.exec(`PRAGMA journal_mode=WAL`)
	}
	x.row(1, compactKey, 0, "", 0)
	return x
}

func (k *kineTest) exec(text string, args ...any) {
	k.t.Helper()
	if _, err := k.db.ExecContext(k.t.Context(), k.d.text(text), args...); err != nil {
		k.t.Fatalf("%s: %v", text, err)
	}
}

// row writes a row that replaces another one, 0 for none. A row without a value deletes.
func (k *kineTest) row(id int, name string, replaces int, value string, ttl int) {
	k.t.Helper()
	created, deleted, create := 0, 0, 2
	if replaces == 0 {
		created, create = 1, 0
	}
	var content any = []byte(value)
	if value == "" && name != compactKey {
		deleted, content = 1, nil
	}
	k.exec(`INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, id, name, created, deleted, create, replaces, ttl, content)
}

// compact does what kine's compaction does, in one transaction.
func (k *kineTest) compact(from, to int) {
	k.t.Helper()
	tx, err := k.db.BeginTx(k.t.Context(), nil)
	if err != nil {
		k.t.Fatal(err)
	}
	defer tx.Rollback()
	for _, s := range []string{
		fmt.Sprintf(`UPDATE kine SET prev_revision = %d WHERE name = 'compact_rev_key'`, to),
		fmt.Sprintf(`DELETE FROM kine WHERE id IN (SELECT id FROM (SELECT prev_revision AS id FROM kine
			WHERE name != 'compact_rev_key' AND prev_revision != 0 AND id > %d AND id <= %[2]d
			UNION ALL SELECT id FROM kine WHERE deleted != 0 AND id > %[1]d AND id <= %[2]d) AS gone)`, from, to),
	} {
		if _, err := tx.ExecContext(k.t.Context(), s); err != nil {
			k.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		k.t.Fatal(err)
	}
}

// TestKine moves kine's table while it is written, from and to each kind of database: with a gap
// that is filled late, compaction that passes the follower twice, and an interruption.
func TestKine(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			k := newKine(t, kind)
			to := config(t, kind)
			k.row(2, "/registry/a", 0, "a1", 0)
			k.row(3, "/registry/b", 0, "b1", 0)
			k.row(4, "/registry/a", 2, "a2", 0)
			k.row(5, "gap-5", 0, "", 0)
			k.row(6, "/registry/e", 0, "event", 3600)
			k.row(7, compactAPIKey, 0, "1|5", 0)
			k.row(8, "/registry/c", 0, "c1", 0)
			m := begin(t, k, to)
			m.until(8, 1)
			closedTo(t, to)

			// A gap: nothing beyond it is passed, until what was missing comes.
			k.row(10, "/registry/b", 3, "b2", 0)
			k.row(9, "/registry/c", 8, "c2", 0)
			m.until(10, 1)
			// Compaction passes the follower: c was deleted, and nothing tells of that any more.
			k.exec(`DELETE FROM kine WHERE id IN (8, 9)`)
			k.exec(`UPDATE kine SET prev_revision = 12 WHERE name = 'compact_rev_key'`)
			k.row(13, "/registry/d", 0, "d1", 0)
			m.until(13, 2)
			m.stop()

			// It does so again while nobody follows, with an object that comes back.
			k.row(14, "/registry/a", 4, "", 0)
			k.row(15, "/registry/a", 14, "a3", 0)
			k.row(16, "/registry/d", 13, "", 0)
			k.row(17, "/registry/f", 0, "f1", 0)
			k.compact(12, 16)
			k.row(19, "/registry/g", 0, "g1", 0) // after a gap that stays
			moved := finish(t, k, to)
			want := map[string]string{
				"/registry/a": "a3@15.0 create 2 lease 0", "/registry/b": "b2@10.0 create 2 lease 0",
				"/registry/e": "event@6.0 create 6 lease 0", "/registry/f": "f1@17.0 create 17 lease 0",
				"/registry/g": "g1@19.0 create 19 lease 0",
			}
			got, expiring := held(t, to)
			compare(t, got, want)
			if moved.Keys != 5 || moved.Revision != 19 || expiring != 1 {
				t.Errorf("it says %+v, and %d keys expire", moved, expiring)
			}
			e := opened(t, to, moved)
			if _, err := e.Commit(t.Context(), contract.Mutation{Key: "/registry/a", Expect: 15,
				Value: []byte("a4")}); err != nil {
				t.Errorf("an object is not at the revision that its clients know: %v", err)
			}

			// kine finds a table that it cannot use, and the operator all that there was.
			if n, err := k.number(t.Context(), "count", `SELECT COUNT(*) FROM kine_moved`); err != nil || n < 8 {
				t.Errorf("%d rows are left: %v", n, err)
			}
			if _, err := k.number(t.Context(), "read", `SELECT MAX(id) FROM kine`); err == nil {
				t.Error("kine could go on")
			}
			if _, err := Run(t.Context(), Options{From: &Source{k}, To: config(t, kind)}); err == nil ||
				!strings.Contains(err.Error(), "another move has ended it") {
				t.Errorf("a second move from the same table: %v", err)
			}
		})
	}
}

// TestGap: a gap that nobody fills is passed after a while, and what comes there later is found by
// the last pass.
func TestGap(t *testing.T) {
	k := newKine(t, "sqlite")
	k.patience = 0
	to := config(t, "sqlite")
	k.row(2, "/a", 0, "a", 0)
	k.row(4, "/c", 0, "c", 0)
	m := begin(t, k, to)
	m.until(4, 1)
	m.stop()
	k.row(3, "/b", 0, "b", 0)
	if moved := finish(t, k, to); moved.Written != 1 || moved.Removed != 0 {
		t.Errorf("the last pass has done %+v", moved)
	}
	got, _ := held(t, to)
	compare(t, got, map[string]string{"/a": "a@2.0 create 2 lease 0", "/b": "b@3.0 create 3 lease 0",
		"/c": "c@4.0 create 4 lease 0"})
}

// TestUndo: the target is new again, and the source is used again.
func TestUndo(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			k, to := newKine(t, kind), config(t, kind)
			k.row(2, "/a", 0, "a", 0)
			if _, _, err := Undo(t.Context(), &Source{k}, to); err == nil {
				t.Error("a move was undone that had not begun")
			}
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Run(ctx, Options{From: &Source{k}, To: to, Finish: true,
				Progress: func(doing string, _, _ int64) {
					if doing == "reading back" {
						cancel()
					}
				}})
			if err == nil || ctx.Err() == nil {
				t.Fatalf("it was not interrupted: %v", err)
			}
			if there, err := k.fenced(t.Context()); err != nil || !there {
				t.Fatalf("the source is not fenced: %v", err)
			}
			closedTo(t, to)
			emptied, unfenced, err := Undo(t.Context(), &Source{k}, to)
			if !emptied || !unfenced || err != nil {
				t.Fatal(emptied, unfenced, err)
			}
			if n, err := k.number(t.Context(), "read", `SELECT MAX(id) FROM kine`); n != 2 || err != nil {
				t.Errorf("kine cannot go on: %d, %v", n, err)
			}
			if got, _ := held(t, to); len(got) > 0 {
				t.Errorf("the target has %v", got)
			}
			if moved := finish(t, k, to); moved.Keys != 1 {
				t.Errorf("moved again: %+v", moved)
			}
			if _, err := Run(t.Context(), Options{From: &Source{k}, To: to}); err == nil {
				t.Error("a target was filled that serves")
			}
		})
	}
}

// TestStore moves a store with leases, expiries and transactions, while it serves.
func TestStore(t *testing.T) {
	for _, kind := range dbtest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			from, to := config(t, kind), config(t, kind)
			server, e := open(t, from)
			put := func(m contract.Mutation) int64 {
				t.Helper()
				m.Expect, m.Era = contract.Any, e.Era()
				r, err := e.Commit(t.Context(), m)
				if err != nil {
					t.Fatal(err)
				}
				return int64(r)
			}
			transact := func(keys ...contract.Key) int64 {
				t.Helper()
				var ms []contract.Mutation
				for _, key := range keys {
					ms = append(ms, contract.Mutation{Key: key, Expect: contract.Any, Era: e.Era(),
						Value: []byte(key)})
				}
				r, err := e.Transact(t.Context(), ms)
				if err != nil {
					t.Fatal(err)
				}
				return int64(r)
			}
			if _, _, err := e.GrantLease(t.Context(), 9, 1000); err != nil {
				t.Fatal(err)
			}
			put(contract.Mutation{Key: "/leased", Value: []byte("x"), Lease: 9})
			put(contract.Mutation{Key: "/a", Value: []byte("a1")})
			put(contract.Mutation{Key: "/gone", Value: []byte("gone")})
			at := transact("/t/1", "/t/2", "/t/3")
			source, err := Store(t.Context(), from)
			if err != nil {
				t.Fatal(err)
			}
			defer source.Close()
			m := begin(t, source, to)
			m.until(at, 1)
			put(contract.Mutation{Key: "/a", Value: []byte("a2")})
			put(contract.Mutation{Key: "/gone", Delete: true})
			transact("/t/2", "/t/4")
			m.until(put(contract.Mutation{Key: "/ttl", Value: []byte("ttl"), TTL: time.Hour}), 1)
			m.stop()
			put(contract.Mutation{Key: "/late", Value: []byte("late")})
			at = put(contract.Mutation{Key: "/late", Value: []byte("later")})
			if err := server.Compact(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			m = begin(t, source, to)
			m.until(at, 1) // it has to copy again
			m.stop()
			want, _ := held(t, from)
			moved := finish(t, source, to)
			got, expiring := held(t, to)
			compare(t, got, want)
			if len(want) != 8 || moved.Keys != 8 || expiring != 1 {
				t.Errorf("it says %+v; %d keys expire, of %d", moved, expiring, len(want))
			}
			// The server of the source was not restarted.
			if _, err := e.Commit(t.Context(), contract.Mutation{Key: "/a", Expect: contract.Any,
				Value: []byte("lost")}); !errors.Is(err, contract.ErrDropped) {
				t.Errorf("the source was written after it was moved: %v", err)
			}
			closedTo(t, from)
			n := opened(t, to, moved)
			if l, left, _, err := n.LeaseOf(t.Context(), 9); err != nil || l.TTL != 1000 ||
				left < 900*time.Second {
				t.Errorf("the lease is %+v, with %s left, %v", l, left, err)
			}
		})
	}
}

// TestStoreIsNotNew: a store that was written is no target.
func TestStoreIsNotNew(t *testing.T) {
	k, to := newKine(t, "sqlite"), config(t, "sqlite")
	_, e := open(t, to)
	if _, err := e.Commit(t.Context(), contract.Mutation{Key: "/a", Value: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Options{From: &Source{k}, To: to}); !errors.Is(err, contract.ErrNotNew) {
		t.Error(err)
	}
}

// TestEtcd moves an etcd, in whose place a front end of Rowkeeper answers.
func TestEtcd(t *testing.T) {
	server, e := open(t, config(t, "sqlite"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	s := front.New(front.Opened(server), front.ServerConfig{ClientURLs: []string{url}})
	calls := grpc.NewServer(s.Options()...)
	s.Register(calls)
	served := make(chan error, 1)
	go func() { served <- calls.Serve(listener) }()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	const still = 50 * time.Millisecond
	source := Etcd(client, still)
	defer func() {
		err := source.Close()
		calls.Stop()
		if err := errors.Join(err, <-served); err != nil {
			t.Error(err)
		}
	}()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(key, value string, o ...clientv3.OpOption) int64 {
		t.Helper()
		r, err := client.Put(ctx, key, value, o...)
		must(err)
		return r.Header.Revision
	}
	transact := func(keys ...string) int64 {
		t.Helper()
		var ops []clientv3.Op
		for _, key := range keys {
			ops = append(ops, clientv3.OpPut(key, key))
		}
		r, err := client.Txn(ctx).Then(ops...).Commit()
		must(err)
		return r.Header.Revision
	}
	lease, err := client.Grant(ctx, 1000)
	must(err)
	put("/l", "l", clientv3.WithLease(lease.ID))
	put("/gone", "gone")
	transact("/t/3", "/t/1", "/t/2")
	transact("/s/1", "/s/2", "/s/3", "/s/4") // the others are other parts without the first one
	put("/a", "a1")
	to := config(t, "sqlite")
	m := begin(t, source, to)
	at := transact("/t/5", "/t/4")
	for _, key := range []string{"/gone", "/s/1"} {
		_, err = client.Delete(ctx, key)
		must(err)
	}
	at = max(at, put("/t/3", "new"), put("/a", "a2"))
	m.until(at, 1)
	m.stop()

	// The etcd is written before it is compared, and while it is.
	ended := make(chan error, 1)
	writing, stop := context.WithCancel(ctx)
	go func() {
		for writing.Err() == nil {
			if _, err := client.Put(writing, "/w", "w"); err != nil && writing.Err() == nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	_, err = Run(ctx, Options{From: source, To: to, Finish: true})
	stop()
	must(<-ended)
	if err == nil || !strings.Contains(err.Error(), "the etcd is still written") {
		t.Fatalf("an etcd that is written was moved: %v", err)
	}
	once := false
	_, err = Run(ctx, Options{From: source, To: to, Finish: true,
		Progress: func(doing string, _, _ int64) {
			if doing == "reading back" && !once {
				once = true
				put("/late", "late")
			}
		}})
	if !errors.Is(err, errWritten) {
		t.Fatalf("an etcd was moved that was written meanwhile: %v", err)
	}
	closedTo(t, to)
	moved := finish(t, source, to)
	got, _ := held(t, to)
	values := map[string]string{}
	for key, v := range got {
		values[key], _, _ = strings.Cut(v, "@")
	}
	compare(t, values, map[string]string{"/a": "a2", "/l": "l", "/t/1": "/t/1", "/t/2": "/t/2",
		"/t/3": "new", "/s/2": "/s/2", "/s/3": "/s/3", "/s/4": "/s/4", "/t/4": "/t/4", "/t/5": "/t/5", "/w": "w", "/late": "late"})
	n := opened(t, to, moved)
	for key := range values {
		was, _, err := e.Get(ctx, contract.Key(key))
		must(err)
		is, _, err := n.Get(ctx, contract.Key(key))
		must(err)
		if is.Revision != was.Revision || is.Create != was.Create || is.Version != was.Version {
			t.Errorf("%+v became %+v", was, is)
		}
	}
	if l, left, _, err := n.LeaseOf(ctx, contract.Lease(lease.ID)); err != nil || l.TTL != 1000 ||
		left < 900*time.Second {
		t.Errorf("the lease is %+v, with %s left, %v", l, left, err)
	}
}

// TestInterrupted: a move goes on wherever it was interrupted, and one that was taken over ends.
func TestInterrupted(t *testing.T) {
	const keys = 1200
	k, to := newKine(t, "sqlite"), config(t, "sqlite")
	want := map[string]string{}
	tx, err := k.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for id := 2; id < 2+keys; id++ {
		name := fmt.Sprintf("/k/%d", id)
		if _, err := tx.Exec(`INSERT INTO kine (id, name, created, deleted, create_revision,
			prev_revision, lease, value) VALUES (?, ?, 1, 0, 0, 0, 0, ?)`, id, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
		want[name] = fmt.Sprintf("%s@%d.0 create %[2]d lease 0", name, id)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var moved Moved
	for interrupted := 0; ; interrupted++ {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		moved, err = Run(ctx, Options{From: &Source{k}, To: to, Finish: true,
			Progress: func(string, int64, int64) {
				if n++; n == 100+interrupted*600 {
					cancel()
				}
			}})
		cancel()
		if err == nil {
			if interrupted < 3 {
				t.Errorf("it was interrupted %d times", interrupted)
			}
			break
		}
		if ctx.Err() == nil {
			t.Fatal(err)
		}
		closedTo(t, to)
	}
	got, _ := held(t, to)
	compare(t, got, want)
	opened(t, to, moved)

	k, to = newKine(t, "sqlite"), config(t, "sqlite")
	first := begin(t, k, to)
	first.until(1, 1)
	second := begin(t, k, to)
	second.until(1, 0)
	k.row(2, "/a", 0, "a", 0)
	second.until(2, 0)
	if err := <-first.done; !errors.Is(err, contract.ErrTaken) {
		t.Errorf("the move that was taken over said %v", err)
	}
	second.stop()
}
