package mvcc

import (
	"context"
	"slices"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// The declarations of the store's indexes, as this process knows them; index.go of the contract
// says why lists by an index miss nothing. A process begins without any, which is right for a store
// that has the generation 0. It reads them when a group was refused for it, when a page tells
// another generation, and when the store is asked for its quota: by what tells the generation, too.

// knownIndexes are declarations that were read in an era. In another one they stand for nothing: a
// generation may have come again.
type knownIndexes struct {
	era contract.Era
	x   *contract.Indexes
}

var noIndexes = &contract.Indexes{}

// Indexes returns the declarations that the process knows. Nobody changes them.
func (s *Engine) Indexes() *contract.Indexes { return s.indexesIn(s.hub.presentEra()) }

func (s *Engine) indexesIn(era contract.Era) *contract.Indexes {
	if k := s.indexes.Load(); k != nil && k.era == era {
		return k.x
	}
	return noIndexes
}

// learn takes declarations that were read in an era.
func (s *Engine) learn(era contract.Era, x *contract.Indexes) {
	before := s.indexesIn(era)
	s.indexes.Store(&knownIndexes{era, x})
	if x.Generation == before.Generation {
		return
	}
	s.indexesMu.Lock()
	defer s.indexesMu.Unlock()
	if s.indexesChanged != nil {
		close(s.indexesChanged)
		s.indexesChanged = nil
	}
}

// IndexesChanged is closed when the process learns of another generation.
func (s *Engine) IndexesChanged() <-chan struct{} {
	s.indexesMu.Lock()
	defer s.indexesMu.Unlock()
	if s.indexesChanged == nil {
		s.indexesChanged = make(chan struct{})
	}
	return s.indexesChanged
}

// RefreshIndexes reads the declarations.
func (s *Engine) RefreshIndexes(ctx context.Context) (*contract.Indexes, error) {
	era := s.hub.presentEra()
	var x *contract.Indexes
	if _, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		x, st, err = s.b.Indexes(ctx)
		return st, err
	}); err != nil {
		return nil, err
	}
	s.learn(era, x)
	return x, nil
}

// follow reads the declarations if their generation is another one than this process knows.
func (s *Engine) follow(ctx context.Context, generation int64) error {
	if generation == s.Indexes().Generation {
		return nil
	}
	_, err := s.RefreshIndexes(ctx)
	return err
}

// index gives the mutations of a group their entries by the declarations: to copies, since an
// earlier group of the same writes may still be on its way.
func index(g *contract.Group, x *contract.Indexes) {
	if g.Generation = x.Generation; len(x.All) == 0 {
		return
	}
	for i, m := range g.Mutations {
		if !x.Covers(m.Key) {
			continue
		}
		own := *m
		if own.Indexed = true; !own.Delete {
			own.Entries = x.Entries(m.Key, m.Known, m.Found)
		}
		g.Mutations[i] = &own
	}
}

// indexBytes is about what the entries of a mutation need in a group: those that it brings, and
// those that it replaces.
func (s *Engine) indexBytes(m *contract.Mutation) (n int) {
	x := s.Indexes()
	if len(x.All) == 0 || !x.Covers(m.Key) {
		return 0
	}
	for _, e := range m.Found {
		n += 2 * (len(e) + len(m.Key))
	}
	return n + contract.MaxIndexes*(128+len(m.Key))
}

// IndexQuery selects the keys that have one of some entries of one index, by the declarations of a
// generation.
type IndexQuery struct {
	Generation int64
	Entries    []contract.Entry
	// Since is [contract.Index.Since] of the index.
	Since contract.Revision
}

// CountEntries counts the keys of a range that have one of some entries, up to a limit for each.
func (s *Engine) CountEntries(ctx context.Context, entries []contract.Entry, start, end contract.Key,
	limit int64) (n int64, err error) {
	_, err = s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		n, st, err = s.b.CountEntries(ctx, entries, start, end, limit)
		return st, err
	})
	return n, err
}

// ChangeIndexes changes the declarations by f, which tells whether it has changed them.
func (s *Engine) ChangeIndexes(ctx context.Context,
	f func(*contract.Indexes) (bool, error)) (*contract.Indexes, error) {
	era := s.hub.presentEra()
	x, err := contract.ChangeIndexes(ctx, s.b, f)
	if err != nil {
		return nil, err
	}
	s.learn(era, x)
	return x, nil
}

// buildRows is how many keys a step of a walk looks at.
const buildRows = 500

// BuildIndexes walks a step through the keys of a directory that has indexes to build, and removes
// rows of indexes that were dropped. found tells which entries a value has under the declarations,
// nil and false if that is not known. BuildIndexes returns false when there is nothing more to do,
// or one of the directory's indexes is not ours to build: a step gives a key all of its entries.
func (s *Engine) BuildIndexes(ctx context.Context, directory, end contract.Key,
	ours func(*contract.Index) bool,
	found func(*contract.Indexes, *KeyValue) ([]contract.Entry, bool)) (more bool, err error) {
	leave, err := s.cfg.Scheduler.turn(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	era, x := s.hub.presentEra(), s.Indexes()
	if slices.ContainsFunc(x.All, func(d contract.Index) bool {
		return d.State == contract.IndexDropping && d.Directory == directory
	}) {
		_, x, err := contract.ForgetEntries(ctx, s.b, buildRows)
		if err != nil {
			return false, err
		}
		s.learn(era, x)
		return true, nil
	}
	var from []byte
	building := false
	for _, d := range x.In(directory) {
		if !ours(d) {
			return false, nil
		}
		if d.State == contract.IndexBuilding && (!building || string(d.Built) < string(from)) {
			building, from = true, d.Built
		}
	}
	if !building {
		return false, nil
	}
	q := contract.PageQuery{Start: directory, End: end, Limit: buildRows}
	if len(from) > 0 {
		q.Start = contract.Key(from) + "\x00"
	}
	var page *contract.Page
	if _, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		if page, err = s.b.Page(ctx, q); err != nil {
			return st, err
		}
		return page.State, nil
	}); err != nil {
		return false, err
	}
	keys, upto := make([]contract.Reindexed, len(page.Rows)), from
	for i := range page.Rows {
		row, known := &page.Rows[i], x
		entries, ok := found(x, keyValue(row))
		if !ok {
			known = nil
		}
		keys[i] = contract.Reindexed{Key: row.Key, ID: row.ID(),
			Entries: x.Entries(row.Key, known, entries)}
		upto = []byte(row.Key)
	}
	done := !page.More && len(page.Rows) < q.Limit
	if x, err = contract.BuildIndexes(ctx, s.b, page.State.Head, directory, x, from, keys, upto, done); err != nil {
		return false, err
	}
	s.learn(era, x)
	return true, nil
}
