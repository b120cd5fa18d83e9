// Package backendtest is the test suite of every [contract.Backend]: the contract that the
// interface states, method by method, with the edge cases in which databases differ. Every database
// runs it.
package backendtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Subject is an empty, migrated database of a test's own.
type Subject struct {
	// Open opens a backend on it, or fails the test. Every call is what another process would do.
	// The suite closes the backends.
	Open func(t testing.TB) contract.Backend
	// Private says that the database cannot be opened twice, as it lives in its backend's memory.
	Private bool
	// Others open other stores of the database. The suite fills them, and checks after each test
	// that it has left them alone.
	Others []func(t testing.TB) contract.Backend
	// Unsized, if not "", says why the database does not tell its size.
	Unsized string
}

// Run runs the suite. fresh makes a database; what it needs to be cleaned up goes to t.Cleanup.
func Run(t *testing.T, fresh func(t testing.TB) Subject) {
	for _, test := range []struct {
		name string
		// shared tests need the database opened twice.
		shared bool
		run    func(*fixture)
	}{
		{name: "Empty", run: testEmpty},
		{name: "Limits", run: testLimits},
		{name: "Identity", run: testIdentity},
		{name: "Boot", run: testBoot},
		{name: "CommitDecides", run: testCommitDecides},
		{name: "CommitOnCondition", run: testCommitOnCondition},
		{name: "CommitNumbersDensely", run: testCommitNumbersDensely},
		{name: "CommitOfConflictsWritesNothing", run: testCommitOfConflicts},
		{name: "CommitGuard", run: testCommitGuard},
		{name: "CommitGuardOfEarlier", run: testCommitGuardOfEarlier},
		{name: "CommitGuardAfterSweep", run: testCommitGuardAfterSweep},
		{name: "CommitOfAbortedToken", run: testCommitOfAbortedToken},
		{name: "AbortedTokenIsForgotten", run: testAbortedTokenIsForgotten},
		{name: "OldestAbortedToken", run: testOldestAbortedToken},
		{name: "CommitWithEndedContext", run: testCommitWithEndedContext},
		{name: "CommitReturnsRemovedValues", run: testCommitReturnsRemovedValues},
		{name: "CommitAtLimits", run: testCommitAtLimits},
		{name: "Bytes", run: testBytes},
		{name: "Keys", run: testKeys},
		{name: "Values", run: testValues},
		{name: "Get", run: testGet},
		{name: "Lease", run: testLease},
		{name: "Leases", run: testLeases},
		{name: "Page", run: testPage},
		{name: "Count", run: testCount},
		{name: "Replaced", run: testReplaced},
		{name: "ValuesByRevision", run: testValuesByRevision},
		{name: "Chain", run: testChain},
		{name: "Changes", run: testChanges},
		{name: "Users", run: testUsers},
		{name: "UsersOfDropped", run: testUsersOfDropped},
		{name: "Tail", run: testTail},
		{name: "FirstAt", run: testFirstAt},
		{name: "Expired", run: testExpired},
		{name: "Resolve", run: testResolve},
		{name: "Compact", run: testCompact},
		{name: "Sweep", run: testSweep},
		{name: "SweepKeepsTheHead", run: testSweepKeepsTheHead},
		{name: "LateSweep", run: testLateSweep},
		{name: "Fence", run: testFence},
		{name: "FenceOfAnotherEpoch", run: testFenceOfAnotherEpoch},
		{name: "FenceAfterLostTail", run: testFenceAfterLostTail},
		{name: "Locked", run: testLocked},
		{name: "VoidPlan", run: testVoidPlan},
		{name: "Import", run: testImport},
		{name: "Size", run: testSize},
		{name: "Usage", run: testUsage},
		{name: "Quota", run: testQuota},
		{name: "Home", run: testHome},
		{name: "Directories", run: testDirectories},
		{name: "Indexes", run: testIndexes},
		{name: "Drop", run: testDrop},
		{name: "Fill", run: testFill},
		{name: "Model", run: testModel},
		{name: "LastTransactions", run: testLastTransactions},
		{name: "WaitForLock", shared: true, run: testWaitForLock},
		{name: "SnapshotStays", shared: true, run: testSnapshotStays},
		{name: "ConcurrentCommits", shared: true, run: testConcurrentCommits},
		{name: "ResolveRacesCommit", shared: true, run: testResolveRacesCommit},
		{name: "LeaseEndsBesideCommits", shared: true, run: testLeaseEndsBesideCommits},
		{name: "ConcurrentFences", shared: true, run: testConcurrentFences},
		{name: "ConcurrentSweeps", shared: true, run: testConcurrentSweeps},
		{name: "ReadsSeeOtherBackends", shared: true, run: testReadsSeeOtherBackends},
		{name: "SnapshotsAreConsistent", shared: true, run: testSnapshotsAreConsistent},
		{name: "Stores", run: testStores},
		{name: "Everywhere", run: testEverywhere},
		{name: "Poll", run: testPoll},
		{name: "Poller", shared: true, run: testPoller},
		{name: "Notifier", shared: true, run: testNotifier},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := fresh(t)
			if test.shared && db.Private {
				t.Skip("the database is in the memory of one backend, and this test needs two")
			}
			f := &fixture{T: t, db: db, ctx: t.Context()}
			neighbours := f.neighbours()
			f.b = f.open()
			f.seen = f.state().Head
			test.run(f)
			for _, n := range neighbours {
				if test.name != "Stores" {
					n.unchanged()
				}
			}
		})
	}
}

// deadline bounds every wait for something that must happen.
const deadline = 30 * time.Second

// fixture is a test with a backend on its own database, and the newest position that it has seen.
type fixture struct {
	*testing.T
	db   Subject
	ctx  context.Context
	b    contract.Backend
	seen contract.Position
}

func (f *fixture) open() contract.Backend {
	f.Helper()
	b := f.db.Open(f.T)
	f.Cleanup(func() {
		if err := b.Close(); err != nil {
			f.Errorf("close: %v", err)
		}
	})
	return b
}

// other returns a fixture with a second backend on the same database.
func (f *fixture) other() *fixture {
	f.Helper()
	o := &fixture{T: f.T, db: f.db, ctx: f.ctx}
	o.b = o.open()
	o.seen = o.state().Head
	return o
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// is checks the class of an error.
func (f *fixture) is(err error, class contract.Class) {
	f.Helper()
	if err == nil || contract.ClassOf(err) != class {
		f.Fatalf("the error is %v of class %v, want class %v", err, contract.ClassOf(err), class)
	}
}

// overtaken checks that a group was refused because compaction has passed what it had seen.
func (f *fixture) overtaken(err error) {
	f.Helper()
	f.is(err, contract.Transient)
	if !errors.Is(err, contract.ErrOvertaken) {
		f.Fatalf("the error is %v, want %v", err, contract.ErrOvertaken)
	}
}

func (f *fixture) state() contract.State {
	f.Helper()
	s, err := f.b.State(f.ctx)
	f.must(err)
	f.sane(s)
	return s
}

// sane checks what holds of every state.
func (f *fixture) sane(s contract.State) {
	f.Helper()
	if !s.Writable || s.Swept > s.Compacted || s.Compacted > s.Head.Revision ||
		s.Head.Revision < 1 || s.Head.Epoch < 1 ||
		s.Head.Token == (contract.Token{}) || s.Now.Before(time.Now().Add(-24*time.Hour)) {
		f.Fatalf("the state is %+v", s)
	}
}

// same checks that two states agree in all but the time.
func (f *fixture) same(got, want contract.State) {
	f.Helper()
	f.sane(got)
	got.Now, want.Now = time.Time{}, time.Time{}
	if got != want {
		f.Errorf("the state is %+v, want %+v", got, want)
	}
}

func newToken() contract.Token { return contract.NewToken() }

// try commits a group as it is.
func (f *fixture) try(token contract.Token, seen contract.Position,
	ms ...*contract.Mutation) (*contract.GroupResult, error) {
	return f.b.Commit(f.ctx, &contract.Group{Token: token, Seen: seen, Mutations: ms})
}

// commit commits a group after what was seen and checks everything that follows from the outcomes.
func (f *fixture) commit(ms ...*contract.Mutation) *contract.GroupResult {
	f.Helper()
	token := newToken()
	r, err := f.try(token, f.seen, ms...)
	f.must(err)
	f.sane(r.State)
	if len(r.Outcomes) != len(ms) {
		f.Fatalf("%d outcomes for %d mutations", len(r.Outcomes), len(ms))
	}
	next := r.Before
	for i, o := range r.Outcomes {
		if !o.Accepted {
			continue
		}
		next = contract.Position{Epoch: r.Before.Epoch, Revision: next.Revision + 1, Token: token}
		if o.Revision != next.Revision || o.Create > o.Revision || o.Create < 1 ||
			(o.Prev == 0) != (o.Create == o.Revision) || (o.Prev == 0) != (o.Version == 1) ||
			!ms[i].Expects(o.Prev) || !ms[i].Delete && o.Lease != ms[i].Lease {
			f.Fatalf("outcome %d is %+v, want revision %d", i, o, next.Revision)
		}
	}
	if r.State.Head != next {
		f.Fatalf("the head after the group is %+v, want %+v", r.State.Head, next)
	}
	if d := r.Time.Sub(r.State.Now).Abs(); d > time.Minute {
		f.Fatalf("the group's time is %v, and now is %v", r.Time, r.State.Now)
	}
	f.seen = r.State.Head
	return r
}

// put writes one key and returns its revision; the mutation must be accepted.
func (f *fixture) put(key contract.Key, expect contract.Revision, value string) contract.Revision {
	f.Helper()
	o := f.commit(put(key, expect, value)).Outcomes[0]
	if !o.Accepted {
		f.Fatalf("put %q at %d was refused: %+v", key, expect, o)
	}
	return o.Revision
}

// del deletes one key; the mutation must be accepted.
func (f *fixture) del(key contract.Key, expect contract.Revision) contract.Revision {
	f.Helper()
	o := f.commit(del(key, expect)).Outcomes[0]
	if !o.Accepted {
		f.Fatalf("deletion of %q at %d was refused: %+v", key, expect, o)
	}
	return o.Revision
}

func put(key contract.Key, expect contract.Revision, value string) *contract.Mutation {
	return &contract.Mutation{Key: key, Expect: expect, Value: []byte(value)}
}

func del(key contract.Key, expect contract.Revision) *contract.Mutation {
	return &contract.Mutation{Key: key, Expect: expect, Delete: true}
}

// log reads the whole log.
func (f *fixture) log(prev contract.Prev) []contract.Row {
	f.Helper()
	return f.logAfter(0, prev)
}

// logAfter reads the log after a revision: the parts of a transaction come before its last row.
func (f *fixture) logAfter(after contract.Revision, prev contract.Prev) []contract.Row {
	f.Helper()
	t, err := f.b.Tail(f.ctx, after+1, 1<<20, prev)
	f.must(err)
	rows := f.parts(after, t.State.Head.Revision, prev)
	rows = append(rows, t.Rows...)
	slices.SortStableFunc(rows, func(a, b contract.Row) int { return cmp.Compare(a.Revision, b.Revision) })
	return rows
}

// parts reads the parts of transactions in (after, upto], some at a time.
func (f *fixture) parts(after, upto contract.Revision, prev contract.Prev) (rows []contract.Row) {
	f.Helper()
	const limit = 7
	for below := contract.Lowest(after); ; {
		t, err := f.b.Parts(f.ctx, below, upto, limit, prev)
		f.must(err)
		f.sane(t.State)
		rows = append(rows, t.Rows...)
		if len(t.Rows) < limit && !t.More {
			return rows
		}
		below = rows[len(rows)-1].ID()
	}
}

// compact compacts and sweeps to the end by batches of the given size, and returns how many rows
// were deleted.
func (f *fixture) compact(r contract.Revision, batch int) int {
	f.Helper()
	s, err := contract.RaiseCompacted(f.ctx, f.b, r)
	f.must(err)
	total := 0
	for s.Swept < s.Compacted {
		before := s.Swept
		var n int
		n, s, err = contract.SweepBatch(f.ctx, f.b, batch)
		f.must(err)
		f.sane(s)
		if s.Swept <= before {
			f.Fatalf("a sweep left swept at %d, with compacted at %d", s.Swept, s.Compacted)
		}
		total += n
	}
	return total
}

// describe writes rows as text, to compare them and to show what differs.
func describe(rows []contract.Row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%d.%d:%q<-%d/%d.%d", r.Revision, r.Part, string(r.Key), r.Prev, r.Create, r.Version)
		if r.Lease != 0 {
			fmt.Fprintf(&b, " lease %d", r.Lease)
		}
		if r.Deleted {
			b.WriteString(" deleted")
		} else {
			fmt.Fprintf(&b, "=%s", brief(r.Value))
		}
		if r.HasPrev {
			fmt.Fprintf(&b, " was %s of %d", brief(r.PrevValue), r.PrevLease)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func brief(v []byte) string {
	if len(v) > 32 {
		return fmt.Sprintf("%q…(%d)", v[:32], len(v))
	}
	return fmt.Sprintf("%q", v)
}

// equal compares rows as a whole, in order.
func (f *fixture) equal(got, want []contract.Row) {
	f.Helper()
	if g, w := describe(got), describe(want); g != w {
		f.Fatalf("the rows are\n%swant\n%s", g, w)
	}
	for i := range got {
		if !bytes.Equal(got[i].Value, want[i].Value) ||
			!bytes.Equal(got[i].PrevValue, want[i].PrevValue) {
			f.Fatalf("row %d differs in a long value", i)
		}
	}
}

// page reads a page and checks that its rows are in order.
func (f *fixture) page(q contract.PageQuery) []contract.Row {
	f.Helper()
	p, err := f.b.Page(f.ctx, q)
	f.must(err)
	f.sane(p.State)
	if len(p.Rows) > q.Limit || !slices.IsSortedFunc(p.Rows, func(a, b contract.Row) int {
		return cmp.Compare(a.Key, b.Key)
	}) {
		f.Fatalf("a page with limit %d is\n%s", q.Limit, describe(p.Rows))
	}
	return p.Rows
}

// eventually waits until the condition holds.
func (f *fixture) eventually(what string, condition func() bool) {
	f.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout.C:
			f.Fatalf("waited %v for %s", deadline, what)
		}
	}
}
