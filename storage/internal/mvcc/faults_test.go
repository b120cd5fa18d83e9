package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// load is writers on several stores, and a watcher on each, for as long as a fault takes.
type load struct {
	t       *testing.T
	stores  []*mvcc.Engine
	start   contract.Revision
	stop    context.CancelFunc
	writers sync.WaitGroup
	// acknowledged has the revision of every write that was.
	mu           sync.Mutex
	acknowledged map[contract.Revision]contract.Key
	unknown      map[contract.Key]bool
	done         atomic.Int64
	failed       atomic.Int64
	// losesTail says that the fault may lose commits that others have seen and nobody was told of:
	// in InnoDB a commit is visible before it is durable. Then the stores fence.
	losesTail bool
}

func startLoad(t *testing.T, db dbtest.DB, stores, writersEach int) *load {
	t.Helper()
	l := &load{t: t, acknowledged: map[contract.Revision]contract.Key{}, unknown: map[contract.Key]bool{}}
	for range stores {
		l.stores = append(l.stores, open(t, db, mvcc.Config{Logger: testLogger(t)}))
	}
	l.start = l.stores[0].Delivered()
	var ctx context.Context
	ctx, l.stop = context.WithCancel(t.Context())
	for i := range stores * writersEach {
		l.writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.write(l.stores[i%stores], contract.Key(fmt.Sprintf("/w%d/%d", i, n)))
			}
		})
	}
	return l
}

func (l *load) write(s *mvcc.Engine, key contract.Key) {
	r, err := s.Commit(l.t.Context(), contract.Mutation{Key: key, Value: []byte("x")})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		if other, twice := l.acknowledged[r]; twice {
			l.t.Errorf("%s and %s have the same revision %d", key, other, r)
		}
		l.acknowledged[r] = key
		l.done.Add(1)
	case errors.Is(err, contract.ErrUnknownOutcome):
		l.unknown[key] = true
		l.failed.Add(1)
	default:
		var refused *contract.Error
		if !errors.As(err, &refused) {
			l.t.Errorf("%s: %v", key, err)
		}
		l.failed.Add(1)
	}
}

// progress waits until the writers have done n more writes, which they can only if the stores work
// again.
func (l *load) progress(n int64) {
	l.t.Helper()
	target := l.done.Load() + n
	deadline := time.After(2 * time.Minute)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for l.done.Load() < target {
		select {
		case <-ticker.C:
		case <-deadline:
			l.t.Fatalf("%d of %d writes were done; the stores do not recover", l.done.Load(),
				target)
		}
	}
}

// end stops the writers and compares what they were told, what watchers saw, and what the log has.
func (l *load) end(watchers []*mvcc.Watcher) {
	l.t.Helper()
	l.stop()
	l.writers.Wait()
	head, err := l.stores[0].Head(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if l.stores[0].CompactedRevision() > l.start && l.losesTail {
		l.endAfterFence()
		return
	}
	log := readLog(l.t, l.stores[0], l.start, head)
	written := map[contract.Key]contract.Revision{}
	for i, w := range watchers {
		events := next(l.t, w, len(log))
		for j, e := range events {
			if eventString(e) != log[j] {
				l.t.Fatalf("watcher %d: event %d is %s, in the log it is %s", i, j, eventString(e),
					log[j])
			}
			if i == 0 {
				written[e.Key] = e.Revision
			}
		}
	}
	for r, key := range l.acknowledged {
		if written[key] != r {
			l.t.Errorf("%s was acknowledged at %d, and is in the log at %d", key, r, written[key])
		}
	}
	for key, r := range written {
		if l.acknowledged[r] != key && !l.unknown[key] {
			l.t.Errorf("%s is in the log at %d, and its writer was told that it was not written",
				key, r)
		}
	}
	l.t.Logf("%d writes acknowledged, %d refused or unknown (%d unknown); %d events in each of "+
		"%d watches", len(l.acknowledged), l.failed.Load(), len(l.unknown), len(log), len(watchers))
}

// endAfterFence compares what writers were told with the keys: the history before the fence is
// gone, and watchers have been told so. Each key is written once, so it still has the revision of
// its write.
func (l *load) endAfterFence() {
	l.t.Helper()
	for r, key := range l.acknowledged {
		kv, _, err := l.stores[0].Get(l.t.Context(), key)
		if err != nil || kv == nil || kv.Revision != r {
			l.t.Errorf("%s was acknowledged at %d, and now it is %+v, %v", key, r, kv, err)
		}
	}
	l.t.Logf("%d writes acknowledged; the database lost commits that were seen before they were "+
		"durable, and the stores fenced", len(l.acknowledged))
}

func (l *load) watch() []*mvcc.Watcher {
	var watchers []*mvcc.Watcher
	for _, s := range l.stores {
		w, err := s.Watch(l.t.Context(), mvcc.WatchOptions{Prefix: "/", After: l.start})
		if err != nil {
			l.t.Fatal(err)
		}
		watchers = append(watchers, w)
	}
	return watchers
}

// TestServerFaults stops, kills and freezes the database under load, and cuts all connections: the
// stores go on by themselves, what was acknowledged is there, what was refused is not, and no
// watcher misses an event.
func TestServerFaults(t *testing.T) {
	for _, kind := range dbtest.Servers() {
		t.Run(string(kind), func(t *testing.T) {
			s := dbtest.NewServer(t, kind, dbserver.Options{})
			for _, fault := range []struct {
				name   string
				inject func(db dbtest.DB, l *load)
			}{
				{"restart", func(_ dbtest.DB, l *load) { s.Stop(); s.Start() }},
				{"kill", func(_ dbtest.DB, l *load) { s.Kill(); s.Start() }},
				{"freeze", func(_ dbtest.DB, l *load) { s.Pause(); s.Resume() }},
				{"cut all connections", func(db dbtest.DB, l *load) { cutConnections(l.t, db) }},
			} {
				t.Run(fault.name, func(t *testing.T) {
					db := s.Open()
					l := startLoad(t, db, 2, 4)
					l.losesTail = fault.name == "kill" && kind != dbtest.Postgres
					watchers := l.watch()
					l.progress(50)
					fault.inject(db, l)
					l.progress(50)
					fault.inject(db, l)
					l.progress(50)
					l.end(watchers)
				})
			}
		})
	}
}

const noSuchThread = 1094 // it has ended meanwhile

// cutConnections ends all sessions of the database.
func cutConnections(t *testing.T, db dbtest.DB) {
	t.Helper()
	d := raw(t, db)
	if db.Kind == dbtest.Postgres {
		if _,
			err := d.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		return
	}
	rows,
		err := d.Query("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		_, err := d.Exec(fmt.Sprintf("KILL %d", id))
		var gone *mysqldriver.MySQLError
		if err != nil && !(errors.As(err, &gone) && gone.Number == noSuchThread) {
			t.Fatal(err)
		}
	}
}
