package postgres_test

import (
	"fmt"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestSweepLeavesTheStoreRow: a version of the store row for each batch of the sweep would make
// commits slow while somebody holds a snapshot. Another process sweeps again what was not recorded.
func TestSweepLeavesTheStoreRow(t *testing.T) {
	database := migrated(t)
	b, conn := openURL(t, database), connect(t, database)
	defer b.Close()
	seen := head(t, b)
	for n := range 5 {
		g := &contract.Group{Token: newToken(), Seen: seen}
		for i := range 100 {
			expect := contract.Revision(0)
			if n > 0 {
				expect = seen.Revision - 99 + contract.Revision(i)
			}
			g.Mutations = append(g.Mutations, &contract.Mutation{Key: contract.Key(fmt.Sprintf("%03d", i)),
				Expect: expect, Value: []byte("v")})
		}
		res, err := b.Commit(t.Context(), g)
		if err != nil || !res.Outcomes[99].Accepted {
			t.Fatal(res, err)
		}
		seen = res.State.Head
	}
	if _, err := contract.RaiseCompacted(t.Context(), b, seen.Revision); err != nil {
		t.Fatal(err)
	}
	version := func() (v string) {
		if err := conn.QueryRow(t.Context(),
			`SELECT ctid::text FROM rowkeeper_store`).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	sweep := func(b contract.Backend) (int, contract.State) {
		n, s, err := contract.SweepBatch(t.Context(), b, 5)
		if err != nil {
			t.Fatal(err)
		}
		return n, s
	}
	before, changes, deleted := version(), 0, 0
	const batches = 80
	for range batches {
		n, _ := sweep(b)
		deleted += n
		if now := version(); now != before {
			before = now
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("%d batches have changed the store row %d times", batches, changes)
	}
	other := openURL(t, database)
	defer other.Close()
	for _, b := range []contract.Backend{other, b} {
		for s := (contract.State{Compacted: 1}); s.Swept < s.Compacted; {
			var n int
			n, s = sweep(b)
			deleted += n
		}
	}
	// All but the newest of each key, and the first marker.
	if deleted != 401 {
		t.Errorf("%d rows were deleted", deleted)
	}
	if s, err := b.State(t.Context()); err != nil || s.Swept != seen.Revision {
		t.Errorf("%+v, %v", s, err)
	}
}
