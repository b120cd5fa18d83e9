package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// transact writes keys with a value at one revision.
func transact(t *testing.T, s *mvcc.Engine, keys int, value string) contract.Revision {
	t.Helper()
	ms := make([]contract.Mutation, keys)
	for i := range ms {
		ms[i] = contract.Mutation{Key: contract.Key(fmt.Sprintf("/k/%03d", i)), Expect: contract.Any,
			Value: []byte(value)}
	}
	r, err := s.Transact(t.Context(), ms)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTransactionsStayWhole: a batch has a transaction as a whole, whether it comes from the ring
// or from the log, and however many there are.
func TestTransactionsStayWhole(t *testing.T) {
	const keys, transactions = contract.MaxParts + 1, 12
	db := memdb.New(t.Name(), time.Now)
	writer := openOther(t, db)
	start := writer.Delivered()
	fromRing, err := writer.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/k/", After: start})
	if err != nil {
		t.Fatal(err)
	}
	defer fromRing.Close()
	var last contract.Revision
	for i := range transactions {
		value := "x"
		if i%3 == 0 {
			value = strings.Repeat("x", 10<<10)
		}
		last = transact(t, writer, keys, value)
		if want := start + contract.Revision(i) + 1; last != want {
			t.Fatalf("a transaction is at %d, want %d", last, want)
		}
	}
	fromLog, err := openOther(t, db).Watch(t.Context(), mvcc.WatchOptions{Prefix: "/k/", After: start})
	if err != nil {
		t.Fatal(err)
	}
	defer fromLog.Close()
	for name, w := range map[string]*mvcc.Watcher{"ring": fromRing, "log": fromLog} {
		seen, batches := start, 0
		for ; seen < last; batches++ {
			b, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Events)%keys != 0 {
				t.Fatalf("%s: a batch after %d has %d events", name, seen, len(b.Events))
			}
			for i, e := range b.Events {
				key := contract.Key(fmt.Sprintf("/k/%03d", i%keys))
				if want := seen + 1 + contract.Revision(i/keys); e.Revision != want || e.Key != key {
					t.Fatalf("%s: event %d is %q at %d, want %q at %d", name, i, e.Key, e.Revision, key, want)
				}
			}
			seen += contract.Revision(len(b.Events) / keys)
			if b.Progress != seen {
				t.Fatalf("%s: a batch up to %d has the progress %d", name, seen, b.Progress)
			}
		}
		if batches < 2 {
			t.Errorf("%s: there was one batch only", name)
		}
	}
}

// openBehind opens a store whose reads of the log wait while hold is set, and takes few rows at a
// time. It reads nothing else by itself.
func openBehind(t *testing.T, db *memdb.Database) (s *mvcc.Engine, hold func(bool)) {
	t.Helper()
	var mu sync.RWMutex
	b := db.Open(contract.DriverOptions{})
	b.Hook = func(_ context.Context, method string) error {
		if method == "Tail" {
			mu.RLock()
			defer mu.RUnlock()
		}
		return nil
	}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{TailRows: 2, QuotaInterval: time.Hour,
		Compaction: mvcc.CompactionPolicy{Window: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	held := false
	hold = func(hold bool) {
		switch {
		case hold && !held:
			mu.Lock()
		case !hold && held:
			mu.Unlock()
		}
		held = hold
	}
	t.Cleanup(func() { hold(false) })
	return s, hold
}

// TestFenceAfterTransactions: a process that has nothing to do but follow the log finds a fence
// there, though it comes after transactions whose parts are read in another snapshot.
func TestFenceAfterTransactions(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	writer := openOther(t, db)
	s, hold := openBehind(t, db)
	watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
	if err != nil {
		t.Fatal(err)
	}
	hold(true)
	transact(t, writer, 2, "x")
	if _, err := writer.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	hold(false)
	ended(t, watch)
}

// TestOvertakenInTransaction: compaction overtakes a process, and has removed a part of the
// transaction that comes next, which is the last of what is read at a time. The process goes on
// after it.
func TestOvertakenInTransaction(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	writer := openOther(t, db)
	s, hold := openBehind(t, db)
	if err := s.Arrived(t.Context(), put(t, writer, "/kept", 0, "x")); err != nil {
		t.Fatal(err)
	}
	watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
	if err != nil {
		t.Fatal(err)
	}
	hold(true)
	head := put(t, writer, "/k/000", transact(t, writer, 2, "x"), "y")
	if err := writer.Compact(t.Context(), head); err != nil {
		t.Fatal(err)
	}
	if err := writer.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	hold(false)
	ended(t, watch)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Arrived(ctx, head); err != nil {
		t.Errorf("the process does not go on: %v", err)
	}
}

// TestOvertakenBeforeParts: compaction removes a part of a transaction after a watch has read the
// last row of it, and before it reads the parts. That is no damage.
func TestOvertakenBeforeParts(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	writer := openOther(t, db)
	before := writer.Delivered()
	r := transact(t, writer, 2, "x")
	b := db.Open(contract.DriverOptions{})
	var once sync.Once
	b.Hook = func(ctx context.Context, method string) error {
		if method == "Parts" {
			once.Do(func() {
				if err := writer.Compact(ctx, put(t, writer, "/k/000", r, "y")); err != nil {
					t.Error(err)
				}
				if err := writer.Sweep(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	watch, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: before})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, watch)
}

// TestTransactLimits: what does not fit into a group is refused, and so is a key that comes twice.
func TestTransactLimits(t *testing.T) {
	s := openOther(t, memdb.New(t.Name(), time.Now))
	before := s.Delivered()
	many := make([]contract.Mutation, contract.MaxParts+2)
	for i := range many {
		many[i] = contract.Mutation{Key: contract.Key(fmt.Sprint("/", i)), Expect: contract.Any}
	}
	large := []contract.Mutation{{Key: "/a", Value: make([]byte, contract.MaxValueBytes)}}
	for i := range 6 {
		m := large[0]
		m.Key = contract.Key(fmt.Sprint("/a", i))
		large = append(large, m)
	}
	for name, ms := range map[string][]contract.Mutation{"keys": many, "bytes": large} {
		_, err := s.Transact(t.Context(), ms)
		var limit *contract.LimitError
		if !errors.As(err, &limit) || limit.What != "transaction" || limit.Keys != (name == "keys") ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("too many %s: %v", name, err)
		}
	}
	for name, ms := range map[string][]contract.Mutation{
		"a key twice":      {{Key: "/a"}, {Key: "/b"}, {Key: "/a"}},
		"a late condition": {{Key: "/a"}, {Key: "/b", If: &contract.Condition{}}},
		"an empty key":     {{Key: "/a"}, {}},
		"a user":           {{Key: "/a", By: &contract.User{Name: "alice"}}, {Key: "/b"}},
		"a later user":     {{Key: "/a"}, {Key: "/b", By: &contract.User{Name: "alice"}}},
		"a user's condition": {{Key: "/a", By: &contract.User{Name: "alice"},
			If: &contract.Condition{Hold: true}}},
	} {
		if _, err := s.Transact(t.Context(), ms); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if head, err := s.Head(t.Context()); head != before || err != nil {
		t.Errorf("the head is %d, %v, want %d", head, err, before)
	}
}
