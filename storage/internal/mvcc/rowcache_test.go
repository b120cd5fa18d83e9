package mvcc_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// asked counts what a database is asked for.
type asked struct {
	*memdb.Backend
	mu    sync.Mutex
	count map[string]int
	// tail, if not nil, holds back the reads of the log until it is closed. If one is set, the next
	// read returns one new row, and those after it are held back.
	tail chan struct{}
	one  bool
	// after, if not nil, is called once when a head, a key or a page was read.
	after func()
}

// afterRead sets after.
func (a *asked) afterRead(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.after = f
}

func (a *asked) answered() {
	a.mu.Lock()
	f := a.after
	a.after = nil
	a.mu.Unlock()
	if f != nil {
		f()
	}
}

func (a *asked) note(ctx context.Context, method string) error {
	a.mu.Lock()
	tail := a.tail
	a.count[method]++
	a.mu.Unlock()
	if method == "Tail" {
		return await(ctx, tail)
	}
	return nil
}

func (a *asked) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	p, err := a.Backend.Page(ctx, q)
	a.answered()
	return p, err
}

func (a *asked) Tail(ctx context.Context, from contract.Revision, limit int,
	prev contract.Prev) (*contract.Tail, error) {
	t, err := a.Backend.Tail(ctx, from, limit, prev)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.one && err == nil && len(t.Rows) > 2 {
		t.Rows, t.More = t.Rows[:2], true // the delivered one, and one more
		a.one, a.tail = false, make(chan struct{})
	}
	return t, err
}

func (a *asked) Get(ctx context.Context, key contract.Key) (*contract.Row, contract.State, error) {
	row, st, err := a.Backend.Get(ctx, key)
	a.answered()
	return row, st, err
}

func (a *asked) State(ctx context.Context) (contract.State, error) {
	st, err := a.Backend.State(ctx)
	a.answered()
	return st, err
}

// GetKeys counts no read without keys.
func (a *asked) GetKeys(ctx context.Context, keys []contract.Key) ([]contract.Row, contract.State, error) {
	if len(keys) == 0 {
		st, err := a.State(ctx)
		return nil, st, err
	}
	return a.Backend.GetKeys(ctx, keys)
}

// reads checks what was asked for since the last call, but for reads of the state and the log.
func (a *asked) reads(t *testing.T, what string, want map[string]int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	got := map[string]int{}
	for _, m := range []string{"Get", "GetKeys", "Page", "Count", "Values"} {
		if a.count[m] > 0 {
			got[m] = a.count[m]
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: the database was asked for %v, not %v", what, got, want)
	}
	clear(a.count)
}

// openAsked opens a store that keeps so many bytes of rows.
func openAsked(t *testing.T, db *memdb.Database, most int) (*asked, *mvcc.Engine) {
	t.Helper()
	a := &asked{Backend: db.Open(contract.DriverOptions{}), count: map[string]int{}}
	a.Hook = a.note
	s, err := mvcc.Open(t.Context(), a, mvcc.Config{CacheBytes: most})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return a, s
}

// openOther opens a store that keeps none.
func openOther(t *testing.T, db *memdb.Database) *mvcc.Engine {
	t.Helper()
	return open(t, dbtest.DB{Kind: "memdb", Driver: db}, mvcc.Config{})
}

// get reads a key and checks its value, "" if it does not exist.
func get(t *testing.T, s *mvcc.Engine, key contract.Key, value string) {
	t.Helper()
	kv, head, err := s.Get(t.Context(), key)
	switch {
	case err != nil:
		t.Errorf("%s: %v", key, err)
	case value == "" && kv != nil:
		t.Errorf("%s is deleted, and %s was read", key, kv.Value)
	case value != "" && (kv == nil || string(kv.Value) != value || kv.Revision > head):
		t.Errorf("%s is %+v at %d, want %s", key, kv, head, value)
	}
}

func ready(t *testing.T, s *mvcc.Engine) {
	t.Helper()
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestKeysAreCached: a key that was written or read is not read again, whoever writes it.
func TestKeysAreCached(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	a, s := openAsked(t, db, 1<<20)
	other := openOther(t, db)
	created := put(t, s, "/k", 0, "created")
	get(t, s, "/k", "created")
	put(t, s, "/k", created, "updated")
	get(t, s, "/k", "updated")
	a.reads(t, "what was written", map[string]int{})

	put(t, other, "/k", contract.Any, "by another")
	ready(t, s)
	get(t, s, "/k", "by another")
	a.reads(t, "what another process has written", map[string]int{})

	if _, err := other.Commit(t.Context(), contract.Mutation{Key: "/k", Delete: true,
		Expect: contract.Any}); err != nil {
		t.Fatal(err)
	}
	ready(t, s)
	get(t, s, "/k", "")
	a.reads(t, "what was deleted", map[string]int{"Get": 1})
}

// TestReadsAreCached: what was written before the process began is read once.
func TestReadsAreCached(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	put(t, openOther(t, db), "/k", 0, "old")
	a, s := openAsked(t, db, 1<<20)
	for range 3 {
		get(t, s, "/k", "old")
	}
	a.reads(t, "a key that was there before", map[string]int{"Get": 1})
}

// TestCacheIsNotBehind: what another process has written is read at once, though this one has not
// heard of it. When it has, it asks for no more than how far the history has come.
func TestCacheIsNotBehind(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	a, s := openAsked(t, db, 1<<20)
	other := openOther(t, db)
	list := func(value string) {
		t.Helper()
		r, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/", End: "0", Limit: 9})
		if err != nil || len(r.KVs) != 1 || string(r.KVs[0].Value) != value {
			t.Errorf("the list is %+v, %v, want %s", r, err, value)
		}
	}
	put(t, s, "/k", 0, "old")
	ready(t, s)
	list("old")
	list("old")
	a.reads(t, "a list", map[string]int{"Page": 1})
	a.mu.Lock()
	a.tail = make(chan struct{})
	a.mu.Unlock()
	put(t, other, "/k", contract.Any, "new")
	get(t, s, "/k", "new")
	get(t, s, "/k", "new")
	list("new")
	a.reads(t, "what is not delivered", map[string]int{"Get": 2, "Page": 1})
	close(a.tail)
	ready(t, s)
	for range mvcc.SkippedReads {
		get(t, s, "/k", "new")
	}
	a.reads(t, "for a while", map[string]int{"Get": mvcc.SkippedReads - 2})
	get(t, s, "/k", "new")
	list("new")
	list("new")
	a.reads(t, "what is delivered", map[string]int{})
}

// lister lists the keys below /k/ of a store that keeps rows, and knows what they have to be.
type lister struct {
	*asked
	db       *memdb.Database
	s, other *mvcc.Engine
	want     map[contract.Key]string
}

// newLister begins with n keys that another process has written before.
func newLister(t *testing.T, n int) *lister {
	t.Helper()
	db := memdb.New(t.Name(), time.Now)
	l := &lister{db: db, other: openOther(t, db), want: map[contract.Key]string{}}
	for i := range n {
		l.write(t, i, "old")
	}
	l.asked, l.s = openAsked(t, db, 1<<20)
	return l
}

func (l *lister) key(i int) contract.Key { return contract.Key(fmt.Sprintf("/k/%02d", i)) }

// write lets another process write a key, or delete it if the value is "".
func (l *lister) write(t *testing.T, i int, value string) {
	t.Helper()
	m := contract.Mutation{Key: l.key(i), Expect: contract.Any, Value: []byte(value), Delete: value == ""}
	if _, err := l.other.Commit(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if m.Delete {
		delete(l.want, m.Key)
	} else {
		l.want[m.Key] = value
	}
	if l.s != nil {
		ready(t, l.s)
	}
}

// list lists in pages, and calls turned, if it is not nil, after the first one.
func (l *lister) list(t *testing.T, limit int, turned func()) contract.Revision {
	t.Helper()
	return l.listAt(t, 0, l.want, limit, turned)
}

// listAt lists what there was at a revision.
func (l *lister) listAt(t *testing.T, at contract.Revision, want map[contract.Key]string, limit int,
	turned func()) contract.Revision {
	t.Helper()
	want = maps.Clone(want)
	o := mvcc.RangeOptions{Start: "/k/", End: "/k0", At: at, Limit: limit, Count: true,
		Exact: true}
	got := map[contract.Key]string{}
	for {
		r, err := l.s.Range(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if left := int64(len(want) - len(got)); r.Count != left {
			t.Errorf("%d keys are counted, not %d", r.Count, left)
		}
		for _, kv := range r.KVs {
			got[kv.Key] = string(kv.Value)
		}
		o.At = r.Revision
		if !r.More {
			break
		}
		if turned != nil {
			turned()
			turned = nil
		}
		o.From = r.KVs[len(r.KVs)-1].Key + "\x00"
	}
	if !maps.Equal(got, want) {
		t.Errorf("the list is %v, not %v", got, want)
	}
	return o.At
}

// TestPagesAreCached: a list that was read is not read again, whoever writes its keys. If a row is
// not kept, the list is read.
func TestPagesAreCached(t *testing.T) {
	l := newLister(t, 20)
	l.list(t, 20, nil)
	l.reads(t, "what was never read", map[string]int{"Page": 1})
	l.list(t, 20, nil)
	l.list(t, 7, nil)
	before, at := maps.Clone(l.want), l.list(t, 100, nil)
	l.reads(t, "what was read", map[string]int{})

	l.write(t, 3, "updated")
	l.write(t, 7, "")
	l.write(t, 70, "created")
	l.list(t, 20, nil)
	l.list(t, 7, nil)
	l.reads(t, "what was written", map[string]int{})
	l.listAt(t, at, before, 7, nil)
	l.reads(t, "what there was before", map[string]int{"Values": 2})

	mvcc.Uncache(l.s, l.key(5))
	l.list(t, 20, nil)
	l.reads(t, "a row of twenty", map[string]int{"Page": 1})
	l.list(t, 20, nil)
	l.reads(t, "what was missing", map[string]int{})

	l.write(t, 5, strings.Repeat("v", 1<<17))
	for range 2 {
		l.list(t, 20, nil)
	}
	l.reads(t, "a row that is too large to be kept", map[string]int{"Page": 2})

	empty := mvcc.RangeOptions{Start: "/e/", End: "/e0"}
	for range 2 {
		if r, err := l.s.Range(t.Context(), empty); err != nil || len(r.KVs) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	l.reads(t, "nothing", map[string]int{"Page": 1})
}

// TestCountIsNotBehind: if a page has shown more than the hub has delivered, what is here may be of
// another history than the page, and nothing is counted of it.
func TestCountIsNotBehind(t *testing.T) {
	l := newLister(t, 20)
	before, at := maps.Clone(l.want), l.list(t, 100, nil)
	l.reads(t, "a list", map[string]int{"Page": 1})
	l.mu.Lock()
	l.tail = make(chan struct{})
	l.mu.Unlock()
	put(t, l.other, l.key(3), contract.Any, "new")
	l.listAt(t, at, before, 20, nil)
	l.listAt(t, at, before, 19, nil)
	l.reads(t, "two lists", map[string]int{"Page": 3, "Count": 1, "Values": 2})
	close(l.tail)
}

// TestPagesBehindAreNotKept: what is written while a key or a page is on its way is not forgotten,
// and what is deleted does not come back.
func TestPagesBehindAreNotKept(t *testing.T) {
	l := newLister(t, 20)
	l.afterRead(func() { l.write(t, 2, "new") })
	get(t, l.s, l.key(2), "old")
	get(t, l.s, l.key(2), "new")
	l.reads(t, "a key", map[string]int{"Get": 1})
	before := maps.Clone(l.want)
	l.afterRead(func() { l.write(t, 3, "") })
	l.listAt(t, 0, before, 100, nil)
	l.list(t, 100, nil)
	l.list(t, 100, nil)
	l.reads(t, "three lists", map[string]int{"Page": 2})
}

// TestOlderPagesAreKept: a list in pages shows one revision. If something is written meanwhile, the
// next list has it, though no page has shown it.
func TestOlderPagesAreKept(t *testing.T) {
	write := func(l *lister) {
		l.write(t, 12, "updated")
		l.write(t, 13, "")
		l.write(t, 70, "created")
	}
	l := newLister(t, 20)
	l.list(t, 7, func() { write(l) })
	l.reads(t, "three pages", map[string]int{"Page": 3, "Count": 1, "Values": 1})
	l.list(t, 100, nil)
	l.reads(t, "the next list", map[string]int{})

	// A row that is newer than the pages, and is not kept, is missing.
	l = newLister(t, 20)
	l.list(t, 7, func() { write(l); mvcc.Uncache(l.s, l.key(70)) })
	l.list(t, 100, nil)
	l.reads(t, "two lists", map[string]int{"Page": 4, "Count": 1, "Values": 1})

	// Nobody knows what was written between a page's revision and the process's begin.
	l = newLister(t, 20)
	r, err := l.s.Range(t.Context(), mvcc.RangeOptions{Start: "/k/", End: "/k0"})
	if err != nil {
		t.Fatal(err)
	}
	write(l)
	a, s := openAsked(t, l.db, 1<<20)
	old, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/k/", End: "/k0", At: r.Revision})
	if err != nil || len(old.KVs) != 20 {
		t.Fatalf("%+v, %v", old, err)
	}
	l.asked, l.s = a, s
	l.list(t, 100, nil)
	l.reads(t, "an older list and a new one", map[string]int{"Page": 2, "Values": 1})
}

// TestEmptyValuesAreCached: a value that is empty is one.
func TestEmptyValuesAreCached(t *testing.T) {
	a, s := openAsked(t, memdb.New(t.Name(), time.Now), 1<<20)
	if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/k"}); err != nil {
		t.Fatal(err)
	}
	kv, _, err := s.Get(t.Context(), "/k")
	if err != nil || kv == nil || kv.Value == nil || len(kv.Value) > 0 {
		t.Errorf("%+v, %v", kv, err)
	}
	a.reads(t, "an empty value", map[string]int{})
}

// TestCachedRowsAreOfTheHead: what is written while an answer is on its way is in the answer only
// if the answer names its revision.
func TestCachedRowsAreOfTheHead(t *testing.T) {
	a, s := openAsked(t, memdb.New(t.Name(), time.Now), 1<<20)
	put(t, s, "/k", 0, "old")
	list := func() {
		t.Helper()
		r, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/", End: "0", Limit: 9})
		if err != nil || len(r.KVs) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		kv := r.KVs[0]
		if kv.Revision > r.Revision || (string(kv.Value) == "new") != (kv.Version == 2) {
			t.Errorf("a list at %d has %s at %d, version %d", r.Revision, kv.Value, kv.Revision,
				kv.Version)
		}
	}
	list()
	a.afterRead(func() { put(t, s, "/k", contract.Any, "new") })
	list()
	a.reads(t, "the list", map[string]int{"Page": 1})
	a.afterRead(func() { put(t, s, "/k", contract.Any, "newer") })
	get(t, s, "/k", "newer")
	a.reads(t, "the key", map[string]int{"Get": 1})
}

// TestPartsOfGroupsAreNotAnswered: no list shows a revision at which a group was half written,
// though the events of that half are here.
func TestPartsOfGroupsAreNotAnswered(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	a, s := openAsked(t, db, 1<<20)
	head := put(t, s, "/k/0", 0, "old")
	o := mvcc.RangeOptions{Start: "/k/", End: "/k0"}
	if _, err := s.Range(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/k/", After: head})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	a.afterRead(func() {
		a.mu.Lock()
		a.one = true
		a.mu.Unlock()
		b := db.Open(contract.DriverOptions{})
		st, err := b.State(t.Context())
		if err != nil {
			t.Error(err)
		}
		_, err = b.Commit(t.Context(), &contract.Group{Token: contract.Token{1}, Seen: st.Head,
			Mutations: []*contract.Mutation{{Key: "/k/1", Value: []byte("1")},
				{Key: "/k/2", Value: []byte("2")}}})
		if err != nil {
			t.Error(err)
		}
		if batch, err := w.Next(t.Context()); err != nil || len(batch.Events) != 1 {
			t.Errorf("%+v, %v", batch, err)
		}
	})
	r, err := s.Range(t.Context(), o)
	if err != nil || r.Revision != head+2 || len(r.KVs) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	a.mu.Lock()
	close(a.tail)
	a.mu.Unlock()
}

// TestCacheIsBounded: rows give way to others, whatever their sizes are.
func TestCacheIsBounded(t *testing.T) {
	const most = 100_000
	s := open(t, inMemory(t), mvcc.Config{CacheBytes: most})
	want := map[contract.Key]string{}
	for i := range 200 {
		key := contract.Key(fmt.Sprintf("/k/%d", i%70))
		want[key] = strings.Repeat("v", 1+i*7%3000)
		put(t, s, key, contract.Any, want[key])
		if bytes, counted := mvcc.CachedBytes(s); bytes > most || bytes != counted {
			t.Fatalf("%d bytes are kept, %d are counted, %d are allowed", bytes, counted, most)
		}
	}
	for key, value := range want {
		get(t, s, key, value)
	}
	// One that is too large is not kept, nor is the one before it.
	large := strings.Repeat("v", most/10)
	put(t, s, "/k/0", contract.Any, "small")
	put(t, s, "/k/0", contract.Any, large)
	get(t, s, "/k/0", large)
}

// TestListsEvictNothing: a list of more than there is room for does not drive out what is read more
// often.
func TestListsEvictNothing(t *testing.T) {
	db := memdb.New(t.Name(), time.Now)
	other := openOther(t, db)
	put(t, other, "/hot", 0, "hot")
	for i := range 100 {
		put(t, other, contract.Key(fmt.Sprintf("/k/%d", i)), 0, strings.Repeat("v", 500))
	}
	a, s := openAsked(t, db, 20_000)
	get(t, s, "/hot", "hot")
	for range 3 {
		if r, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/k/", End: "/k0",
			Limit: 100}); err != nil || len(r.KVs) != 100 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	get(t, s, "/hot", "hot")
	a.reads(t, "a key and three lists", map[string]int{"Get": 1, "Page": 3})
	if bytes, _ := mvcc.CachedBytes(s); bytes < 15_000 || bytes > 20_000 {
		t.Errorf("%d bytes are kept of a list that fills 20,000", bytes)
	}
}

// TestCachedPagesAreBounded: a page ends at ReadBytes, whether its values are read or kept.
func TestCachedPagesAreBounded(t *testing.T) {
	a, s := openAsked(t, memdb.New(t.Name(), time.Now), 1<<30)
	const values = contract.ReadBytes/contract.MaxValueBytes + 4
	value := strings.Repeat("v", contract.MaxValueBytes)
	for i := range values {
		put(t, s, contract.Key(fmt.Sprintf("/k/%02d", i)), 0, value)
	}
	for _, want := range []map[string]int{{"Page": 2}, {}} {
		o, n := mvcc.RangeOptions{Start: "/k/", End: "/k0", Limit: 100}, 0
		for more := true; more; {
			r, err := s.Range(t.Context(), o)
			if err != nil || len(r.KVs) == 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			if bytes := r.Bytes(); bytes > contract.ReadBytes+2*contract.MaxValueBytes {
				t.Errorf("a page has %d bytes", bytes)
			}
			n, more = n+len(r.KVs), r.More
			o.At, o.From = r.Revision, r.KVs[len(r.KVs)-1].Key+"\x00"
		}
		if n != values {
			t.Errorf("a list has %d keys, not %d", n, values)
		}
		a.reads(t, "a list", want)
	}
}

// deaf gets no notifications, nor anything else that is optional but the reads of several keys.
type deaf struct {
	contract.Backend
	contract.KeysReader
}

// TestLostRowsAreNotAnswered: a database loses what this process has kept, and has something else
// at the same revision. From then on, nothing of the lost history is answered.
func TestLostRowsAreNotAnswered(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		for _, others := range [][]contract.Mutation{
			{{Key: "/k", Value: []byte("B")}},
			{{Key: "/k", Value: []byte("B")}, {Key: "/z", Value: []byte("C")}},
		} {
			// Nothing is noticed before it is read.
			b := openBackend(t, db)
			s, err := mvcc.Open(t.Context(), deaf{b, b.(contract.KeysReader)}, mvcc.Config{
				CacheBytes: 1 << 20, Logger: testLogger(t), PollActive: time.Hour,
				PollIdle: time.Hour, PollListening: time.Hour, QuotaInterval: time.Hour,
				ExpiryIdle: time.Hour, Compaction: mvcc.CompactionPolicy{Interval: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			list := func() (string, error) {
				r, err := s.Range(t.Context(), mvcc.RangeOptions{Start: "/k", End: "/l", Limit: 9})
				if err != nil || len(r.KVs) != 1 {
					return "", err
				}
				return string(r.KVs[0].Value), nil
			}
			seen := put(t, s, "/k", contract.Any, "A")
			for range 2 {
				get(t, s, "/k", "A")
				if v, err := list(); err != nil || v != "A" {
					t.Fatalf("%s, %v", v, err)
				}
			}
			lose(t, db, seen, others...)
			for i := range 60 {
				v, err := list()
				if i > 40 {
					var kv *mvcc.KeyValue
					if kv, _, err = s.Get(t.Context(), "/k"); kv != nil {
						v = string(kv.Value)
					}
				}
				if err == nil && v != "B" || err != nil && contract.ClassOf(err) != contract.Unavailable {
					t.Errorf("after %d reads: %q, %v", i, v, err)
				}
			}
			for become(t, s, seen) < seen+contract.JumpBefore(1) && t.Context().Err() == nil {
				runtime.Gosched()
			}
			get(t, s, "/k", "B")
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
