package backendtest

import (
	"fmt"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

func testResolve(f *fixture) {
	after := f.seen
	token := newToken()
	setup := f.commit(put("a", 0, "a1"))
	_, err := f.try(token, f.seen, put("b", 0, "b1"), put("a", 77, "a conflict"),
		del("a", setup.Outcomes[0].Revision), put("c", 0, "c1"))
	f.must(err)
	f.seen = f.state().Head
	f.put("d", 0, "d1")

	resolve := func(token contract.Token, after contract.Position) *contract.Resolution {
		f.Helper()
		r, err := contract.ResolveGroup(f.ctx, f.b, token, after)
		f.must(err)
		f.same(r.State, f.state())
		return r
	}
	committed := func(want ...contract.Row) {
		f.Helper()
		r := resolve(token, after)
		if !r.Committed || r.Aborted {
			f.Fatalf("the resolution of a committed group is %+v", r)
		}
		for i := range r.Rows {
			if r.Rows[i].Token != token {
				f.Errorf("row %d has another token", r.Rows[i].Revision)
			}
			r.Rows[i].HasPrev, r.Rows[i].PrevValue, r.Rows[i].Value = false, nil, nil
		}
		f.equal(r.Rows, want)
	}
	b := contract.Row{Key: "b", Revision: 3, Create: 3, Version: 1}
	a := contract.Row{Key: "a", Revision: 4, Prev: 2, Create: 2, Version: 2, Deleted: true}
	c := contract.Row{Key: "c", Revision: 5, Create: 5, Version: 1}
	committed(b, a, c)
	// Committed stays committed: the token was not recorded as aborted.
	committed(b, a, c)

	lost := newToken()
	for range 2 {
		if r := resolve(lost, after); r.Committed || !r.Aborted || len(r.Rows) != 0 {
			f.Fatalf("the resolution of a lost group is %+v", r)
		}
	}
	// It stays so when compaction has passed it, until a sweep forgets it.
	_, err = contract.RaiseCompacted(f.ctx, f.b, f.seen.Revision)
	f.must(err)
	if r := resolve(lost, after); r.Committed || !r.Aborted {
		f.Fatalf("the resolution of a lost group after the compaction is %+v", r)
	}

	// Rows that were swept are missing; when all are, nobody can tell.
	f.put("b", b.Revision, "b2")
	f.compact(f.seen.Revision, 100)
	committed(c)
	f.put("c", c.Revision, "c2")
	f.compact(f.seen.Revision, 100)
	if r := resolve(token, after); r.Committed || r.Aborted || len(r.Rows) != 0 {
		f.Fatalf("the resolution of a swept group is %+v", r)
	}
	if r := resolve(newToken(), after); r.Committed || r.Aborted {
		f.Fatalf("the resolution of a lost group that may have been swept is %+v", r)
	}
	// A group that was begun after the compaction can be told again.
	if r := resolve(newToken(), f.seen); r.Committed || !r.Aborted {
		f.Fatalf("the resolution of a lost group after the compaction is %+v", r)
	}
}

func testCompact(f *fixture) {
	for i := range 10 {
		f.put(contract.Key(fmt.Sprintf("k%d", i)), 0, "x")
	}
	rows := describe(f.log(contract.PrevOfAll))
	for _, test := range []struct{ ask, want contract.Revision }{{0, 0}, {3, 3}, {2, 3}, {3, 3}, {5, 5},
		{-1, 5}, {1 << 40, 11}, {11, 11}, {4, 11}} {
		s, err := contract.RaiseCompacted(f.ctx, f.b, test.ask)
		f.must(err)
		f.sane(s)
		if s.Compacted != test.want || s.Head != f.seen || s.Swept != 0 {
			f.Errorf("after the compaction of %d the state is %+v, want compacted %d", test.ask,
				s, test.want)
		}
		f.same(f.state(), s)
	}
	if after := describe(f.log(contract.PrevOfAll)); after != rows {
		f.Errorf("the compaction changed the log from\n%sto\n%s", rows, after)
	}
}

// testSweep compares what remains with what the states from the compacted revision on need.
func testSweep(f *fixture) {
	for _, batch := range []int{1, 2, 3, 7, 1000} {
		prefix := fmt.Sprintf("b%04d/", batch)
		key := func(i int) contract.Key { return contract.Key(fmt.Sprintf("%s%d", prefix, i)) }
		// Keys with one value, several values, deleted, deleted and created again, and changes on
		// both sides of the boundary.
		f.put(key(1), 0, "only")
		two := f.put(key(2), 0, "first")
		three := f.put(key(3), 0, "first")
		four := f.put(key(4), 0, "first")
		five := f.put(key(5), 0, "first")
		two = f.put(key(2), two, "second")
		f.del(key(3), three)
		f.del(key(4), four)
		f.put(key(4), 0, "again")
		five = f.put(key(5), five, "second")
		boundary := f.seen.Revision
		f.put(key(2), two, "third")
		f.del(key(5), five)
		six := f.put(key(6), 0, "only")
		f.del(key(6), six)
		f.put(key(7), 0, "only")

		var want []contract.Row
		log := f.log(contract.PrevOfAll)
		replacedBy := map[contract.Revision]contract.Revision{}
		for _, r := range log {
			replacedBy[r.Prev] = r.Revision
		}
		for _, r := range log {
			by, replaced := replacedBy[r.Revision]
			if replaced && by <= boundary || r.Deleted && r.Revision <= boundary {
				continue
			}
			if by, ok := replacedBy[r.Prev]; ok && by <= boundary && r.Prev != 0 {
				r.HasPrev, r.PrevValue = false, nil
			}
			want = append(want, r)
		}
		if n := f.compact(boundary, batch); n != len(log)-len(want) {
			f.Errorf("batches of %d deleted %d rows, want %d", batch, n, len(log)-len(want))
		}
		f.equal(f.log(contract.PrevOfAll), want)
		s := f.state()
		if s.Compacted != boundary || s.Swept != boundary || s.Head != f.seen {
			f.Errorf("the state is %+v", s)
		}
		// Once more: nothing is left to do.
		n, again, err := contract.SweepBatch(f.ctx, f.b, batch)
		f.must(err)
		if n != 0 {
			f.Errorf("a second sweep deleted %d rows", n)
		}
		f.same(again, s)
		f.equal(f.log(contract.PrevOfAll), want)
	}
}

func testSweepKeepsTheHead(f *fixture) {
	// The first marker is the head of an empty store.
	if n := f.compact(1, 10); n != 0 || len(f.log(contract.PrevOfAll)) != 1 {
		f.Fatalf("the sweep of an empty store deleted %d rows", n)
	}
	a := f.put("a", 0, "a1")
	a = f.del("a", a)
	head := f.seen
	if n := f.compact(a, 10); n != 2 {
		f.Errorf("the sweep deleted %d rows, want the marker and the value", n)
	}
	f.equal(f.log(contract.PrevOfAll),
		[]contract.Row{{Key: "a", Revision: a, Prev: a - 1, Create: a - 1, Version: 2, Deleted: true}})
	if s := f.state(); s.Head != head || s.Swept != a || s.Compacted != a {
		f.Errorf("the state is %+v, want head %+v", s, head)
	}
	// Once it is no longer the head, it goes.
	b := f.put("b", 0, "b1")
	b = f.put("b", b, "b2")
	if n := f.compact(b, 1); n != 2 {
		f.Errorf("the sweep deleted %d rows, want the tombstone and the replaced value", n)
	}
	f.equal(f.log(contract.PrevOfAll),
		[]contract.Row{{Key: "b", Revision: b, Prev: b - 1, Create: b - 1, Version: 2, Value: []byte("b2")}})
	if s := f.state(); s.Swept != b {
		f.Errorf("the state is %+v", s)
	}
}

// testLateSweep: a sweep whose plan another one has overtaken deletes nothing, and does not say
// that less is swept.
func testLateSweep(f *fixture) {
	a := f.put("a", 0, "a1")
	for range 4 {
		a = f.put("a", a, "a")
	}
	_, err := contract.RaiseCompacted(f.ctx, f.b, a)
	f.must(err)
	from, err := f.b.Sweepable(f.ctx, 100)
	f.must(err)
	late, whole := contract.PlanSweep(from, 2), contract.PlanSweep(from, 100)
	if late.Swept >= whole.Swept || whole.Swept != a {
		f.Fatalf("the plans sweep up to %d and %d, want %d", late.Swept, whole.Swept, a)
	}
	_, err = f.b.Sweep(f.ctx, &whole)
	f.must(err)
	before := f.state()
	n, err := f.b.Sweep(f.ctx, &late)
	f.must(err)
	if n != 0 {
		f.Errorf("the late sweep deleted %d rows", n)
	}
	f.same(f.state(), before)
}

func testFence(f *fixture) {
	const jump = contract.Revision(1) << 32
	a := f.put("a", 0, "a1")
	old := f.seen
	id, err := f.b.Identity(f.ctx)
	f.must(err)
	fence := contract.Fence{Seen: old, Replaces: old.Epoch, Token: newToken(), Jump: jump,
		Of: "another database", Fingerprint: "moved"}
	before := f.state()
	_, err = contract.StartEpoch(f.ctx, f.b, fence)
	f.is(err, contract.Transient)
	f.same(f.state(), before)
	fence.Of = id.Actual
	s, err := contract.StartEpoch(f.ctx, f.b, fence)
	f.must(err)
	want := contract.Position{Epoch: old.Epoch + 1, Revision: old.Revision + jump, Token: fence.Token}
	if s.Head != want || s.Compacted != want.Revision {
		f.Fatalf("the state after the fence is %+v, want head %+v", s, want)
	}
	f.same(f.state(), s)
	id, err = f.b.Identity(f.ctx)
	f.must(err)
	if id.Recorded != "moved" || id.Epoch != want.Epoch {
		f.Errorf("the identity is %+v", id)
	}
	rows := f.log(contract.PrevOfAll)
	last := rows[len(rows)-1]
	if !last.Marker() || !last.Deleted || last.Prev != 0 || last.Revision != want.Revision ||
		last.Token != fence.Token {
		f.Errorf("the marker is %+v", last)
	}

	// A group that was begun before may have been in the history that was lost.
	lost, err := contract.ResolveGroup(f.ctx, f.b, newToken(), old)
	f.must(err)
	if lost.Committed || lost.Aborted {
		f.Errorf("the resolution of a group from before the fence is %+v", lost)
	}

	// The same fence again, as another process that noticed the same would do, changes nothing.
	again, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: old, Replaces: old.Epoch,
		Token: newToken(), Jump: jump, Fingerprint: "elsewhere"})
	f.must(err)
	f.same(again, s)
	if id, err = f.b.Identity(f.ctx); err != nil || id.Recorded != "moved" {
		f.Errorf("the fingerprint is %q, %v", id.Recorded, err)
	}

	// A process that has not noticed the jump cannot write; one that has noticed goes on after it.
	// The keys are still there.
	_, err = f.try(newToken(), old, put("b", 0, "b1"))
	f.is(err, contract.Fenced)
	f.seen = s.Head
	if r := f.put("a", a, "a2"); r != want.Revision+1 {
		f.Errorf("the first revision after the fence is %d, want %d", r, want.Revision+1)
	}
	row, _, err := f.b.Get(f.ctx, "a")
	f.must(err)
	if row == nil || row.Revision != want.Revision+1 || row.Create != a || string(row.Value) != "a2" {
		f.Errorf("the key is %+v", row)
	}

	// Fences follow one another, without a fingerprint too, and everything before them can be
	// swept.
	for i := range 3 {
		before := f.state()
		s, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: before.Head,
			Replaces: before.Head.Epoch, Token: newToken(), Jump: jump})
		f.must(err)
		if s.Head.Epoch != before.Head.Epoch+1 || s.Head.Revision != before.Head.Revision+jump {
			f.Fatalf("the state after fence %d is %+v, before it was %+v", i+2, s, before)
		}
		f.seen = s.Head
	}
	if id, err = f.b.Identity(f.ctx); err != nil || id.Recorded != "moved" {
		f.Errorf("the fingerprint is %q, %v", id.Recorded, err)
	}
	// A fence in another database replaces the fingerprint that is recorded.
	moved := f.state()
	again, err = contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: moved.Head, Replaces: moved.Head.Epoch,
		Token: newToken(), Jump: jump, Fingerprint: "moved again"})
	f.must(err)
	f.seen = again.Head
	if id, err = f.b.Identity(f.ctx); err != nil || id.Recorded != "moved again" {
		f.Errorf("the fingerprint is %q, %v", id.Recorded, err)
	}
	f.compact(f.seen.Revision, 2)
	rows = f.log(contract.PrevOfAll)
	if len(rows) != 2 || rows[0].Key != "a" || !rows[1].Marker() {
		f.Errorf("the sweep left\n%s", describe(rows))
	}
}

// testFenceOfAnotherEpoch: the database has another epoch than the one that a fence replaces.
// Whether it is greater or lower says nothing; what counts is that compacted is beyond what was
// seen.
func testFenceOfAnotherEpoch(f *fixture) {
	jump := contract.JumpBefore(1)
	f.put("a", 0, "a1")
	for _, elsewhere := range []contract.Epoch{-3, 3} {
		for _, more := range []contract.Revision{0, jump / 2, jump/2 + 1, jump, 10 * jump} {
			before := f.state()
			// It was compacted this far below what the caller has seen.
			seen := contract.Position{Epoch: before.Head.Epoch + elsewhere,
				Revision: before.Compacted + more - jump, Token: newToken()}
			fence := contract.Fence{Seen: seen, Replaces: seen.Epoch, Token: newToken(), Jump: jump}
			st, err := contract.StartEpoch(f.ctx, f.b, fence)
			f.must(err)
			f.same(f.state(), st)
			if more <= jump/2 {
				f.same(st, before)
				continue
			}
			want := contract.Position{Epoch: max(before.Head.Epoch, seen.Epoch) + 1,
				Revision: max(before.Head.Revision, seen.Revision) + jump, Token: fence.Token}
			if st.Head != want || st.Compacted != want.Revision {
				f.Fatalf("after the fence of %+v the state is %+v, want head %+v; it was %+v", seen,
					st, want, before)
			}
			f.seen = st.Head
			f.put(contract.Key(fmt.Sprint("b", elsewhere, more)), 0, "b")
		}
	}
}

// testFenceAfterLostTail fences a database that was restored to an older state than this process,
// or another one, has seen.
func testFenceAfterLostTail(f *fixture) {
	f.put("a", 0, "a1")
	const jump = contract.Revision(1) << 32
	lost := contract.Position{Epoch: f.seen.Epoch + 5, Revision: f.seen.Revision + 1000,
		Token: newToken()}
	_, err := f.try(newToken(), lost, put("b", 0, "b1"))
	f.is(err, contract.Fenced)
	s, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: lost, Replaces: f.seen.Epoch,
		Token: newToken(), Jump: jump})
	f.must(err)
	if s.Head.Epoch != lost.Epoch+1 || s.Head.Revision != lost.Revision+jump ||
		s.Compacted != s.Head.Revision {
		f.Fatalf("the state after the fence is %+v", s)
	}

	// It rises with the database's clock, and the head is looked at under the lock: what somebody
	// has seen long ago does not matter.
	const perSecond = contract.Revision(1) << 20
	earlier := f.state().Now.Unix()
	timed, err := contract.StartEpoch(f.ctx, f.b, contract.Fence{Seen: s.Head, Replaces: s.Head.Epoch,
		Token: newToken(), Jump: 1, PerSecond: perSecond})
	f.must(err)
	if r := timed.Head.Revision; r < contract.Revision(earlier)*perSecond ||
		r >= contract.Revision(f.state().Now.Unix()+1)*perSecond+perSecond/64 {
		f.Errorf("the fence is at %d, since the second %d", r, earlier)
	}
	// A fence replaces the epoch that it names, even if compacted is far beyond what was seen.
	s, err = contract.StartEpoch(f.ctx, f.b,
		contract.Fence{Seen: contract.Position{Epoch: lost.Epoch, Revision: 1}, Replaces: timed.Head.Epoch,
			Token: newToken(), Jump: jump, PerSecond: perSecond})
	f.must(err)
	if past := s.Head.Revision - timed.Head.Revision; past < jump || past >= jump+perSecond/64 ||
		s.Head.Epoch != timed.Head.Epoch+1 {
		f.Errorf("the state after the next fence is %+v, and was %+v", s, timed)
	}
	f.seen = s.Head
	f.put("b", 0, "b1")
	keys := f.page(contract.PageQuery{Start: "a", End: "z", Limit: 10})
	if len(keys) != 2 || !slices.Equal(keys[0].Value, []byte("a1")) {
		f.Errorf("the keys are\n%s", describe(keys))
	}
}
