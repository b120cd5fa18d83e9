package contract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// A store of a directory (storage/directory) can move to another database. Its row says how it came
// to this one, or where it has gone: its home. Everything that a move does to a store is one
// transaction under the store's commit lock, which first compares the home with what the move
// expects. So it does not matter how long a process sleeps between two steps.
//
// A store that a move has closed is marked as one that was dropped (see drop.go), and so is one
// that a move fills (see fill.go). The home tells them apart, and from stores that were dropped.
// Only a move of the same name, or the directory, opens a store again that has a home and is
// closed.

// Home says which part of the history of a name is in a store. The zero value is that of a store
// that belongs to no directory.
type Home struct {
	// Generation counts the databases in which the name was, and its creations. It is above 0,
	// but for a store that was never the name's.
	Generation int64 `json:"generation,omitempty"`
	// Move is the move or the creation that has opened the store, or is going to. If the store was
	// closed, it is the one that has closed it.
	Move string `json:"move,omitempty"`
	// From is the name of the database from which the move fills the store, To of the one to which
	// it has gone. Both are empty in a store that was created or dropped.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Attempt is the number of the newest move, creation or drop that has done something here, as
	// the directory counts them. Older ones can do nothing here any more, whatever they were and
	// however late their processes come.
	Attempt int64 `json:"attempt,omitempty"`
	// Undone is the last move that was undone here. It can do nothing here any more.
	Undone string `json:"undone,omitempty"`
}

// over tells whether a move was undone, or a newer one has done something here.
func (h Home) over(want Home) bool { return h.Undone == want.Move || want.Attempt < h.Attempt }

var (
	// ErrUndone ends the work of a move that somebody has undone meanwhile.
	ErrUndone = errors.New("the move was undone")
	// ErrOpened says that a move has ended: its target is open.
	ErrOpened = errors.New("the move has ended, and its target is open")
	// ErrOfDirectory refuses to do something to one store alone that concerns a directory.
	ErrOfDirectory = errors.New("the store belongs to a directory of several databases, and only " +
		"commands with --directory create, move and drop it")
)

// errOtherHome says that the rows disagree.
func errOtherHome(st State, have Home) error {
	is := "open"
	if st.Dropped() {
		is = "closed"
	}
	return fmt.Errorf("the store is %s with generation %d (of move %q), which is not what the "+
		"directory says: run `rowkeeper directory rebuild`", is, have.Generation, have.Move)
}

// closing decides whether a move closes its source. want is the home after that.
func (h Home) closing(st State, want Home) (write bool, err error) {
	switch {
	case h.over(want):
		return false, ErrUndone
	case h.Generation != want.Generation:
		return false, errOtherHome(st, h)
	case !st.Dropped():
		return true, nil
	case h.Move == want.Move:
		return false, nil
	}
	return false, errOtherHome(st, h)
}

// reopening decides whether the undoing of a move changes the source, and whether it opens it.
func (h Home) reopening(st State, want Home) (write, open bool, err error) {
	switch {
	case h.over(want):
		return false, false, nil
	case h.Generation != want.Generation || st.Dropped() && h.Move != want.Move:
		return false, false, errOtherHome(st, h)
	}
	return true, st.Dropped(), nil
}

// taking decides whether a move may fill a store, or goes on to fill it. recorded tells whether it
// has the record of a move, and fresh whether it was never written. clear tells whether all that it
// holds has to go: nobody uses it.
func (h Home) taking(st State, recorded, fresh bool, want Home) (clear bool, err error) {
	switch {
	case h.over(want):
		return false, ErrUndone
	case h.Generation == want.Generation && h.Move == want.Move && !st.Dropped():
		return false, ErrOpened
	case h.Generation == want.Generation && h.Move == want.Move && recorded:
		return false, nil
	case h.Generation > want.Generation:
		return false, errOtherHome(st, h)
	case st.Dropped():
		// A move that has not ended is not the current one any more if this one is: the directory
		// has one move at a time.
		return true, nil
	case h == Home{} && fresh:
		return false, nil
	}
	return false, ErrNotNew
}

// emptying decides whether the undoing of a move empties and closes its target, of which want would
// have been the home. It returns the home after that.
func (h Home) emptying(st State, fresh bool, want Home) (after Home, write bool, err error) {
	ours := h.Generation == want.Generation && h.Move == want.Move
	switch {
	case h.over(want):
		return h, false, nil
	case ours && !st.Dropped():
		return h, false, ErrOpened
	case !st.Dropped() && !(fresh && h == Home{}), h.Generation > want.Generation:
		return h, false, nil // it was never taken: it is somebody else's
	case ours:
		h = Home{}
	}
	h.Attempt, h.Undone = want.Attempt, want.Move
	return h, true, nil
}

// creating decides whether a store is created in the place of what is there, and whether it is a
// new one.
func (h Home) creating(st State, fresh bool, want Home) (write, clear bool, err error) {
	switch {
	case h == want && !st.Dropped():
		return false, false, nil
	case st.Dropped() && h.Generation < want.Generation && !h.over(want):
		return true, true, nil
	case !st.Dropped() && fresh && h == Home{}:
		return true, false, nil
	}
	return false, false, ErrNotNew
}

// ReadHome reads the home of a store, and its state.
func ReadHome(ctx context.Context, b Backend) (h Home, st State, err error) {
	text, st, err := b.Home(ctx)
	if err == nil {
		h, err = parseHome(text)
	}
	return h, st, err
}

func parseHome(text string) (h Home, err error) {
	if text == "" {
		return h, nil
	}
	if err = json.Unmarshal([]byte(text), &h); err != nil {
		err = Damaged("what the store's row says of its home cannot be read (%w)", err)
	}
	return h, err
}

// homed runs a transaction that may be repeated, and gives it the home.
func homed(ctx context.Context, b Backend, o LockOptions, do func(Tx, Home) error) error {
	return retried(ctx, func() error {
		return repeat(b.Locked(ctx, o, func(tx Tx) error {
			h, err := homeOf(tx)
			if err != nil {
				return err
			}
			return do(tx, h)
		}))
	})
}

// confirm ends a transaction that has found what it would have written. What it has found may be
// visible before it is durable (see [ResolveGroup]), and the next step may be one in another
// database. So it writes as well: its own commit is durable only if all before it is.
func confirm(tx Tx) error { return tx.Abort(NewToken(), tx.State().Head.Revision) }

func homeOf(tx Tx) (Home, error) {
	text, err := tx.Home()
	if err != nil {
		return Home{}, err
	}
	return parseHome(text)
}

// alone returns an error if the store belongs to a directory.
func alone(tx Tx) error {
	if text, err := tx.Home(); err != nil || text == "" {
		return err
	}
	return ErrOfDirectory
}

func setHome(tx Tx, h Home) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return tx.SetHome(string(text))
}

// AdoptHome records a home in an open store that belongs to no directory. If the store is not
// beyond a revision to which the name has come elsewhere, it is fenced, and goes on beyond that. It
// does nothing if the store has a generation.
func AdoptHome(ctx context.Context, b Backend, home Home, floor Revision) error {
	token := NewToken()
	var marker Revision
	err := homed(ctx, b, LockOptions{}, func(tx Tx, have Home) error {
		st := tx.State()
		if have.Generation > 0 || st.Dropped() {
			return nil
		}
		if err := setHome(tx, home); err != nil || st.Head.Revision > floor {
			return err
		}
		st = markedBeyond(st, st.Head.Epoch+1, floor, token)
		marker = st.Head.Revision
		return tx.Mark(st, "")
	})
	if err == nil {
		announce(ctx, b, marker)
	}
	return err
}

// Free tells whether a creation of a generation may have a store: it was never written, or is
// closed and older.
func Free(ctx context.Context, b Backend, generation int64) (bool, error) {
	h, st, err := ReadHome(ctx, b)
	if err != nil || st.Dropped() {
		return h.Generation < generation, err
	}
	return h == Home{} && st.Head.Revision <= emptyHead, nil
}

// CloseFor closes the source of a move: no server uses it any more. It keeps what it holds. The
// home says where it goes, or nowhere, if it is dropped.
func CloseFor(ctx context.Context, b Backend, home Home) error {
	token := NewToken()
	var marker Revision
	err := homed(ctx, b, LockOptions{}, func(tx Tx, have Home) error {
		write, err := have.closing(tx.State(), home)
		switch {
		case err != nil:
			return err
		case !write:
			return confirm(tx)
		}
		st := afterDrop(tx.State(), token)
		marker = st.Head.Revision
		after := home
		after.Undone = have.Undone
		return errors.Join(setHome(tx, after), tx.Mark(st, ""))
	})
	if err == nil {
		announce(ctx, b, marker)
	}
	return err
}

// announce tells other processes that hold the store open. One that does not hear it polls.
func announce(ctx context.Context, b Backend, head Revision) {
	if n, ok := b.(Notifier); ok && head > 0 {
		_ = n.Announce(ctx, []Announced{{Store: b, Revision: head}})
	}
}

// OpenedFor tells whether the target of a move is open, and its head.
func OpenedFor(ctx context.Context, b Backend, home Home) (head Revision, open bool, err error) {
	err = homed(ctx, b, LockOptions{}, func(tx Tx, have Home) error {
		st := tx.State()
		head = st.Head.Revision
		open = !st.Dropped() && have.Generation == home.Generation && have.Move == home.Move
		if open {
			return confirm(tx)
		}
		return nil
	})
	return head, open, err
}

// ReopenFor undoes CloseFor, and keeps the move from closing the store later.
func ReopenFor(ctx context.Context, b Backend, home Home) (opened bool, err error) {
	token := NewToken()
	var marker Revision
	err = homed(ctx, b, LockOptions{}, func(tx Tx, have Home) error {
		write, open, err := have.reopening(tx.State(), home)
		switch {
		case err != nil:
			return err
		case !write:
			return confirm(tx)
		}
		after := Home{Generation: home.Generation, Attempt: home.Attempt, Undone: home.Move}
		if err := setHome(tx, after); err != nil || !open {
			return err
		}
		st := afterRecreation(tx.State(), token)
		opened, marker = true, st.Head.Revision
		return tx.Mark(st, "")
	})
	if err == nil {
		announce(ctx, b, marker)
	}
	return opened, err
}

// fresh tells whether a store was never written.
func fresh(tx Tx) (bool, error) {
	if tx.State().Dropped() || tx.State().Head.Revision > emptyHead {
		return false, nil
	}
	keys, err := tx.Keys()
	return keys == 0, err
}

// EmptyFor gives up the target of a move: it is closed, and holds nothing. The move can never fill
// it again. It returns ErrOpened if the move has ended.
func EmptyFor(ctx context.Context, b Backend, home Home) error {
	token := NewToken()
	return homed(ctx, b, LockOptions{Unbounded: true}, func(tx Tx, have Home) error {
		fresh, err := fresh(tx)
		if err != nil {
			return err
		}
		after, write, err := have.emptying(tx.State(), fresh, home)
		switch {
		case err != nil:
			return err
		case !write && have.over(home):
			return confirm(tx)
		case !write:
			return nil
		}
		st := tx.State()
		epoch := st.Head.Epoch - 1
		if !st.Dropped() {
			epoch = -st.Head.Epoch - 1
		}
		return errors.Join(tx.Clear(), setHome(tx, after), tx.Mark(marked(st, epoch, token), ""))
	})
}

// EraseFor erases in batches what a store holds that CloseFor has closed. Its mark and its home
// stay. It returns false if the store is not as CloseFor has left it: another move fills it.
func EraseFor(ctx context.Context, b Backend, home Home) (ours bool, err error) {
	return eraseWhile(ctx, b, func(have Home) bool {
		return have.Generation == home.Generation && have.Move == home.Move
	})
}

// CreateFor makes a store that is new, or was closed, an empty one of this home, whose history
// begins beyond a revision. It returns the head.
func CreateFor(ctx context.Context, b Backend, home Home, floor Revision) (head Revision, err error) {
	if st, err := b.State(ctx); err != nil {
		return 0, err
	} else if st.Dropped() {
		if _, err := eraseWhile(ctx, b, func(have Home) bool {
			return have.Generation < home.Generation && !have.over(home)
		}); err != nil {
			return 0, err
		}
	}
	token := NewToken()
	err = homed(ctx, b, LockOptions{}, func(tx Tx, have Home) error {
		fresh, err := fresh(tx)
		if err != nil {
			return err
		}
		write, clear, err := have.creating(tx.State(), fresh, home)
		switch head = tx.State().Head.Revision; {
		case err != nil:
			return err
		case !write:
			return confirm(tx)
		}
		st := tx.State()
		epoch := max(st.Head.Epoch, -st.Head.Epoch) + 1
		if st = markedBeyond(st, epoch, floor, token); clear {
			err = errors.Join(tx.Clear(), tx.Renew())
		}
		head = st.Head.Revision
		return errors.Join(err, setHome(tx, home), tx.Mark(st, tx.Fingerprint()))
	})
	if err == nil {
		announce(ctx, b, head)
	}
	return head, err
}

// eraseWhile is erase while the home is as it has to be.
func eraseWhile(ctx context.Context, b Backend, is func(Home) bool) (ours bool, err error) {
	err = erase(ctx, b, func(tx Tx) (bool, error) {
		h, err := homeOf(tx)
		ours = err == nil && is(h)
		return ours, err
	})
	return ours, err
}
