package backendtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// oddKeys are in the order of bytes, which no collation of text has.
var oddKeys = []contract.Key{
	"\x00", "\x00\x00", "\x00\xff", "\x01", "\n", " ", " a", "%", "'", "/", "/a", "/a\x00",
	"/a\x00\x00", "/a\x00b", "/a ", "/a  ", "/a/", "/a/b", "/aa",
	"A", "B", "\\", "_", "a", "a\x00", "a ", "aB", "ab", "b", "\x7f", "\x80", "\xc3\xa4",
	"\xc3\xa4\xff", "\xe4", "\xfe\xff", "\xff", "\xff\x00", "\xff\xff",
}

func testKeys(f *fixture) {
	if !slices.IsSorted(oddKeys) {
		f.Fatal("the keys are not sorted")
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(len(oddKeys))
	revisions := map[contract.Key]contract.Revision{}
	var ms []*contract.Mutation
	for _, i := range order {
		ms = append(ms, put(oddKeys[i], 0, "value of "+string(oddKeys[i])))
	}
	for i, o := range f.commit(ms...).Outcomes {
		if !o.Accepted {
			f.Fatalf("the key %q was refused: %+v", ms[i].Key, o)
		}
		revisions[ms[i].Key] = o.Revision
	}
	all := f.page(contract.PageQuery{Start: "\x00", End: "\xff\xff\xff", Limit: 1000})
	if len(all) != len(oddKeys) {
		f.Fatalf("there are %d keys, want %d", len(all), len(oddKeys))
	}
	for i, r := range all {
		if r.Key != oddKeys[i] || r.Revision != revisions[r.Key] || string(r.Value) != "value of "+
			string(r.Key) {
			f.Fatalf("key %d is %s, want %q at %d", i, describe([]contract.Row{r}), oddKeys[i],
				revisions[oddKeys[i]])
		}
		got, _, err := f.b.Get(f.ctx, r.Key)
		f.must(err)
		if got == nil || got.Key != r.Key || got.Revision != r.Revision ||
			!bytes.Equal(got.Value, r.Value) {
			f.Fatalf("get of %q returned %+v", r.Key, got)
		}
	}
	f.getKeys(all)
	// Every range between two keys, by all reads that have ranges.
	for i, start := range oddKeys {
		for j := i; j < len(oddKeys); j++ {
			rows := f.page(contract.PageQuery{Start: start, End: oddKeys[j], Limit: 1000,
				KeysOnly: true})
			n, _, err := f.b.Count(f.ctx, start, oddKeys[j], 0, 0)
			f.must(err)
			if len(rows) != j-i || n != int64(j-i) {
				f.Fatalf("[%q, %q) has %d rows and counts %d keys, want %d", start, oddKeys[j],
					len(rows), n, j-i)
			}
			for k, r := range rows {
				if r.Key != oddKeys[i+k] || len(r.Value) != 0 {
					f.Fatalf("row %d of [%q, %q) is %s", k, start, oddKeys[j],
						describe([]contract.Row{r}))
				}
			}
		}
	}
	at := f.seen.Revision
	for i, key := range oddKeys {
		if i%2 == 0 {
			f.put(key, revisions[key], "changed")
		} else {
			f.del(key, revisions[key])
		}
	}
	for i, start := range oddKeys {
		replaced, _, err := f.b.Replaced(f.ctx, contract.ReplacedQuery{Start: start,
			End: "\xff\xff\xff", At: at, After: at, Upto: f.seen.Revision})
		f.must(err)
		if len(replaced) != len(oddKeys)-i {
			f.Fatalf("%d keys were replaced from %q on, want %d", len(replaced), start,
				len(oddKeys)-i)
		}
		for _, r := range replaced {
			if r.Key < start || revisions[r.Key] != r.ID {
				f.Fatalf("replaced from %q on is %+v", start, r)
			}
		}
	}
}

func testValues(f *fixture) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	random := make([]byte, 100_000)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	values := [][]byte{{}, {0}, []byte("text"), []byte(" \t\n"),
		[]byte(`{"a":"\u0000 \\ ' \" ? $1 :x @y %s"}`), {0xff, 0xfe}, {0xc3, 0x28}, every, random}
	var ms []*contract.Mutation
	var want []contract.Row
	for i, v := range values {
		ms = append(ms, &contract.Mutation{Key: contract.Key(fmt.Sprintf("v%02d", i)), Value: v})
	}
	r := f.commit(ms...)
	for i, o := range r.Outcomes {
		want = append(want, contract.Row{Key: ms[i].Key, Revision: o.Revision, Create: o.Create,
			Version: 1,
			Value:   values[i]})
	}
	f.equal(f.log(contract.PrevOfAll)[1:], want)
	f.equal(f.page(contract.PageQuery{Start: "v", End: "w", Limit: 100}), want)
	f.getKeys(want)
	for i, o := range r.Outcomes {
		row, _, err := f.b.Get(f.ctx, ms[i].Key)
		f.must(err)
		if row == nil || !bytes.Equal(row.Value, values[i]) || row.Deleted {
			f.Errorf("get of value %d returned %+v", i, row)
		}
		if removed := f.commit(del(ms[i].Key,
			o.Revision)).Outcomes[0].PrevValue; !bytes.Equal(removed, values[i]) {
			f.Errorf("the deletion of value %d removed %s", i, brief(removed))
		}
	}
}

// getKeys reads the rows, and keys that do not exist, in one read, if the backend can.
func (f *fixture) getKeys(want []contract.Row) {
	r, ok := f.b.(contract.KeysReader)
	if !ok {
		return
	}
	keys := []contract.Key{"missing", "?"}
	for i := range want {
		keys = append(keys, want[i].Key)
	}
	slices.Reverse(keys)
	rows, s, err := r.GetKeys(f.ctx, keys)
	f.must(err)
	f.same(s, f.state())
	slices.SortFunc(rows, func(a, b contract.Row) int {
		return strings.Compare(string(a.Key), string(b.Key))
	})
	f.equal(rows, want)
	rows, s, err = r.GetKeys(f.ctx, nil)
	f.must(err)
	f.same(s, f.state())
	f.equal(rows, nil)
}

func testGet(f *fixture) {
	a := f.put("a", 0, "a1")
	a2 := f.put("a", a, "a2")
	row, s, err := f.b.Get(f.ctx, "a")
	f.must(err)
	f.same(s, f.state())
	if row == nil || row.Key != "a" || row.Revision != a2 || row.Create != a ||
		string(row.Value) != "a2" || row.Deleted {
		f.Errorf("get returned %+v", row)
	}
	f.del("a", a2)
	row, s, err = f.b.Get(f.ctx, "a")
	f.must(err)
	f.same(s, f.state())
	if row != nil {
		f.Errorf("get of a deleted key returned %+v", row)
	}
}

// testLease: every read of a row says how often the key was written and what it is attached to, and
// so does the row of its deletion.
func testLease(f *fixture) {
	const lease, another = 1<<63 - 1, 5
	f.grant(lease, another)
	a := f.commit(leased("a", 0, lease)).Outcomes[0].Revision
	b := f.commit(leased("a", a, another)).Outcomes[0].Revision
	first := contract.Row{Key: "a", Revision: a, Create: a, Version: 1, Lease: lease, Value: []byte{}}
	second := contract.Row{Key: "a", Revision: b, Create: a, Version: 2, Lease: another,
		Value: []byte{}}
	f.equal(f.page(contract.PageQuery{Start: "a", End: "b", Limit: 2}), []contract.Row{second})
	f.equal(f.page(contract.PageQuery{Start: "a", End: "b", Limit: 2, KeysOnly: true}),
		[]contract.Row{second})
	f.getKeys([]contract.Row{second})
	rows, _, err := f.b.Values(f.ctx, []contract.Revision{a})
	f.must(err)
	f.equal(rows, []contract.Row{first})
	row, _, err := f.b.Get(f.ctx, "a")
	f.must(err)
	second.Prev = a
	f.equal([]contract.Row{*row}, []contract.Row{second})
	o := f.commit(del("a", contract.Any)).Outcomes[0]
	if o.Prev != b || o.Create != a || o.Version != 3 || o.Lease != another {
		f.Errorf("the deletion is %+v", o)
	}
	second.HasPrev, second.PrevLease, second.PrevValue = true, lease, []byte{}
	f.equal(f.log(contract.PrevOfAll)[1:], []contract.Row{first, second, {Key: "a", Revision: o.Revision,
		Prev: b, Create: a, Version: 3, Lease: another, Deleted: true, HasPrev: true,
		PrevLease: another, PrevValue: []byte{}}})
	_, found, err := f.group(o)
	f.must(err)
	f.equal(found, []contract.Row{{Key: "a", Revision: o.Revision, Prev: b, Create: a, Version: 3,
		Lease: another, Deleted: true}})
}

// group reads the rows of the newest group, as they are looked for after an unknown outcome.
func (f *fixture) group(o contract.Outcome) (g contract.Guard, rows []contract.Row, err error) {
	err = f.b.Locked(f.ctx, contract.LockOptions{}, func(tx contract.Tx) (err error) {
		g, rows, err = tx.Group(f.seen.Token, o.Revision-1)
		return err
	})
	return g, rows, err
}

func testPage(f *fixture) {
	var want []contract.Row
	for i := range 20 {
		key := contract.Key(fmt.Sprintf("p/%02d", i))
		r := f.put(key, 0, fmt.Sprintf("value %d", i))
		want = append(want, contract.Row{Key: key, Revision: r, Create: r, Version: 1,
			Value: fmt.Appendf(nil, "value %d", i)})
	}
	f.put("p0", 0, "behind")
	f.put("p.", 0, "before")
	q := contract.PageQuery{Start: "p/", End: "p0", Limit: 7}
	for _, limit := range []int{1, 7, 19, 20, 21, 1000} {
		var got []contract.Row
		for q := (contract.PageQuery{Start: "p/", End: "p0", Limit: limit}); ; {
			rows := f.page(q)
			got = append(got, rows...)
			if len(rows) < limit {
				break
			}
			q.Start = rows[len(rows)-1].Key + "\x00"
		}
		f.equal(got, want)
	}
	// At leaves out what is newer, and does not let it count for the limit.
	middle := want[9].Revision
	q.At = middle
	f.equal(f.page(q), want[:7])
	q.Limit = 100
	f.equal(f.page(q), want[:10])
	newer := f.put(want[0].Key, want[0].Revision, "newer")
	f.equal(f.page(q), want[1:10])
	q.Limit = 2
	f.equal(f.page(q), want[1:3])
	q.At = newer
	q.KeysOnly = true
	rows := f.page(q)
	if len(rows) != 2 || rows[0].Revision != newer || rows[0].Create != want[0].Create ||
		len(rows[0].Value) != 0 || rows[1].Revision != want[1].Revision {
		f.Errorf("the keys are\n%s", describe(rows))
	}
	// Empty ranges.
	for _, q := range []contract.PageQuery{{Start: "p/05", End: "p/05", Limit: 5},
		{Start: "q", End: "r", Limit: 5}, {Start: "p/", End: "p0", At: 1, Limit: 5}} {
		if rows := f.page(q); len(rows) != 0 {
			f.Errorf("%+v has\n%s", q, describe(rows))
		}
	}
	p, err := f.b.Page(f.ctx, q)
	f.must(err)
	f.same(p.State, f.state())
}

func testCount(f *fixture) {
	var ms []*contract.Mutation
	for i := range 50 {
		ms = append(ms, put(contract.Key(fmt.Sprintf("c/%02d", i)), 0, "x"))
	}
	first := f.commit(ms...).Before.Revision
	for _, test := range []struct {
		start, end contract.Key
		at         contract.Revision
		limit      int64
		want       int64
	}{
		{"c/", "c0", 0, 0, 50},
		{"c/10", "c/20", 0, 0, 10},
		{"c/10", "c/20", 0, 10, 10},
		{"c/10", "c/20", 0, 11, 10},
		{"c/10", "c/20", 0, 9, 9},
		{"c/10", "c/10", 0, 0, 0},
		{"d", "e", 0, 5, 0},
		{"c/", "c0", first, 0, 0},
		{"c/", "c0", first + 1, 0, 1},
		{"c/", "c0", first + 30, 0, 30},
		{"c/", "c0", first + 30, 20, 20},
	} {
		n, s, err := f.b.Count(f.ctx, test.start, test.end, test.at, test.limit)
		f.must(err)
		f.same(s, f.state())
		if n != test.want {
			f.Errorf("[%q, %q) at %d with limit %d counts %d, want %d", test.start, test.end,
				test.at, test.limit, n, test.want)
		}
	}
}

func testReplaced(f *fixture) {
	setup := f.commit(put("a", 0, "a1"), put("b", 0, "b1"), put("c", 0, "c1"), put("d", 0, "d1"))
	a, b, d := setup.Outcomes[0].Revision, setup.Outcomes[1].Revision, setup.Outcomes[3].Revision
	at := f.seen.Revision
	a2 := f.put("a", a, "a2")
	f.put("a", a2, "a3")
	bd := f.del("b", b)
	f.put("b", 0, "b again")
	e := f.put("e", 0, "e1")
	f.put("e", e, "e2")
	d2 := f.put("d", d, "d2")
	head := f.seen.Revision

	for _, test := range []struct {
		q    contract.ReplacedQuery
		want []contract.Replaced
	}{
		{contract.ReplacedQuery{Start: "a", End: "z", At: at, After: at, Upto: head},
			[]contract.Replaced{{Key: "a", ID: a}, {Key: "b", ID: b},
				{Key: "d", ID: d}}},
		{contract.ReplacedQuery{Start: "b", End: "d", At: at, After: at, Upto: head},
			[]contract.Replaced{{Key: "b", ID: b}}},
		{contract.ReplacedQuery{Start: "b\x00", End: "d", At: at, After: at, Upto: head}, nil},
		{contract.ReplacedQuery{Start: "a", End: "z", At: at, After: at, Upto: bd},
			[]contract.Replaced{{Key: "a", ID: a}, {Key: "b", ID: b}}},
		{contract.ReplacedQuery{Start: "a", End: "z", At: at, After: at, Upto: bd - 1},
			[]contract.Replaced{{Key: "a", ID: a}}},
		{contract.ReplacedQuery{Start: "a", End: "z", At: at, After: d2 - 1, Upto: head},
			[]contract.Replaced{{Key: "d", ID: d}}},
		{contract.ReplacedQuery{Start: "a", End: "z", At: at, After: head, Upto: head}, nil},
		{contract.ReplacedQuery{Start: "a", End: "z", At: at, After: at, Upto: head + 1000},
			[]contract.Replaced{{Key: "a", ID: a}, {Key: "b", ID: b},
				{Key: "d", ID: d}}},
		// At a later snapshot the second value of a is what was replaced.
		{contract.ReplacedQuery{Start: "a", End: "b", At: a2, After: a2, Upto: head},
			[]contract.Replaced{{Key: "a", ID: a2}}},
		// Below the first key nothing was there.
		{contract.ReplacedQuery{Start: "a", End: "z", At: 1, After: 1, Upto: head}, nil},
	} {
		got, s, err := f.b.Replaced(f.ctx, test.q)
		f.must(err)
		f.same(s, f.state())
		slices.SortFunc(got, func(x, y contract.Replaced) int {
			return bytes.Compare([]byte(x.Key), []byte(y.Key))
		})
		if !slices.Equal(got, test.want) {
			f.Errorf("%+v has %v, want %v", test.q, got, test.want)
		}
	}
}

func testValuesByRevision(f *fixture) {
	const rows = 3000
	var ms []*contract.Mutation
	want := map[contract.Revision]contract.Row{}
	limit := f.b.Limits().GroupMutations
	for i := range rows {
		ms = append(ms, put(contract.Key(fmt.Sprintf("k%05d", i)), 0, fmt.Sprintf("value %d", i)))
		if len(ms) == limit || i == rows-1 {
			for j, o := range f.commit(ms...).Outcomes {
				want[o.Revision] = contract.Row{Key: ms[j].Key, Revision: o.Revision, Create: o.Create,
					Version: 1,
					Value:   ms[j].Value}
			}
			ms = nil
		}
	}
	first := want[2]
	tombstone := f.del(first.Key, first.Revision)
	for _, n := range []int{0, 1, 2, 100, 1000, rows} {
		asked := []contract.Revision{}
		for i := range n {
			asked = append(asked, contract.Revision(2+(i*7919)%rows))
		}
		got, s, err := f.b.Values(f.ctx, append(asked, f.seen.Revision+5, 1<<40))
		f.must(err)
		f.same(s, f.state())
		if len(got) != n {
			f.Fatalf("%d values for %d revisions", len(got), n)
		}
		for _, r := range got {
			w := want[r.Revision]
			if r.Key != w.Key || r.Create != w.Create || !bytes.Equal(r.Value, w.Value) {
				f.Fatalf("the row is %s", describe([]contract.Row{r}))
			}
		}
	}
	// A tombstone is a row without a value; a row that was swept is none.
	f.put("last", 0, "x")
	got, _, err := f.b.Values(f.ctx, []contract.Revision{tombstone, first.Revision})
	f.must(err)
	if len(got) != 2 {
		f.Errorf("the rows are\n%s", describe(got))
	}
	f.compact(f.seen.Revision, 10_000)
	got, _, err = f.b.Values(f.ctx, []contract.Revision{tombstone, first.Revision})
	f.must(err)
	if len(got) != 0 {
		f.Errorf("the swept rows are\n%s", describe(got))
	}
}

func testTail(f *fixture) {
	a := f.put("a", 0, "a1")
	a2 := f.put("a", a, "a2")
	ad := f.del("a", a2)
	b := f.put("b", 0, "b1")
	b2 := f.put("b", b, "b2")
	all := []contract.Row{
		{Revision: 1, Deleted: true},
		{Key: "a", Revision: a, Create: a, Version: 1, Value: []byte("a1")},
		{Key: "a", Revision: a2, Prev: a, Create: a, Version: 2, Value: []byte("a2")},
		{Key: "a", Revision: ad, Prev: a2, Create: a, Version: 3, Deleted: true, HasPrev: true,
			PrevValue: []byte("a2")},
		{Key: "b", Revision: b, Create: b, Version: 1, Value: []byte("b1")},
		{Key: "b", Revision: b2, Prev: b, Create: b, Version: 2, Value: []byte("b2")},
	}
	withPrev := slices.Clone(all)
	withPrev[2].HasPrev, withPrev[2].PrevValue = true, []byte("a1")
	withPrev[5].HasPrev, withPrev[5].PrevValue = true, []byte("b1")
	for from := contract.Revision(1); from <= b2+2; from++ {
		for _, limit := range []int{1, 2, 3, 100} {
			for _, prev := range []contract.Prev{contract.PrevOfDeletions, contract.PrevOfAll} {
				want := all
				if prev == contract.PrevOfAll {
					want = withPrev
				}
				want = want[min(int(from)-1, len(want)):]
				want = want[:min(limit, len(want))]
				tail, err := f.b.Tail(f.ctx, from, limit, prev)
				f.must(err)
				f.same(tail.State, f.state())
				f.equal(tail.Rows, want)
				for _, r := range tail.Rows {
					if r.Token == (contract.Token{}) || r.Time.Before(time.Now().Add(-24*time.Hour)) {
						f.Fatalf("row %d has token %x and time %v", r.Revision, r.Token, r.Time)
					}
				}
			}
		}
	}
	// Previous values that were swept are not there, and neither are the rows.
	f.compact(a2, 100)
	tail, err := f.b.Tail(f.ctx, 1, 100, contract.PrevOfAll)
	f.must(err)
	want := slices.Clone(withPrev[2:])
	want[0].HasPrev, want[0].PrevValue = false, nil
	f.equal(tail.Rows, want)
	if tail.State.Compacted != a2 {
		f.Errorf("the tail says that %d is compacted, want %d", tail.State.Compacted, a2)
	}
}

func testFirstAt(f *fixture) {
	a := f.put("a", 0, "a1")
	a2 := f.put("a", a, "a2")
	a3 := f.put("a", a2, "a3")
	at := func(r, want contract.Revision) {
		f.Helper()
		row, err := f.b.FirstAt(f.ctx, r)
		f.must(err)
		switch {
		case want == 0 && row != nil:
			f.Errorf("the first row at %d is %d", r, row.Revision)
		case want != 0 && (row == nil || row.Revision != want ||
			row.Time.Before(time.Now().Add(-24*time.Hour))):
			f.Errorf("the first row at %d is %+v, want %d", r, row, want)
		}
	}
	at(0, 1)
	at(1, 1)
	at(a, a)
	at(a3, a3)
	at(a3+1, 0)
	f.compact(a3, 100)
	at(1, a3)
	at(a2, a3)
}

func testExpired(f *fixture) {
	with := func(m *contract.Mutation, ttl time.Duration) *contract.Mutation {
		m.TTL = ttl
		return m
	}
	r := f.commit(
		with(put("third", 0, "x"), 30*time.Millisecond),
		with(put("first", 0, "x"), 10*time.Millisecond),
		with(put("later", 0, "x"), time.Hour),
		put("never", 0, "x"),
		with(put("second", 0, "x"), 20*time.Millisecond),
		with(put("extended", 0, "x"), time.Millisecond),
		with(put("kept", 0, "x"), time.Millisecond),
		with(put("deleted", 0, "x"), time.Millisecond),
	)
	rev := map[contract.Key]contract.Revision{}
	for i, key := range []contract.Key{"third", "first", "later", "never", "second", "extended", "kept",
		"deleted"} {
		rev[key] = r.Outcomes[i].Revision
	}
	f.commit(with(put("extended", rev["extended"], "y"), 2*time.Hour),
		put("kept", rev["kept"], "y"), del("deleted", rev["deleted"]))

	f.eventually("three keys to expire", func() bool {
		keys, next, err := f.b.Expired(f.ctx, 100)
		f.must(err)
		want := []contract.Expired{{Key: "first", Revision: rev["first"]},
			{Key: "second", Revision: rev["second"]}, {Key: "third", Revision: rev["third"]}}
		if len(keys) > len(want) || !slices.Equal(keys, want[:len(keys)]) {
			f.Fatalf("the expired keys are %v", keys)
		}
		if len(keys) < len(want) {
			if next <= 0 || next > time.Second {
				f.Fatalf("%d keys have expired and the next does in %v", len(keys), next)
			}
			return false
		}
		if next <= 30*time.Minute || next > time.Hour {
			f.Fatalf("the next key expires in %v, want about an hour", next)
		}
		return true
	})
	for limit := 1; limit <= 3; limit++ {
		keys, next, err := f.b.Expired(f.ctx, limit)
		f.must(err)
		if len(keys) != limit || next <= 0 || keys[0].Key != "first" {
			f.Errorf("with limit %d the expired keys are %v, and the next expires in %v", limit,
				keys, next)
		}
	}
	// Expired keys are not hidden: their deletion is an event of its own.
	if rows := f.page(contract.PageQuery{Start: "first", End: "first\x00", Limit: 1}); len(rows) != 1 {
		f.Error("an expired key is hidden")
	}
	f.commit(del("first", rev["first"]), del("second", rev["second"]), del("third", rev["third"]),
		del("later", rev["later"]))
	keys, next, err := f.b.Expired(f.ctx, 100)
	f.must(err)
	if len(keys) != 0 || next <= time.Hour || next > 2*time.Hour {
		f.Errorf("the expired keys are %v, and the next expires in %v", keys, next)
	}
}

func testSize(f *fixture) {
	if f.db.Unsized != "" {
		f.Skip(f.db.Unsized)
	}
	for i := range 10 {
		f.commit(&contract.Mutation{Key: contract.Key(fmt.Sprintf("s%d", i)),
			Value: bytes.Repeat([]byte("0123456789abcdef"), 4096)})
	}
	s, err := f.b.Size(f.ctx)
	f.must(err)
	if s.Total <= 0 || s.Live < 0 || s.Live > s.Total {
		f.Errorf("the size is %+v", s)
	}
}

// testPoll: a poll tells the state, the quota, and what expires next, of each store that is asked
// for.
func testPoll(f *fixture) {
	shared, ok := f.b.(contract.Shared)
	if !ok {
		f.Skip("the backend shares no connections")
	}
	poll := func(due int) contract.Polled {
		f.Helper()
		polled, err := shared.Poll(f.ctx, []contract.Backend{f.b, f.b}, due)
		f.must(err)
		if len(polled) != 2 {
			f.Fatalf("there are %d answers", len(polled))
		}
		for _, p := range polled {
			f.must(p.Err)
			f.same(p.State, f.state())
		}
		return polled[0]
	}
	if polled, err := shared.Poll(f.ctx, []contract.Backend{f.b, f.b}, 2); err != nil ||
		polled[1].Due != contract.Never {
		f.Errorf("a store that is asked for twice: %+v, %v", polled, err)
	}
	near := func(due, want time.Duration) {
		f.Helper()
		if due < want-time.Minute || due > want {
			f.Errorf("what expires next does so in %s, want %s", due, want)
		}
	}
	if p := poll(1); p.Quota != (contract.Quota{}) || p.Due != contract.Never {
		f.Errorf("of an empty store a poll tells %+v", p)
	}
	quota := contract.Quota{Objects: 7, Bytes: 1 << 40}
	f.must(contract.SetQuota(f.ctx, f.b, quota))
	f.put("stays", 0, "x")
	if p := poll(0); p.Quota != quota {
		f.Errorf("the quota is %+v, want %+v", p.Quota, quota)
	}
	expires := put("expires", 0, "x")
	expires.TTL = 3 * time.Hour
	f.commit(expires)
	near(poll(1).Due, 3*time.Hour)
	for i, hours := range []int64{5, 2} {
		granted, _, err := contract.GrantLeases(f.ctx, f.b,
			[]*contract.LeaseRow{{Lease: contract.Lease(8 + i), TTL: hours * 3600}})
		if f.must(err); !granted[0] {
			f.Fatal("the lease was not granted")
		}
		f.commit(leased(contract.Key(fmt.Sprint("leased", i)), 0, contract.Lease(8+i)))
		near(poll(1).Due, time.Duration(min(hours, 3))*time.Hour)
	}
	soon := put("soon", 0, "x")
	soon.TTL = time.Millisecond
	f.commit(soon)
	f.eventually("the key to expire", func() bool { return poll(1).Due <= 0 })
	f.must(contract.SetQuota(f.ctx, f.b, contract.Quota{}))

	ended, end := context.WithCancel(f.ctx)
	end()
	_, err := shared.Poll(ended, []contract.Backend{f.b}, 0)
	f.is(err, contract.Unavailable)
	if _, err := contract.Drop(f.ctx, f.b); err != nil {
		f.Fatal(err)
	}
	polled, err := shared.Poll(f.ctx, []contract.Backend{f.b}, 1)
	f.must(err)
	if p := polled[0]; p.Err != nil || !p.State.Dropped() {
		f.Errorf("of a dropped store a poll tells %+v", p)
	}
}
