package mvcc_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// attach writes a key that is attached to a lease.
func attach(s *mvcc.Store, key contract.Key, l contract.Lease) error {
	_, err := s.Commit(context.Background(), contract.Mutation{Key: key, Expect: contract.Any, Lease: l,
		Value: []byte("leased")})
	return err
}

// TestLeases: a lease is the same in every process, and its keys are deleted one by one.
func TestLeases(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		a, b := open(t, db, mvcc.Config{}), open(t, db, mvcc.Config{})
		for _, s := range []*mvcc.Store{a, b} {
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
			if err != nil || !e.Deleted || e.Revision != events[3].Revision+1+contract.Revision(i) ||
				prev.Lease != 7 || string(prev.Value) != "leased" {
				t.Errorf("event %d is %+v, of %+v, %v", i, e, prev, err)
			}
		}
		for _, s := range []*mvcc.Store{a, b} {
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
