package backendtest

import (
	"context"
	"errors"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// testLocked: a transaction reads what is there and what it wrote, and leaves nothing if its function fails.
func testLocked(f *fixture) {
	f.put("a", 0, "a1")
	before, rows := f.state(), describe(f.log(mvcc.PrevOfAll))
	token, failure := newToken(), errors.New("a failure of the caller")
	for _, o := range []mvcc.LockOptions{{}, {AnyServer: true}, {Unbounded: true}} {
		err := f.b.Locked(f.ctx, o, func(tx mvcc.Tx) error {
			f.same(tx.State(), before)
			marked := before
			marked.Head = mvcc.Position{Epoch: 9, Revision: 99, Token: token}
			marked.Compacted = 99
			f.must(errors.Join(tx.Abort(token, 1), tx.SetCompacted(2), tx.RecordFingerprint("x"), tx.Clear(), tx.Mark(marked, "y")))
			guard, found, err := tx.Group(token, 1)
			f.must(err)
			f.same(guard.State, marked)
			if !guard.Aborted || guard.At != (mvcc.Token{}) || len(found) != 1 || found[0].Revision != 99 || !found[0].Marker() {
				f.Errorf("the guard is %+v, and the rows are %+v", guard, found)
			}
			return failure
		})
		if !errors.Is(err, failure) {
			f.Fatalf("the caller's error came back as %v", err)
		}
		// Neither does one that writes nothing, and it waits for no other: the lock is free.
		f.must(f.b.Locked(f.ctx, o, func(tx mvcc.Tx) error {
			f.same(tx.State(), before)
			return nil
		}))
		f.same(f.state(), before)
		if now := describe(f.log(mvcc.PrevOfAll)); now != rows {
			f.Fatalf("the log was\n%sand is\n%s", rows, now)
		}
	}
	if _, err := f.try(token, f.seen, put("b", 0, "b1")); err != nil {
		f.Errorf("a group with the token that was not recorded: %v", err)
	}
}

// testVoidPlan: a plan of the sweep is not carried out in another epoch, nor where less was compacted, and
// may be carried out twice.
func testVoidPlan(f *fixture) {
	a := f.put("a", 0, "a1")
	a = f.put("a", a, "a2")
	rows := f.log(mvcc.PrevOfDeletions)
	s, err := mvcc.RaiseCompacted(f.ctx, f.b, a)
	f.must(err)
	from, err := f.b.Sweepable(f.ctx, 10)
	f.must(err)
	f.same(from.State, s)
	plan := mvcc.PlanSweep(from, 10)
	for _, p := range []mvcc.SweepPlan{
		{Epoch: plan.Epoch + 1, Compacted: plan.Compacted, Revisions: plan.Revisions, Swept: plan.Swept, Moves: true, Done: true},
		{Epoch: plan.Epoch, Compacted: plan.Compacted + 1, Revisions: plan.Revisions, Swept: plan.Swept, Moves: true, Done: true},
	} {
		n, err := f.b.Sweep(f.ctx, &p)
		f.is(err, mvcc.Transient)
		if n != 0 || f.state().Swept != 0 {
			f.Errorf("%+v has deleted %d rows, and the state is %+v", p, n, f.state())
		}
	}
	f.equal(f.log(mvcc.PrevOfDeletions), rows)
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
	records := []mvcc.Record{
		{Key: "b", Revision: 5, Create: 3, Value: []byte("b5")},
		{Key: "a", Revision: 7, Create: 7, Expiry: 4_000_000_000_000_000, Value: []byte{}},
	}
	in := &mvcc.Import{Head: 7, Replace: true, Token: newToken(), Fingerprint: "imported", Records: func(each func(*mvcc.Record) error) error {
		for _, r := range records {
			if err := each(&r); err != nil {
				return err
			}
		}
		return nil
	}}
	checked := 0
	in.Check = func(each func(func(*mvcc.Record) error) error) error {
		return each(func(*mvcc.Record) error { checked++; return nil })
	}
	st, err := in.Into(f.ctx, f.b)
	f.must(err)
	f.same(f.state(), st)
	if checked != 2 || st.Head.Epoch != before.Head.Epoch+1 || st.Compacted != st.Head.Revision || st.Swept != st.Head.Revision {
		f.Errorf("%d records were checked; the state is %+v", checked, st)
	}
	if id, err := f.b.Identity(f.ctx); err != nil || id.Recorded != "imported" {
		f.Errorf("the identity is %+v, %v", id, err)
	}
	failure := errors.New("a failure of the caller")
	for _, fails := range []error{nil, failure} {
		var got []mvcc.Record
		err = f.b.Snapshot(f.ctx, func(_ context.Context, s mvcc.Snapshot) error {
			f.same(s.State(), st)
			if n, err := s.Keys(); n != 2 || err != nil {
				f.Errorf("there are %d keys, %v", n, err)
			}
			return s.Records(func(r *mvcc.Record) error {
				got = append(got, *r)
				return fails
			})
		})
		if !errors.Is(err, fails) {
			f.Fatalf("the snapshot ended with %v", err)
		}
		if want := records[:len(got)]; len(got) == 0 || fails == nil && len(got) != 2 || !slices.EqualFunc(got, want, func(a, b mvcc.Record) bool {
			return a.Key == b.Key && a.Revision == b.Revision && a.Create == b.Create && a.Expiry == b.Expiry && string(a.Value) == string(b.Value) && a.Value != nil
		}) {
			f.Errorf("the records are %+v", got)
		}
	}
	records = append(records, records[0])
	records[2].Revision = 8
	_, err = in.Into(f.ctx, f.b)
	f.is(err, mvcc.Data)
	f.same(f.state(), st)
	f.seen = st.Head
	f.put("b", 5, "b6")
}
