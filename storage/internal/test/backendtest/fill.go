package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// testFill: a store that is filled is closed until the end, holds what was written below its head,
// and has its turns. What is undone is new again.
func testFill(f *fixture) {
	held := func() (all []string) {
		f.must(f.b.Snapshot(f.ctx, func(_ context.Context, s contract.Snapshot) error {
			return s.Records(func(r *contract.Record) error {
				all = append(all, fmt.Sprintf("%s@%d=%s/%d", r.Key, r.ID(), r.Value, r.Expiry))
				return nil
			})
		}))
		return all
	}
	holds := func(want ...string) {
		f.Helper()
		if got := held(); !slices.Equal(got, want) {
			f.Errorf("it holds %v, want %v", got, want)
		}
	}
	record := func(key contract.Key, r contract.Revision, part int, value string) contract.Record {
		return contract.Record{Key: key, Revision: r, Part: part, Create: 2, Version: 1,
			Value: []byte(value)}
	}
	take := func(seen contract.Revision) *contract.Fill {
		f.Helper()
		fill, err := contract.TakeFill(f.ctx, f.b, []byte("first"), seen, contract.Home{})
		f.must(err)
		return fill
	}
	first := take(0)
	if _, err := f.try(newToken(), f.seen, put("new", 0, "value")); !errors.Is(err, contract.ErrDropped) {
		f.Errorf("a group while the store is filled: %v", err)
	}
	e := record("e", 9, 0, "e")
	e.Expiry = 4_000_000_000_000_000
	f.must(first.Write(f.ctx, []contract.Key{"none"}, []contract.Record{record("p", 5, 1, "p"),
		record("a", 5, 0, "a"), record("b", 7, 0, "b"), e}, nil))
	// Rows come in the place of others, before and after what is there.
	f.must(first.Write(f.ctx, []contract.Key{"b", "e"}, []contract.Record{record("p", 6, 1, "q"),
		record("a", 4, 0, "c"), record("d", 7, 0, "d")}, []byte("second")))
	mark := "rowkeeper/move@-513=second/0"
	holds(mark, "p@-3073=q/0", "a@4=c/0", "d@7=d/0")

	second := take(1 << 60)
	if err := first.Write(f.ctx, []contract.Key{"a"}, nil, nil); !errors.Is(err, contract.ErrTaken) {
		f.Errorf("a turn that is over has written: %v", err)
	}
	if _, err := first.End(f.ctx, 0, nil, contract.Settled{}); !errors.Is(err, contract.ErrTaken) {
		f.Errorf("a turn that is over has ended: %v", err)
	}
	if err := second.Write(f.ctx, nil, []contract.Record{record("a", 1<<61, 0, "a")},
		nil); !errors.Is(err, contract.ErrOutgrown) {
		f.Errorf("what is beyond the head was written: %v", err)
	}
	holds(mark, "p@-3073=q/0", "a@4=c/0", "d@7=d/0")
	if found, st, err := contract.FillRecord(f.ctx, f.b); string(found) != "second" || err != nil ||
		!st.Dropped() || st.Head.Revision <= 1<<60 {
		f.Errorf("the record is %q, the state %+v, %v", found, st, err)
	}

	undone, err := contract.UndoFill(f.ctx, f.b)
	f.must(err)
	if again, err := contract.UndoFill(f.ctx, f.b); !undone || again || err != nil {
		f.Errorf("undone: %t, again: %t, %v", undone, again, err)
	}
	holds()
	if err := second.Write(f.ctx, nil, nil, nil); !errors.Is(err, contract.ErrTaken) {
		f.Errorf("a turn that was undone has written: %v", err)
	}
	third := take(0)
	f.must(third.Write(f.ctx, nil, []contract.Record{record("a", 4, 0, "c")}, nil))
	st, err := third.End(f.ctx, 1<<60, []contract.LeaseRow{{Lease: 3, TTL: 5, Expiry: 7}}, contract.Settled{})
	f.must(err)
	f.same(f.state(), st)
	if st.Dropped() || st.Head.Revision <= 1<<60 || st.Compacted != st.Head.Revision {
		f.Errorf("the state is %+v", st)
	}
	holds("a@4=c/0")
	if l, _, err := f.b.Leases(f.ctx, 1, 10); err != nil || len(l) != 1 || l[0].TTL != 5 {
		f.Errorf("the leases are %+v, %v", l, err)
	}
	if _, err := contract.TakeFill(f.ctx, f.b, nil, 0, contract.Home{}); !errors.Is(err, contract.ErrNotNew) {
		f.Errorf("a store was filled that was in use: %v", err)
	}

	f.seen = st.Head
	for _, want := range []bool{true, false} {
		if closed, err := contract.CloseStore(f.ctx, f.b); closed != want || err != nil {
			f.Errorf("closed: %t, %v", closed, err)
		}
	}
	if _, err := f.try(newToken(), f.seen, put("new", 0, "value")); !errors.Is(err, contract.ErrDropped) {
		f.Errorf("a group after the store was closed: %v", err)
	}
	if _, err := contract.TakeFill(f.ctx, f.b, nil, 0, contract.Home{}); !errors.Is(err, contract.ErrDropped) {
		f.Errorf("a store was filled that was closed: %v", err)
	}
	for _, want := range []bool{true, false} {
		if opened, err := contract.ReopenStore(f.ctx, f.b); opened != want || err != nil {
			f.Errorf("opened: %t, %v", opened, err)
		}
	}
	holds("a@4=c/0")
	f.seen = f.state().Head
	f.put("new", 0, "value")
}
