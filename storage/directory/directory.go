package directory

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Directory says in which database each store is. It may be used concurrently, and by any number of
// processes.
type Directory struct {
	databases *Databases
	db        *database.Store
	rows      *mvcc.Engine
	// at is called at each step of what takes several. A test makes it fail there, as if the
	// process ended.
	at func(step string) error
}

// OpenDirectory opens the directory in a control database, whose default store holds it.
func OpenDirectory(ctx context.Context, control Config, databases *Databases) (*Directory, error) {
	control.Store = contract.DefaultStore
	db, err := database.Open(ctx, control, nil)
	if err != nil {
		return nil, fmt.Errorf("the directory cannot be opened: %w", err)
	}
	return &Directory{databases: databases, db: db, rows: database.Engine(db),
		at: func(string) error { return nil }}, nil
}

// Close closes the directory.
func (d *Directory) Close() error { return d.db.Close() }

// Get reads the row of a name, linearizably. A name without a row has the state "".
func (d *Directory) Get(ctx context.Context, name string) (Row, error) {
	if err := database.CheckStoreName(name); err != nil {
		return Row{}, err
	}
	kv, _, err := d.rows.Get(ctx, keyOf(name))
	switch {
	case err != nil:
		return Row{}, fmt.Errorf("the directory cannot be read: %w", err)
	case kv == nil:
		return Row{Name: name}, nil
	}
	return parseRow(kv.Key, kv.Value, kv.Revision)
}

// ErrInHand says that a store is between two databases, or is being created: it can be used soon.
var ErrInHand error = contract.Errorf(contract.Unavailable, "the store is being moved, or created, and can be "+
	"used when that has ended: see `rowkeeper directory list`")

// Locate returns the row of a store that can be used now, and the configuration of its database.
// The store's own row must agree with the directory's.
func (d *Directory) Locate(ctx context.Context, name string) (r Row, c Config, err error) {
	if r, err = d.Get(ctx, name); err != nil {
		return r, c, err
	}
	switch r.State {
	case "", Dropped, Dropping:
		return r, c, d.busy(r)
	case Creating:
		return r, c, ErrInHand
	}
	if c, err = d.databases.Config(r.Database, name); err != nil {
		return r, c, err
	}
	err = d.backend(ctx, name, r.Database, func(b contract.Backend) error {
		switch st, err := b.State(ctx); {
		case err != nil:
			return err
		case st.Dropped() && r.InHand():
			return ErrInHand
		}
		return r.isIn(ctx, b)
	})
	return r, c, err
}

// agrees compares the row with the home of an open store.
func (r *Row) agrees(h contract.Home) error {
	if h.Generation == r.Generation {
		return nil
	}
	return contract.Errorf(contract.Invalid, "the store %q in the database %q has the generation %d, "+
		"and the directory says %d: one of the two was set back; run `rowkeeper directory rebuild`", r.Name,
		r.Database, h.Generation, r.Generation)
}

// rowsAtOnce is how many rows are read at a time.
const rowsAtOnce = 1000

// List calls each for the rows in the order of their names, as of one moment, until it returns an
// error. A row that cannot be read ends it.
func (d *Directory) List(ctx context.Context, each func(Row) error) error {
	return d.list(ctx, func(r Row, err error) error {
		if err != nil {
			return err
		}
		return each(r)
	})
}

// list calls each also for rows that cannot be read, of which r has the name.
func (d *Directory) list(ctx context.Context, each func(r Row, err error) error) error {
	o := mvcc.RangeOptions{Start: prefix, End: contract.PrefixEnd(prefix), Limit: rowsAtOnce}
	for {
		page, err := d.rows.Range(ctx, o)
		if err != nil {
			return fmt.Errorf("the directory cannot be read: %w", err)
		}
		for i := range page.KVs {
			r, err := parseRow(page.KVs[i].Key, page.KVs[i].Value, page.KVs[i].Revision)
			if err := each(r, err); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		o.From, o.At = database.After(page.KVs[len(page.KVs)-1].Key), page.Revision
	}
}

// ErrChanged says that another process has changed a row meanwhile.
var ErrChanged = errors.New("another process has changed the directory's row of the store: look at it " +
	"by `rowkeeper directory list`, and try again")

// write writes a row in the place of the one that it was made of.
func (d *Directory) write(ctx context.Context, r Row) (Row, error) {
	if err := r.check(); err != nil {
		return r, err
	}
	value, err := json.Marshal(r)
	if err != nil {
		return r, err
	}
	revision, err := d.rows.Commit(ctx, contract.Mutation{Key: keyOf(r.Name), Expect: r.revision,
		Value: value})
	if conflict := (*contract.ConflictError)(nil); errors.As(err, &conflict) {
		return r, ErrChanged
	}
	if err != nil {
		return r, fmt.Errorf("the directory cannot be written: %w", err)
	}
	r.revision = revision
	return r, nil
}

// newID returns an identifier that no other move has.
func newID() string { return rand.Text()[:16] }
