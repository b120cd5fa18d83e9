package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// attach writes a key that is attached to a lease.
func attach(s *mvcc.Engine, key contract.Key, l contract.Lease) error {
	_, err := s.Commit(context.Background(), contract.Mutation{Key: key, Expect: contract.Any, Lease: l,
		Value: []byte("leased")})
	return err
}

// TestLeases: a lease is the same in every process, and its keys are deleted at one revision.
func TestLeases(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		a, b := open(t, db, mvcc.Config{}), open(t, db, mvcc.Config{})
		for _, s := range []*mvcc.Engine{a, b} {
			_, _, err := s.GrantLease(t.Context(), 7, 60)
			if s == a && err != nil || s == b && !errors.Is(err, contract.ErrLeaseExists) {
				t.Error(err)
			}
		}
		chosen, _, err := b.GrantLease(t.Context(), 0, 60)
		if err != nil {
			t.Fatal(err)
		}
		w, err := a.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: a.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, key := range []contract.Key{"/1", "/2", "/3"} {
			if err := attach(b, key, 7); err != nil {
				t.Fatal(err)
			}
		}
		if err := attach(a, "/other", chosen.Lease); err != nil {
			t.Fatal(err)
		}
		var keys []contract.Key
		if err := a.EachAttached(t.Context(), 7, func(k contract.Key) {
			keys = append(keys, k)
		}); err != nil || !slices.Equal(keys, []contract.Key{"/1", "/2", "/3"}) {
			t.Errorf("%q, %v", keys, err)
		}
		row, left, _, err := a.LeaseOf(t.Context(), 7)
		if err != nil || row.TTL != 60 || left <= 0 || left > time.Minute {
			t.Errorf("%+v, %s, %v", row, left, err)
		}
		if row, _, err := a.RenewLease(t.Context(), chosen.Lease); err != nil || row.TTL != 60 {
			t.Errorf("%+v, %v", row, err)
		}
		if err := a.RevokeLease(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		events := next(t, w, 7)
		for i, e := range events[4:] {
			prev, err := a.Previous(t.Context(), e)
			if err != nil || !e.Deleted || e.Revision != events[3].Revision+1 ||
				prev.Lease != 7 || string(prev.Value) != "leased" {
				t.Errorf("event %d is %+v, of %+v, %v", i, e, prev, err)
			}
		}
		for _, s := range []*mvcc.Engine{a, b} {
			_, _, renewErr := s.RenewLease(t.Context(), 7)
			_, _, _, readErr := s.LeaseOf(t.Context(), 7)
			for _, err := range []error{s.RevokeLease(t.Context(), 7), renewErr, readErr,
				attach(s, "/late", 7)} {
				if !errors.Is(err, contract.ErrNoLease) {
					t.Errorf("a lease that was revoked: %v", err)
				}
			}
			var leases []contract.Lease
			if _, err := s.EachLease(t.Context(), func(l contract.Lease) {
				leases = append(leases, l)
			}); err != nil || !slices.Equal(leases, []contract.Lease{chosen.Lease}) {
				t.Errorf("the leases are %d, %v", leases, err)
			}
		}
		if kv, _, err := b.Get(t.Context(), "/other"); err != nil || kv == nil {
			t.Errorf("%v, %v", kv, err)
		}
	})
}

// TestLeaseLapses: a lease lasts as long as it is renewed, and any process ends it.
func TestLeaseLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		a, b := open(t, db, mvcc.Config{}), open(t, db, mvcc.Config{})
		row, _, err := a.GrantLease(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := attach(b, "/k", row.Lease); err != nil {
			t.Fatal(err)
		}
		has := func(want bool) {
			t.Helper()
			kv, _, err := b.Get(t.Context(), "/k")
			if err != nil || (kv != nil) != want {
				t.Errorf("the key is %v, %v, want one: %t", kv, err, want)
			}
		}
		for range 3 {
			<-time.After(9 * time.Second) // of the bubble's clock, which passes at once
			has(true)
			if _, _, err := b.RenewLease(t.Context(), row.Lease); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(9 * time.Second)
		has(true)
		<-time.After(2 * time.Second)
		has(false)
		if _, _, err := b.RenewLease(t.Context(), row.Lease); !errors.Is(err, contract.ErrNoLease) {
			t.Error(err)
		}

		// The process that has granted it is gone.
		if row, _, err = a.GrantLease(t.Context(), 0, 10); err != nil {
			t.Fatal(err)
		}
		if err := attach(a, "/k", row.Lease); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute + time.Second)
		has(false)
	})
}

// leased grants a lease of six seconds, and attaches a key to it.
func leased(t *testing.T, s *mvcc.Engine) contract.Lease {
	t.Helper()
	row, _, err := s.GrantLease(t.Context(), 0, 6)
	if err != nil {
		t.Fatal(err)
	}
	if err := attach(s, "/k", row.Lease); err != nil {
		t.Fatal(err)
	}
	return row.Lease
}

// lastsFor tells for how long a key is there from now on, in seconds of the bubble's clock.
func lastsFor(t *testing.T, s *mvcc.Engine, key contract.Key) int {
	t.Helper()
	for i := 0; ; i++ {
		kv, _, err := s.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if kv == nil {
			return i
		}
		<-time.After(time.Second)
	}
}

// TestLeasesOutliveProcesses: a lease that lapsed while no process was there has its whole time
// again, and lapses then; and as long as one process is there, it does not matter how often others
// begin.
func TestLeasesOutliveProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		a := open(t, db, mvcc.Config{})
		l := leased(t, a)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(9 * time.Second) // of the bubble's clock, which passes at once
		b := open(t, db, mvcc.Config{})
		if _, left, _, err := b.LeaseOf(t.Context(), l); err != nil || left != 6*time.Second {
			t.Errorf("after the outage the lease lasts %s, %v", left, err)
		}
		known := 0
		if _, err := b.EachLease(t.Context(), func(contract.Lease) { known++ }); err != nil || known != 1 {
			t.Errorf("%d leases are there, %v", known, err)
		}
		<-time.After(5 * time.Second)
		if _, _, err := b.RenewLease(t.Context(), l); err != nil {
			t.Error(err)
		}
		if n := lastsFor(t, b, "/k"); n != 7 {
			t.Errorf("a lease of 6 s lasts %d s after it was renewed", n)
		}

		l = leased(t, b)
		for range 4 {
			other := open(t, db, mvcc.Config{})
			<-time.After(2 * time.Second)
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if kv, _, err := b.Get(t.Context(), "/k"); err != nil || kv != nil {
			t.Errorf("8 s after a lease of 6 s was granted, its key is %v, %v", kv, err)
		}
		if _, _, err := b.RenewLease(t.Context(), l); !errors.Is(err, contract.ErrNoLease) {
			t.Error(err)
		}
	})
}

// TestLeasesOutliveTheDatabase: a lease that lapsed while the database was away, or was not written
// to, has its whole time again.
func TestLeasesOutliveTheDatabase(t *testing.T) {
	away := contract.Errorf(contract.Unavailable, "away")
	for name, outage := range map[string]struct {
		hook func(ctx context.Context, over <-chan struct{}) error
		held bool
	}{
		"it refuses": {hook: func(context.Context, <-chan struct{}) error { return away }},
		"it hangs": {hook: func(ctx context.Context, over <-chan struct{}) error {
			select {
			case <-over:
				return nil
			case <-ctx.Done():
				return away
			}
		}},
		"its disk is full": {held: true, hook: func(context.Context, <-chan struct{}) error {
			return contract.Errorf(contract.Full, "full")
		}},
		"somebody holds its lock": {held: true, hook: func(ctx context.Context, over <-chan struct{}) error {
			select {
			case <-over:
				return nil
			case <-ctx.Done():
				return away
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := openBackend(t, inMemory(t)).(*memdb.Backend)
				var over atomic.Pointer[chan struct{}]
				fault := func(ctx context.Context, held bool) error {
					if c := over.Load(); c != nil && held == outage.held {
						return outage.hook(ctx, *c)
					}
					return nil
				}
				b.Hook = func(ctx context.Context, _ string) error { return fault(ctx, false) }
				b.Held = func(ctx context.Context, _ string, _ bool) error { return fault(ctx, true) }
				s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				l := leased(t, s)
				<-time.After(time.Second)
				c := make(chan struct{})
				over.Store(&c)
				for range 6 {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					if _, _, err := s.RenewLease(ctx, l); err == nil {
						t.Error("a lease was renewed while the database was away")
					}
					<-ctx.Done()
					cancel()
				}
				over.Store(nil)
				close(c)
				<-time.After(time.Second)
				if _, left, _, err := s.LeaseOf(t.Context(), l); err != nil || left < 3*time.Second {
					t.Errorf("after the outage the lease lasts %s, %v", left, err)
				}
				// The reaper may wait for some seconds before it tries again.
				if n := lastsFor(t, s, "/k"); n < 2 || n > 16 {
					t.Errorf("after the outage the lease lasts %d s", n)
				}
			})
		})
	}
}

// TestLeasesEndTogether: leases that lapse at the same time end in groups, each key is deleted
// once, and several processes do not do the same.
func TestLeasesEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases = 2_000
		db := inMemory(t)
		var counted atomic.Int64
		var stores []*mvcc.Engine
		for range 3 {
			b := openBackend(t, db).(*memdb.Backend)
			b.Hook = func(_ context.Context, method string) error {
				switch method {
				case "Lapsing", "Locked", "AttachedTo", "Attached", "Values", "Get", "Commit":
					counted.Add(1)
				}
				return nil
			}
			s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			stores = append(stores, s)
		}
		for i := range leases {
			s := stores[i%3]
			row, _, err := s.GrantLease(t.Context(), 0, 60)
			if err != nil {
				t.Fatal(err)
			}
			if err := attach(s, contract.Key(fmt.Sprintf("/k/%04d", i)), row.Lease); err != nil {
				t.Fatal(err)
			}
		}
		before, err := stores[0].Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := counted.Load()
		<-time.After(61 * time.Second)
		n, err := stores[0].Count(t.Context(), "/k/", "/k0")
		if err != nil || n != 0 {
			t.Errorf("%d keys are left, %v", n, err)
		}
		ends := counted.Load() - began
		w, err := stores[0].Watch(t.Context(), mvcc.WatchOptions{Prefix: "/k/", After: before})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		deleted := map[contract.Key]bool{}
		for _, e := range next(t, w, leases) {
			if !e.Deleted || deleted[e.Key] {
				t.Errorf("%+v, and it was deleted before: %t", e, deleted[e.Key])
			}
			deleted[e.Key] = true
		}
		if _, err := stores[1].EachLease(t.Context(), func(l contract.Lease) {
			t.Errorf("the lease %d is there", l)
		}); err != nil {
			t.Error(err)
		}
		// Each group of leases takes about six operations, each process a few looks.
		if ends > 100 {
			t.Errorf("%d leases ended by %d operations", leases, ends)
		}
	})
}

// TestLeaseEndsAsOne: a lease with as many keys as a commit takes ends at one revision, also when
// a client has written one of them meanwhile. One with more keys does not, and nor does one with a
// key that cannot be read; neither keeps the others from that.
func TestLeaseEndsAsOne(t *testing.T) {
	var taken atomic.Bool
	// The client writes between two steps. It cannot if the large lease is looked at in between.
	for range 10 {
		leaseEndsAsOne(t, &taken)
		if taken.Load() {
			return
		}
	}
	t.Error("the client has never written")
}

func leaseEndsAsOne(t *testing.T, taken *atomic.Bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		b := openBackend(t, db).(*memdb.Backend)
		other := open(t, db, mvcc.Config{})
		var found atomic.Bool
		b.Hook = func(_ context.Context, method string) error {
			switch {
			case method == "AttachedTo":
				found.Store(true)
			case method == "Attached":
				found.Store(false)
			case method == "Values" && found.Load() && taken.CompareAndSwap(false, true):
				_, err := other.Commit(context.Background(),
					contract.Mutation{Key: "/2/000", Expect: contract.Any, Value: []byte("kept")})
				return err
			}
			return nil
		}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		counts := map[contract.Lease]int{1: 600, 2: 512, 3: 10, 4: 1}
		for _, l := range slices.Sorted(maps.Keys(counts)) {
			if _, _, err := s.GrantLease(t.Context(), l, 60); err != nil {
				t.Fatal(err)
			}
			for i := range counts[l] {
				if err := attach(s, contract.Key(fmt.Sprintf("/%d/%03d", l, i)), l); err != nil {
					t.Fatal(err)
				}
			}
		}
		// It goes by the clock alone, so all lapse together.
		for _, l := range slices.Sorted(maps.Keys(counts)) {
			if _, _, err := s.RenewLease(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
		w, err := s.Watch(t.Context(), mvcc.WatchOptions{Prefix: "/", After: s.Delivered()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		<-time.After(70 * time.Second)
		revisions := map[byte]map[contract.Revision]int{}
		for _, e := range next(t, w, 600+512+10+1) {
			if !e.Deleted {
				continue
			}
			if revisions[e.Key[1]] == nil {
				revisions[e.Key[1]] = map[contract.Revision]int{}
			}
			revisions[e.Key[1]][e.Revision]++
		}
		if len(revisions['1']) != 600 || len(revisions['2']) != 1 || len(revisions['3']) != 1 ||
			len(revisions['4']) != 1 {
			t.Errorf("the leases have ended at %v", revisions)
		}
		if kv, _, err := s.Get(t.Context(), "/2/000"); err != nil || (kv != nil) != taken.Load() {
			t.Errorf("the key that was written is %v, %v", kv, err)
		}
	})
}

// withoutAttached opens a backend that cannot read which keys leases have.
func withoutAttached(t *testing.T, db dbtest.DB) *memdb.Backend {
	t.Helper()
	b := openBackend(t, db).(*memdb.Backend)
	b.Hook = func(_ context.Context, method string) error {
		if method == "AttachedTo" {
			return contract.Errorf(contract.Unavailable, "away")
		}
		return nil
	}
	return b
}

// TestLeaseIsTakenOver: the keys of a lease are deleted, also if the process that has ended it
// cannot do it.
func TestLeaseIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		lame, err := mvcc.Open(t.Context(), withoutAttached(t, db), mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer lame.Close()
		leased(t, lame)
		<-time.After(7 * time.Second)
		other := open(t, db, mvcc.Config{})
		if n := lastsFor(t, other, "/k"); n < 2 || n > 3 {
			t.Errorf("the key of a lease that another process has ended is there for %d s", n)
		}
	})
}

// TestLeaseOfAnotherLapses: a lease lapses in time though the process is gone that has granted and
// renewed it, and though the others were there before.
func TestLeaseOfAnotherLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		other, granting := open(t, db, mvcc.Config{}), open(t, db, mvcc.Config{})
		<-time.After(5 * time.Second) // none of them expects anything
		l := leased(t, granting)
		<-time.After(5 * time.Second)
		if _, _, err := granting.RenewLease(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if err := granting.Close(); err != nil {
			t.Fatal(err)
		}
		if n := lastsFor(t, other, "/k"); n < 6 || n > 8 {
			t.Errorf("a lease of 6 s lasts %d s after its process is gone", n)
		}
	})
}

// afterCommit is a backend that does something after each commit.
type afterCommit struct {
	*memdb.Backend
	do func(context.Context)
}

func (b *afterCommit) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	res, err := b.Backend.Commit(ctx, g)
	b.do(ctx)
	return res, err
}

// TestLeaseEndsBesideAnImport: while a process deletes the keys of a lease that has ended, an
// import brings a lease of the same number, which lives. Its keys stay.
func TestLeaseEndsBesideAnImport(t *testing.T) {
	for _, revoked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := inMemory(t)
			var s, other *mvcc.Engine
			var of atomic.Int64 // the lease that is to end
			raw := openBackend(t, db)
			b := &afterCommit{openBackend(t, db).(*memdb.Backend), func(ctx context.Context) {
				row, _, err := raw.Get(ctx, "/k")
				lease := contract.Lease(of.Load())
				if err != nil || row != nil || lease == 0 || other != nil {
					return
				}
				other = open(t, db, mvcc.Config{})
				in := &contract.Import{Store: "elsewhere", Head: 2, Replace: true,
					Leases: []contract.LeaseRow{{Lease: lease, TTL: 3600,
						Expiry: time.Now().Add(time.Hour).UnixMicro()}},
					Records: func(each func(*contract.Record) error) error {
						return each(&contract.Record{Key: "/k", Revision: 2, Create: 2, Version: 1,
							Lease: lease, Value: []byte("restored")})
					}}
				if _, err := other.Import(ctx, in); err != nil {
					t.Error(err)
				}
				if _, err := s.Head(ctx); err != nil { // it goes over to the new history
					t.Error(err)
				}
			}}
			var err error
			if s, err = mvcc.Open(t.Context(), b, mvcc.Config{}); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			lease := leased(t, s)
			of.Store(int64(lease))
			if revoked {
				_ = s.RevokeLease(t.Context(), lease)
			} else {
				<-time.After(8 * time.Second)
			}
			<-time.After(time.Minute)
			row, _, err := raw.Get(t.Context(), "/k")
			if err != nil || row == nil || string(row.Value) != "restored" {
				t.Errorf("revoked %v: the key of the lease that lives: %v, %v", revoked, row, err)
			}
		})
	}
}

// TestGrantsTogether: grants that wait at the same time are one transaction.
func TestGrantsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openBackend(t, inMemory(t)).(*memdb.Backend)
		var locked atomic.Int64
		var armed atomic.Bool
		first := make(chan struct{})
		b.Held = func(_ context.Context, method string, commits bool) error {
			if armed.Load() && method == "Locked" && !commits && locked.Add(1) == 1 {
				<-first
			}
			return nil
		}
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		armed.Store(true)
		granted := make(chan contract.Lease, 200)
		grant := func(l contract.Lease) {
			row, _, err := s.GrantLease(t.Context(), l, 60)
			if err == nil && l != 0 && row.Lease != l || err != nil && !errors.Is(err, contract.ErrLeaseExists) {
				t.Errorf("%+v, %v", row, err)
			}
			granted <- row.Lease
		}
		go grant(0)
		synctest.Wait() // it is under way
		for i := range 199 {
			go grant(contract.Lease(i % 2 * 7))
		}
		synctest.Wait()
		close(first)
		ids, refused := map[contract.Lease]bool{}, 0
		for range 200 {
			if l := <-granted; l == 0 {
				refused++
			} else {
				ids[l] = true
			}
		}
		// 99 asked for the lease 7, and 101 for any.
		if n := locked.Load(); n != 2 || refused != 98 || len(ids) != 102 || !ids[7] {
			t.Errorf("%d transactions granted %d leases and refused %d", n, len(ids), refused)
		}
	})
}

// TestClockGoesBack: when the database's clock was an hour ahead, leases last no longer than they
// can by the clock as it is now, and no shorter. It does not matter how many there are, and whether
// the process was there when the clock was set.
func TestClockGoesBack(t *testing.T) {
	for _, there := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var ahead atomic.Int64
			ahead.Store(int64(time.Hour))
			db := dbtest.DB{Kind: "memdb", Driver: memdb.New(t.Name(), func() time.Time {
				return time.Now().Add(time.Duration(ahead.Load()))
			})}
			a := open(t, db, mvcc.Config{})
			leased(t, a)
			many := make([]*contract.LeaseRow, 2000)
			for i := range many {
				many[i] = &contract.LeaseRow{Lease: contract.Lease(1 + i), TTL: 1000}
			}
			b := openBackend(t, db)
			defer b.Close()
			if _, _, err := contract.GrantLeases(t.Context(), b, many); err != nil {
				t.Fatal(err)
			}
			if err := attach(a, "/late", many[1999].Lease); err != nil {
				t.Fatal(err)
			}
			if !there {
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
			}
			ahead.Store(0)
			// These are renewed when the clock is right, and so come before the others.
			some := make([]*contract.LeaseRow, 1000)
			for i := range some {
				some[i] = &contract.LeaseRow{Lease: contract.Lease(10_000 + i), TTL: 1000}
			}
			if _, _, err := contract.GrantLeases(t.Context(), b, some); err != nil {
				t.Fatal(err)
			}
			if !there {
				a = open(t, db, mvcc.Config{})
			}
			// The reaper looks within a minute.
			if n := lastsFor(t, a, "/k"); n < 6 || n > 70 {
				t.Errorf("there %t: a lease of 6 s lasts %d s after the clock went back", there, n)
			}
			if _, left, _, err := a.LeaseOf(t.Context(), many[1999].Lease); err != nil ||
				left > 1000*time.Second || left < 900*time.Second {
				t.Errorf("there %t: a lease of 1,000 s lasts %s, %v", there, left, err)
			}
			if n := lastsFor(t, a, "/late"); n < 900 || n > 1000 {
				t.Errorf("there %t: a lease of 1,000 s lasts %d s more", there, n)
			}
		})
	}
}

// lapsingReads counts the leases that are read to find those that lapse.
type lapsingReads struct {
	*memdb.Backend
	reads, rows atomic.Int64
}

func (b *lapsingReads) Lapsing(ctx context.Context, from int64,
	limit int) ([]contract.LeaseRow, contract.State, error) {
	rows, st, err := b.Backend.Lapsing(ctx, from, limit)
	b.reads.Add(1)
	b.rows.Add(int64(len(rows)))
	return rows, st, err
}

// TestManyLeasesAfterAnOutage: after an outage each look reads each lease about once, when all have
// time again, and when half of them end that are among the others.
func TestManyLeasesAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases = 10_000
		db := inMemory(t)
		b := &lapsingReads{Backend: openBackend(t, db).(*memdb.Backend)}
		asked := make([]*contract.LeaseRow, leases)
		for i := range asked {
			asked[i] = &contract.LeaseRow{Lease: contract.Lease(1 + i), TTL: 100 + int64(i%2)*10_000}
		}
		for some := range slices.Chunk(asked, 100) {
			if _, _, err := contract.GrantLeases(t.Context(), b, some); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Millisecond) // of the bubble's clock, so that they lapse one after the other
		}
		<-time.After(24 * time.Hour)
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		look := func(left int, most int64) {
			t.Helper()
			synctest.Wait()
			b.rows.Store(0)
			b.reads.Store(0)
			if err := s.DeleteExpired(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.rows.Load(); n > most {
				t.Errorf("a look reads %d leases of %d, in %d reads", n, leases, b.reads.Load())
			}
			n := 0
			if _, err := s.EachLease(t.Context(), func(contract.Lease) { n++ }); err != nil || n != left {
				t.Errorf("%d leases are there, want %d, %v", n, left, err)
			}
		}
		look(leases, leases*3/2)
		<-time.After(99 * time.Second)
		look(leases, leases*3/2)
		b.rows.Store(0)
		<-time.After(2 * time.Second)
		synctest.Wait()
		if n := b.rows.Load(); n > leases*4 {
			t.Errorf("half of %d leases ended, and %d were read", leases, n)
		}
		look(leases/2, leases)
	})
}

// secondPages is a backend that reads no second page of leases while it is away.
type secondPages struct {
	*memdb.Backend
	away atomic.Bool
}

func (b *secondPages) Lapsing(ctx context.Context, from int64,
	limit int) ([]contract.LeaseRow, contract.State, error) {
	if from > 0 && b.away.Load() {
		return nil, contract.State{}, contract.Errorf(contract.Unavailable, "away")
	}
	return b.Backend.Lapsing(ctx, from, limit)
}

// TestFirstLookIsCutOff: the first look of a process finds a lease that another one has ended, and
// is cut off then. The process goes on, and deletes the lease's keys.
func TestFirstLookIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		lame, err := mvcc.Open(t.Context(), withoutAttached(t, db), mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		leased(t, lame)
		<-time.After(7 * time.Second)
		if err := lame.Close(); err != nil {
			t.Fatal(err)
		}
		b := &secondPages{Backend: openBackend(t, db).(*memdb.Backend)}
		many := make([]*contract.LeaseRow, 1000)
		for i := range many {
			many[i] = &contract.LeaseRow{Lease: contract.Lease(1 + i), TTL: 1000}
		}
		if _, _, err := contract.GrantLeases(t.Context(), b, many); err != nil {
			t.Fatal(err)
		}
		b.away.Store(true)
		s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		synctest.Wait()
		if err := s.DeleteExpired(t.Context()); contract.ClassOf(err) != contract.Unavailable {
			t.Errorf("the look ends with: %v", err)
		}
		b.away.Store(false)
		if n := lastsFor(t, s, "/k"); n > 11 {
			t.Errorf("the key of a lease that has ended is there for %d s", n)
		}
	})
}

// TestLeasesOutliveARestore: leases that a restore brings have their whole time, as after any
// outage: nobody could renew them in this history.
func TestLeasesOutliveARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		s, other := open(t, db, mvcc.Config{}), open(t, db, mvcc.Config{})
		<-time.After(time.Hour)
		_, err := other.Import(t.Context(), &contract.Import{Store: "elsewhere", Head: 2, Replace: true,
			Leases: []contract.LeaseRow{{Lease: 7, TTL: 60, Expiry: time.Now().Add(-time.Hour).UnixMicro()}},
			Records: func(each func(*contract.Record) error) error {
				return each(&contract.Record{Key: "/k", Revision: 2, Create: 2, Version: 1, Lease: 7,
					Value: []byte("restored")})
			}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteExpired(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := lastsFor(t, s, "/k"); n < 59 || n > 70 {
			t.Errorf("a lease of 60 s lasts %d s after a restore", n)
		}
	})
}
