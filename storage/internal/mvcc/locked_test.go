package mvcc_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestResolutionIsDurable: a transaction that only reads may see what is not durable yet. One that
// finds a group's rows writes something, and so is committed only after them.
func TestResolutionIsDurable(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		b := openBackend(t, db)
		defer b.Close()
		st, err := b.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		g := &contract.Group{Token: contract.Token{1}, Seen: st.Head,
			Mutations: []*contract.Mutation{{Key: "/k", Value: []byte("x")}}}
		if _, err := b.Commit(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		w := &writes{Backend: b}
		r, err := contract.ResolveGroup(t.Context(), w, g.Token, g.Seen)
		if err != nil || !r.Committed {
			t.Fatalf("the resolution is %+v, %v", r, err)
		}
		if w.n != 1 {
			t.Errorf("the transaction that found the rows has written %d times, want once", w.n)
		}
		// Its rows end no group, and are forgotten.
		if r, err := contract.ResolveGroup(t.Context(), b, g.Token, g.Seen); err != nil || r.Aborted {
			t.Errorf("the second resolution is %+v, %v", r, err)
		}
	})
}

// writes counts the writes of transactions.
type writes struct {
	contract.Backend
	n int
}

func (w *writes) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	return w.Backend.Locked(ctx, o, func(tx contract.Tx) error { return f(&counting{tx, w}) })
}

type counting struct {
	contract.Tx
	writes *writes
}

func (c *counting) Abort(token contract.Token, seen contract.Revision) error {
	c.writes.n++
	return c.Tx.Abort(token, seen)
}

// deadlocked is a backend whose first transaction the database undoes.
type deadlocked struct {
	contract.Backend
	done atomic.Bool
}

func (d *deadlocked) Locked(ctx context.Context, o contract.LockOptions, f func(contract.Tx) error) error {
	if d.done.CompareAndSwap(false, true) {
		return contract.Errorf(contract.Transient, "a deadlock")
	}
	return d.Backend.Locked(ctx, o, f)
}

// TestOpenTriesAgain: of processes that begin at the same time, none gives up for the others.
func TestOpenTriesAgain(t *testing.T) {
	d := &deadlocked{Backend: openBackend(t, inMemory(t))}
	s, err := mvcc.Open(t.Context(), d, mvcc.Config{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !d.done.Load() {
		t.Error("the store was opened without a transaction")
	}
}
