package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Load is what a database has of a directory.
type Load struct {
	Database string
	// Stores is how many names are there, or are on the way there.
	Stores int
	// Bytes is what the database occupies on disk, and LiveBytes the part that is in use, as far as
	// it can tell cheaply: of all its stores. In SQLite they are those of the default store alone.
	Bytes, LiveBytes int64
}

// count counts the stores of each database.
func (d *Directory) count(ctx context.Context) (map[string]int, error) {
	names, err := d.databases.Names()
	if err != nil {
		return nil, err
	}
	stores := map[string]int{}
	for _, name := range names {
		stores[name] = 0
	}
	err = d.List(ctx, func(r Row) error {
		if r.State != Dropped {
			if _, to := r.ends(); r.State == Moving {
				stores[to]++
			} else {
				stores[r.Database]++
			}
		}
		return nil
	})
	return stores, err
}

// Loads measures the databases, in the order of their names.
func (d *Directory) Loads(ctx context.Context) (loads []Load, err error) {
	stores, err := d.count(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		l := Load{Database: name, Stores: stores[name]}
		err := d.backend(ctx, contract.DefaultStore, name, func(b contract.Backend) error {
			size, err := b.Size(ctx)
			l.Bytes, l.LiveBytes = size.Total, size.Live
			return err
		})
		if err != nil {
			return loads, err
		}
		loads = append(loads, l)
	}
	return loads, nil
}

// Emptiest is the database with the fewest stores, of those that the file names, but for one.
func (d *Directory) Emptiest(ctx context.Context, but string) (string, error) {
	stores, err := d.count(ctx)
	if err != nil {
		return "", err
	}
	known, err := d.databases.Names()
	if err != nil {
		return "", err
	}
	known = slices.DeleteFunc(known, func(name string) bool { return name == but })
	if len(known) == 0 {
		return "", errors.New("there is no other database: add one to the file of the databases")
	}
	return slices.MinFunc(known, func(a, b string) int { return cmp.Compare(stores[a], stores[b]) }), nil
}

// Drain moves all stores of a database to others, one after the other, each to the one with the
// fewest. moved is told of each. No store should be placed in the database meanwhile.
func (d *Directory) Drain(ctx context.Context, from string, o MoveOptions,
	moved func(name, to string, m Moved)) error {
	var rows []Row
	if err := d.List(ctx, func(r Row) error {
		if r.Database == from && r.State != Dropped || r.From == from || r.To == from {
			rows = append(rows, r)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, r := range rows {
		if r.To == from {
			return d.busy(r)
		}
		to := cmp.Or(r.To, r.Database)
		if r.State == Open {
			var err error
			if to, err = d.Emptiest(ctx, from); err != nil {
				return err
			}
		}
		m, err := d.MoveTo(ctx, r.Name, to, o)
		if err != nil {
			return err
		}
		moved(r.Name, to, m)
	}
	return nil
}

// Migrate brings the schema of all databases to the newest version. It goes on after an error.
func (d *Directory) Migrate(ctx context.Context, done func(database string, ran int)) error {
	return d.each(ctx, func(name string, c Config) error {
		ran, err := database.Migrate(ctx, c)
		if err == nil {
			done(name, len(ran))
		}
		return err
	})
}

// each calls f for each database, and goes on after errors.
func (d *Directory) each(ctx context.Context, f func(name string, c Config) error) error {
	names, err := d.databases.Names()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		c, err := d.databases.Config(name, contract.DefaultStore)
		if err == nil {
			err = f(name, c)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("database %q: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// found is a store that a database has.
type found struct {
	database string
	home     contract.Home
	state    contract.State
}

// unowned tells whether a store is open, and belongs to no directory.
func (f *found) unowned() bool { return f.home.Generation == 0 && !f.state.Dropped() }

// rebuilt decides what the row of a name has to be, by all stores that databases have of the name.
// There is none if r.State is "". stale are those that are open and must not be. is is the row that
// there is, which decides only about a store that a database has lost.
func rebuilt(name string, is Row, all []found) (r Row, stale []found, err error) {
	// The newest first. Of one generation the open one, which may have been undone at another
	// place.
	slices.SortStableFunc(all, func(a, b found) int {
		closed := func(f found) int {
			if f.state.Dropped() {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(b.home.Generation, a.home.Generation),
			cmp.Compare(closed(a), closed(b)))
	})
	undone := map[string]string{}
	owned := slices.ContainsFunc(all, func(f found) bool {
		return f.home.Generation > 0 && !f.state.Dropped()
	})
	all = slices.DeleteFunc(slices.Clone(all), func(f found) bool {
		undone[f.database] = f.home.Undone
		// What was never written is what a move has made just before it was killed.
		return f.home.Generation == 0 && (f.state.Dropped() || owned && f.state.Head.Revision <= 1)
	})
	if len(all) == 0 {
		return r, nil, nil
	}
	best, others := all[0], all[1:]
	if h := best.home; best.state.Dropped() && h.From == "" {
		// Somebody has made another one of the name, or has restored it where it was lost.
		for i, o := range others {
			if o.unowned() && (h.To == "" || h.To == o.database && is.Database == o.database) {
				best, others = o, slices.Delete(slices.Clone(others), i, i+1)
				best.home.Generation = h.Generation + 1
				break
			}
		}
	}
	r = Row{Name: name, State: Open, Database: best.database, Generation: max(best.home.Generation, 1),
		Move: best.home.Move, Floor: int64(best.state.Head.Revision)}
	if !best.state.Dropped() {
		for _, o := range others {
			switch {
			case o.state.Dropped():
			case o.home.Generation == best.home.Generation, o.home.Generation == 0:
				return r, nil, fmt.Errorf("both the database %q and the database %q have an open store "+
					"%q: drop one of the two by `rowkeeper stores drop`, or close it", best.database,
					o.database, name)
			default:
				stale = append(stale, o)
			}
		}
		return r, stale, nil
	}
	switch h := best.home; {
	case h.To != "" && undone[h.To] == h.Move:
		r.State, r.To = Undoing, h.To
		return r, nil, nil
	case h.To != "" && is.State == Dropped && is.Generation > h.Generation:
		return Row{}, nil, nil // it was lost, and given up
	case h.To != "":
		return r, nil, fmt.Errorf("the store %q has gone from the database %q to %q, where it is not: "+
			"name that database in the file, or restore the store there, or give it up by `rowkeeper "+
			"directory drop %s`", name, best.database, h.To, name)
	case h.From == "":
		r.State = Dropped
		return r, nil, nil
	}
	// It is the target of a move that has not ended.
	for _, o := range others {
		if o.database == best.home.From && o.home.Generation == best.home.Generation-1 &&
			(!o.state.Dropped() || o.home.Move == best.home.Move) {
			r.State, r.Database, r.To = Moving, o.database, best.database
			r.Generation, r.Move = o.home.Generation, best.home.Move
			return r, nil, nil
		}
	}
	return r, nil, fmt.Errorf("the store %q is being moved from the database %q to %q, and the source is "+
		"not there: name its database in the file, or restore it", name, best.home.From, best.database)
}

// Rebuild makes the directory agree with the databases, of which each has to be there: of all
// stores of a name, the one of the highest generation wins. It adds stores that no directory has.
// It closes stores that are open and must not be, as after a restore of what was there before a
// move. told is told of each change. It goes on after an error that concerns one name. No store
// should be moved meanwhile.
func (d *Directory) Rebuild(ctx context.Context, told func(string)) error {
	all := map[string][]found{}
	if err := d.each(ctx, func(in string, c Config) error {
		names, err := database.AllStores(ctx, c)
		if err != nil {
			return err
		}
		for _, name := range names {
			if name == contract.DefaultStore {
				continue
			}
			err := d.backend(ctx, name, in, func(b contract.Backend) error {
				h, st, err := contract.ReadHome(ctx, b)
				all[name] = append(all[name], found{in, h, st})
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("nothing was rebuilt, since a database cannot be read: %w", err)
	}
	var errs []error
	rows, err := d.readable(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := d.rebuild(ctx, name, rows[name], all[name], told); err != nil {
			errs = append(errs, err)
		}
		delete(rows, name)
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if r := rows[name]; r.State != Dropped && r.State != Creating && r.State != "" {
			errs = append(errs, fmt.Errorf("no database has the store %q, which the directory has in %q: "+
				"restore it there, or give it up by `rowkeeper directory drop %s`", name, r.Database, name))
		}
	}
	return errors.Join(errs...)
}

// readable are the rows that can be read. Those that cannot are replaced.
func (d *Directory) readable(ctx context.Context) (map[string]Row, error) {
	rows := map[string]Row{}
	err := d.list(ctx, func(r Row, err error) error {
		if err != nil {
			r = Row{Name: r.Name, revision: r.revision}
		}
		rows[r.Name] = r
		return nil
	})
	return rows, err
}

func (d *Directory) rebuild(ctx context.Context, name string, is Row, all []found,
	told func(string)) error {
	r, stale, err := rebuilt(name, is, all)
	if err != nil || r.State == "" {
		return err
	}
	for _, s := range stale {
		home := s.home
		home.Move, home.From, home.To = newID(), "", r.Database
		if err := d.backend(ctx, name, s.database, func(b contract.Backend) error {
			return contract.CloseFor(ctx, b, home)
		}); err != nil {
			return err
		}
		told(fmt.Sprintf("closed the store %q in the database %q, which is older than that in %q", name,
			s.database, r.Database))
	}
	adopt, floor := false, is.Floor
	r.revision, r.Attempt = is.revision, is.Attempt
	for _, f := range all {
		adopt = adopt || f.unowned() && f.database == r.Database && r.State == Open
		r.Attempt = max(r.Attempt, f.home.Attempt)
		if f.state.Dropped() && f.home.Generation > 0 {
			floor = max(floor, int64(f.state.Head.Revision))
		}
	}
	r.Floor = max(r.Floor, floor)
	switch {
	case adopt && is.State == Dropped:
		r.Generation = max(r.Generation, is.Generation+1)
	case adopt && is.Database == r.Database:
		r.Generation = max(r.Generation, is.Generation)
	case is.InHand() && is.Move == r.Move:
		return nil // what is in hand goes on from there
	}
	if is.Generation > r.Generation && is.State != Creating {
		return fmt.Errorf("the directory has the store %q in %q with the generation %d, and the newest "+
			"one that a database has is that of %q with the generation %d: a database was set back, or is "+
			"not named in the file", name, is.Database, is.Generation, r.Database, r.Generation)
	}
	if adopt {
		home := contract.Home{Generation: r.Generation, Attempt: r.Attempt}
		if err := d.backend(ctx, name, r.Database, func(b contract.Backend) error {
			return contract.AdoptHome(ctx, b, home, contract.Revision(floor))
		}); err != nil {
			return err
		}
	}
	goesOn := is.State == Moving || is.State == Undoing || is.InHand() && is.State != Creating && !adopt
	if is.Generation == r.Generation && is.Database == r.Database && (is.State == r.State || goesOn) {
		if adopt {
			told(fmt.Sprintf("the store %q in the database %q belongs to the directory again", name,
				r.Database))
		}
		return nil // what is in hand goes on from there
	}
	if r, err = d.write(ctx, r); err == nil {
		told(fmt.Sprintf("the store %q is %s in the database %q", name, r.State, r.Database))
	}
	return err
}
