package memdb

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// tables is a version of what the database holds; see mvcc's documentation for what the tables
// mean.
type tables struct {
	// log is in the order of revisions, and has no parts of transactions. Versions share its array:
	// a later one has rows behind the end of an earlier one, where that does not look. parts is
	// like it.
	log, parts []contract.Row
	// said are the entries that the log has with its rows, of the keys before these were written.
	// Each version has its own.
	said map[contract.RowID][]contract.Entry
	// users are those of rows of the log. Each version has its own.
	users map[contract.RowID]contract.User
	// live is in the order of keys. Each version has its own.
	live []liveRow
	// leases is in the order of IDs. Versions may share it, so it is never changed.
	leases []contract.LeaseRow
	// aborted is in the order of recording.
	aborted []abortedRow
	// directories are never changed: versions may share them.
	directories []contract.Directory
	store       storeRow
}

type liveRow struct {
	key     contract.Key
	id      contract.RowID
	create  contract.Revision
	version int64
	lease   contract.Lease
	// expiry is in microseconds since 1970, 0 for never, or the negative of the lease.
	expiry int64
	// entries are those of the indexes. Versions share them.
	entries []contract.Entry
}

type abortedRow struct {
	token contract.Token
	// seen is the revision that the token's group had seen.
	seen contract.Revision
}

type storeRow struct {
	identity, fingerprint, boot string
	home                        string
	epoch                       contract.Epoch
	compacted, swept            contract.Revision
	quota                       contract.Quota
	indexes                     contract.Indexes
}

// next returns a version that begins as a copy of t, for the holder of the commit lock.
func (t *tables) next() *tables {
	n := *t
	n.live, n.said, n.users = slices.Clone(t.live), maps.Clone(t.said), maps.Clone(t.users)
	return &n
}

// state is the state of the version, at a time by the database's clock.
func (t *tables) state(now time.Time) contract.State {
	head := &t.log[len(t.log)-1]
	return contract.State{
		Head:      contract.Position{Epoch: t.store.epoch, Revision: head.Revision, Token: head.Token},
		Compacted: t.store.compacted, Swept: t.store.swept, Writable: true, Now: now,
	}
}

// from returns the rows of the log with the revision and greater ones.
func (t *tables) from(r contract.Revision) []contract.Row {
	i, _ := t.place(r)
	return t.log[i:]
}

func (t *tables) place(r contract.Revision) (i int, found bool) {
	return slices.BinarySearchFunc(t.log, r, func(row contract.Row, r contract.Revision) int {
		return cmp.Compare(row.Revision, r)
	})
}

// below returns the parts whose IDs are below one, and how they lie.
func (t *tables) below(id contract.RowID) []contract.Row {
	i, found := t.partPlace(id)
	if found {
		i++
	}
	return t.parts[i:]
}

func (t *tables) partPlace(id contract.RowID) (i int, found bool) {
	return slices.BinarySearchFunc(t.parts, id, func(row contract.Row, id contract.RowID) int {
		return cmp.Compare(id, row.ID())
	})
}

// after returns the rows and the parts after a revision.
func (t *tables) after(r contract.Revision) []contract.Row {
	return slices.Concat(t.from(r+1), t.below(contract.Lowest(r)))
}

// row returns the row of the log with an ID, nil if there is none.
func (t *tables) row(id contract.RowID) *contract.Row {
	if i, found := t.partPlace(id); id < 0 && found {
		return &t.parts[i]
	}
	if i, found := t.place(id); found {
		return &t.log[i]
	}
	return nil
}

// between returns the live rows in [start, end).
func (t *tables) between(start, end contract.Key) []liveRow {
	i, _ := t.livePlace(start)
	j, _ := t.livePlace(end)
	return t.live[i:max(i, j)]
}

func (t *tables) livePlace(k contract.Key) (i int, found bool) {
	return slices.BinarySearchFunc(t.live, k, func(l liveRow, k contract.Key) int {
		return strings.Compare(string(l.key), string(k))
	})
}

// current returns a key's live row, the zero one if it does not exist.
func (t *tables) current(k contract.Key) liveRow {
	if i, found := t.livePlace(k); found {
		return t.live[i]
	}
	return liveRow{}
}

// lease returns a lease, and whether it is there.
func (t *tables) lease(l contract.Lease) (contract.LeaseRow, bool) {
	i, found := slices.BinarySearchFunc(t.leases, l, func(r contract.LeaseRow, l contract.Lease) int {
		return cmp.Compare(r.Lease, l)
	})
	if !found {
		return contract.LeaseRow{}, false
	}
	return t.leases[i], true
}

// isAborted tells whether the token is recorded.
func (t *tables) isAborted(token contract.Token) bool {
	return slices.ContainsFunc(t.aborted, func(a abortedRow) bool { return a.token == token })
}

// guard reads what [contract.CheckGroup] and [contract.Resolve] ask for, in state st.
func (t *tables) guard(st contract.State, token contract.Token, at contract.Revision) contract.Guard {
	return contract.Guard{State: st, Aborted: t.isAborted(token), At: t.token(at),
		Generation: t.store.indexes.Generation}
}

// token returns the token of the row at the revision, zero if there is none.
func (t *tables) token(at contract.Revision) (token contract.Token) {
	if r := t.row(at); r != nil {
		token = r.Token
	}
	return token
}

// note has the log know which entries a key had before a row.
func (t *tables) note(id contract.RowID, entries []contract.Entry) {
	if t.said == nil {
		t.said = map[contract.RowID][]contract.Entry{}
	}
	t.said[id] = entries
}

// forget removes the users of rows that are gone, and returns how many these were.
func (t *tables) forget() (removed int) {
	removed = len(t.users)
	maps.DeleteFunc(t.users, func(id contract.RowID, _ contract.User) bool { return t.row(id) == nil })
	return removed - len(t.users)
}

// put adds a row to the log or the parts in its place, where no row may be.
func (t *tables) put(r contract.Row) error {
	rows, place := &t.log, t.place
	at := r.Revision
	if r.Part != 0 {
		rows, place, at = &t.parts, t.partPlace, r.ID()
	}
	i, found := place(at)
	if found {
		return contract.Errorf(contract.Data, "there is a row %d", at)
	}
	if i == len(*rows) {
		return t.append(r)
	}
	if r.Value == nil {
		r.Value = []byte{}
	}
	*rows = slices.Insert(slices.Clone(*rows), i, r)
	return nil
}

// append adds a row to the log or the parts, where the primary key allows it: behind the last one.
func (t *tables) append(r contract.Row) error {
	if !r.Deleted && r.Value == nil {
		r.Value = []byte{}
	}
	rows := &t.log
	if r.Part != 0 {
		rows = &t.parts
	}
	if n := len(*rows); n > 0 {
		if last := (*rows)[n-1]; last.Revision > r.Revision ||
			last.Revision == r.Revision && last.Part >= r.Part {
			return contract.Errorf(contract.Data, "revision %d comes after revision %d", r.Revision,
				last.Revision)
		}
	}
	*rows = append(*rows, r)
	return nil
}

// insert adds a live row of a key that does not exist.
func (t *tables) insert(l liveRow) error {
	i, found := t.livePlace(l.key)
	if found {
		return contract.Errorf(contract.Data, "the key %q exists already", string(l.key))
	}
	t.live = slices.Insert(t.live, i, l)
	return nil
}

// remove removes a key's live row.
func (t *tables) remove(k contract.Key) {
	if i, found := t.livePlace(k); found {
		t.live = slices.Delete(t.live, i, i+1)
	}
}

// keep removes the rows of the log for which f returns false, and returns how many these were.
func (t *tables) keep(f func(*contract.Row) bool) (removed int) {
	for _, rows := range []*[]contract.Row{&t.log, &t.parts} {
		kept := make([]contract.Row, 0, len(*rows))
		for i := range *rows {
			if f(&(*rows)[i]) {
				kept = append(kept, (*rows)[i])
			}
		}
		removed += len(*rows) - len(kept)
		*rows = kept
	}
	maps.DeleteFunc(t.said, func(id contract.RowID, _ []contract.Entry) bool { return t.row(id) == nil })
	return removed
}
