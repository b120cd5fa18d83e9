package memdb

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// tables is a version of what the database holds; see mvcc's documentation for what the tables
// mean.
type tables struct {
	// log is in the order of revisions. Versions share its array: a later one has rows behind the
	// end of an earlier one, where that does not look.
	log []mvcc.Row
	// live is in the order of keys. Each version has its own.
	live []liveRow
	// leases is in the order of IDs. Versions may share it, so it is never changed.
	leases []mvcc.LeaseRow
	// aborted is in the order of recording.
	aborted []abortedRow
	store   storeRow
}

type liveRow struct {
	key              mvcc.Key
	revision, create mvcc.Revision
	version          int64
	lease            mvcc.Lease
	// expiry is in microseconds since 1970, 0 for never, or the negative of the lease.
	expiry int64
}

type abortedRow struct {
	token mvcc.Token
	// seen is the revision that the token's group had seen.
	seen mvcc.Revision
}

type storeRow struct {
	identity, fingerprint, boot string
	epoch                       mvcc.Epoch
	compacted, swept            mvcc.Revision
	quota                       mvcc.Quota
}

// next returns a version that begins as a copy of t, for the holder of the commit lock.
func (t *tables) next() *tables {
	n := *t
	n.live = slices.Clone(t.live)
	return &n
}

// state is the state of the version, at a time by the database's clock.
func (t *tables) state(now time.Time) mvcc.State {
	head := &t.log[len(t.log)-1]
	return mvcc.State{
		Head:      mvcc.Position{Epoch: t.store.epoch, Revision: head.Revision, Token: head.Token},
		Compacted: t.store.compacted, Swept: t.store.swept, Writable: true, Now: now,
	}
}

// from returns the rows of the log with the revision and greater ones.
func (t *tables) from(r mvcc.Revision) []mvcc.Row {
	i, _ := t.place(r)
	return t.log[i:]
}

func (t *tables) place(r mvcc.Revision) (i int, found bool) {
	return slices.BinarySearchFunc(t.log, r, func(row mvcc.Row, r mvcc.Revision) int {
		return cmp.Compare(row.Revision, r)
	})
}

// row returns the row of the log at the revision, nil if there is none.
func (t *tables) row(r mvcc.Revision) *mvcc.Row {
	if i, found := t.place(r); found {
		return &t.log[i]
	}
	return nil
}

// between returns the live rows in [start, end).
func (t *tables) between(start, end mvcc.Key) []liveRow {
	i, _ := t.livePlace(start)
	j, _ := t.livePlace(end)
	return t.live[i:max(i, j)]
}

func (t *tables) livePlace(k mvcc.Key) (i int, found bool) {
	return slices.BinarySearchFunc(t.live, k, func(l liveRow, k mvcc.Key) int {
		return strings.Compare(string(l.key), string(k))
	})
}

// current returns a key's live row, the zero one if it does not exist.
func (t *tables) current(k mvcc.Key) liveRow {
	if i, found := t.livePlace(k); found {
		return t.live[i]
	}
	return liveRow{}
}

// lease returns a lease, and whether it is there.
func (t *tables) lease(l mvcc.Lease) (mvcc.LeaseRow, bool) {
	i, found := slices.BinarySearchFunc(t.leases, l, func(r mvcc.LeaseRow, l mvcc.Lease) int {
		return cmp.Compare(r.Lease, l)
	})
	if !found {
		return mvcc.LeaseRow{}, false
	}
	return t.leases[i], true
}

// isAborted tells whether the token is recorded.
func (t *tables) isAborted(token mvcc.Token) bool {
	return slices.ContainsFunc(t.aborted, func(a abortedRow) bool { return a.token == token })
}

// guard reads what [mvcc.CheckGroup] and [mvcc.Resolve] ask for, in state st.
func (t *tables) guard(st mvcc.State, token mvcc.Token, at mvcc.Revision) mvcc.Guard {
	return mvcc.Guard{State: st, Aborted: t.isAborted(token), At: t.token(at)}
}

// token returns the token of the row at the revision, zero if there is none.
func (t *tables) token(at mvcc.Revision) (token mvcc.Token) {
	if r := t.row(at); r != nil {
		token = r.Token
	}
	return token
}

// append adds a row to the log, where the primary key allows it: behind the last one.
func (t *tables) append(r mvcc.Row) error {
	if n := len(t.log); n > 0 && t.log[n-1].Revision >= r.Revision {
		last := t.log[n-1].Revision
		return mvcc.Errorf(mvcc.Data, "revision %d comes after revision %d", r.Revision, last)
	}
	if !r.Deleted && r.Value == nil {
		r.Value = []byte{}
	}
	t.log = append(t.log, r)
	return nil
}

// insert adds a live row of a key that does not exist.
func (t *tables) insert(l liveRow) error {
	i, found := t.livePlace(l.key)
	if found {
		return mvcc.Errorf(mvcc.Data, "the key %q exists already", string(l.key))
	}
	t.live = slices.Insert(t.live, i, l)
	return nil
}

// remove removes a key's live row.
func (t *tables) remove(k mvcc.Key) {
	if i, found := t.livePlace(k); found {
		t.live = slices.Delete(t.live, i, i+1)
	}
}

// keep removes the rows of the log for which f returns false, and returns how many these were.
func (t *tables) keep(f func(*mvcc.Row) bool) (removed int) {
	kept := make([]mvcc.Row, 0, len(t.log))
	for i := range t.log {
		if f(&t.log[i]) {
			kept = append(kept, t.log[i])
		}
	}
	removed = len(t.log) - len(kept)
	t.log = kept
	return removed
}
