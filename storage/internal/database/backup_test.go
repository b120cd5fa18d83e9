package database

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	driverconfig "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// exported reads everything that a database holds, and its head.
func exported(t testing.TB, store *Store) (records map[contract.Key]contract.Record, head contract.Revision) {
	t.Helper()
	records = map[contract.Key]contract.Record{}
	err := store.mvcc.Export(t.Context(), func(_ context.Context, st contract.State, _ int64,
		_ []contract.LeaseRow) error {
		head = st.Head.Revision
		return nil
	}, func(r *contract.Record) error {
		records[r.Key] = *r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, head
}

func equal(a, b map[contract.Key]contract.Record) bool {
	return maps.EqualFunc(a, b, func(x, y contract.Record) bool {
		return x.Key == y.Key && x.Revision == y.Revision && x.Create == y.Create &&
			x.Expiry == y.Expiry && bytes.Equal(x.Value, y.Value)
	})
}

func backup(t testing.TB, store *Store) []byte {
	t.Helper()
	var buf bytes.Buffer
	b, err := store.WriteBackup(t.Context(), &buf, nil)
	if err != nil {
		t.Fatal(err)
	}
	if read, err := ReadBackup(bytes.NewReader(buf.Bytes()), nil); err != nil || read != b {
		t.Fatalf("written %+v, read %+v, %v", b, read, err)
	}
	return buf.Bytes()
}

func restore(t testing.TB, store *Store, file []byte, o RestoreOptions) (Backup, int64) {
	t.Helper()
	b, revision, err := store.RestoreBackup(t.Context(), bytes.NewReader(file), o)
	if err != nil {
		t.Fatal(err)
	}
	return b, revision
}

// varied writes what databases could take for something else: bytes of all kinds, empty and large
// values, deletions, keys that expire.
func varied(t testing.TB, store *Store) {
	t.Helper()
	large := make([]byte, 1<<20)
	if _, err := mathrand.NewChaCha8([32]byte{1}).Read(large); err != nil {
		t.Fatal(err)
	}
	r := pods(t, store)
	create(t, r, "kept")
	create(t, r, "changed")
	create(t, r, "deleted")
	change(t, r, "changed", "yes")
	remove(t, r, "deleted")
	commit(t, r, contract.Mutation{Key: podKey("expires"), TTL: 2 * time.Hour})
	for key, value := range map[contract.Key][]byte{
		"/other/empty": {}, "/other/large": large, "/other/zero": {0, 0},
		"/other/quotes'\\\"": []byte(`'\"%s?$1`),
		"/other/\xff\x00":    []byte("\xff\xfe"), "/other/ü": []byte("k8s:enc:aescbc:v1:key:ü"),
		contract.Key("/other/" + strings.Repeat("k", contract.MaxKeyBytes-7)): []byte("v"),
	} {
		commit(t, store.mvcc, contract.Mutation{Key: key, Value: value})
	}
	// More than one statement can take, with the newest revision not the greatest key.
	many(t, store, "/many/", 2500, 100)
	change(t, r, "changed", "again")
}

func many(t testing.TB, store *Store, prefix string, n, size int) {
	t.Helper()
	var writers sync.WaitGroup
	keys := make(chan int)
	for range 64 {
		writers.Go(func() {
			for i := range keys {
				m := contract.Mutation{Key: contract.Key(fmt.Sprintf("%s%07d", prefix, i)),
					Value: bytes.Repeat([]byte{byte(i)}, size)}
				if _, err := store.mvcc.Commit(context.Background(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		keys <- i
	}
	close(keys)
	writers.Wait()
}

// noCompaction leaves maintenance to the test.
var noCompaction = mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}}

// TestBackupBetweenDatabases takes a backup from SQLite to each kind of database, and one from
// there to SQLite: all that is kept of an object is the same.
func TestBackupBetweenDatabases(t *testing.T) {
	source := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
	varied(t, source)
	want, head := exported(t, source)
	file := backup(t, source)
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		through := openDatabase(t, d, noCompaction)
		b, revision := restore(t, through, file, RestoreOptions{})
		if b.Objects != int64(len(want)) || b.Revision != int64(head) || revision < b.Revision+1<<24 {
			t.Errorf("restored %+v, and the history goes on at %d; want %d objects at %d", b,
				revision, len(want), head)
		}
		got, now := exported(t, through)
		if !equal(got, want) || int64(now) != revision {
			t.Errorf("%d objects at %d were restored, which are not the %d of the backup", len(got),
				now, len(want))
		}
		back := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
		restore(t, back, backup(t, through), RestoreOptions{})
		if got, _ := exported(t, back); !equal(got, want) {
			t.Errorf("back in SQLite, the %d objects are not the %d of the first backup",
				len(got), len(want))
		}
		for _, store := range []*Store{through, back} {
			r := pods(t, store)
			was, is := get(t, pods(t, source), "changed"), get(t, r, "changed")
			if is.Revision != was.Revision {
				t.Errorf("an object has the revision %d, want %d", is.Revision, was.Revision)
			}
			// The restored objects can be written, deleted, read, and swept around.
			if at := change(t, r, "changed", "once more"); at <= is.Revision+1<<24 {
				t.Errorf("an update after the restore has the revision %d", at)
			}
			remove(t, r, "kept")
			if err := store.Compact(t.Context(), 1<<62); err != nil {
				t.Error(err)
			}
			if err := store.mvcc.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			if got, _ := exported(t, store); len(got) != len(want)-1 {
				t.Errorf("after a deletion and the sweep there are %d objects, want %d", len(got),
					len(want)-1)
			}
			if is := get(t, r, "changed"); is == nil || string(is.Value) != "once more" {
				t.Errorf("after the sweep there is %+v", is)
			}
		}
	})
}

// TestExpiryOutlivesARestore: what has expired meanwhile is deleted, what has not is not.
func TestExpiryOutlivesARestore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		source, target := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction),
			openDatabase(t, d, noCompaction)
		r := pods(t, source)
		for name, ttl := range map[string]time.Duration{"soon": time.Second, "later": time.Hour} {
			commit(t, r, contract.Mutation{Key: podKey(name), TTL: ttl})
		}
		restore(t, target, backup(t, source), RestoreOptions{})
		eventually(t, "what has expired is deleted", func() bool {
			if err := target.mvcc.DeleteExpired(t.Context()); err != nil {
				t.Fatal(err)
			}
			records, _ := exported(t, target)
			_, soon := records[podKey("soon")]
			_, later := records[podKey("later")]
			if !later {
				t.Fatal("what expires later is gone")
			}
			return !soon
		})
	})
}

// TestBackupUnderLoad: a backup is the state at the revision that it says, whatever is written,
// deleted and swept meanwhile.
func TestBackupUnderLoad(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		type write struct {
			key     contract.Key
			value   string
			deleted bool
		}
		var (
			mu      sync.Mutex
			history = map[contract.Revision]write{}
			writers sync.WaitGroup
			backups int
		)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		enough := make(chan struct{})
		const keys = 100 // so few that most of the writes replace or delete
		for w := range 8 {
			writers.Go(func() {
				at := map[contract.Key]contract.Revision{}
				for i := 0; ctx.Err() == nil; i++ {
					m := contract.Mutation{Key: contract.Key(fmt.Sprintf("/load/%d/%d", w, i*7%keys))}
					m.Expect = at[m.Key]
					if m.Delete = m.Expect > 0 && i%3 == 0; !m.Delete {
						m.Value = []byte(strings.Repeat("v", i%2000) + fmt.Sprint(i))
					}
					r, err := store.mvcc.Commit(context.Background(), m)
					for errors.Is(err, mvcc.ErrOtherEra) {
						// The sweep was faster than the delivery of what it has removed. Nothing
						// was written, and nobody else writes this key.
						r, err = store.mvcc.Commit(context.Background(), m)
					}
					if err != nil {
						t.Error(err)
						return
					}
					if at[m.Key] = r; m.Delete {
						at[m.Key] = 0
					}
					mu.Lock()
					history[r] = write{m.Key, string(m.Value), m.Delete}
					if len(history) == 2000 {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		var files [][]byte
		writers.Go(func() {
			// Compaction must be in no backup's way.
			for ctx.Err() == nil {
				if err := errors.Join(store.Compact(context.Background(), 1<<62),
					store.mvcc.Sweep(context.Background())); err != nil {
					t.Error(err)
					return
				}
			}
		})
		<-enough
		for range 5 {
			files = append(files, backup(t, store))
		}
		stop()
		writers.Wait()
		for _, file := range files {
			r, err := archive.NewReader(bytes.NewReader(file), store.mvcc.Limits())
			if err != nil {
				t.Fatal(err)
			}
			want := map[contract.Key]contract.Revision{}
			for _, revision := range slices.Sorted(maps.Keys(history)) {
				if w := history[revision]; revision <= r.Header.Revision {
					if want[w.key] = revision; w.deleted {
						delete(want, w.key)
					}
				}
			}
			got := map[contract.Key]contract.Revision{}
			for {
				record, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got[record.Key] = record.Revision
				if string(record.Value) != history[record.Revision].value {
					t.Errorf("the value at %d is not the one that was written", record.Revision)
				}
			}
			r.Close()
			if !maps.Equal(got, want) {
				t.Errorf("the backup at %d has %d objects that are not the %d of that revision",
					r.Header.Revision, len(got), len(want))
			}
			backups++
		}
		t.Logf("%d backups during %d writes", backups, len(history))
	})
}

// TestRestoreUnderServers: another process's watches end, its reads and its writes go on in the new
// history.
func TestRestoreUnderServers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		server := openDatabase(t, d, noCompaction)
		r := pods(t, server)
		create(t, r, "kept")
		file := backup(t, server)
		before, _ := exported(t, server)
		change(t, r, "kept", "changed")
		last := create(t, r, "new")
		w := watch(t, r, last)

		process := openDatabase(t, d, noCompaction)
		if _, _, err := process.RestoreBackup(t.Context(), bytes.NewReader(file),
			RestoreOptions{}); !errors.Is(err, ErrNotEmpty) {
			t.Fatalf("a database with objects: %v", err)
		}
		_, revision := restore(t, process, file, RestoreOptions{Replace: true})
		if batch, err := w.Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("the watch of the server got %v, %v", batch.Events, err)
		}
		if got, _ := exported(t, server); !equal(got, before) {
			t.Errorf("the server has %v, want %v", got, before)
		}
		if kv := get(t, r, "new"); kv != nil {
			t.Errorf("what was created after the backup is %+v", kv)
		}
		if at := change(t, r, "kept", "after"); int64(at) != revision+1 {
			t.Errorf("the first write has the revision %d, after the restore's %d", at, revision)
		}
		if _, _, err := r.GetAt(t.Context(), podKey("kept"), last); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("a read at a revision of the old history: %v", err)
		}
	})
}

// TestRestoreOfAnotherStore replaces what a server serves by a backup of another store, in which
// the same revisions stand for other objects: all get new ones, which nobody has seen, so who
// remembers one of before learns that it is of no use.
func TestRestoreOfAnotherStore(t *testing.T) {
	source := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
	other := pods(t, source)
	clash := create(t, other, "both")
	commit(t, other, contract.Mutation{Key: podKey("expires"), TTL: 2 * time.Hour})
	many(t, source, "/many/", 1500, 10)
	want, newest := exported(t, source)
	file := backup(t, source)
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		server, process := openDatabase(t, d, noCompaction), openDatabase(t, d, noCompaction)
		s := pods(t, server)
		known := commit(t, s, contract.Mutation{Key: podKey("both"), Value: []byte("this one")})
		if clash != known {
			t.Fatalf("the objects have the revisions %d and %d, and should have the same", clash, known)
		}
		w := watch(t, s, known)
		_, head := exported(t, server)

		b, revision := restore(t, process, file, RestoreOptions{Replace: true})
		if !b.Renumbered {
			t.Error("the restore does not say that the resourceVersions are new")
		}
		got, now := exported(t, process)
		if int64(now) != revision || len(got) != len(want) {
			t.Errorf("%d objects at %d, want %d at %d", len(got), now, len(want), revision)
		}
		least := max(head, newest) + 1<<24
		inOrder := func(records map[contract.Key]contract.Record) []contract.Key {
			return slices.SortedFunc(maps.Keys(records), func(a, b contract.Key) int {
				return cmp.Compare(records[a].Revision, records[b].Revision)
			})
		}
		if !slices.Equal(inOrder(got), inOrder(want)) {
			t.Error("the objects are not in the order of the backup")
		}
		taken := map[contract.Revision]bool{}
		for key, r := range got {
			if r.Revision < least || r.Revision >= now || r.Create != r.Revision || taken[r.Revision] {
				t.Errorf("%s has the revision %d and the creation revision %d, after heads of %d "+
					"and %d and up to %d", key, r.Revision, r.Create, head, newest, now)
			}
			taken[r.Revision] = true
			if w := want[key]; !bytes.Equal(r.Value, w.Value) || r.Expiry != w.Expiry {
				t.Errorf("%s is not that of the backup", key)
			}
		}

		if batch, err := w.Next(t.Context()); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("the watch of the server got %v, %v", batch.Events, err)
		}
		// The object now does not fulfill the expectation of a client that remembers the object
		// before, though its key is the same and its revision was.
		_, err := s.Commit(t.Context(), contract.Mutation{Key: podKey("both"), Expect: known})
		if conflict := (*contract.ConflictError)(nil); !errors.As(err, &conflict) {
			t.Errorf("a write that expects the object of before: %v", err)
		}
		if kv := get(t, s, "both"); string(kv.Value) != "both" {
			t.Errorf("the object is %q", kv.Value)
		}
		change(t, s, "both", "after")
		// From here on it is a history of its own, and a backup of it keeps it.
		again, _ := exported(t, server)
		b, _ = restore(t, process, backup(t, server), RestoreOptions{Replace: true})
		if got, _ := exported(t, server); b.Renumbered || !equal(got, again) {
			t.Errorf("a backup of the same store was restored with other resourceVersions: %+v", b)
		}
	})
}

// TestStalledBackup writes a backup to what takes nothing any more: other requests go on, and the
// backup gives up its snapshot.
func TestStalledBackup(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		many(t, store, "/many/", 300, 1<<12)
		for _, tc := range []struct {
			name     string
			patience time.Duration
			end      func(cancel func())
			want     error
		}{
			{"given up", time.Hour, func(cancel func()) { cancel() }, context.Canceled},
			{"for too long", 20 * time.Millisecond, func(func()) {}, ErrStalled},
		} {
			t.Run(tc.name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				out := &stalled{begun: make(chan struct{}), end: make(chan struct{})}
				defer close(out.end)
				failed := make(chan error, 1)
				go func() {
					_, err := store.writeBackup(ctx, out, nil, tc.patience)
					failed <- err
				}()
				<-out.begun
				r := pods(t, store)
				create(t, r, "meanwhile")
				list(t, r)
				remove(t, r, "meanwhile")
				backup(t, store)
				tc.end(cancel)
				if err := <-failed; !errors.Is(err, tc.want) {
					t.Errorf("the backup has ended with %v", err)
				}
				create(t, r, "afterwards")
				remove(t, r, "afterwards")
			})
		}
	})
}

// TestStalledBackupOfAReplacedFile: whoever finds another file in the place of the one that is
// backed up does not wait for the backup, nor does who closes the database.
func TestStalledBackupOfAReplacedFile(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	store := openDatabase(t, d, noCompaction)
	many(t, store, "/many/", 300, 1<<12)
	stall := func() (out *stalled, failed chan error) {
		out, failed = &stalled{begun: make(chan struct{}), end: make(chan struct{})},
			make(chan error, 1)
		go func() {
			_, err := store.writeBackup(context.Background(), out, nil, time.Hour)
			failed <- err
		}()
		<-out.begun
		return out, failed
	}
	out, failed := stall()
	defer close(out.end)
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openSQL(t, d).ExecContext(t.Context(), "VACUUM INTO '"+u.Path+".copy'"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(u.Path+".copy", u.Path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is served from the copy", func() bool {
		_, err := store.mvcc.Commit(t.Context(), contract.Mutation{Key: contract.Key("/after/" + rand.Text()),
			Value: []byte("v")})
		return err == nil
	})
	if err := <-failed; err == nil {
		t.Error("the backup of the file that was replaced did not fail")
	}
	out, failed = stall()
	defer close(out.end)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, contract.ErrClosed) {
		t.Errorf("the backup of a database that was closed ended with %v", err)
	}
}

// TestFenceDuringRestore: who wants to fence in the process that restores waits for the commit lock
// at most, for as long as its context lasts.
func TestFenceDuringRestore(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		many(t, store, "/many/", 10, 10)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		tried := false
		restore(t, store, backup(t, store),
			RestoreOptions{Replace: true, Progress: func(doing string, done, total int64) {
				if doing == "comparing" && done == total {
					tried = true
					if _, err := store.Fence(gone); err == nil {
						t.Error("it was fenced during the restore")
					}
				}
			}})
		if !tried {
			t.Error("the restore has compared nothing")
		}
		if _, err := store.Fence(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRestoreIsUndone: what the database undoes for reasons of its own is tried again, a few times.
func TestRestoreIsUndone(t *testing.T) {
	for _, tc := range []struct {
		times int
		class contract.Class
		tries int
		ok    bool
	}{{1, contract.Transient, 2, true}, {100, contract.Transient, 5, false}, {1, contract.Data, 1, false}} {
		u := &undoingBackend{times: tc.times, class: tc.class}
		store := openDatabaseThrough(t, dbtest.Open(t, dbtest.SQLite), noCompaction,
			func(b contract.Backend) contract.Backend {
				u.Backend = b
				return u
			})
		many(t, store, "/many/", 5, 10)
		file := backup(t, store)
		_, _, err := store.RestoreBackup(t.Context(), bytes.NewReader(file),
			RestoreOptions{Replace: true})
		if u.tries != tc.tries || (err == nil) != tc.ok {
			t.Errorf("undone %d times (%s): %d tries, %v", tc.times, tc.class, u.tries, err)
		}
	}
}

// undoingBackend undoes imports.
type undoingBackend struct {
	contract.Backend
	times, tries int
	class        contract.Class
}

func (u *undoingBackend) Locked(ctx context.Context, o contract.LockOptions,
	f func(contract.Tx) error) error {
	if !o.Unbounded {
		return u.Backend.Locked(ctx, o, f)
	}
	u.tries++
	return u.Backend.Locked(ctx, o, func(tx contract.Tx) error {
		if err := f(tx); err != nil || u.tries > u.times {
			return err
		}
		return contract.Errorf(u.class, "undone")
	})
}

// TestFailedExportStops: when the first object was of no use, the others are not fetched, however
// many there are.
func TestFailedExportStops(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		const objects, size = 400, 100 << 10
		many(t, store, "/many/", objects, size)
		u, err := url.Parse(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		fetched := countingProxy(t, u)
		d.URL = u.String()
		through := openDatabase(t, d, noCompaction)
		useless := errors.New("of no use")
		err = through.mvcc.Export(t.Context(), func(context.Context, contract.State, int64,
			[]contract.LeaseRow) error {
			return nil
		}, func(*contract.Record) error { return useless })
		if !errors.Is(err, useless) {
			t.Errorf("the export failed with %v", err)
		}
		// Bytes that were under way in buffers do not count.
		if n := fetched.Load(); n > objects*size/2 {
			t.Errorf("%d bytes were fetched of %d", n, objects*size)
		}
	}, dbtest.Servers()...)
}

// countingProxy makes a URL lead through a proxy, and counts what comes back.
func countingProxy(t *testing.T, u *url.URL) *atomic.Int64 {
	t.Helper()
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = listener.Addr().String()
	var (
		count atomic.Int64
		conns sync.WaitGroup
	)
	conns.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer client.Close()
				to, err := net.Dial("tcp", server)
				if err != nil {
					t.Error(err)
					return
				}
				conns.Go(func() {
					defer to.Close()
					io.Copy(to, client)
				})
				io.Copy(client, io.TeeReader(to, writerFunc(func(p []byte) (int, error) {
					count.Add(int64(len(p)))
					return len(p), nil
				})))
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		conns.Wait()
	})
	return &count
}

// stalled takes nothing until the end.
type stalled struct {
	begun, end chan struct{}
	once       sync.Once
}

func (s *stalled) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.end
	return len(p), nil
}

// TestPatientWriter: what is written is written in order, an error below is returned and
// remembered, and time counts for each piece anew.
func TestPatientWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got bytes.Buffer
		slow := writerFunc(func(p []byte) (int, error) {
			<-time.After(9 * time.Minute)
			return got.Write(p)
		})
		w := newPatientWriter(t.Context(), slow, 10*time.Minute)
		defer w.close()
		for _, text := range []string{"one ", "two ", "three"} {
			if n, err := io.WriteString(w, text); err != nil || n != len(text) {
				t.Fatal(n, err)
			}
		}
		if got.String() != "one two three" {
			t.Errorf("it wrote %q", got.String())
		}
	})
	broken := errors.New("broken pipe")
	w := newPatientWriter(t.Context(), writerFunc(func([]byte) (int, error) { return 0, broken }),
		time.Hour)
	defer w.close()
	for range 2 {
		if _, err := w.Write([]byte("text")); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestBackupOfALostValue: an object whose value the database has lost is not backed up as an empty
// one.
func TestBackupOfALostValue(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		if _, err := store.mvcc.Commit(t.Context(),
			contract.Mutation{Key: "/empty", Value: []byte{}}); err != nil {
			t.Fatal(err)
		}
		backup(t, store)
		if _, err := openSQL(t, d).ExecContext(t.Context(),
			"UPDATE rowkeeper_log SET value = NULL"); err != nil {
			t.Fatal(err)
		}
		_, err := store.WriteBackup(t.Context(), io.Discard, nil)
		if err == nil || !strings.Contains(err.Error(),
			`the value of the key "/empty" at revision 2 is lost`) {
			t.Errorf("the backup: %v", err)
		}
	})
}

// openSQL opens a database beside the store.
func openSQL(t *testing.T, d dbtest.DB) *sql.DB {
	t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	driver, dsn := "pgx", d.URL
	switch d.Kind {
	case dbtest.SQLite:
		driver, dsn = "sqlite", u.Path
	case dbtest.MariaDB, dbtest.MySQL:
		c := driverconfig.NewConfig()
		c.User = u.User.Username()
		c.Passwd, _ = u.User.Password()
		c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
		driver, dsn = "mysql", c.FormatDSN()
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// TestSweepsDuringRestores: a sweep that has read which revisions it will delete does not delete
// what is restored with the same revisions.
func TestSweepsDuringRestores(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		server, process := openDatabase(t, d, noCompaction), openDatabase(t, d, noCompaction)
		const keys, rounds = 200, 10
		many(t, server, "/registry/", keys, 10)
		want, _ := exported(t, server)
		file := backup(t, server)
		for round := range rounds {
			current, _ := exported(t, server)
			for key, r := range current {
				if _, err := server.mvcc.Commit(t.Context(), contract.Mutation{Key: key,
					Expect: r.Revision, Value: []byte("changed")}); err != nil {
					t.Fatal(err)
				}
			}
			if err := server.Compact(t.Context(), 1<<62); err != nil {
				t.Fatal(err)
			}
			var sweeps sync.WaitGroup
			for range 2 {
				sweeps.Go(func() {
					// One that the restore has overtaken may fail, and is done again later.
					if err := server.mvcc.Sweep(context.Background()); err != nil {
						t.Logf("round %d: a sweep: %v", round, err)
					}
				})
			}
			restore(t, process, file, RestoreOptions{Replace: true})
			sweeps.Wait()
			if got, _ := exported(t, process); !equal(got, want) {
				t.Fatalf("round %d: %d objects are there, want the %d of the backup", round,
					len(got), len(want))
			}
		}
	})
}

// TestRestoreRefusesWhatIsDamaged: of a file that is cut off or changed anywhere, nothing is
// restored, and the reason is one sentence.
func TestRestoreRefusesWhatIsDamaged(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
	r := pods(t, store)
	for i := range 50 {
		create(t, r, fmt.Sprintf("p%02d", i))
	}
	file := backup(t, store)
	before, head := exported(t, store)
	refused := func(what string, file []byte, words string) {
		t.Helper()
		_, _, err := store.RestoreBackup(t.Context(), bytes.NewReader(file),
			RestoreOptions{Replace: true})
		if err == nil || !strings.HasPrefix(err.Error(), "the backup cannot be used: it") ||
			strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for at := range len(file) {
		refused(fmt.Sprintf("cut off at %d", at), file[:at], "")
	}
	for at := range len(file) {
		changed := slices.Clone(file)
		changed[at] ^= 0x41
		if _, err := ReadBackup(bytes.NewReader(changed), nil); err == nil {
			// Zstandard has bits that mean nothing, such as the weights of symbols that do not
			// occur. The file has the content that it had, by the checksum of all of it.
			continue
		}
		refused(fmt.Sprintf("changed at %d", at), changed, "")
	}
	refused("newer", append([]byte("rowkeeper-backup 2\n"), file[19:]...),
		"version 2 of the format, and this program knows only versions up to 1: use a newer "+
			"rowkeeper")
	refused("something after the end", append(slices.Clone(file), "more"...), "")
	refused("twice", append(slices.Clone(file), file[19:]...), "it goes on after its end")
	refused("a dump", []byte("-- PostgreSQL database dump\n"),
		"does not begin as a backup by rowkeeper does")
	if after, now := exported(t, store); !equal(after, before) || now != head {
		t.Errorf("the database was changed: %d objects at %d, and were %d at %d", len(after), now,
			len(before), head)
	}
}

// TestRestoreOfWhatNoDatabaseHolds: a file that is whole but impossible is refused by the database,
// which is what it was.
func TestRestoreOfWhatNoDatabaseHolds(t *testing.T) {
	var buf bytes.Buffer
	w, err := archive.NewWriter(&buf, archive.Header{Store: "s", Revision: 10, Keys: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for revision := range contract.Revision(2) {
		if err := w.Write(&contract.Record{Key: "/twice", Revision: 3 + revision, Create: 3, Version: 1,
			Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		create(t, pods(t, store), "kept")
		before, head := exported(t, store)
		tries := 0
		_, _, err := store.RestoreBackup(t.Context(), bytes.NewReader(buf.Bytes()),
			RestoreOptions{Replace: true, Progress: func(doing string, done, _ int64) {
				if doing == "writing" && done == 1 {
					tries++
				}
			}})
		if err == nil || !strings.HasPrefix(err.Error(), "nothing was restored, and the database "+
			"is what it was before: ") || tries != 1 {
			t.Errorf("a key that is there twice, in %d tries: %v", tries, err)
		}
		if after, now := exported(t, store); !equal(after, before) || now != head {
			t.Errorf("the database was changed: %v at %d", after, now)
		}
	})
}

const restoreChild = "ROWKEEPER_TEST_RESTORE"

// TestRestoreIsKilled kills a process that restores when it has written a half, and one that has
// written all: nothing was changed, and nobody is in the way of the writes that follow.
func TestRestoreIsKilled(t *testing.T) {
	if child := os.Getenv(restoreChild); child != "" {
		restoreUntil(t, strings.Fields(child))
		return
	}
	source := openDatabase(t, dbtest.Open(t, dbtest.SQLite), noCompaction)
	many(t, source, "/registry/pods/ns/", 3000, 2000)
	file := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, backup(t, source), 0o600); err != nil {
		t.Fatal(err)
	}
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, noCompaction)
		create(t, pods(t, store), "kept")
		before, head := exported(t, store)
		for _, doing := range []string{"writing", "comparing"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestRestoreIsKilled$")
			cmd.Env = append(os.Environ(), restoreChild+"="+
				strings.Join([]string{string(d.Kind), d.URL, file, doing}, " "))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			seen := make([]byte, len("in the middle"))
			if _, err := io.ReadFull(out, seen); err != nil || string(seen) != "in the middle" {
				t.Fatalf("the process that restores wrote %q: %v\n%s", seen, err, stderr.String())
			}
			// It has the commit lock; readers do not mind.
			if during, now := exported(t, store); !equal(during, before) || now != head {
				t.Errorf("%s: while it restores there are %d objects at %d", doing,
					len(during), now)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() // it was killed
			if after, now := exported(t, store); !equal(after, before) || now != head {
				t.Errorf("%s: after it was killed there are %d objects at %d", doing,
					len(after), now)
			}
			change(t, pods(t, store), "kept", doing)
			before, head = exported(t, store)
		}
	})
}

// restoreUntil restores until it does something to the last object, and stops there for ever.
func restoreUntil(t *testing.T, args []string) {
	kind, url, file, until := args[0], args[1], args[2], args[3]
	backend, err := contract.OpenBackend(t.Context(), dbtest.Driver(dbtest.Kind(kind)), url,
		contract.DriverOptions{Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	store, err := mvcc.Open(t.Context(), backend, noCompaction)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = New(store, nil, Config{}).RestoreBackup(t.Context(), f,
		RestoreOptions{Replace: true, Progress: func(doing string, done, total int64) {
			if doing == until && done == total {
				fmt.Print("in the middle")
				select {}
			}
		}})
	t.Fatalf("the restore has ended: %v", err)
}
