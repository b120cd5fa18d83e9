package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// store is a store as a source. It is used below the engine: servers are refused when it is closed,
// and a move is not.
type store struct {
	b contract.Backend
	// home is what the store is closed with, if it belongs to a directory.
	home contract.Home
}

// Store is a store of Rowkeeper as a source.
func Store(ctx context.Context, c Config) (*Source, error) {
	c.RefuseLost = true
	b, err := database.OpenBackend(ctx, c)
	if err != nil {
		return nil, err
	}
	return &Source{&store{b: b}}, nil
}

// StoreOf is a store of a directory as a source, which is closed with a home. The backend is not
// closed with the source.
func StoreOf(b contract.Backend, home contract.Home) *Source {
	return &Source{&storeOf{store{b: b, home: home}}}
}

// storeOf leaves its backend open.
type storeOf struct{ store }

func (s *storeOf) Close() error { return nil }

func (s *store) Close() error { return s.b.Close() }

func (s *store) identity(ctx context.Context) (string, error) {
	id, err := s.b.Identity(ctx)
	return "the store " + id.Store, err
}

func (s *store) state(ctx context.Context) (contract.State, error) {
	st, err := s.b.State(ctx)
	if err == nil && !st.Writable {
		err = errors.New("the source's database is read-only (a standby, or not promoted yet), and " +
			"its answers may be late: name the primary")
	}
	return st, err
}

func (s *store) fenced(ctx context.Context) (bool, error) {
	st, err := s.state(ctx)
	return st.Dropped(), err
}

func (s *store) newest(ctx context.Context) (contract.Revision, error) {
	st, err := s.state(ctx)
	return st.Head.Revision, err
}

func (s *store) fence(ctx context.Context) error {
	if s.home != (contract.Home{}) {
		return contract.CloseFor(ctx, s.b, s.home)
	}
	_, err := contract.CloseStore(ctx, s.b)
	return err
}

func (s *store) unfence(ctx context.Context) (bool, error) { return contract.ReopenStore(ctx, s.b) }

func (s *store) count(ctx context.Context) (n int64, err error) {
	err = s.b.Snapshot(ctx, func(_ context.Context, snap contract.Snapshot) error {
		n, err = snap.Keys()
		return err
	})
	return n, err
}

func (s *store) all(ctx context.Context, clock clock,
	each func(*contract.Record) error) (w whole, err error) {
	now, err := clock(ctx)
	if err != nil {
		return w, err
	}
	err = s.b.Snapshot(ctx, func(_ context.Context, snap contract.Snapshot) (err error) {
		st := snap.State()
		w.at = position{st.Head.Epoch, st.Head.Revision}
		if w.leases, err = snap.AllLeases(); err != nil {
			return err
		}
		for i := range w.leases {
			if w.leases[i].Expiry > 0 { // the time that is left is what counts
				w.leases[i].Expiry += now.UnixMicro() - st.Now.UnixMicro()
			}
		}
		return snap.Records(func(r *contract.Record) error {
			if err := movable(r.Key); err != nil {
				return err
			}
			return each(r)
		})
	})
	return w, err
}

// movable refuses what Rowkeeper itself has recorded, which speaks of its own database.
func movable(key contract.Key) error {
	if strings.HasPrefix(string(key), contract.Reserved) {
		return fmt.Errorf("the source has the key %q, in which Rowkeeper records in which other "+
			"stores of its database it keeps resources: move these back by `rowkeeper stores move` "+
			"first, or restore a backup in place of a move", string(key))
	}
	return nil
}

// tailRows is how many rows of the log are read at a time.
const tailRows = 500

func (s *store) follow(ctx context.Context, after position, _ clock,
	each func([]change, position, contract.Revision) error) error {
	for {
		t, err := s.tail(ctx, after)
		if err != nil {
			return err
		}
		var changes []change
		for i := range t.Rows {
			r := &t.Rows[i]
			if after.Revision = r.Revision; r.Marker() {
				continue
			}
			if err := movable(r.Key); err != nil {
				return err
			}
			c := change{key: r.Key}
			if !r.Deleted {
				c.record = &contract.Record{Key: r.Key, Revision: r.Revision, Part: r.Part,
					Create: r.Create, Version: r.Version, Lease: r.Lease, Value: r.Value}
			}
			changes = append(changes, c)
		}
		if err := each(changes, after, t.State.Head.Revision); err != nil {
			return err
		}
		if after.Revision < t.State.Head.Revision {
			continue
		}
		if !wait(ctx, followPause) {
			return nil
		}
	}
}

// tail reads rows after a position, each with the parts of its transaction before it. Parts are
// committed with their rows, and so they are there, unless compaction has passed them.
func (s *store) tail(ctx context.Context, after position) (*contract.Tail, error) {
	t, err := s.b.Tail(ctx, after.Revision+1, tailRows, contract.PrevOfDeletions)
	if err != nil {
		return nil, err
	}
	lacks := 0
	for i := range t.Rows {
		lacks += t.Rows[i].Parts()
	}
	var parts []contract.Row
	for below := contract.Lowest(after.Revision); len(parts) < lacks; {
		p, err := s.b.Parts(ctx, below, t.Rows[len(t.Rows)-1].Revision, lacks-len(parts),
			contract.PrevOfDeletions)
		if err != nil {
			return nil, err
		}
		if len(p.Rows) == 0 {
			return nil, errPassed
		}
		parts, below = append(parts, p.Rows...), p.Rows[len(p.Rows)-1].ID()
	}
	// The answers' compacted revision is read after the rows: it was no greater then.
	st, err := s.state(ctx)
	switch {
	case err != nil:
		return nil, err
	case st.Dropped():
		return nil, errors.New("the source was dropped, or another move has ended it")
	case st.Head.Epoch != after.Epoch || st.Compacted > after.Revision+1:
		return nil, errPassed
	}
	var rows []contract.Row
	for i := range t.Rows {
		r := &t.Rows[i]
		for n := r.Parts(); n > 0; n-- {
			rows, parts = append(rows, parts[0]), parts[1:]
		}
		rows = append(rows, *r)
	}
	t.Rows = rows
	return t, nil
}

// wait returns false if the context ends first.
func wait(ctx context.Context, d time.Duration) bool {
	contract.Wait(ctx, d)
	return ctx.Err() == nil
}
