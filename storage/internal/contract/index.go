package contract

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Indexes find the keys of a directory by what their values say, in the order of keys, and also put
// them in the order of their values. Who reads the values decides what they say: an engine knows
// entries only, which are bytes.
//
// An [Entry] stands for a key: rowkeeper_index has a row (entry, key). The live row of the key has
// all of its entries as well, so a commit needs no value to know which rows it has to remove.
//
// What holds, for each index that is ready, and each key of its directory: the key has the entries
// that its newest value says, or the entry that says "unknown". So a reader that takes the keys of
// the entries that it looks for, and the unknown ones, misses none. It looks at the values of all
// of them, so a key too many does no harm.
//
// Why it holds:
//
//   - The declarations are in the row of the store, with a generation, which is another one after
//     each change that a writer or a reader has to know. Each group carries the generation that its
//     process knows, and [CheckGroup] refuses another one under the commit lock
//     ([ErrOtherIndexes]). So from the commit that adds an index on, every write has its entries.
//   - The entries of a mutation were found by the declarations of the moment at which its value
//     was. [Indexes.Entries] makes those of the group's declarations of them: where an index came
//     meanwhile, or nobody knows what the value says, as in a write by etcd's API, the key is
//     unknown. The committer does that, so no writer can forget it.
//   - Keys that were written before the index came are walked through, in order, by a server that
//     reads them ([Tx.Reindex]). It writes under the commit lock, and only for keys whose live row
//     is the one that it has read. An index is ready when the walk has come to its end.
//   - An import replaces the values without entries. Its transaction sets all indexes to be built
//     anew, and changes the generation.
//   - A reader learns the generation in the snapshot in which it reads the keys. If it is another
//     one than it knows, it reads the declarations, and then the keys again.
//   - An ID is never given twice in a history. So rows of an index that was dropped mean nothing,
//     and are removed in batches later.
//
// The log has entries, too, for lists at a revision R of the past. These look at all rows that were
// replaced since R, and so the entries of a row are with the row that replaced it: those that the
// live row had when that was written, under the commit lock. A list by an index reads the values of
// only those replaced rows that have an entry which it looks for, or of which nothing is known.
//
// That misses none, either. A key whose row is replaced after its index became ready
// ([Index.Since]) had the entries that its newest value said, or the one that says "unknown", as
// above. Before that, it may not have been walked through, and what the log says does not count. An
// index that is built anew becomes ready anew. Rows that were replaced by a process that did not
// know of any index of the directory have none in the log, which is not the same as having no
// entry.
//
// A store without indexes has the generation 0, and its groups write and read what they did without
// this file. In a store with indexes, that is so for groups without a key of an indexed directory.

// Entry is what an index has of a value: the ID of the index in four bytes, and then what it says.
type Entry string

// The first byte of what an entry says.
const (
	entryUnknown = 0
	entryExists  = 1
	entryValue   = 2
)

// Of what values say, entries have so many bytes at most: the keys of the databases' indexes are
// bounded. [EntryBytes] is the length of the longest entry.
const (
	entryValueBytes = 250
	EntryBytes      = 4 + 1 + entryValueBytes
)

func entryOf(id uint32, kind byte, value string) Entry {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 5+len(value)), id)
	return Entry(append(append(b, kind), value...))
}

// UnknownEntry says that it is not known what the value of the key says.
func UnknownEntry(id uint32) Entry { return entryOf(id, entryUnknown, "") }

// ExistsEntry says that there is a value for the name of the index.
func ExistsEntry(id uint32) Entry { return entryOf(id, entryExists, "") }

// ValueEntry says that the value for the name of the index begins with a value, and is no longer
// unless that is a long one. The entries of an index are in the order of their values: decimal
// numbers by what they are worth, and then all others by their bytes.
func ValueEntry(id uint32, value string) Entry {
	value = inOrder(value)
	return entryOf(id, entryValue, value[:min(len(value), entryValueBytes)])
}

// ValueEntries are the bounds of the entries of an index that [ValueEntry] makes: the first one
// that there can be, and the first one beyond.
func ValueEntries(id uint32) (low, high Entry) {
	return entryOf(id, entryValue, ""), entryOf(id, entryValue+1, "")
}

// SaysValue returns what follows the ID and the kind in an entry that ValueEntry has made, and
// false for another one. [EntrySaying] makes the entry of it.
func (e Entry) SaysValue() (said string, ok bool) {
	if len(e) < 5 || e[4] != entryValue {
		return "", false
	}
	return string(e[5:]), true
}

// EntrySaying is the entry of an index that says what another index's entry does.
func EntrySaying(id uint32, said string) Entry { return entryOf(id, entryValue, said) }

// The first byte of a value in an entry, and the signs of numbers.
const (
	orderedNumber = 1
	orderedText   = 2

	signNegative, signZero, signPositive = 0, 1, 2
)

// numberBytes is the length of the longest value that is ordered as a number.
const numberBytes = 64

// inOrder makes bytes of a value whose order is that of the values. A number is its sign, how many
// digits it has before the point, its digits without zeros around them, and an end that is lower
// than any digit. If it is negative, these are inverted. The value itself follows, as numbers of
// the same worth may be written otherwise.
func inOrder(value string) string {
	text := string(rune(orderedText)) + value
	if value == "" || len(value) > numberBytes {
		return text
	}
	digits, negative := strings.CutPrefix(value, "-")
	whole, fraction, point := strings.Cut(digits, ".")
	if !decimal(whole) || point && !decimal(fraction) {
		return text
	}
	whole = strings.TrimLeft(whole, "0")
	exponent := len(whole)
	if whole == "" {
		trimmed := strings.TrimLeft(fraction, "0")
		exponent, fraction = len(trimmed)-len(fraction), trimmed
	}
	b := []byte{orderedNumber, signPositive, byte(128 + exponent)}
	b = append(b, strings.TrimRight(whole+fraction, "0")...)
	b = append(b, 0)
	switch {
	case len(b) == 4:
		b = []byte{orderedNumber, signZero}
	case negative:
		b[1] = signNegative
		for i := 2; i < len(b); i++ {
			b[i] = ^b[i]
		}
	}
	return string(append(b, value...))
}

// decimal tells whether there are digits, and nothing else.
func decimal(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// Index is the ID of the entry's index.
func (e Entry) Index() uint32 {
	if len(e) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(e[:4]))
}

// entriesBounds are the first entry that an index can have, and the first one beyond.
func entriesBounds(id uint32) (low, high Entry) {
	return entryOf(id, 0, "")[:4], entryOf(id+1, 0, "")[:4]
}

// Index is a declared index.
type Index struct {
	ID uint32 `json:"id"`
	// Directory is how the keys begin, and Group and Resource name what they hold, for people.
	Directory Key    `json:"directory"`
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	// Name says what is indexed, in the language of whoever reads the values.
	Name string `json:"name"`
	// By says who finds what values say to the index, "" if all that can do it find the same. What
	// one has found means nothing to another one.
	By string `json:"by,omitempty"`
	// State is one of the constants below.
	State string `json:"state"`
	// Built is where the walk through the keys has come to: the last key that was looked at.
	Built []byte `json:"built,omitempty"`
	// Since is the head at which an index that is ready became so. Of rows that were replaced
	// later, the log has the entries in it.
	Since Revision `json:"since,omitempty"`
}

// The states of an index.
const (
	IndexBuilding = "building"
	IndexReady    = "ready"
	IndexDropping = "dropping"
)

// Indexes are the declarations of a store.
type Indexes struct {
	// Generation is 0 until an index is declared. Each change but for that of Built, and for an
	// index that is forgotten, gives it another number at random: a database that has lost a
	// change, or was restored, must not come to a generation that processes know with another
	// meaning.
	Generation int64 `json:"-"`
	// Last is the last ID that was given.
	Last uint32  `json:"last"`
	All  []Index `json:"indexes"`
}

// MaxIndexes bounds the indexes of a directory, so that a mutation has few entries. MaxAllIndexes
// bounds those of a store, so that its row stays small.
const (
	MaxIndexes    = 8
	MaxAllIndexes = 100
)

// change gives the declarations another generation.
func (x *Indexes) change() {
	var b [8]byte
	rand.Read(b[:]) // never fails
	x.Generation = int64(binary.BigEndian.Uint64(b[:])>>1 | 1)
}

// In returns the indexes that the keys of a directory have.
func (x *Indexes) In(directory Key) (in []*Index) {
	for i := range x.All {
		if d := &x.All[i]; d.Directory == directory && d.State != IndexDropping {
			in = append(in, d)
		}
	}
	return in
}

// Covers tells whether the key is in an indexed directory.
func (x *Indexes) Covers(k Key) bool {
	for i := range x.All {
		if strings.HasPrefix(string(k), string(x.All[i].Directory)) {
			return true
		}
	}
	return false
}

// Entries returns the entries that a key has under these declarations, in order, where found were
// found of its value under known, or nothing is known if that is nil. What an index of both says
// still holds. It has the same ID and name: an ID that was given in a history that is lost may be
// given again.
func (x *Indexes) Entries(k Key, known *Indexes, found []Entry) (entries []Entry) {
	for i := range x.All {
		d := &x.All[i]
		if d.State == IndexDropping || !strings.HasPrefix(string(k), string(d.Directory)) {
			continue
		}
		if known == nil || !slices.ContainsFunc(known.All, func(o Index) bool {
			return o.ID == d.ID && o.Name == d.Name && o.Directory == d.Directory && o.By == d.By &&
				o.State != IndexDropping
		}) {
			entries = append(entries, UnknownEntry(d.ID))
			continue
		}
		for _, e := range found {
			if e.Index() == d.ID {
				entries = append(entries, e)
			}
		}
	}
	slices.Sort(entries)
	return slices.Compact(entries)
}

// EntryChanges decides which rows of the index a write removes and adds. Both lists are in order
// and have no entry twice, and so have the results. Entries that stay touch no row.
func EntryChanges(before, after []Entry) (gone, added []Entry) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0] < after[0]:
			gone, before = append(gone, before[0]), before[1:]
		case len(before) == 0 || after[0] < before[0]:
			added, after = append(added, after[0]), after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
	return gone, added
}

// PackEntries makes one value of a key's entries, for a database without arrays: nil for none.
func PackEntries(entries []Entry) (packed []byte) {
	for _, e := range entries {
		packed = binary.BigEndian.AppendUint16(packed, uint16(len(e)))
		packed = append(packed, e...)
	}
	return packed
}

// UnpackEntries undoes PackEntries.
func UnpackEntries(packed []byte) (entries []Entry, err error) {
	for len(packed) > 0 {
		if len(packed) < 2 || len(packed) < 2+int(binary.BigEndian.Uint16(packed)) {
			return nil, Damaged("a key has %d bytes of entries of indexes that cannot be read",
				len(packed))
		}
		n := 2 + int(binary.BigEndian.Uint16(packed))
		entries, packed = append(entries, Entry(packed[2:n])), packed[n:]
	}
	return entries, nil
}

// MarshalIndexes makes the text that is recorded of the declarations.
func MarshalIndexes(x *Indexes) (string, error) {
	b, err := json.Marshal(x)
	if err != nil {
		return "", Errorf(Data, "the declarations of the indexes cannot be recorded: %w", err)
	}
	return string(b), nil
}

// UnmarshalIndexes reads the declarations, "" for none.
func UnmarshalIndexes(generation int64, text string) (*Indexes, error) {
	x := &Indexes{Generation: generation}
	if text == "" {
		return x, nil
	}
	if err := json.Unmarshal([]byte(text), x); err != nil {
		return nil, Damaged("the store's declarations of indexes cannot be read: %v", err)
	}
	return x, nil
}

// Add declares an index, to be built.
func (x *Indexes) Add(d Directory, name string) error {
	in := x.In(d.Path)
	switch {
	case slices.ContainsFunc(in, func(o *Index) bool { return o.Name == name }):
		return fmt.Errorf("%s has the index %s already", d.Path, name)
	case len(in) >= MaxIndexes:
		return fmt.Errorf("%s has %d indexes, which is as many as it may have: drop one", d.Path,
			len(in))
	case len(x.All) >= MaxAllIndexes:
		return fmt.Errorf("the store has %d indexes, which is as many as it may have: drop one",
			len(x.All))
	}
	x.change()
	x.Last++
	x.All = append(x.All, Index{ID: x.Last, Directory: d.Path, Group: d.Group,
		Resource: d.Resource, Name: name, State: IndexBuilding})
	return nil
}

// Drop ends an index, and tells whether there was one.
func (x *Indexes) Drop(directory Key, name string) bool {
	for _, d := range x.In(directory) {
		if d.Name == name {
			d.State, d.Built = IndexDropping, nil
			x.change()
			return true
		}
	}
	return false
}

// Claim has an index built anew by somebody, and tells whether there is one that is another's.
func (x *Indexes) Claim(directory Key, name, by string) (claimed bool) {
	for _, d := range x.In(directory) {
		if d.Name == name && d.By != by {
			d.By, d.State, d.Built, claimed = by, IndexBuilding, nil, true
			x.change()
		}
	}
	return claimed
}

// BuildAnew sets all indexes to be built from the first key on, and tells whether there are any.
func (x *Indexes) BuildAnew() (any bool) {
	for i := range x.All {
		if d := &x.All[i]; d.State != IndexDropping {
			d.State, d.Built, any = IndexBuilding, nil, true
		}
	}
	if any {
		x.change()
	}
	return any
}

// CheckGeneration is what CheckGroup checks last: it refuses a group whose process does not know
// the declarations of the indexes.
func (g *Group) CheckGeneration(generation int64) error {
	if g.Generation == generation {
		return nil
	}
	return ErrOtherIndexes
}

// buildAnew has all indexes built anew, after keys have come without entries.
func buildAnew(tx Tx) error {
	x, err := tx.Indexes()
	if err != nil || !x.BuildAnew() {
		return err
	}
	return tx.SetIndexes(x)
}

// ErrOtherIndexes refuses a group that was made under other declarations of indexes. Nothing was
// written, and nothing is wrong: the process reads the declarations, and makes the group anew.
var ErrOtherIndexes = Errorf(Transient, "the declarations of indexes have changed, and nothing was "+
	"written: read them again")

// ChangeIndexes changes the declarations of a store by f, which tells whether it has changed them.
// It returns them. Its errors are returned as they are.
func ChangeIndexes(ctx context.Context, b Backend, f func(*Indexes) (bool, error)) (x *Indexes,
	err error) {
	err = locked(ctx, b, LockOptions{}, func(tx Tx) error {
		if x, err = tx.Indexes(); err != nil {
			return err
		}
		changed, err := f(x)
		if err != nil || !changed {
			return err
		}
		return tx.SetIndexes(x)
	})
	return x, err
}

// ChangeIndexesOf is ChangeIndexes for a resource that is recorded below a prefix of keys.
func ChangeIndexesOf(ctx context.Context, b Backend, prefix Key, group, resource string,
	f func(*Indexes, Directory) error) error {
	return locked(ctx, b, LockOptions{}, func(tx Tx) error {
		directories, err := tx.Directories()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(directories, func(d Directory) bool {
			return d.Group == group && d.Resource == resource &&
				strings.HasPrefix(string(d.Path), string(prefix))
		})
		if i < 0 {
			return fmt.Errorf("the database does not know below %s where the objects of %s are: name "+
				"the store and the prefix that its servers use, and start one that serves the resource "+
				"once", prefix, strings.TrimPrefix(group+"/"+resource, "/"))
		}
		x, err := tx.Indexes()
		if err == nil {
			err = f(x, directories[i])
		}
		if err != nil {
			return err
		}
		return tx.SetIndexes(x)
	})
}

// Reindexed is a key with the entries that its value has, at the row that was read.
type Reindexed struct {
	Key     Key
	ID      RowID
	Entries []Entry
}

// BuildIndexes records a step of the walk through a directory's keys: the entries of some keys,
// found under known, which are all keys after from and up to upto, or all that were left if done.
// The walks that are there go on after upto. Other processes may walk, too: the step of the one
// that is late changes no position, and its entries are as good. It returns the declarations.
//
// The keys were read with the head seen. If that is not in the log any more, a row that has the ID
// of one that was read may be another one.
func BuildIndexes(ctx context.Context, b Backend, seen Position, directory Key, known *Indexes,
	from []byte, keys []Reindexed, upto []byte, done bool) (x *Indexes, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		guard, _, err := tx.Group(Token{}, seen.Revision)
		if err != nil {
			return err
		}
		if guard.State.Head.Epoch != seen.Epoch || guard.At != seen.Token {
			return errReadAgain
		}
		if x, err = tx.Indexes(); err != nil {
			return err
		}
		if x.Generation != known.Generation {
			return nil // the step is made again, under what is declared now
		}
		if err := tx.Reindex(keys); err != nil {
			return err
		}
		changed := false
		for _, d := range x.In(directory) {
			walked := string(d.Built) >= string(from) && (done || string(d.Built) < string(upto))
			if d.State != IndexBuilding || !walked {
				continue
			}
			if d.Built, changed = upto, true; done {
				d.State, d.Built, d.Since = IndexReady, nil, guard.State.Head.Revision
				x.change()
			}
		}
		if !changed {
			return nil
		}
		return tx.SetIndexes(x)
	})
	return x, err
}

// errReadAgain refuses a step whose keys were read before something that it cannot know of.
var errReadAgain = Errorf(Transient, "the log has passed what the keys were read with: read them again")

// ForgetEntries removes at most limit rows of indexes that were dropped, and forgets an index that
// has none left. It tells whether anything is left to do.
func ForgetEntries(ctx context.Context, b Backend, limit int) (more bool, x *Indexes, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		if x, err = tx.Indexes(); err != nil {
			return err
		}
		i := slices.IndexFunc(x.All, func(d Index) bool { return d.State == IndexDropping })
		if i < 0 {
			more = false
			return nil
		}
		more = true
		low, high := entriesBounds(x.All[i].ID)
		n, err := tx.DropEntries(low, high, limit)
		if err != nil || n > 0 {
			return err
		}
		x.All = slices.Delete(x.All, i, i+1)
		return tx.SetIndexes(x)
	})
	return more, x, err
}
