package backendtest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// testUsage: the objects that exist are counted and measured, not what they replaced.
func testUsage(f *fixture) {
	usage := func() contract.Usage {
		f.Helper()
		u, st, err := f.b.Usage(f.ctx)
		f.must(err)
		if st.Head != f.seen || !st.Writable {
			f.Errorf("the state is %+v, want the head %+v", st, f.seen)
		}
		return u
	}
	grown := func(after contract.Revision, want contract.Usage, replaced, rows int64) {
		f.Helper()
		u, st, err := f.b.Growth(f.ctx, after)
		f.must(err)
		if u != (contract.Growth{Usage: want, Replaced: replaced, Rows: rows}) || st.Head != f.seen {
			f.Errorf("since %d it has grown by %+v at %+v, want %+v, %d replaced and %d rows", after, u,
				st, want, replaced, rows)
		}
	}
	if u := usage(); u != (contract.Usage{}) {
		f.Errorf("an empty store has %+v", u)
	}
	grown(0, contract.Usage{}, 0, 1)
	r := f.put("a", 0, "a long value that is replaced")
	f.put("a", r, "1234")
	f.put("dd", 0, "")
	f.del("gone", f.put("gone", 0, "value"))
	f.commit(&contract.Mutation{Key: "large", Value: make([]byte, 1<<20)})
	was := contract.Usage{Objects: 3, Bytes: 5 + 2 + 5 + 1<<20}
	if u := usage(); u != was {
		f.Errorf("the store has %+v, want %+v", u, was)
	}
	grown(0, was, 1+29+4+5, 7)
	at := f.seen.Revision
	grown(at, contract.Usage{}, 0, 0)
	f.put("b", f.put("b", 0, "xx"), "xxx")
	grown(at, contract.Usage{Objects: 1, Bytes: 4}, 3, 2)
	f.del("a", r+1)
	grown(at, contract.Usage{Bytes: 4 - 5}, 3+5, 3)
	// Compaction changes nothing of what was written since.
	f.compact(at, 100)
	grown(at, contract.Usage{Bytes: 4 - 5}, 3+5, 3)
	if u, want := usage(), (contract.Usage{Objects: 3, Bytes: was.Bytes - 1}); u != want {
		f.Errorf("the store has %+v, want %+v", u, want)
	}
	// The parts of a transaction are rows, too.
	at = f.seen.Revision
	f.transaction(&contract.Mutation{Key: "b", Expect: contract.Any, Delete: true},
		&contract.Mutation{Key: "p1", Value: []byte("x")}, &contract.Mutation{Key: "p2", Value: []byte("y")})
	grown(at, contract.Usage{Objects: 1, Bytes: 3 + 3 - 4}, 4, 3)
}

// testQuota: a quota is what was recorded last, and none at first.
func testQuota(f *fixture) {
	for _, want := range []contract.Quota{{}, {Objects: 7, Bytes: 1 << 40}, {Bytes: 1}, {}} {
		if want != (contract.Quota{}) {
			f.must(contract.SetQuota(f.ctx, f.b, want))
		}
		q, _, st, err := f.b.Quota(f.ctx)
		f.must(err)
		if q != want || st.Head != f.seen {
			f.Errorf("the quota is %+v at %+v, want %+v", q, st, want)
		}
		f.must(contract.SetQuota(f.ctx, f.b, contract.Quota{}))
	}
}

// testHome: the home is what was recorded last, also of a store that was dropped, and so is the
// identity.
func testHome(f *fixture) {
	was, err := f.b.Identity(f.ctx)
	f.must(err)
	st := f.state()
	for _, want := range []string{"", `{"a":"b'\\é"}`, "second", ""} {
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
			if err := tx.SetHome(want); err != nil {
				return err
			}
			if home, err := tx.Home(); err != nil || home != want {
				f.Errorf("the transaction reads the home %q, %v, want %q", home, err, want)
			}
			return nil
		}))
		if home, now, err := f.b.Home(f.ctx); err != nil || home != want || now.Head != st.Head {
			f.Errorf("the home is %q at %+v, %v, want %q", home, now, err, want)
		}
	}
	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
		st := tx.State()
		st.Head = contract.Position{Epoch: -2, Revision: 1000, Token: newToken()}
		st.Compacted, st.Swept = 1000, 1000
		return errors.Join(tx.SetHome("third"), tx.SetIdentity("another"), tx.Mark(st, ""))
	}))
	if !f.db.Private {
		f.b = f.open()
	}
	home, now, err := f.b.Home(f.ctx)
	if err != nil || home != "third" || !now.Dropped() {
		f.Errorf("the home of a closed store is %q at %+v, %v", home, now, err)
	}
	if id, err := f.b.Identity(f.ctx); err != nil || id.Store != "another" || was.Store == "another" {
		f.Errorf("the identity is %+v, %v", id, err)
	}
}

// testDirectories: the recorded directories are those that were put, the last ones by their paths.
func testDirectories(f *fixture) {
	got := func() (found []contract.Directory) {
		f.Helper()
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) (err error) {
			found, err = tx.Directories()
			return err
		}))
		slices.SortFunc(found, func(a, b contract.Directory) int { return cmp.Compare(a.Path, b.Path) })
		return found
	}
	if found := got(); len(found) > 0 {
		f.Errorf("an empty store has the directories %+v", found)
	}
	epoch := f.seen.Epoch
	pods := contract.Directory{Path: "/registry/pods/", Resource: "pods"}
	leases := contract.Directory{Path: "/it's/", Group: "coordination.k8s.io", Resource: "leases",
		Scope: contract.Namespaced}
	for _, served := range [][]contract.Directory{{pods, leases}, {pods}, {leases}} {
		st, err := contract.RecordDirectories(f.ctx, f.b, epoch, served)
		f.must(err)
		if st.Head != f.seen {
			f.Errorf("the state is %+v, want %+v", st, f.seen)
		}
		if found := got(); !slices.Equal(found, []contract.Directory{leases, pods}) {
			f.Errorf("the directories are %+v", found)
		}
	}
	pods.Scope = contract.Namespaced
	if _, err := contract.RecordDirectories(f.ctx, f.b, epoch+1,
		[]contract.Directory{pods}); err != nil || slices.Contains(got(), pods) {
		f.Errorf("another epoch has recorded %+v, %v", got(), err)
	}
	_, err := contract.RecordDirectories(f.ctx, f.b, epoch, []contract.Directory{pods})
	f.must(err)
	if found := got(); !slices.Equal(found, []contract.Directory{leases, pods}) {
		f.Errorf("the directories are %+v", found)
	}
	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
		_, err := tx.Erase(1)
		return err
	}))
	if found := got(); len(found) > 0 {
		f.Errorf("after a drop there are the directories %+v", found)
	}
}

// testDrop: a group of a dropped store is refused, and reads tell that it was dropped; rows are
// removed in batches; and what comes after it is a store of another identity.
func testDrop(f *fixture) {
	for i := range 10 {
		f.put(contract.Key(fmt.Sprint("k", i)), 0, "value")
	}
	_, err := contract.ResolveGroup(f.ctx, f.b, newToken(), f.seen)
	f.must(err)
	was, err := f.b.Identity(f.ctx)
	f.must(err)
	f.must(contract.RecordFingerprint(f.ctx, f.b, was.Actual))
	f.must(contract.SetQuota(f.ctx, f.b, contract.Quota{Objects: 1, Bytes: 1}))
	st := f.state()
	st.Head = contract.Position{Epoch: -2, Revision: 1000, Token: newToken()}
	st.Compacted, st.Swept = 1000, 1000
	locked := func(do func(contract.Tx) error) {
		f.Helper()
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, do))
	}
	locked(func(tx contract.Tx) error { return tx.Mark(st, "") })
	if _, err := f.try(newToken(), f.seen, put("new", 0, "value")); !errors.Is(err, contract.ErrDropped) {
		f.Errorf("a group after the drop: %v", err)
	}
	marked := st.Head
	if st, err := f.b.State(f.ctx); err != nil || st.Head != marked || !st.Dropped() {
		f.Errorf("the state is %+v, want %+v, %v", st, marked, err)
	}
	if id, err := f.b.Identity(f.ctx); err != nil || id.Epoch != -2 || id.Store != was.Store {
		f.Errorf("the identity is %+v, %v", id, err)
	}
	// Two batches of four of ten keys; and the third, of which two keys are left, and of the log
	// with the first marker three rows.
	for i, want := range []int{8, 8, 5, 0} {
		var erased int
		locked(func(tx contract.Tx) (err error) { erased, err = tx.Erase(4); return err })
		if erased != want {
			f.Errorf("batch %d has removed %d rows, want %d", i, erased, want)
		}
	}
	from, err := f.b.Sweepable(f.ctx, 100)
	f.must(err)
	tail, err := f.b.Tail(f.ctx, 1, 100, contract.PrevOfAll)
	f.must(err)
	if len(tail.Rows) != 1 || tail.Rows[0].Revision != 1000 || from.Aborted != 0 {
		f.Errorf("the log has %s, and a token is aborted at %d", describe(tail.Rows), from.Aborted)
	}
	locked(func(tx contract.Tx) error {
		if err := tx.Renew(); err != nil {
			return err
		}
		st := tx.State()
		st.Head = contract.Position{Epoch: 3, Revision: 2000, Token: newToken()}
		st.Compacted, st.Swept, st.Now = 2000, 2000, st.Now.Add(time.Second)
		f.seen = st.Head
		return tx.Mark(st, "")
	})
	if !f.db.Private {
		f.b = f.open()
	}
	id, err := f.b.Identity(f.ctx)
	f.must(err)
	if id.Store == was.Store || id.Store == "" || id.Recorded != "" || id.Epoch != 3 {
		f.Errorf("the identity is %+v, and was %+v", id, was)
	}
	if q, _, _, err := f.b.Quota(f.ctx); err != nil || q != (contract.Quota{}) {
		f.Errorf("the quota is %+v, %v", q, err)
	}
	if r := f.put("k1", 0, "new"); r != 2001 {
		f.Errorf("the first revision is %d", r)
	}
}
