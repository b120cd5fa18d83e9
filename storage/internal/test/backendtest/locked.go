package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// testLocked: a transaction reads what is there and what it wrote, and leaves nothing if its
// function fails.
func testLocked(f *fixture) {
	f.put("a", 0, "a1")
	before, rows := f.state(), describe(f.log(contract.PrevOfAll))
	token, failure := newToken(), errors.New("a failure of the caller")
	for _, o := range []contract.LockOptions{{}, {AnyServer: true}, {Unbounded: true}} {
		err := f.b.Locked(f.ctx, o, func(tx contract.Tx) error {
			f.same(tx.State(), before)
			marked := before
			marked.Head = contract.Position{Epoch: 9, Revision: 99, Token: token}
			marked.Compacted = 99
			f.must(errors.Join(tx.Abort(token, 1), tx.SetCompacted(2), tx.RecordFingerprint("x"),
				tx.Clear(), tx.Mark(marked, "y")))
			guard, found, err := tx.Group(token, 1)
			f.must(err)
			f.same(guard.State, marked)
			if !guard.Aborted || guard.At != (contract.Token{}) || len(found) != 1 ||
				found[0].Revision != 99 || !found[0].Marker() {
				f.Errorf("the guard is %+v, and the rows are %+v", guard, found)
			}
			return failure
		})
		if !errors.Is(err, failure) {
			f.Fatalf("the caller's error came back as %v", err)
		}
		// Neither does one that writes nothing, and it waits for no other: the lock is free.
		f.must(f.b.Locked(f.ctx, o, func(tx contract.Tx) error {
			f.same(tx.State(), before)
			return nil
		}))
		f.same(f.state(), before)
		if now := describe(f.log(contract.PrevOfAll)); now != rows {
			f.Fatalf("the log was\n%sand is\n%s", rows, now)
		}
	}
	if _, err := f.try(token, f.seen, put("b", 0, "b1")); err != nil {
		f.Errorf("a group with the token that was not recorded: %v", err)
	}
}

// testVoidPlan: a plan of the sweep is not carried out in another epoch, nor where less was
// compacted, and may be carried out twice.
func testVoidPlan(f *fixture) {
	a := f.put("a", 0, "a1")
	a = f.put("a", a, "a2")
	rows := f.log(contract.PrevOfDeletions)
	s, err := contract.RaiseCompacted(f.ctx, f.b, a)
	f.must(err)
	from, err := f.b.Sweepable(f.ctx, 10)
	f.must(err)
	f.same(from.State, s)
	plan := contract.PlanSweep(from, 10)
	for _, p := range []contract.SweepPlan{
		{Epoch: plan.Epoch + 1, Compacted: plan.Compacted, Rows: plan.Rows,
			Swept: plan.Swept, Moves: true, Done: true},
		{Epoch: plan.Epoch, Compacted: plan.Compacted + 1, Rows: plan.Rows,
			Swept: plan.Swept, Moves: true, Done: true},
	} {
		n, err := f.b.Sweep(f.ctx, &p)
		f.is(err, contract.Transient)
		if n != 0 || f.state().Swept != 0 {
			f.Errorf("%+v has deleted %d rows, and the state is %+v", p, n, f.state())
		}
	}
	f.equal(f.log(contract.PrevOfDeletions), rows)
	for _, want := range []int{2, 0} {
		if n, err := f.b.Sweep(f.ctx, &plan); n != want || err != nil {
			f.Errorf("the plan has deleted %d rows, want %d: %v", n, want, err)
		}
	}
	if s := f.state(); s.Swept != a {
		f.Errorf("the state is %+v", s)
	}
}

// testImport replaces everything, and reads it in a snapshot.
func testImport(f *fixture) {
	f.put("old", 0, "old")
	before := f.state()
	records := []contract.Record{
		{Key: "p", Revision: 5, Part: 1, Create: 2, Version: 3, Value: []byte("p5")},
		{Key: "q", Revision: 6, Part: contract.MaxParts, Create: 6, Version: 1, Value: []byte("q6")},
		{Key: "b", Revision: 5, Create: 3, Version: 1 << 40, Lease: 1<<63 - 1, Value: []byte("b5")},
		{Key: "a", Revision: 7, Create: 7, Version: 1, Expiry: 4_000_000_000_000_000,
			Value: []byte{}},
	}
	leases := []contract.LeaseRow{{Lease: 1<<63 - 1, TTL: contract.MaxTTL, Expiry: 4_000_000_000_000_000}}
	f.grant(3)
	in := &contract.Import{Head: 7, Replace: true, Token: newToken(), Fingerprint: "imported",
		Leases: leases,
		Records: func(each func(*contract.Record) error) error {
			for _, r := range records {
				if err := each(&r); err != nil {
					return err
				}
			}
			return nil
		}}
	checked := 0
	in.Check = func(each func(func(*contract.Record) error) error) error {
		return each(func(*contract.Record) error { checked++; return nil })
	}
	st, err := in.Into(f.ctx, f.b)
	f.must(err)
	f.same(f.state(), st)
	if checked != 4 || st.Head.Epoch != before.Head.Epoch+1 || st.Compacted != st.Head.Revision ||
		st.Swept != st.Head.Revision {
		f.Errorf("%d records were checked; the state is %+v", checked, st)
	}
	if id, err := f.b.Identity(f.ctx); err != nil || id.Recorded != "imported" {
		f.Errorf("the identity is %+v, %v", id, err)
	}
	failure := errors.New("a failure of the caller")
	for _, fails := range []error{nil, failure} {
		var got []contract.Record
		err = f.b.Snapshot(f.ctx, func(_ context.Context, s contract.Snapshot) error {
			f.same(s.State(), st)
			if n, err := s.Keys(); n != 4 || err != nil {
				f.Errorf("there are %d keys, %v", n, err)
			}
			if got, err := s.AllLeases(); err != nil || !slices.Equal(got, leases) {
				f.Errorf("the leases are %v, %v", got, err)
			}
			return s.Records(func(r *contract.Record) error {
				got = append(got, *r)
				return fails
			})
		})
		if !errors.Is(err, fails) {
			f.Fatalf("the snapshot ended with %v", err)
		}
		if want := records[:len(got)]; len(got) == 0 || fails == nil && len(got) != 4 ||
			!slices.EqualFunc(got, want, func(a, b contract.Record) bool {
				return a.Key == b.Key && a.ID() == b.ID() && a.Create == b.Create &&
					a.Version == b.Version && a.Lease == b.Lease && a.Expiry == b.Expiry &&
					string(a.Value) == string(b.Value) && a.Value != nil
			}) {
			f.Errorf("the records are %+v", got)
		}
	}
	records = append(records, records[2])
	records[4].Revision = 8
	_, err = in.Into(f.ctx, f.b)
	f.is(err, contract.Data)
	f.same(f.state(), st)
	f.seen = st.Head
	keys, _, err := f.b.Attached(f.ctx, 1<<63-1, "", 9)
	if err != nil || len(keys) != 1 || keys[0].Key != "b" {
		f.Errorf("the keys of the lease are %v, %v", keys, err)
	}
	f.put("b", 5, "b6")
	f.compact(f.put("p", 5, "p6"), 1)
	if parts := f.parts(0, f.seen.Revision, contract.PrevOfAll); len(parts) != 1 || parts[0].Key != "q" {
		f.Errorf("when a part was replaced and swept, there are\n%s", describe(parts))
	}
}

// testWaitForLock: while a transaction holds the commit lock, reads are answered, and a writer
// waits for as long as its context lasts. A call that ends with it has written nothing, except for
// a sweep: that may be carried out when nobody waits for it any more, as its plan holds for ever.
func testWaitForLock(f *fixture) {
	a := f.put("a", 0, "a1")
	a = f.put("a", a, "a2")
	_, err := contract.RaiseCompacted(f.ctx, f.b, a)
	f.must(err)
	from, err := f.b.Sweepable(f.ctx, 10)
	f.must(err)
	plan := contract.PlanSweep(from, 10)
	before, rows := f.state(), describe(f.log(contract.PrevOfAll))
	other, token := f.other(), newToken()
	var refused error
	f.must(f.b.Locked(f.ctx, contract.LockOptions{Unbounded: true}, func(contract.Tx) error {
		for _, write := range []struct {
			what string
			do   func(ctx context.Context) error
		}{
			{"a commit", func(ctx context.Context) error {
				_, refused = other.b.Commit(ctx, &contract.Group{Token: token, Seen: before.Head,
					Mutations: []*contract.Mutation{put("b", 0, "b1")}})
				return refused
			}},
			{"a transaction", func(ctx context.Context) error {
				return other.b.Locked(ctx, contract.LockOptions{}, func(contract.Tx) error {
					f.Error("two transactions hold the commit lock")
					return nil
				})
			}},
			{"a sweep", func(ctx context.Context) error {
				_, err := other.b.Sweep(ctx, &plan)
				return err
			}},
		} {
			ctx, cancel := context.WithTimeout(f.ctx, 100*time.Millisecond)
			err := write.do(ctx)
			cancel()
			if c := contract.ClassOf(err); err == nil ||
				c != contract.Unavailable && c != contract.Transient && c != contract.Unknown {
				f.Errorf("%s beside a transaction: %v of class %v", write.what, err,
					contract.ClassOf(err))
			}
			other.same(other.state(), before)
			if now := describe(other.log(contract.PrevOfAll)); now != rows {
				return fmt.Errorf("after %s the log was\n%sand is\n%s", write.what, rows, now)
			}
		}
		return nil
	}))
	// A commit may still be under way, but only if its error says so.
	r, err := contract.ResolveGroup(f.ctx, f.b, token, before.Head)
	f.must(err)
	if contract.ClassOf(refused) == contract.Unknown && r.Committed {
		return
	}
	if s := f.state(); !r.Aborted || s.Head != before.Head {
		f.Errorf("the commit that ended with %v is resolved as %+v, and the state is %+v",
			refused, r, s)
	}
	// With a context that lasts, the one that waits is next.
	waiting := make(chan error, 1)
	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(contract.Tx) error {
		go func() {
			_, err := contract.RaiseCompacted(f.ctx, other.b, before.Head.Revision)
			waiting <- err
		}()
		return nil
	}))
	f.must(<-waiting)
}

// testSnapshotStays: a snapshot shows one moment for as long as it lasts, and keeps nobody from
// writing.
func testSnapshotStays(f *fixture) {
	a := f.put("a", 0, "a1")
	b := f.put("b", 0, "b1")
	f.put("c", 0, "c1")
	a2 := f.put("a", a, "a2")
	f.del("b", b)
	before := f.state()
	const want = `c@4 created 4 "c1", a@5 created 2 "a2", `
	var during context.Context
	f.must(f.other().b.Snapshot(f.ctx, func(ctx context.Context, s contract.Snapshot) error {
		during = ctx
		check := func(when string) {
			f.Helper()
			f.same(s.State(), before)
			var got strings.Builder
			f.must(s.Records(func(r *contract.Record) error {
				fmt.Fprintf(&got, "%s@%d created %d %q, ", string(r.Key), r.Revision,
					r.Create, r.Value)
				return nil
			}))
			if n, err := s.Keys(); err != nil || n != 2 || got.String() != want {
				f.Errorf("%s the snapshot has %d keys, %v: %s", when, n, err, got.String())
			}
		}
		check("at first")
		f.del("a", a2)
		f.put("d", 0, "d1")
		f.compact(f.seen.Revision, 100)
		check("after writes")
		return ctx.Err()
	}))
	if during.Err() == nil {
		f.Error("the context of the snapshot has not ended with it")
	}
}
