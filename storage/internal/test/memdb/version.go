package memdb

import (
	"cmp"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Version is what a database held at a moment. It never changes. Two of them are equal if nothing
// was committed in between. By versions a test looks into a database, and makes it lose commits.
type Version struct{ t *tables }

// Version returns the newest version.
func (d *Database) Version() Version { return Version{d.version.Load()} }

// Return goes back to a version, as a database does that has lost its newest commits, or that is
// restored from a copy. Transactions that are under way fail when they commit.
func (d *Database) Return(v Version) {
	t := *v.t
	// What comes next must not overwrite rows of later versions.
	t.log, t.parts = slices.Clip(t.log), slices.Clip(t.parts)
	d.version.Store(&t)
}

// State is the version's state, without a time.
func (v Version) State() contract.State {
	return v.t.state(time.Time{})
}

// Log returns the rows of the log from a revision on, in their order: the parts of a transaction
// before its last row.
func (v Version) Log(from contract.Revision) []contract.Row {
	rows := slices.Concat(v.t.below(contract.Lowest(from-1)), v.t.from(from))
	slices.SortStableFunc(rows, func(a, b contract.Row) int { return cmp.Compare(a.Revision, b.Revision) })
	return rows
}

// Live returns the live row of a key, and whether there is one. Its value is not set.
func (v Version) Live(k contract.Key) (contract.Record, bool) {
	l := v.t.current(k)
	return l.record(), l.id != 0
}

// AllLive returns all live rows, in the order of keys, without values.
func (v Version) AllLive() []contract.Record {
	records := make([]contract.Record, len(v.t.live))
	for i := range v.t.live {
		records[i] = v.t.live[i].record()
	}
	return records
}

// Home returns what the store's row says of its home.
func (v Version) Home() string { return v.t.store.home }

// Indexes returns the declarations of indexes.
func (v Version) Indexes() *contract.Indexes { return v.t.store.declared() }

// Entries returns those of a key.
func (v Version) Entries(k contract.Key) []contract.Entry { return v.t.current(k).entries }

// Said returns the entries that the log has with a row, and whether it has any knowledge of them.
func (v Version) Said(id contract.RowID) (entries []contract.Entry, known bool) {
	entries, known = v.t.said[id]
	return entries, known
}

// Users returns who has written rows of the log, as far as that is recorded.
func (v Version) Users() map[contract.RowID]contract.User { return v.t.users }

func (l *liveRow) record() contract.Record {
	return contract.Record{Key: l.key, Revision: l.id.Revision(), Part: l.id.Part(),
		Create: l.create, Version: l.version, Lease: l.lease, Expiry: max(l.expiry, 0)}
}

// Recorded returns the fingerprint and the boot that the store row holds.
func (v Version) Recorded() (fingerprint, boot string) {
	return v.t.store.fingerprint, v.t.store.boot
}

// Aborted returns the tokens that are recorded as aborted.
func (v Version) Aborted() []contract.Token {
	tokens := make([]contract.Token, len(v.t.aborted))
	for i := range v.t.aborted {
		tokens[i] = v.t.aborted[i].token
	}
	return tokens
}
