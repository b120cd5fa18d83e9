package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/move"
)

// Moved describes what a move has done; see package storage/move.
type Moved = move.Moved

// MoveOptions say what is told of a move.
type MoveOptions struct {
	// Progress, if not nil, is told how far a pass is.
	Progress database.Progress
}

// Create creates an empty store in a database, whose schema it brings to the newest version, and
// returns the row. A creation that was interrupted is ended, in the database in which it was begun.
// It is an error if there is such a store.
func (d *Directory) Create(ctx context.Context, name, in string) (Row, error) {
	r, err := d.Get(ctx, name)
	switch {
	case err != nil:
		return r, err
	case name == contract.DefaultStore:
		return r, errors.New("the store \"default\" is in every database, and is not in a directory: " +
			"name another store")
	case r.State == "" || r.State == Dropped:
		creating := r.creating(in, newID())
		if err := d.free(ctx, creating); err != nil {
			return r, err
		}
		if r, err = d.write(ctx, creating); err != nil {
			return r, err
		}
	case r.State != Creating:
		return r, fmt.Errorf("there is a store %q already, in the database %q (%s)", name, r.Database,
			r.State)
	default:
		if r, err = d.write(ctx, r); err != nil { // see Row.revision
			return r, err
		}
	}
	if err := d.at("create"); err != nil {
		return r, err
	}
	var head contract.Revision
	err = d.ensured(ctx, name, r.Database, func(b contract.Backend) (err error) {
		head, err = contract.CreateFor(ctx, b, r.here(), contract.Revision(r.Floor))
		return err
	})
	if err == nil {
		err = d.at("created")
	}
	if errors.Is(err, contract.ErrNotNew) {
		return r, errTaken(r)
	}
	if err != nil {
		return r, fmt.Errorf("the store %q was not created: %w", name, err)
	}
	return d.write(ctx, r.open(head))
}

// free returns an error if the database has a store already where one is to be created. It brings
// the schema to the newest version.
func (d *Directory) free(ctx context.Context, r Row) error {
	c, err := d.databases.Config(r.Database, contract.DefaultStore)
	if err != nil {
		return err
	}
	if _, err := database.Migrate(ctx, c); err != nil {
		return fmt.Errorf("database %q: %w", r.Database, err)
	}
	if lacks, err := d.lacks(ctx, r); err != nil || lacks {
		return err
	}
	return d.backend(ctx, r.Name, r.Database, func(b contract.Backend) error {
		free, err := contract.Free(ctx, b, r.Generation)
		if err == nil && !free {
			err = errTaken(r)
		}
		return err
	})
}

func errTaken(r Row) error {
	return fmt.Errorf("the database %q has a store %q, which the directory does not know: add it by "+
		"`rowkeeper directory rebuild`", r.Database, r.Name)
}

// lacks tells whether the database of a row has no such store, as if it had been lost.
func (d *Directory) lacks(ctx context.Context, r Row) (bool, error) {
	c, err := d.databases.Config(r.Database, r.Name)
	if err != nil {
		return false, err
	}
	names, err := database.AllStores(ctx, c)
	if err != nil {
		return false, fmt.Errorf("database %q: %w", r.Database, err)
	}
	return !slices.Contains(names, r.Name), nil
}

// Drop drops a store with all that it holds, and returns false if it was dropped before. A drop
// that was interrupted is ended. A store that its database has lost is dropped as well.
func (d *Directory) Drop(ctx context.Context, name string) (dropped bool, err error) {
	r, err := d.Get(ctx, name)
	switch {
	case err != nil:
		return false, err
	case r.State == Dropped:
		return false, nil
	case r.State != Open && r.State != Dropping:
		return false, d.busy(r)
	}
	lost, err := d.lacks(ctx, r)
	if err != nil {
		return false, err
	}
	if r.State == Open && !lost {
		if err := d.backend(ctx, name, r.Database, func(b contract.Backend) error {
			return errors.Join(r.isIn(ctx, b), database.Unneeded(ctx, name, b))
		}); err != nil {
			return false, err
		}
	}
	if r.State == Open {
		r = r.dropping(newID())
	}
	if r, err = d.write(ctx, r); err != nil { // see Row.revision
		return false, err
	}
	if lost {
		_, err = d.write(ctx, r.dropped(0))
		return err == nil, err
	}
	var head contract.Revision
	err = d.backend(ctx, name, r.Database, func(b contract.Backend) error {
		if err := database.Unneeded(ctx, name, b); err != nil {
			return err
		}
		home := r.here()
		if err := contract.CloseFor(ctx, b, home); err != nil {
			return err
		}
		st, err := b.State(ctx)
		if err == nil {
			head = st.Head.Revision
			err = d.at("erase")
		}
		if err == nil {
			_, err = contract.EraseFor(ctx, b, home)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("the store %q was not dropped: %w", name, err)
	}
	_, err = d.write(ctx, r.dropped(head))
	return err == nil, err
}

// busy says of a row why something else has to be done first.
func (d *Directory) busy(r Row) error {
	switch r.State {
	case "", Dropped:
		return fmt.Errorf("the directory has no store %q: create it by `rowkeeper directory place`, or "+
			"run `rowkeeper directory rebuild` if a database has it", r.Name)
	case Moving:
		return fmt.Errorf("the store %q is being moved from %q to %q: end that by `rowkeeper stores "+
			"move-to %s --to %s`, or give it up by --undo", r.Name, r.Database, r.To, r.Name, r.To)
	case Opening:
		return fmt.Errorf("the store %q has been moved from %q to %q, and is not open yet: end that by "+
			"`rowkeeper stores move-to %s --to %s`", r.Name, r.From, r.Database, r.Name, r.Database)
	case Undoing:
		return fmt.Errorf("the move of the store %q from %q to %q is being undone: end that by "+
			"`rowkeeper stores move-to %s --undo`", r.Name, r.Database, r.To, r.Name)
	case Creating:
		return fmt.Errorf("the store %q is being created in %q: end that by `rowkeeper directory place %s`",
			r.Name, r.Database, r.Name)
	case Dropping:
		return fmt.Errorf("the store %q is being dropped: end that by `rowkeeper directory drop %s`", r.Name,
			r.Name)
	}
	return fmt.Errorf("the store %q is %s", r.Name, r.State)
}

// MoveTo moves a store to another database, while its clients go on. It goes on with a move that
// was interrupted. If the store is there already, it does nothing, and m.Head is 0.
func (d *Directory) MoveTo(ctx context.Context, name, to string, o MoveOptions) (m Moved, err error) {
	r, err := d.Get(ctx, name)
	if err != nil {
		return m, err
	}
	switch _, end := r.ends(); {
	case r.State == Open && r.Database == to:
		return m, nil
	case r.State == Open:
		if _, err := d.databases.Config(to, name); err != nil {
			return m, err
		}
		if err := d.backend(ctx, name, r.Database, func(b contract.Backend) error {
			return errors.Join(r.isIn(ctx, b), database.Alone(ctx, name, b))
		}); err != nil {
			return m, err
		}
		if r, err = d.write(ctx, r.moving(to, newID())); err != nil {
			return m, err
		}
	case (r.State == Moving || r.State == Opening) && end == to:
		if r, err = d.write(ctx, r); err != nil { // see Row.revision
			return m, err
		}
	default:
		return m, d.busy(r)
	}
	if m, err = d.move(ctx, &r, o); errors.Is(err, contract.ErrNotNew) {
		return m, fmt.Errorf("the database %q has another store %q: give the move up by `rowkeeper stores "+
			"move-to %s --undo`, and name another database (%w)", to, name, name, err)
	}
	if err != nil {
		return m, fmt.Errorf("the move of the store %q to %q has not ended: %w", name, to, err)
	}
	return m, nil
}

// move goes on with a move from wherever it is.
func (d *Directory) move(ctx context.Context, r *Row, o MoveOptions) (m Moved, err error) {
	if err := d.at("begin"); err != nil {
		return m, err
	}
	from, to := r.ends()
	err = d.backend(ctx, r.Name, from, func(source contract.Backend) error {
		err := d.ensured(ctx, r.Name, to, func(target contract.Backend) error {
			head, open, err := contract.OpenedFor(ctx, target, r.target())
			if err == nil && !open {
				err = contract.ErrUndone // to be filled; see below
			}
			m.Head = int64(head)
			return err
		})
		if errors.Is(err, contract.ErrUndone) {
			m, err = d.fill(ctx, r, source, o)
		}
		if err != nil {
			return err
		}
		if r.State == Moving {
			// The directory was rebuilt after the last step but one.
			if *r, err = d.write(ctx, r.opening(contract.Revision(m.Head))); err != nil {
				return err
			}
		}
		if err := d.at("erase"); err != nil {
			return err
		}
		_, err = contract.EraseFor(ctx, source, r.source())
		return err
	})
	if err == nil {
		err = d.at("end")
	}
	if err == nil {
		*r, err = d.write(ctx, r.open(contract.Revision(m.Head)))
	}
	return m, err
}

// fill fills the target, and opens it. The row is in the state opening afterwards.
func (d *Directory) fill(ctx context.Context, r *Row, source contract.Backend,
	o MoveOptions) (m Moved, err error) {
	_, to := r.ends()
	c, err := d.databases.Config(to, r.Name)
	if err != nil {
		return m, err
	}
	follow, caughtUp := context.WithCancel(ctx)
	defer caughtUp()
	options := move.Options{From: move.StoreOf(source, r.source()), To: c, Home: r.target(),
		Progress: o.Progress,
		Following: func(upto, newest int64) {
			if upto >= newest {
				caughtUp()
			}
		},
		Opening: func(ctx context.Context, m Moved) (contract.Settled, contract.Revision, error) {
			return d.opening(ctx, r, source, m)
		}}
	m, err = move.Run(follow, options)
	if !errors.Is(err, move.ErrFollowed) || ctx.Err() != nil {
		return m, err // it was interrupted after the source was closed
	}
	if err := d.at("close"); err != nil {
		return m, err
	}
	options.Finish = true
	return move.Run(ctx, options)
}

// opening changes the directory when the target holds what the source held at last, and reads what
// the target gets besides. That cannot change any more: the source is closed.
func (d *Directory) opening(ctx context.Context, r *Row, source contract.Backend,
	m Moved) (s contract.Settled, floor contract.Revision, err error) {
	if r.State == Moving {
		if err := d.alone(ctx, *r); err != nil {
			return s, 0, err
		}
	}
	if s, err = settled(ctx, source); err != nil {
		return s, 0, err
	}
	if err := d.at("change"); err != nil {
		return s, 0, err
	}
	if r.State == Moving {
		changed, err := d.write(ctx, r.opening(contract.Revision(m.Revision)))
		if err != nil {
			return s, 0, err
		}
		*r = changed
	}
	s.Home = r.target()
	return s, contract.Revision(r.Floor), d.at("open")
}

// settled reads what a store has besides keys and leases.
func settled(ctx context.Context, source contract.Backend) (s contract.Settled, err error) {
	id, err := source.Identity(ctx)
	if err != nil {
		return s, err
	}
	s.Identity = id.Store
	if s.Quota, _, _, err = source.Quota(ctx); err != nil {
		return s, err
	}
	if s.Indexes, _, err = source.Indexes(ctx); err != nil {
		return s, err
	}
	err = source.Locked(ctx, contract.LockOptions{}, func(tx contract.Tx) (err error) {
		s.Directories, err = tx.Directories()
		return err
	})
	return s, err
}

// Undo gives up a move that has not changed the directory yet. It tells whether servers could not
// use the store any more, and can again.
func (d *Directory) Undo(ctx context.Context, name string) (opened bool, err error) {
	r, err := d.Get(ctx, name)
	switch {
	case err != nil:
		return false, err
	case r.State == Moving, r.State == Undoing:
		if r, err = d.write(ctx, r.undoing()); err != nil { // see Row.revision
			return false, err
		}
	case r.State == Opening:
		return false, fmt.Errorf("the move cannot be undone any more: %w", d.busy(r))
	case r.State == "":
		return false, d.busy(r)
	default:
		return false, fmt.Errorf("the store %q is %q, and is not being moved", name, r.State)
	}
	if err := d.at("empty"); err != nil {
		return false, err
	}
	err = d.ensured(ctx, name, r.To, func(b contract.Backend) error {
		return contract.EmptyFor(ctx, b, r.target())
	})
	if errors.Is(err, contract.ErrOpened) {
		// The directory was rebuilt after the move had ended.
		_, err := d.write(ctx, r.opening(0))
		return false, errors.Join(fmt.Errorf("the move of the store %q has ended: run `rowkeeper stores "+
			"move-to %s --to %s` to tidy up, and then move it back", name, name, r.To), err)
	}
	if err == nil {
		err = d.at("reopen")
	}
	if err == nil {
		err = d.backend(ctx, name, r.Database, func(b contract.Backend) (err error) {
			opened, err = contract.ReopenFor(ctx, b, r.source())
			return err
		})
	}
	if err == nil {
		err = d.at("undone")
	}
	if err != nil {
		return false, fmt.Errorf("the move of the store %q has not been undone: %w", name, err)
	}
	_, err = d.write(ctx, r.open(0))
	return opened, err
}

// backend calls f with a store of a database.
func (d *Directory) backend(ctx context.Context, name, in string,
	f func(contract.Backend) error) error {
	c, err := d.databases.Config(in, name)
	if err != nil {
		return err
	}
	b, err := database.OpenBackend(ctx, c)
	if err != nil {
		return fmt.Errorf("database %q: %w", in, err)
	}
	return errors.Join(f(b), b.Close())
}

// ensured is backend for a store that is made if it is not there.
func (d *Directory) ensured(ctx context.Context, name, in string,
	f func(contract.Backend) error) error {
	c, err := d.databases.Config(in, name)
	if err != nil {
		return err
	}
	if err := database.EnsureStore(ctx, c); err != nil {
		return fmt.Errorf("database %q: %w", in, err)
	}
	return d.backend(ctx, name, in, f)
}

// alone returns an error if the store cannot leave its database alone: it keeps resources of
// another store, or another one keeps some of its own.
func (d *Directory) alone(ctx context.Context, r Row) error {
	from, _ := r.ends()
	return d.backend(ctx, r.Name, from, func(b contract.Backend) error {
		return database.Alone(ctx, r.Name, b)
	})
}

// isIn returns an error if the store of a backend is not the one of an open row.
func (r *Row) isIn(ctx context.Context, b contract.Backend) error {
	h, st, err := contract.ReadHome(ctx, b)
	switch {
	case err != nil:
		return err
	case st.Dropped():
		return contract.Errorf(contract.Invalid, "the store %q is closed in the database %q, and the "+
			"directory says that it is open there: run `rowkeeper directory rebuild`", r.Name, r.Database)
	}
	return r.agrees(h)
}
