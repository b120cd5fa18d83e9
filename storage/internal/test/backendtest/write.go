package backendtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

func testEmpty(f *fixture) {
	s := f.state()
	if s.Head.Revision != 1 || s.Head.Epoch != 1 || s.Compacted != 0 || s.Swept != 0 {
		f.Errorf("the state of an empty store is %+v", s)
	}
	rows := f.log(contract.PrevOfAll)
	if len(rows) != 1 || !rows[0].Marker() || !rows[0].Deleted || rows[0].Revision != 1 ||
		rows[0].Token != s.Head.Token {
		f.Errorf("the log of an empty store is\n%s", describe(rows))
	}
	if rows := f.page(contract.PageQuery{Start: "\x00", End: "\xff\xff", Limit: 10}); len(rows) != 0 {
		f.Errorf("an empty store has rows:\n%s", describe(rows))
	}
	row, rs, err := f.b.Get(f.ctx, "a")
	f.must(err)
	if row != nil {
		f.Errorf("an empty store has the row %s", describe([]contract.Row{*row}))
	}
	f.same(rs, s)
	n, cs, err := f.b.Count(f.ctx, "\x00", "\xff", 0, 0)
	f.must(err)
	if n != 0 {
		f.Errorf("an empty store has %d keys", n)
	}
	f.same(cs, s)
	keys, next, err := f.b.Expired(f.ctx, 10)
	f.must(err)
	if len(keys) != 0 || next != 0 {
		f.Errorf("in an empty store %v has expired, and the next does in %v", keys, next)
	}
	deleted, ss, err := contract.SweepBatch(f.ctx, f.b, 10)
	f.must(err)
	if deleted != 0 {
		f.Errorf("a sweep of an empty store deleted %d rows", deleted)
	}
	f.same(ss, s)
	if r := f.commit(); r.Before != s.Head {
		f.Errorf("a group without mutations was after %+v", r.Before)
	}
	f.same(f.state(), s)
}

func testLimits(f *fixture) {
	l := f.b.Limits()
	// A Kubernetes key is a prefix, a resource, a namespace and a name, of at most 253 bytes each;
	// an etcd takes 1.5 MiB in a request.
	if l.KeyBytes < 700 || l.ValueBytes < 1<<20 || l.GroupMutations < 64 ||
		l.GroupBytes < l.KeyBytes+l.ValueBytes {
		f.Errorf("the limits are %+v", l)
	}
}

func testIdentity(f *fixture) {
	id, err := f.b.Identity(f.ctx)
	f.must(err)
	if id.Store == "" || id.Recorded != "" || id.Actual == "" || id.Epoch != 1 {
		f.Fatalf("the identity of a new store is %+v", id)
	}
	for _, fingerprint := range []string{id.Actual, "another"} {
		f.must(contract.RecordFingerprint(f.ctx, f.b, fingerprint))
		again, err := f.b.Identity(f.ctx)
		f.must(err)
		if want := (contract.Identity{Store: id.Store, Recorded: id.Actual, Actual: id.Actual,
			Epoch: 1}); again != want {
			f.Fatalf("the identity is %+v, want %+v", again, want)
		}
	}
}

// testBoot: a boot is recorded in the place of the one that the caller has found, and of no other.
func testBoot(f *fixture) {
	for _, step := range []struct{ from, boot, want string }{
		{"another", "one", ""}, {"", "one", "one"}, {"", "two", "one"}, {"one", "two", "two"},
		{"two", "", ""},
	} {
		f.must(f.b.RecordBoot(f.ctx, step.from, step.boot))
		if d, err := f.b.Durability(f.ctx); err != nil || d.Recorded != step.want {
			f.Fatalf("after %+v the durability is %+v, %v", step, d, err)
		}
	}
}

// testCommitDecides compares the outcomes of groups with those of [contract.Decide].
func testCommitDecides(f *fixture) {
	setup := f.commit(put("a", 0, "a1"), put("b", 0, "b1"), put("c", 0, "c1"))
	a, b, c := setup.Outcomes[0].Revision, setup.Outcomes[1].Revision, setup.Outcomes[2].Revision
	c2 := f.put("c", c, "c2")
	current := map[contract.Key]contract.Current{"a": {ID: a, Create: a, Version: 1},
		"b": {ID: b, Create: b, Version: 1}, "c": {ID: c2, Create: c, Version: 2}}

	f.grant(1<<62, 7)
	for _, ms := range [][]*contract.Mutation{
		{put("d", 0, "new")},
		{put("a", 0, "must not exist")},
		{put("nowhere", 7, "must exist")},
		{del("nowhere", 7)},
		{put("c", c, "stale"), put("c", c2+100, "future")},
		// The first whose expectation holds wins; before and after it all others of the key lose.
		{put("a", 0, "wrong"), put("a", a, "right"), put("a", a, "too late"), del("a", a)},
		// Two creations of one key; and a deletion beside a creation of the same key.
		{put("e", 0, "first"), put("e", 0, "second")},
		{del("b", b), put("b", 0, "anew")},
		{put("b", 0, "anew"), del("b", b)},
		// Accepted and refused ones in turn: numbers are dense over the accepted.
		{put("x1", 0, "1"), put("x1", 0, "2"), put("x2", 0, "3"), put("x0", 5, "4"),
			put("x3", 0, "5"), del("x3", 0+9), put("x4", 0, "6")},
		// Any state: a creation, an update, a deletion, and the deletion of nothing.
		{put("y", contract.Any, "1"), put("c", contract.Any, "c3"), del("x1", contract.Any),
			del("nowhere", contract.Any), put("y0", 0, "2")},
		{leased("y", contract.Any, 1<<62), leased("y1", 0, 7)},
		{del("y", contract.Any), put("y1", contract.Any, "without a lease")},
	} {
		before := f.seen.Revision
		want, _ := contract.Decide(ms, before,
			whole(func(k contract.Key) contract.Current { return current[k] }))
		got := f.commit(ms...)
		if got.Before.Revision != before {
			f.Fatalf("the group was after %d, want %d", got.Before.Revision, before)
		}
		for i, w := range want {
			g := got.Outcomes[i]
			g.PrevValue = nil
			if !reflect.DeepEqual(g, w) {
				f.Errorf("mutation %d of %s: the outcome is %+v, want %+v", i, describeGroup(ms), g,
					w)
			}
			if !w.Accepted {
				continue
			}
			if ms[i].Delete {
				delete(current, ms[i].Key)
			} else {
				current[ms[i].Key] = contract.Current{ID: w.ID(), Create: w.Create,
					Version: w.Version, Lease: w.Lease}
			}
		}
		live := f.page(contract.PageQuery{Start: "\x00", End: "\xff", Limit: 100})
		if len(live) != len(current) {
			f.Fatalf("after %s there are %d keys, want %d", describeGroup(ms), len(live),
				len(current))
		}
		for _, r := range live {
			at := contract.Current{ID: r.ID(), Create: r.Create, Version: r.Version,
				Lease: r.Lease}
			if current[r.Key] != at {
				f.Errorf("after %s the key %q is at %+v, want %+v", describeGroup(ms), r.Key, at,
					current[r.Key])
			}
		}
	}
}

// testCommitOnCondition: a mutation is written only where the comparisons of other keys come out as
// it demands, of whatever property, by whatever operator, of a key, a range or of nothing.
func testCommitOnCondition(f *fixture) {
	f.grant(7, 1<<62)
	m := &model{live: map[contract.Key]contract.Row{}}
	f.apply(m, []*contract.Mutation{put("a", 0, "1"), put("b", 0, ""), put("c", 0, "3'\\%s\xff"),
		put("d\x00", 0, strings.Repeat("long", 1000))})
	f.apply(m, []*contract.Mutation{leased("b", contract.Any, 1<<62), put("c", contract.Any, "4"),
		put("lock", 0, "mine")})
	f.apply(m, []*contract.Mutation{put("b", contract.Any, "")})
	f.apply(m, []*contract.Mutation{leased("lease", 0, 1<<62)})
	accepted, refused := 0, 0
	try := func(w *contract.Mutation) {
		f.Helper()
		before := f.seen.Revision
		if f.apply(m, []*contract.Mutation{w}); f.seen.Revision > before {
			accepted++
		} else {
			refused++
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	keys := []contract.Key{"a", "b", "c", "d\x00", "lock", "lease", "none", "\x01", "\xff\xff"}
	key := func() contract.Key { return keys[rng.IntN(len(keys))] }
	for range 300 {
		try(onCondition(m, rng, key))
	}
	if min(accepted, refused) < 50 {
		f.Errorf("%d mutations were accepted, and %d refused", accepted, refused)
	}

	// All else that would refuse the mutation comes after its condition.
	owner := func(hold bool) *contract.Condition {
		return &contract.Condition{Hold: hold, Comparisons: []contract.Comparison{
			{Start: "mutex", End: "mutex\x00", Property: contract.CompareVersion,
				Operator: contract.Greater},
			{Start: "\x00", End: "\xff", Property: contract.CompareRevision, Operator: contract.Greater}}}
	}
	f.put("mutex", 0, "owner")
	for _, test := range []struct {
		m    *contract.Mutation
		hold bool
		want error
	}{
		{put("guarded", 0, "1"), true, nil},
		{put("guarded", contract.Any, "2"), false, contract.ErrCondition},
		{put("guarded", 1, "3"), false, nil}, // a conflict
		{leased("guarded", contract.Any, 99), false, contract.ErrCondition},
		{leased("guarded", contract.Any, 99), true, contract.ErrNoLease},
		{leased("guarded", contract.Any, 7), true, nil},
		{del("guarded", contract.Any), false, contract.ErrCondition},
		{del("guarded", contract.Any), true, nil},
		{del("guarded", contract.Any), true, nil}, // a conflict
	} {
		test.m.If = owner(test.hold)
		if o := f.commit(test.m).Outcomes[0]; !errors.Is(o.Err, test.want) {
			f.Errorf("%s, where the comparisons have to hold: %t: %+v, want %v",
				describeGroup([]*contract.Mutation{test.m}), test.hold, o, test.want)
		}
	}
	if row, _, err := f.b.Get(f.ctx, "guarded"); row != nil || err != nil {
		f.Errorf("the key that was deleted is %+v, %v", row, err)
	}

	// A part of a transaction has the transaction's revision, as its last row has.
	f.transaction(put("part", 0, "1"), put("last", 0, "1"))
	revision := int64(f.seen.Revision)
	for _, key := range []contract.Key{"part", "last"} {
		w := put("after "+key, 0, "x")
		w.If = &contract.Condition{Hold: true, Comparisons: []contract.Comparison{{Start: key,
			End: key + "\x00", Property: contract.CompareRevision, Number: revision}}}
		if o := f.commit(w).Outcomes[0]; !o.Accepted {
			f.Errorf("%q, written in a transaction, compared with its revision: %+v", key, o)
		}
	}

	// About as many and as large comparisons as a store takes.
	w := put("many", 0, "x")
	w.If = &contract.Condition{Hold: true}
	for i := range 128 {
		k := contract.Key(fmt.Sprintf("%0*d", contract.MaxKeyBytes+1, i))
		w.If.Comparisons = append(w.If.Comparisons, contract.Comparison{Start: k, End: k + "\x00",
			Property: contract.CompareRevision})
	}
	w.If.Comparisons = append(w.If.Comparisons, contract.Comparison{Start: "mutex", End: "mutex\x00",
		Property: contract.CompareValue, Operator: contract.Greater,
		Value: bytes.Repeat([]byte("\\"), f.b.Limits().ValueBytes-w.If.Bytes()-1_000)})
	if o := f.commit(w).Outcomes[0]; !o.Accepted {
		f.Errorf("many comparisons: %+v", o)
	}
}

// leased is a put of a key that is attached to a lease.
func leased(key contract.Key, expect contract.Revision, lease contract.Lease) *contract.Mutation {
	return &contract.Mutation{Key: key, Expect: expect, Lease: lease}
}

func describeGroup(ms []*contract.Mutation) string {
	var parts []string
	for _, m := range ms {
		verb := "put"
		if m.Delete {
			verb = "delete"
		}
		parts = append(parts, fmt.Sprintf("%s %q at %d", verb, string(m.Key), m.Expect))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func testCommitNumbersDensely(f *fixture) {
	const groups, size = 20, 25
	want := []contract.Row{{Revision: 1, Deleted: true}}
	for g := range groups {
		var ms []*contract.Mutation
		for i := range size {
			ms = append(ms, put(contract.Key(fmt.Sprintf("g%02d/%02d", g, i)), 0,
				fmt.Sprintf("value %d.%d", g, i)))
		}
		r := f.commit(ms...)
		if r.Before.Revision != contract.Revision(1+g*size) {
			f.Fatalf("group %d was after %d", g, r.Before.Revision)
		}
		for i, o := range r.Outcomes {
			want = append(want, contract.Row{Key: ms[i].Key, Revision: o.Revision, Create: o.Revision,
				Version: 1,
				Value:   ms[i].Value})
		}
		tail, err := f.b.Tail(f.ctx, r.Before.Revision+1, size+1, contract.PrevOfAll)
		f.must(err)
		for _, row := range tail.Rows {
			if row.Token != r.State.Head.Token || !row.Time.Equal(r.Time) {
				f.Fatalf("row %d has token %x and time %v, want %x and %v", row.Revision, row.Token,
					row.Time, r.State.Head.Token, r.Time)
			}
		}
	}
	f.equal(f.log(contract.PrevOfAll), want)
}

func testCommitOfConflicts(f *fixture) {
	a := f.put("a", 0, "a1")
	before, rows := f.state(), describe(f.log(contract.PrevOfAll))
	r := f.commit(put("a", 0, "x"), put("a", a+1, "x"), del("b", 3), put("b", 3, "x"))
	if r.Before != before.Head {
		f.Errorf("the group was after %+v, want %+v", r.Before, before.Head)
	}
	for i, want := range []contract.Revision{a, a, 0, 0} {
		if o := r.Outcomes[i]; o.Accepted || o.Revision != want {
			f.Errorf("outcome %d is %+v, want a refusal at %d", i, o, want)
		}
	}
	f.same(f.state(), before)
	if after := describe(f.log(contract.PrevOfAll)); after != rows {
		f.Errorf("the log was\n%sand is\n%s", rows, after)
	}
}

func testCommitGuard(f *fixture) {
	a := f.put("a", 0, "a1")
	good := f.seen
	f.put("b", 0, "b1")
	head := f.seen
	for _, test := range []struct {
		name string
		seen contract.Position
		ok   bool
	}{
		{"the head", head, true},
		{"an older row", good, true},
		{"an older epoch", contract.Position{Epoch: head.Epoch - 1, Revision: head.Revision,
			Token: head.Token}, false},
		{"a newer epoch", contract.Position{Epoch: head.Epoch + 1, Revision: head.Revision,
			Token: head.Token}, false},
		{"a revision above the head", contract.Position{Epoch: head.Epoch, Revision: head.Revision + 10,
			Token: head.Token}, false},
		{"the head with another token", contract.Position{Epoch: head.Epoch, Revision: head.Revision,
			Token: good.Token}, false},
		{"an older row with another token",
			contract.Position{Epoch: head.Epoch, Revision: good.Revision, Token: head.Token}, false},
	} {
		before, rows := f.state(), describe(f.log(contract.PrevOfAll))
		_, err := f.try(newToken(), test.seen, put(contract.Key("c "+test.name), 0, "c"),
			put("a", a-1, "conflict"))
		if test.ok {
			if err != nil {
				f.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		f.is(err, contract.Fenced)
		f.same(f.state(), before)
		if after := describe(f.log(contract.PrevOfAll)); after != rows {
			f.Errorf("%s: the log was\n%sand is\n%s", test.name, rows, after)
		}
		// A group that would write nothing is refused as well: its conflicts would be answers from
		// another history.
		_, err = f.try(newToken(), test.seen, put("a", a-1, "conflict"))
		f.is(err, contract.Fenced)
	}
}

// testCommitGuardOfEarlier: all that was seen has to be there, not only the newest.
func testCommitGuardOfEarlier(f *fixture) {
	seen := []contract.Position{f.seen}
	for i := range 200 {
		f.put(contract.Key(fmt.Sprintf("k%03d", i)), 0, "x")
		seen = append(seen, f.seen)
	}
	try := func(earlier []contract.Position, key contract.Key) error {
		_, err := f.b.Commit(f.ctx, &contract.Group{Token: newToken(), Seen: f.seen, Earlier: earlier,
			Mutations: []*contract.Mutation{put(key, 0, "x")}})
		return err
	}
	f.must(try(seen[:1], "one"))
	f.must(try(seen[100:101], "another"))
	f.must(try(seen[:200], "all"))
	before := f.state()
	for _, i := range []int{0, 100, 199} {
		earlier := slices.Clone(seen[:200])
		earlier[i].Token = newToken()
		f.is(try(earlier, "none"), contract.Fenced)
		f.is(try(earlier[i:i+1], "none"), contract.Fenced)
	}
	f.same(f.state(), before)
	// Where compaction has removed a row, nothing proves anything. Rows that it has left do.
	r := f.put("k100", seen[101].Revision, "y")
	f.compact(r, 1000)
	f.is(try(seen[:200], "none"), contract.Transient)
	f.is(try(seen[101:102], "none"), contract.Transient)
	f.must(try(seen[1:101], "left"))
	lost := slices.Clone(seen[101:102])
	lost[0].Token = newToken()
	f.is(try(lost, "none"), contract.Transient)
	lost[0].Revision = f.seen.Revision
	f.is(try(lost, "none"), contract.Fenced)
}

// testCommitGuardAfterSweep: the row that was seen may have been swept meanwhile, when it was
// replaced or a tombstone.
func testCommitGuardAfterSweep(f *fixture) {
	a := f.put("a", 0, "a1")
	replaced := f.seen
	a = f.put("a", a, "a2")
	a = f.del("a", a)
	tombstone := f.seen
	b := f.put("b", 0, "b1")
	// The row at compacted is still read. It proves to a process that it has seen this history, so
	// it stays.
	f.compact(a, 100)
	if rows := f.log(contract.PrevOfAll); len(rows) != 2 || rows[0].Revision != a || !rows[0].Deleted {
		f.Fatalf("the sweep left\n%s", describe(rows))
	}
	f.is(f.tried(contract.Position{Epoch: tombstone.Epoch, Revision: a, Token: newToken()}),
		contract.Fenced)
	f.compact(b, 100)
	if rows := f.log(contract.PrevOfAll); len(rows) != 1 {
		f.Fatalf("the sweep left\n%s", describe(rows))
	}
	before := f.state()
	for _, seen := range []contract.Position{replaced, tombstone} {
		_, err := f.try(newToken(), seen, put("c", 0, "c"))
		f.overtaken(err)
		// Neither is a group told its conflicts.
		f.overtaken(f.tried(seen))
	}
	f.same(f.state(), before)
	// Nothing can have removed a row above the compacted revision.
	s := f.state()
	_, err := f.try(newToken(), contract.Position{Epoch: s.Head.Epoch, Revision: s.Head.Revision + 1,
		Token: newToken()}, put("d", 0, "d"))
	f.is(err, contract.Fenced)
}

// tried is the error of a group after what was seen.
func (f *fixture) tried(seen contract.Position) error {
	_, err := f.try(newToken(), seen, put("tried", 77, "x"))
	return err
}

func testCommitOfAbortedToken(f *fixture) {
	token, after := newToken(), f.seen
	r, err := contract.ResolveGroup(f.ctx, f.b, token, after)
	f.must(err)
	if r.Committed || !r.Aborted || len(r.Rows) != 0 {
		f.Fatalf("the resolution of a token that was never used is %+v", r)
	}
	f.same(r.State, f.state())
	before := f.state()
	_, err = f.try(token, after, put("a", 0, "a1"))
	f.is(err, contract.Aborted)
	_, err = f.try(token, after, put("a", 77, "a conflict"))
	f.is(err, contract.Aborted)
	f.same(f.state(), before)
	f.put("a", 0, "another token")
}

// testAbortedTokenIsForgotten: a sweep forgets an aborted token when compaction has passed what its
// group had seen, and no clock matters. The group is refused before and after, however late it
// comes.
func testAbortedTokenIsForgotten(f *fixture) {
	f.put("a", 0, "a1")
	token, after := newToken(), f.seen
	r, err := contract.ResolveGroup(f.ctx, f.b, token, after)
	f.must(err)
	if !r.Aborted {
		f.Fatalf("the resolution is %+v", r)
	}
	zombie := func() error {
		f.Helper()
		before := f.state()
		_, err := f.try(token, after, put("zombie", 0, "x"))
		f.same(f.state(), before)
		if row, _, getErr := f.b.Get(f.ctx, "zombie"); row != nil || getErr != nil {
			f.Fatalf("the zombie has written %+v, %v", row, getErr)
		}
		return err
	}
	recorded := func(want bool) {
		f.Helper()
		from, err := f.b.Sweepable(f.ctx, 10)
		f.must(err)
		if (from.Aborted != 0) != want || want && from.Aborted != after.Revision {
			f.Errorf("the sweep finds an aborted token of revision %d, after %d", from.Aborted,
				after.Revision)
		}
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
			guard, _, err := tx.Group(token, after.Revision)
			if guard.Aborted != want {
				f.Errorf("the guard is %+v", guard)
			}
			return err
		}))
	}
	f.is(zombie(), contract.Aborted)
	// At compacted itself, the token is still needed.
	f.compact(after.Revision, 10)
	recorded(true)
	f.is(zombie(), contract.Aborted)
	// Beyond it, before the sweep.
	f.put("b", 0, "b1")
	_, err = contract.RaiseCompacted(f.ctx, f.b, f.seen.Revision)
	f.must(err)
	recorded(true)
	f.is(zombie(), contract.Aborted)
	f.compact(f.seen.Revision, 10)
	recorded(false)
	f.overtaken(zombie())
	// A younger token is left alone by a sweep that has nothing else to do.
	f.put("c", 0, "c1")
	token, after = newToken(), f.seen
	_, err = contract.ResolveGroup(f.ctx, f.b, token, after)
	f.must(err)
	_, _, err = contract.SweepBatch(f.ctx, f.b, 10)
	f.must(err)
	recorded(true)
}

// testOldestAbortedToken: of several aborted tokens, the sweep forgets those of groups that had
// seen less than what was compacted, and no other.
func testOldestAbortedToken(f *fixture) {
	var seen []contract.Revision
	for i := range 3 {
		f.put(contract.Key(fmt.Sprint(i)), 0, "a")
		seen = append(seen, f.seen.Revision)
	}
	tokens := map[contract.Revision]contract.Token{}
	f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
		for _, r := range []contract.Revision{seen[1], seen[0], seen[2]} {
			tokens[r] = newToken()
			if err := tx.Abort(tokens[r], r); err != nil {
				return err
			}
		}
		return nil
	}))
	oldest := func(want contract.Revision) {
		f.Helper()
		from, err := f.b.Sweepable(f.ctx, 10)
		f.must(err)
		if from.Aborted != want {
			f.Errorf("the oldest token is of revision %d, want %d", from.Aborted, want)
		}
		f.must(f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) error {
			for r, token := range tokens {
				guard, _, err := tx.Group(token, r)
				if err != nil {
					return err
				}
				if guard.Aborted != (r >= want) {
					f.Errorf("the token of revision %d: the guard is %+v", r, guard)
				}
			}
			return nil
		}))
	}
	oldest(seen[0])
	f.compact(seen[1], 10)
	oldest(seen[1])
}

func testCommitWithEndedContext(f *fixture) {
	before := f.state()
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	_, err := f.b.Commit(ctx, &contract.Group{Token: newToken(), Seen: f.seen,
		Mutations: []*contract.Mutation{put("a", 0, "a1")}})
	if err == nil {
		f.Fatal("a commit with an ended context succeeded")
	}
	if c := contract.ClassOf(err); c != contract.Unavailable && c != contract.Unknown {
		f.Errorf("the error is of class %v: %v", c, err)
	}
	_, err = f.b.State(ctx)
	f.is(err, contract.Unavailable)
	_, err = f.b.Page(ctx, contract.PageQuery{Start: "a", End: "z", Limit: 1})
	f.is(err, contract.Unavailable)
	f.same(f.state(), before)
	f.put("a", 0, "a1")
}

func testCommitReturnsRemovedValues(f *fixture) {
	setup := f.commit(put("a", 0, "a\x00\xff'\\"), put("b", 0, "b"), put("c", 0, "c"),
		put("d", 0, ""))
	a, b, c, d := setup.Outcomes[0].Revision, setup.Outcomes[1].Revision,
		setup.Outcomes[2].Revision, setup.Outcomes[3].Revision
	known := del("b", b)
	known.PrevValue, known.HasPrev = []byte("b"), true
	r := f.commit(del("a", a), known, put("c", c, "c2"), del("d", d), del("e", 5), del("a", a))
	if got := string(r.Outcomes[0].PrevValue); got != "a\x00\xff'\\" {
		f.Errorf("the deletion removed %q", got)
	}
	if got := r.Outcomes[2].PrevValue; got != nil {
		f.Errorf("an update removed %q", got)
	}
	if got := r.Outcomes[3].PrevValue; len(got) != 0 {
		f.Errorf("the deletion of an empty value removed %q", got)
	}
	f.equal(f.log(contract.PrevOfDeletions)[5:], []contract.Row{
		{Key: "a", Revision: 6, Prev: a, Create: a, Version: 2, Deleted: true, HasPrev: true,
			PrevValue: []byte("a\x00\xff'\\")},
		{Key: "b", Revision: 7, Prev: b, Create: b, Version: 2, Deleted: true, HasPrev: true,
			PrevValue: []byte("b")},
		{Key: "c", Revision: 8, Prev: c, Create: c, Version: 2, Value: []byte("c2")},
		{Key: "d", Revision: 9, Prev: d, Create: d, Version: 2, Deleted: true, HasPrev: true,
			PrevValue: []byte{}},
	})
	// A key that was deleted begins anew.
	again := f.put("a", 0, "anew")
	f.equal(f.log(contract.PrevOfAll)[9:],
		[]contract.Row{{Key: "a", Revision: again, Create: again, Version: 1, Value: []byte("anew")}})
}

// testBytes: what one call returns is bounded in bytes, whatever the limit in rows, and nothing is
// left out.
func testBytes(f *fixture) {
	limits := f.b.Limits()
	size := min(1<<20, limits.ValueBytes)
	count := contract.ReadBytes/size + 8
	var (
		keys      []contract.Key
		revisions []contract.Revision
	)
	value := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), size) }
	for i := range count {
		keys = append(keys, contract.Key(fmt.Sprintf("big/%03d", i)))
		revisions = append(revisions, f.put(keys[i], 0, value(i)))
	}
	// check looks at one answer, and returns how many rows it has.
	check := func(what string, rows []contract.Row, more bool, first int) int {
		f.Helper()
		bytes := 0
		for i, r := range rows {
			bytes += len(r.Value)
			if r.Key != keys[first+i] || string(r.Value) != value(first+i) {
				f.Fatalf("%s: row %d is %s", what, first+i, brief(r.Value))
			}
		}
		if bytes >= contract.ReadBytes+size {
			f.Errorf("%s: one answer has %d bytes", what, bytes)
		}
		if len(rows) == 0 || !more && first+len(rows) != count {
			f.Fatalf("%s: %d rows, and more to come: %t, after %d of %d", what, len(rows), more,
				first, count)
		}
		return len(rows)
	}
	for n := 0; n < count; {
		p, err := f.b.Page(f.ctx, contract.PageQuery{Start: keys[n], End: "big0", Limit: 2 * count})
		f.must(err)
		f.same(p.State, f.state())
		n += check("page", p.Rows, p.More, n)
	}
	for n := 0; n < count; {
		t, err := f.b.Tail(f.ctx, revisions[n], 2*count, contract.PrevOfAll)
		f.must(err)
		f.same(t.State, f.state())
		n += check("tail", t.Rows, t.More, n)
	}
	for n := 0; n < count; {
		rows, s, err := f.b.Values(f.ctx, revisions[n:])
		f.must(err)
		f.same(s, f.state())
		slices.SortFunc(rows, func(a, b contract.Row) int {
			return cmp.Compare(a.Revision, b.Revision)
		})
		n += check("values", rows, true, n)
	}
	if r, ok := f.b.(contract.KeysReader); ok {
		rows, s, err := r.GetKeys(f.ctx, keys)
		f.must(err)
		f.same(s, f.state())
		slices.SortFunc(rows, func(a, b contract.Row) int {
			return cmp.Compare(a.Revision, b.Revision)
		})
		bytes := 0
		for i := range rows {
			if bytes += len(rows[i].Value); rows[i].Value == nil {
				row, _, err := f.b.Get(f.ctx, rows[i].Key)
				f.must(err)
				rows[i].Value = row.Value
			}
		}
		if bytes < contract.ReadBytes || bytes >= contract.ReadBytes+size {
			f.Errorf("one read of keys has %d bytes", bytes)
		}
		if len(rows) != count {
			f.Fatalf("of %d keys %d were found", count, len(rows))
		}
		for i := range rows {
			check("keys", rows[i:i+1], true, i)
		}
	}
	var ms []*contract.Mutation
	for i := range count {
		ms = append(ms, del(keys[i], revisions[i]))
	}
	held, filled := 0, 0
	for i, o := range f.commit(ms...).Outcomes {
		if !o.Accepted {
			f.Fatalf("deletion %d: %+v", i, o)
		}
		if o.PrevValue == nil {
			continue
		}
		filled++
		if held += len(o.PrevValue); string(o.PrevValue) != value(i) {
			f.Errorf("deletion %d removed %s", i, brief(o.PrevValue))
		}
	}
	if filled == 0 || held >= limits.GroupBytes+size {
		f.Errorf("a group of %d deletions returned %d values of %d bytes; its bound is %d", count,
			filled, held, limits.GroupBytes)
	}
	for n := 0; n < count; {
		t, err := f.b.Tail(f.ctx, revisions[count-1]+1+contract.Revision(n), 2*count,
			contract.PrevOfDeletions)
		f.must(err)
		bytes := 0
		for i, r := range t.Rows {
			if bytes += len(r.PrevValue); string(r.PrevValue) != value(n+i) {
				f.Fatalf("the tail says that deletion %d removed %s", n+i, brief(r.PrevValue))
			}
		}
		if n += len(t.Rows); bytes >= contract.ReadBytes+size || !t.More && n != count {
			f.Fatalf("the tail has %d bytes, more to come: %t, after %d of %d", bytes,
				t.More, n, count)
		}
	}
}

// testCommitAtLimits writes the largest key, value and group, with the bytes that need most room
// where a database escapes them.
func testCommitAtLimits(f *fixture) {
	l := f.b.Limits()
	longest := contract.Key(strings.Repeat("\xff'", l.KeyBytes/2) + strings.Repeat("k", l.KeyBytes%2))
	for i, fill := range []byte{0, '\'', '\\', 0x1a, 0xff} {
		value := bytes.Repeat([]byte{fill}, l.ValueBytes)
		expect := contract.Revision(0)
		if i > 0 {
			expect = f.seen.Revision
		}
		o := f.commit(&contract.Mutation{Key: longest, Expect: expect, Value: value}).Outcomes[0]
		if !o.Accepted {
			f.Fatalf("the largest value was refused: %+v", o)
		}
		row, _, err := f.b.Get(f.ctx, longest)
		f.must(err)
		if row == nil || !bytes.Equal(row.Value, value) || row.Revision != o.Revision {
			f.Fatalf("the largest value of %q came back otherwise", fill)
		}
	}

	var ms []*contract.Mutation
	perValue := l.GroupBytes/l.GroupMutations - 8
	for i := range l.GroupMutations {
		ms = append(ms, &contract.Mutation{Key: contract.Key(fmt.Sprintf("%08d", i)),
			Value: bytes.Repeat([]byte{'\''}, perValue)})
	}
	for i, o := range f.commit(ms...).Outcomes {
		if !o.Accepted {
			f.Fatalf("mutation %d of the largest group was refused", i)
		}
	}
	var large []*contract.Mutation
	for i := range l.GroupBytes / (l.ValueBytes + 8) {
		large = append(large, &contract.Mutation{Key: contract.Key(fmt.Sprintf("large/%02d", i)),
			Value: bytes.Repeat([]byte{'\\'}, l.ValueBytes)})
	}
	f.commit(large...)
	n, _, err := f.b.Count(f.ctx, "0", "\xff\xff\xff", 0, 0)
	f.must(err)
	if want := int64(1 + len(ms) + len(large)); n != want {
		f.Errorf("there are %d keys, want %d", n, want)
	}
	rows := f.page(contract.PageQuery{Start: "large/", End: "large0", Limit: len(large) + 1})
	for i, r := range rows {
		if !bytes.Equal(r.Value, large[i].Value) {
			f.Errorf("large value %d came back otherwise", i)
		}
	}
}
