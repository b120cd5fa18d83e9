package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// grant stores leases of an hour.
func (f *fixture) grant(leases ...contract.Lease) {
	f.Helper()
	for _, l := range leases {
		granted, _, err := contract.GrantLeases(f.ctx, f.b,
			[]*contract.LeaseRow{{Lease: l, TTL: 3600}})
		f.must(err)
		if !granted[0] {
			f.Fatalf("the lease %d is there already", l)
		}
	}
}

// attached returns the keys of a lease, in pages of two.
func (f *fixture) attached(l contract.Lease) (keys []contract.Key) {
	f.Helper()
	for from := contract.Key(""); ; {
		page, st, err := f.b.Attached(f.ctx, l, from, 2)
		f.must(err)
		f.sane(st)
		for _, e := range page {
			if e.Lease != l {
				f.Errorf("%+v is of the lease %d", e, l)
			}
			keys, from = append(keys, e.Key), e.Key+"\x00"
		}
		if len(page) < 2 {
			return keys
		}
	}
}

func (f *fixture) wantAttached(l contract.Lease, want ...contract.Key) {
	f.Helper()
	if got := f.attached(l); !slices.Equal(got, want) {
		f.Errorf("the keys of the lease %d are %q, want %q", l, got, want)
	}
}

// wantAttachedTo compares the keys of several leases, and what a limit lets through of them.
func (f *fixture) wantAttachedTo(leases []contract.Lease, want ...contract.Key) {
	f.Helper()
	var got []contract.Key
	for limit := range len(want) + 2 {
		if limit == 0 {
			continue
		}
		found, st, err := f.b.AttachedTo(f.ctx, leases, limit)
		f.must(err)
		f.sane(st)
		got = nil
		for _, e := range found {
			if !slices.Contains(leases, e.Lease) || e.Revision == 0 {
				f.Errorf("%+v is attached to one of %d", e, leases)
			}
			got = append(got, e.Key)
		}
		if len(got) != min(limit, len(want)) {
			f.Errorf("%d keys of the leases %d are %q", limit, leases, got)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		f.Errorf("the keys of the leases %d are %q, want %q", leases, got, want)
	}
}

func (f *fixture) wantLeases(want int64) {
	f.Helper()
	n, st, err := f.b.CountLeases(f.ctx)
	f.must(err)
	f.sane(st)
	if n != want {
		f.Errorf("there are %d leases, want %d", n, want)
	}
}

func (f *fixture) wantEnded(got contract.Ended, now, before []contract.Lease) {
	f.Helper()
	if !slices.Equal(got.Now, now) || !slices.Equal(got.Before, before) {
		f.Errorf("%+v have ended, want %d and before %d", got, now, before)
	}
}

// testLeases: keys are attached to leases that are there and have not ended, and are found by them.
func testLeases(f *fixture) {
	f.grant(7, 1<<63-1)
	f.grant(5)
	granted, _, err := contract.GrantLeases(f.ctx, f.b, []*contract.LeaseRow{{Lease: 5, TTL: 1},
		{Lease: 8, TTL: 1}, {Lease: 8, TTL: 2}})
	f.must(err)
	if !slices.Equal(granted, []bool{false, true, false}) {
		f.Errorf("a lease that is there, a new one and this again: %t", granted)
	}
	f.wantLeases(4)
	served := contract.NewServed(time.Minute, time.Now)
	ended, _, err := contract.EndLeases(f.ctx, f.b, []contract.Lease{8}, true, served)
	f.must(err)
	f.wantEnded(ended, []contract.Lease{8}, nil)
	f.must(contract.ForgetLeases(f.ctx, f.b, []contract.Lease{8}, f.state().Head.Epoch))
	f.wantLeases(3)

	// A mutation whose lease is not there is refused alone, and only if its expectation holds.
	r := f.commit(leased("b", 0, 7), leased("x", 0, 6), put("c", 0, "c"), leased("y", 9, 6),
		leased("a", 0, 7), leased("d", 0, 1<<63-1), leased("z", contract.Any, 6))
	head := r.Before.Revision
	for i, want := range []contract.Revision{head + 1, 0, head + 2, 0, head + 3, head + 4, 0} {
		o := r.Outcomes[i]
		gone := i == 1 || i == 6
		if o.Accepted != (want > 0) || o.Revision != want || errors.Is(o.Err, contract.ErrNoLease) != gone {
			f.Errorf("mutation %d: %+v, want revision %d, without its lease: %t", i, o, want, gone)
		}
	}
	f.wantAttached(7, "a", "b")
	f.wantAttached(1<<63-1, "d")
	f.wantAttached(6)
	f.commit(leased("e", 0, 7), leased("c", contract.Any, 7), leased("a", contract.Any, 5))
	f.wantAttached(7, "b", "c", "e")
	f.commit(put("c", contract.Any, "without a lease"), del("b", contract.Any))
	f.wantAttached(7, "e")
	f.wantAttached(5, "a")
	if expired, next, err := f.b.Expired(f.ctx, 9); len(expired) > 0 || next != 0 || err != nil {
		f.Errorf("keys of leases expire by themselves: %v, %s, %v", expired, next, err)
	}

	// The leases, by ID and by expiry.
	rows, st, err := f.b.Leases(f.ctx, 6, 9)
	f.must(err)
	f.wantAttachedTo([]contract.Lease{5, 6, 7}, "a", "e")
	f.wantAttachedTo([]contract.Lease{1<<63 - 1}, "d")
	f.wantAttachedTo([]contract.Lease{6})
	f.same(st, f.state())
	ids := func(rows []contract.LeaseRow) (ids []contract.Lease) {
		for _, r := range rows {
			if left := r.Left(st.Now); r.Expiry != 0 && (r.TTL != 3600 || left < 59*time.Minute ||
				left > 61*time.Minute) {
				f.Errorf("%+v lasts %s", r, left)
			}
			ids = append(ids, r.Lease)
		}
		return ids
	}
	if got := ids(rows); !slices.Equal(got, []contract.Lease{7, 1<<63 - 1}) {
		f.Errorf("the leases are %d", got)
	}
	rows, _, err = f.b.Leases(f.ctx, 0, 2)
	f.must(err)
	if got := ids(rows); !slices.Equal(got, []contract.Lease{5, 7}) {
		f.Errorf("the leases are %d", got)
	}
	before := rows[1].Expiry
	renewed, _, err := contract.RenewLeases(f.ctx, f.b, []contract.Lease{6, 7}, served)
	f.must(err)
	if len(renewed) != 1 || renewed[0].Lease != 7 || renewed[0].Expiry <= before {
		f.Errorf("renewed: %+v, which was at %d", renewed, before)
	}
	rows, _, err = f.b.Lapsing(f.ctx, 0, 9)
	f.must(err)
	if got := ids(rows); !slices.Equal(got, []contract.Lease{1<<63 - 1, 5, 7}) {
		f.Errorf("the leases lapse in the order %d", got)
	}

	// One that has not lapsed ends only if it is revoked, and then for ever.
	ended, _, err = contract.EndLeases(f.ctx, f.b, []contract.Lease{5, 6, 7}, false, served)
	f.must(err)
	f.wantEnded(ended, nil, nil)
	ended, _, err = contract.EndLeases(f.ctx, f.b, []contract.Lease{6, 7}, true, served)
	f.must(err)
	f.wantEnded(ended, []contract.Lease{7}, nil)
	for _, revoked := range []bool{true, false} {
		ended, _, err = contract.EndLeases(f.ctx, f.b, []contract.Lease{6, 7}, revoked, served)
		f.must(err)
		f.wantEnded(ended, nil, []contract.Lease{7})
	}
	rows, _, err = f.b.Lapsing(f.ctx, 0, 1)
	f.must(err)
	if got := ids(rows); !slices.Equal(got, []contract.Lease{7}) || rows[0].Expiry != 0 {
		f.Errorf("%+v has ended", rows)
	}
	renewed, _, err = contract.RenewLeases(f.ctx, f.b, []contract.Lease{7}, served)
	if len(renewed) > 0 || err != nil {
		f.Errorf("renewed: %+v, %v", renewed, err)
	}
	if o := f.commit(leased("f", 0, 7)).Outcomes[0]; !errors.Is(o.Err, contract.ErrNoLease) {
		f.Errorf("a key of a lease that has ended: %+v", o)
	}
	f.wantAttached(7, "e")

	// One that lapsed before this process served the store could not be renewed, and does not end.
	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
		return tx.PutLeases([]contract.LeaseRow{{Lease: 5, TTL: 60,
			Expiry: tx.State().Now.Add(-time.Hour).UnixMicro()}})
	}))
	ended, _, err = contract.EndLeases(f.ctx, f.b, []contract.Lease{5}, false,
		contract.NewServed(time.Minute, time.Now))
	f.must(err)
	f.wantEnded(ended, nil, nil)

	f.boundLeases(5, 6, 7)

	// It is removed in its epoch only.
	epoch := f.state().Head.Epoch
	for _, removed := range []struct {
		lease contract.Lease
		epoch contract.Epoch
		left  int
	}{{7, epoch + 1, 3}, {5, epoch, 3}, {6, epoch, 3}, {7, epoch, 2}} {
		f.must(contract.ForgetLeases(f.ctx, f.b, []contract.Lease{removed.lease}, removed.epoch))
		rows, _, err := f.b.Leases(f.ctx, 0, 9)
		f.must(err)
		if len(rows) != removed.left {
			f.Errorf("after %+v there are %v", removed, rows)
		}
	}
}

// boundLeases: of the leases 5, which is there, 6, which is not, and 7, which has ended, the first
// one is bounded if it lapses too late. Leases are read from an expiry on.
func (f *fixture) boundLeases(leases ...contract.Lease) {
	f.Helper()
	for late, want := range map[int64]int{0: 0, 1e12: 1} {
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
			r := contract.LeaseRow{Lease: leases[0], TTL: 60}
			r.Renew(tx.State().Now)
			r.Expiry += late
			return tx.PutLeases([]contract.LeaseRow{r})
		}))
		n, st, err := contract.BoundLeases(f.ctx, f.b, leases)
		f.must(err)
		rows, _, err := f.b.Lapsing(f.ctx, 1, 9)
		f.must(err)
		if i := slices.IndexFunc(rows, func(r contract.LeaseRow) bool { return r.Lease == leases[0] }); n != want ||
			i < 0 || rows[i].Left(st.Now) > 61*time.Second || rows[i].Left(st.Now) < 30*time.Second {
			f.Errorf("%d leases were bounded, and then there are %v", n, rows)
		}
		for _, r := range rows {
			if r.Expiry < 1 {
				f.Errorf("%+v has ended, and is read from 1 on", r)
			}
		}
		last, _, err := f.b.Lapsing(f.ctx, rows[len(rows)-1].Expiry, 9)
		f.must(err)
		if len(last) != 1 || last[0] != rows[len(rows)-1] {
			f.Errorf("from the last expiry on there are %v", last)
		}
	}
}

// testLeaseEndsBesideCommits: when a lease has ended, its keys are all that will ever be.
func testLeaseEndsBesideCommits(f *fixture) {
	other := f.other()
	for l := contract.Lease(1); l <= 8; l++ {
		f.grant(l)
		began, done := make(chan struct{}), make(chan []contract.Key)
		go func() {
			var keys []contract.Key
			defer func() { done <- keys }()
			for i := range 1000 {
				if i == 3 {
					close(began)
				}
				st, err := other.b.State(f.ctx)
				if err != nil {
					f.Error(err)
					return
				}
				key := contract.Key(fmt.Sprintf("%d/%04d", l, i))
				r, err := other.b.Commit(f.ctx, &contract.Group{Token: newToken(), Seen: st.Head,
					Mutations: []*contract.Mutation{leased(key, 0, l)}})
				if err != nil {
					if contract.ClassOf(err) == contract.Transient {
						continue // a cluster's nodes
					}
					f.Error(err)
					return
				}
				if !r.Outcomes[0].Accepted {
					return
				}
				keys = append(keys, key)
			}
			f.Error("the lease never ended")
		}()
		<-began
		_, _, err := contract.EndLeases(f.ctx, f.b, []contract.Lease{l}, true,
			contract.NewServed(time.Minute, time.Now))
		f.must(err)
		found := f.attached(l)
		if keys := <-done; !slices.Equal(found, keys) {
			f.Errorf("after its end the lease %d had %d keys, and %d were accepted", l, len(found),
				len(keys))
		}
	}
}
