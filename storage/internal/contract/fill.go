package contract

import (
	"context"
	"errors"
	"slices"
)

// A store is filled by a move while its source goes on (see storage/move). Until the move has
// ended, nobody may see what is there: a half of the source, as it was at no moment.
//
// So a store that is filled is marked as one that was dropped (see drop.go): its epoch is negative,
// and each read and each group of a server answers [ErrDropped], whenever the server was started.
// The mark costs nothing, and no server has to know of moves. It tells apart what a move left from
// what a drop left that the store has a record, under [FillKey].
//
// The head of a store that is filled is the marker, beyond all revisions of the source. What is
// filled in lies below it, and below compacted, as after an import: nobody reads it as history. At
// the end, a marker of a positive epoch is the head, beyond what the source has shown to anybody.
// So a client that resumes from a revision of the source finds it compacted, and lists.
//
// The marker also says whose turn it is. Each process that goes on with a move writes one of its
// own first, and each of its transactions looks, under the commit lock, whether that is still the
// head. So of two processes that move at the same time, the later one goes on, and the earlier one
// finds that out before it writes anything.
//
// The source of a move can be a store, too. It is closed at the end by the same mark, without a
// record, and keeps what it holds.

// FillKey is the key of the record of a move, in the store that it fills.
const FillKey Key = Reserved + "move"

// fillID is where the record's row is in the log: a part of a transaction at the first revision,
// where no store has one, and no source a key.
const (
	fillRevision = emptyHead
	fillPart     = 1
)

var (
	// ErrNotNew refuses to fill a store that was ever written.
	ErrNotNew = errors.New("the store was written before, and its clients may know the same " +
		"revisions of other objects: name a database that is new, or create a store by `rowkeeper " +
		"stores create`")
	// ErrTaken ends the work of a process of which another one has taken over.
	ErrTaken = errors.New("another process goes on with the move, or has undone it: leave it to " +
		"that one")
	// ErrOutgrown says that a record is beyond the head of the store that is filled: it has to be
	// taken again.
	ErrOutgrown = errors.New("the source has come beyond the head of the target")
)

// Fill is the turn of a process to fill a store.
type Fill struct {
	b Backend
	// at is the marker that was written for it.
	at Position
}

// FillRecord reads the record of a move, nil if there is none, and the state.
func FillRecord(ctx context.Context, b Backend) (record []byte, st State, err error) {
	row, st, err := b.Get(ctx, FillKey)
	if err != nil || row == nil {
		return nil, st, err
	}
	return row.Value, st, nil
}

// TakeFill begins to fill a store that was never written, with a first record, or takes it over
// from the process that has filled it until now, of which record is the record then. The store's
// revisions go on beyond the revision seen. With a home that is not zero, it is for a move of a
// directory, which may also fill what an earlier move or a drop has left; see [Home].
func TakeFill(ctx context.Context, b Backend, record []byte, seen Revision, home Home) (*Fill, error) {
	if home != (Home{}) {
		// What is left is erased in batches first, so that the transaction below is short.
		if _, err := eraseWhile(ctx, b, func(have Home) bool {
			return have.Generation <= home.Generation && have.Move != home.Move && !have.over(home)
		}); err != nil {
			return nil, err
		}
	}
	token := NewToken()
	var at Position
	err := retried(ctx, func() error {
		found, before, err := FillRecord(ctx, b)
		if err != nil {
			return err
		}
		return repeat(b.Locked(ctx, LockOptions{}, func(tx Tx) error {
			if tx.State().Head != before.Head {
				return Errorf(Transient, "the store was written meanwhile")
			}
			st, first, err := takeFill(tx, found != nil, seen, token, home)
			if err != nil {
				return err
			}
			if at = st.Head; first {
				err = tx.Insert(token, writeAll([]Record{fillRow(record)}))
			}
			return errors.Join(err, tx.Mark(st, ""))
		}))
	})
	return &Fill{b: b, at: at}, err
}

// takeFill prepares a store to be filled, and returns the state then, and whether the record is to
// be written.
func takeFill(tx Tx, recorded bool, seen Revision, token Token, home Home) (st State, first bool,
	err error) {
	if home != (Home{}) {
		return takeHome(tx, recorded, seen, token, home)
	}
	if err := alone(tx); err != nil {
		return st, false, err
	}
	keys := int64(0)
	if !tx.State().Dropped() {
		if keys, err = tx.Keys(); err != nil {
			return st, false, err
		}
	}
	st, err = beforeFill(tx.State(), keys, recorded, seen, token)
	return st, !recorded, err
}

// takeHome is takeFill for a move of a directory.
func takeHome(tx Tx, recorded bool, seen Revision, token Token, home Home) (st State, first bool,
	err error) {
	st = tx.State()
	have, err := homeOf(tx)
	if err != nil {
		return st, false, err
	}
	fresh, err := fresh(tx)
	if err != nil {
		return st, false, err
	}
	clear, err := have.taking(st, recorded, fresh, home)
	if err == nil && clear {
		err = tx.Clear()
	}
	if err == nil {
		home.Undone = have.Undone
		err = setHome(tx, home)
	}
	epoch := st.Head.Epoch - 1
	if !st.Dropped() {
		epoch = -st.Head.Epoch - 1
	}
	return markedBeyond(st, epoch, seen, token), clear || !recorded, err
}

// beforeFill decides whether a store may be filled, and returns the state then. keys is how many it
// holds, if it was not dropped, and recorded whether it has the record of a move.
func beforeFill(st State, keys int64, recorded bool, seen Revision, token Token) (State, error) {
	epoch := -st.Head.Epoch - 1
	switch {
	case st.Dropped() && !recorded:
		return st, ErrDropped
	case st.Dropped():
		epoch = st.Head.Epoch - 1
	case st.Head.Revision > emptyHead || keys > 0:
		return st, ErrNotNew
	}
	return markedBeyond(st, epoch, seen, token), nil
}

// fillRow is the row of a record.
func fillRow(record []byte) Record {
	return Record{Key: FillKey, Revision: fillRevision, Part: fillPart, Create: fillRevision,
		Version: 1, Value: record}
}

func writeAll(records []Record) func(func(*Record) error) error {
	return func(each func(*Record) error) error {
		for i := range records {
			if err := each(&records[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// removedAtOnce is how many keys a statement removes.
const removedAtOnce = 250

// Write removes keys, and writes records in the place of those with the same keys, and a record of
// the move if it is not nil: all of it or nothing. Several records have different keys and IDs.
func (f *Fill) Write(ctx context.Context, remove []Key, records []Record, record []byte) error {
	for i := range records {
		if records[i].Revision >= f.at.Revision {
			return ErrOutgrown
		}
		remove = append(remove, records[i].Key)
	}
	if record != nil {
		remove, records = append(remove, FillKey), append(records, fillRow(record))
	}
	return f.locked(ctx, func(tx Tx) error {
		for keys := range slices.Chunk(remove, removedAtOnce) {
			if err := tx.Remove(keys); err != nil {
				return err
			}
		}
		return tx.Insert(f.at.Token, writeAll(records))
	})
}

// locked runs a transaction that may be repeated, while it is this process's turn.
func (f *Fill) locked(ctx context.Context, do func(Tx) error) error {
	return retried(ctx, func() error {
		return repeat(f.b.Locked(ctx, LockOptions{}, func(tx Tx) error {
			if tx.State().Head != f.at {
				return ErrTaken
			}
			return do(tx)
		}))
	})
}

// Settled is what a store of a directory has from the one whose history it goes on with.
type Settled struct {
	Home     Home
	Identity string
	Quota    Quota
	// Indexes are the declarations of indexes, which are built anew: the keys come without entries.
	Indexes *Indexes
	// Directories are those that are recorded.
	Directories []Directory
}

func (s *Settled) settle(tx Tx) error {
	if s.Home == (Home{}) {
		return nil
	}
	s.Indexes.BuildAnew()
	return errors.Join(setHome(tx, s.Home), tx.SetIdentity(s.Identity), tx.SetQuota(s.Quota),
		tx.SetIndexes(s.Indexes), tx.PutDirectories(s.Directories))
}

// End opens the store that was filled to its servers. The leases are those that its keys are
// attached to, and others. The history goes on beyond the revision seen, and beyond the head that
// the store has.
func (f *Fill) End(ctx context.Context, seen Revision, leases []LeaseRow, settled Settled) (st State,
	err error) {
	token := NewToken()
	err = retried(ctx, func() error {
		return repeat(f.b.Locked(ctx, LockOptions{Unbounded: true}, func(tx Tx) error {
			if tx.State().Head.Token == token {
				return confirm(tx) // an earlier try has done it
			}
			if tx.State().Head != f.at {
				return ErrTaken
			}
			if err := tx.Remove([]Key{FillKey}); err != nil {
				return err
			}
			for some := range slices.Chunk(leases, LeasePage) {
				if err := tx.PutLeases(some); err != nil {
					return err
				}
			}
			if err := settled.settle(tx); err != nil {
				return err
			}
			st = markedBeyond(tx.State(), -tx.State().Head.Epoch+1, seen, token)
			return tx.Mark(st, tx.Fingerprint())
		}))
	})
	return st, err
}

// UndoFill makes a store that is being filled what it was before: new. It returns false if there is
// no such move.
func UndoFill(ctx context.Context, b Backend) (undone bool, err error) {
	err = retried(ctx, func() error {
		found, before, err := FillRecord(ctx, b)
		if err != nil || found == nil || !before.Dropped() {
			return err
		}
		return repeat(b.Locked(ctx, LockOptions{Unbounded: true}, func(tx Tx) error {
			if tx.State().Head != before.Head {
				return Errorf(Transient, "the store was written meanwhile")
			}
			st := tx.State()
			st.Head = Position{Epoch: -st.Head.Epoch + 1, Revision: emptyHead, Token: NewToken()}
			st.Compacted, st.Swept, undone = 0, 0, true
			// Nobody but the move has seen what was written.
			return errors.Join(alone(tx), tx.Clear(), tx.Mark(st, ""))
		}))
	})
	return undone, err
}

// CloseStore lets no server use a store any more, which keeps what it holds, and tells whether it
// was open.
func CloseStore(ctx context.Context, b Backend) (closed bool, err error) {
	return changeStore(ctx, b, func(st State) (State, bool) {
		return afterDrop(st, NewToken()), !st.Dropped()
	})
}

// ReopenStore undoes CloseStore, and tells whether the store was closed.
func ReopenStore(ctx context.Context, b Backend) (opened bool, err error) {
	return changeStore(ctx, b, func(st State) (State, bool) {
		return afterRecreation(st, NewToken()), st.Dropped()
	})
}

func changeStore(ctx context.Context, b Backend,
	to func(State) (State, bool)) (changed bool, err error) {
	var st State
	err = retried(ctx, func() error {
		return repeat(b.Locked(ctx, LockOptions{}, func(tx Tx) error {
			var write bool
			if st, write = to(tx.State()); !write {
				return confirm(tx)
			}
			if err := alone(tx); err != nil {
				return err
			}
			changed = true
			return tx.Mark(st, "")
		}))
	})
	if n, ok := b.(Notifier); ok && err == nil && changed {
		// A process that does not hear it polls.
		_ = n.Announce(ctx, []Announced{{Store: b, Revision: st.Head.Revision}})
	}
	return changed, err
}
