package mvcc

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// The past of a key is its rows in the log, which name each other: a row names the one that it
// replaced, and the live row is the newest one. So the rows of a key that exists are read from its
// live row back, one primary key after the other, until one created the key. What was there before
// is another object of the same name. Nothing names its last row, a deletion, so the log between
// the creation and the boundary of compaction is scanned for it, and so it is for a key that does
// not exist.
//
// # What compaction leaves
//
// The rows after the boundary are all there, and so is the row that was in force at the boundary
// (I7). Older rows may be there until the sweep comes to them. They are told, too: as each is named
// by the row that replaced it, the rows that are told never have a gap. They end where a row is
// missing. That is the sweep if the boundary has passed the row that replaced the missing one, and
// damage otherwise.
//
// A page is made of several reads, and compaction may go on between them. Rows are read before
// their values, and each read brings the boundary along. A value that is missing by then ends the
// past before its row in the same way. So a page is a true past, and perhaps a shorter one.
//
// # Which history
//
// All reads pass Engine.read. IDs are never used twice (I6), so a place of an earlier page names
// the same row or none. The place has the epoch: after a fence, a page does not go on, since the
// rows that it would go on from may be gone.

// PastRow is a row of the log with its value, and that of the row that it replaced, if this is
// there (HasPrev). A deletion has no value.
type PastRow struct {
	contract.Row
	// Earlier: the row is not about the object that exists now, but about an earlier one of the
	// same name.
	Earlier bool
	// User is who has written it, nil if nobody is recorded.
	User *contract.User

	// by is the revision of the row that replaced it, 0 if that is not known.
	by contract.Revision
}

// PastPlace is where a page of the past begins. The zero value is the newest row.
type PastPlace struct {
	Epoch contract.Epoch `json:"epoch"`
	// Row is the first row of the page, and By the revision of the row that replaced it, or 0.
	Row contract.RowID    `json:"row,omitempty"`
	By  contract.Revision `json:"by,omitempty"`
	// Below is above the rows among which the first row of the page is looked for.
	Below contract.Revision `json:"below,omitempty"`
	// After is the last row of the page before. Rows of several keys go on behind it.
	After contract.RowID `json:"after,omitempty"`
}

// PastOptions asks for a page of the past.
type PastOptions struct {
	Place PastPlace
	// Limit is how many rows the page has at most, > 0 and < contract.MaxChain.
	Limit int
	// Earlier: rows of earlier objects of the same name are wanted, too.
	Earlier bool
	// After and Upto bound the revisions of rows of several keys. Upto 0 is the head.
	After, Upto contract.Revision
}

// Past is a page, the newest row first.
type Past struct {
	Rows []PastRow
	// Next is where the next page begins, nil if there is none. A page may have fewer rows than its
	// limit, or none, and a next one.
	Next *PastPlace
	// Omitted: there are rows of earlier objects, which were not wanted.
	Omitted bool
	State   contract.State
}

const (
	// scanRows is how many revisions one statement scans at most, and scanPage how many a page
	// does. The first statement for several keys scans firstScan for each row that is wanted,
	// since most of what it scans may be theirs, and each further one twice as many. The first
	// statement for an earlier object of one key scans firstOfKey, since all of what it scans may
	// be that key's.
	firstScan  = 4
	firstOfKey = 100
	scanRows   = 10_000
	scanPage   = 20 * scanRows
	// valuesOf is how many values are read at a time, at most.
	valuesOf = 100
	// longestWalk is how many rows of a key are walked to find the one in force at a moment.
	longestWalk = 20 * contract.MaxChain
)

// ErrOtherEpoch refuses a place of a page from before a fence.
var ErrOtherEpoch = errors.New("the history has changed since the first page")

// ErrOtherPlace refuses a place that is not one of the key's past.
var ErrOtherPlace = errors.New("the place is not one of this history")

// ErrLongPast refuses to find a row that is behind too many others.
var ErrLongPast = errors.New("too many rows are newer")

// beginPast reads the state, and checks that a place belongs to this history.
func (s *Engine) beginPast(ctx context.Context, place PastPlace) (contract.State, error) {
	st, err := s.State(ctx)
	if err == nil && place != (PastPlace{}) && place.Epoch != st.Head.Epoch {
		err = ErrOtherEpoch
	}
	return st, err
}

// PastOf reads a page of the past of one key. Its errors are those of Get, ErrOtherEpoch, and
// ErrOtherPlace.
func (s *Engine) PastOf(ctx context.Context, key contract.Key, o PastOptions) (*Past, error) {
	st, err := s.beginPast(ctx, o.Place)
	if err != nil {
		return nil, err
	}
	w, err := s.walk(ctx, key, o)
	if err != nil {
		return nil, err
	}
	if err := w.check(ctx); err != nil {
		return nil, err
	}
	var rows []PastRow
	for len(rows) < o.Limit {
		more, err := w.next(ctx, o.Limit-len(rows))
		if err != nil {
			return nil, err
		}
		if rows = append(rows, more...); len(more) == 0 {
			break
		}
	}
	p := &Past{Rows: rows, State: w.state, Omitted: w.omitted}
	if w.place != (PastPlace{}) {
		p.Next = &w.place
	}
	err = s.fill(ctx, p, func(i int) PastPlace {
		return PastPlace{Row: p.Rows[i].ID(), By: p.Rows[i].by}
	})
	if err == nil {
		err = s.name(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	if p.Next != nil {
		p.Next.Epoch = st.Head.Epoch
	}
	return p, nil
}

// walk goes from one row of a key to the next older one.
type walk struct {
	s       *Engine
	key     contract.Key
	earlier bool
	// created is the revision that created the object that exists, 0 if there is none.
	created contract.Revision
	// place is where to go on, the zero value at the end.
	place   PastPlace
	state   contract.State
	omitted bool
	// budget is how many revisions may be scanned.
	budget contract.Revision
}

func (s *Engine) walk(ctx context.Context, key contract.Key, o PastOptions) (*walk, error) {
	w := &walk{s: s, key: key, earlier: o.Earlier, place: o.Place, budget: scanPage}
	var live *contract.Row
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		live, st, err = s.b.Get(ctx, key)
		return st, err
	})
	if err != nil {
		return nil, err
	}
	w.state = st
	if live != nil {
		w.created = live.Create
	}
	if w.place == (PastPlace{}) {
		if w.place.Below = st.Head.Revision + 1; live != nil {
			w.place = PastPlace{Row: live.ID()}
		}
	}
	return w, nil
}

// check refuses a place whose By is not the row of the key that has replaced its Row, and may not
// have been swept. Whoever has the place may have made it up, and what follows takes a missing row
// for damage.
func (w *walk) check(ctx context.Context) error {
	by := w.place.By
	if by == 0 {
		return nil
	}
	rows, st, err := w.s.changes(ctx, contract.ChangesQuery{Start: w.key, End: w.key + "\x00",
		After: by - 1, Upto: by})
	if err != nil {
		return err
	}
	w.state = st
	if by > st.Compacted && !slices.ContainsFunc(rows, func(r PastRow) bool {
		return r.Prev == w.place.Row
	}) {
		return ErrOtherPlace
	}
	return nil
}

// next returns at most limit rows, none at the end, or where the budget ends.
func (w *walk) next(ctx context.Context, limit int) ([]PastRow, error) {
	if w.place.Below != 0 {
		if err := w.scan(ctx); err != nil {
			return nil, err
		}
	}
	if w.place.Row == 0 {
		return nil, nil
	}
	limit = min(limit, contract.MaxChain-1)
	rows, st, err := w.s.chain(ctx, w.key, w.place.Row, limit+1)
	if err != nil {
		return nil, err
	}
	w.state = st
	first := w.place
	w.place = PastPlace{}
	switch {
	case len(rows) == 0 && first.By == 0:
		return nil, contract.ErrCompacted // it was replaced and swept since it was found
	case len(rows) == 0 && first.By <= st.Compacted:
		return nil, nil
	case len(rows) == 0:
		return nil, contract.Damaged("the log has no row %d, which the row %d replaced", first.Row,
			first.By)
	case rows[0].Create != w.created && !w.earlier:
		w.omitted = true
		return nil, nil
	}
	rows[0].by = first.By
	for i := range rows {
		rows[i].Earlier = rows[i].Create != w.created
		if i > 0 {
			rows[i].by = rows[i-1].Revision
		}
	}
	if len(rows) > limit {
		w.place = PastPlace{Row: rows[limit].ID(), By: rows[limit].by}
		return rows[:limit], nil
	}
	switch last := &rows[len(rows)-1]; {
	case last.Prev == 0:
		w.place.Below = last.Revision
	case last.Revision > st.Compacted:
		return nil, contract.Damaged("the log has no row %d, which the row %d replaced", last.Prev,
			last.Revision)
	}
	return rows, nil
}

// scan looks for the newest row of the key below the place. A piece that has it may have more rows
// of the key, which the walk reads again. So pieces begin small, and all of them are charged.
func (w *walk) scan(ctx context.Context) error {
	piece := contract.Revision(firstOfKey)
	for upto := w.place.Below - 1; upto > w.state.Compacted; piece = min(2*piece, scanRows) {
		if w.budget <= 0 {
			w.place = PastPlace{Below: upto + 1}
			return nil
		}
		after := max(w.state.Compacted, upto-piece)
		rows, st, err := w.s.changes(ctx, contract.ChangesQuery{Start: w.key, End: w.key + "\x00",
			After: after, Upto: upto})
		if err != nil {
			return err
		}
		w.state = st
		w.budget -= upto - after
		if len(rows) > 0 {
			w.place = PastPlace{Row: rows[0].ID()}
			return nil
		}
		upto = after
	}
	w.place = PastPlace{}
	return nil
}

// PastAt reads the row of a key that was in force at a revision, or if that is 0 at a time, by the
// database's clock. It returns nil if the key did not exist then. The error is ErrCompacted if
// nobody knows any more, ErrLongPast, or as for PastOf. The page has one row at most. It has none,
// and Omitted, if that is one of an earlier object which is not wanted.
func (s *Engine) PastAt(ctx context.Context, key contract.Key, at contract.Revision, when time.Time,
	earlier bool) (*Past, error) {
	if at == 0 {
		var err error
		if at, err = s.RevisionAt(ctx, when); err != nil {
			return nil, err
		}
	}
	w, err := s.walk(ctx, key, PastOptions{Earlier: true})
	if err != nil {
		return nil, err
	}
	if at > w.state.Head.Revision {
		return nil, &contract.FutureRevisionError{Revision: at, Head: w.state.Head.Revision}
	}
	for walked := 0; ; {
		rows, err := w.next(ctx, contract.MaxChain-1)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if at != 0 && rows[i].Revision > at || at == 0 && rows[i].Time.After(when) {
				continue
			}
			p := &Past{State: w.state}
			switch {
			case rows[i].Deleted:
				return p, nil
			case rows[i].Earlier && !earlier:
				p.Omitted = true
				return p, nil
			}
			p.Rows = rows[i : i+1]
			if err := s.fill(ctx, p, nil); err != nil {
				return nil, err
			}
			if len(p.Rows) == 0 {
				return nil, contract.ErrCompacted
			}
			return p, s.name(ctx, p)
		}
		if walked += len(rows); walked >= longestWalk || len(rows) == 0 && w.place != (PastPlace{}) {
			return nil, ErrLongPast
		}
		if len(rows) == 0 {
			if at < w.state.Compacted {
				return nil, contract.ErrCompacted
			}
			return &Past{State: w.state}, nil
		}
	}
}

// PastIn reads a page of the past of the keys in [start, end), which are those of objects. The
// error is a *FutureRevisionError if a bound is above the head, ErrCompacted if Upto is below the
// boundary of compaction, or as for PastOf.
func (s *Engine) PastIn(ctx context.Context, start, end contract.Key, o PastOptions) (*Past, error) {
	st, err := s.beginPast(ctx, o.Place)
	if err != nil {
		return nil, err
	}
	switch bound := max(o.After, o.Upto); {
	case bound > st.Head.Revision:
		return nil, &contract.FutureRevisionError{Revision: bound, Head: st.Head.Revision}
	case o.Upto != 0 && o.Upto < st.Compacted:
		return nil, contract.ErrCompacted
	}
	p := &Past{State: st}
	upto := o.Upto
	if upto == 0 {
		upto = st.Head.Revision
	}
	last := o.Place.After
	switch {
	case last != 0:
		upto = last.Revision()
	case o.Place.Below != 0:
		upto = o.Place.Below - 1
	}
	piece := contract.Revision(firstScan * o.Limit)
	for scanned := contract.Revision(0); ; piece *= 2 {
		piece = min(piece, scanRows)
		oldest := max(o.After, p.State.Compacted)
		if upto <= oldest {
			break
		}
		if scanned >= scanPage {
			p.Next = &PastPlace{Below: upto + 1}
			break
		}
		after := max(oldest, upto-piece)
		rows, st, err := s.changes(ctx, contract.ChangesQuery{Start: start, End: end, After: after,
			Upto: upto})
		if err != nil {
			return nil, err
		}
		p.State = st
		for _, r := range rows {
			before := contract.Row{Revision: last.Revision(), Part: last.Part()}
			if last != 0 && contract.NewestFirst(&r.Row, &before) <= 0 {
				continue
			}
			if len(p.Rows) == o.Limit {
				p.Next = &PastPlace{After: p.Rows[o.Limit-1].ID()}
				break
			}
			p.Rows = append(p.Rows, r)
		}
		if p.Next != nil {
			break
		}
		scanned, upto = scanned+upto-after, after
	}
	err = s.fill(ctx, p, func(i int) PastPlace { return PastPlace{After: p.Rows[i-1].ID()} })
	if err != nil {
		return nil, err
	}
	if err := s.sortOut(ctx, p, o.Earlier); err != nil {
		return nil, err
	}
	if err := s.name(ctx, p); err != nil {
		return nil, err
	}
	if p.Next != nil {
		p.Next.Epoch = st.Head.Epoch
	}
	return p, nil
}

// sortOut tells which rows are about earlier objects, and leaves them out unless they are wanted.
// The live rows are read after the page, so an object that is gone by then counts as an earlier
// one.
func (s *Engine) sortOut(ctx context.Context, p *Past, earlier bool) error {
	keys := map[contract.Key]contract.Entry{}
	for i := range p.Rows {
		keys[p.Rows[i].Key] = ""
	}
	created := map[contract.Key]contract.Revision{}
	if _, err := s.live(ctx, keys, func(kv *KeyValue) { created[kv.Key] = kv.Create }); err != nil {
		return err
	}
	wanted := p.Rows[:0]
	for _, r := range p.Rows {
		if r.Earlier = r.Create != created[r.Key]; r.Earlier && !earlier {
			p.Omitted = true
			continue
		}
		wanted = append(wanted, r)
	}
	p.Rows = wanted
	return nil
}

// name tells who has written a page's rows. Users are read after the rows. What a row's ID names
// never changes, so a user is that of the row, or if the sweep was there meanwhile, missing.
func (s *Engine) name(ctx context.Context, p *Past) error {
	if len(p.Rows) == 0 {
		return nil
	}
	at, ids := make(map[contract.RowID]*PastRow, len(p.Rows)), make([]contract.RowID, len(p.Rows))
	for i := range p.Rows {
		ids[i] = p.Rows[i].ID()
		at[ids[i]] = &p.Rows[i]
	}
	var users []contract.UserRow
	_, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		users, st, err = s.b.Users(ctx, ids)
		return st, err
	})
	for i := range users {
		if row := at[users[i].ID]; row != nil {
			row.User = &users[i].User
		}
	}
	return err
}

// fill reads the values of a page's rows. It ends the page before a row that would have to be read
// when these have reached ReadBytes, and takes from cut where the next page begins. It ends the
// past where a row was swept in the meantime.
func (s *Engine) fill(ctx context.Context, p *Past, cut func(i int) PastPlace) error {
	v := &pastValues{s: s, p: p, found: map[contract.RowID]*contract.Row{}}
	for i := range p.Rows {
		r := &p.Rows[i]
		if i > 0 && v.bytes >= contract.ReadBytes && len(v.missing(i)) > 0 {
			next := cut(i)
			p.Rows, p.Next = p.Rows[:i], &next
			return nil
		}
		if !r.Deleted {
			row, err := v.row(ctx, r.ID(), i)
			if err != nil {
				return err
			}
			if row == nil {
				swept := r.by
				if swept == 0 { // whatever has replaced it is newer
					swept = r.Revision
				}
				if swept > p.State.Compacted {
					return contract.LostValue(r.Key, r.Revision)
				}
				p.Rows, p.Next = p.Rows[:i], nil
				return nil
			}
			r.Value = row.Value
		}
		if r.Prev == 0 {
			continue
		}
		row, err := v.row(ctx, r.Prev, i)
		switch {
		case err != nil:
			return err
		case row != nil:
			r.PrevValue, r.HasPrev = row.Value, true
		case r.Revision > p.State.Compacted:
			return contract.LostValue(r.Key, r.Prev.Revision())
		}
	}
	return nil
}

// pastValues reads the values of a page, those of some rows at a time.
type pastValues struct {
	s     *Engine
	p     *Past
	found map[contract.RowID]*contract.Row
	bytes int
}

// missing are the values that row i of the page needs, and that were not read yet.
func (v *pastValues) missing(i int) (ids []contract.RowID) {
	r := &v.p.Rows[i]
	if !r.Deleted && v.found[r.ID()] == nil {
		ids = append(ids, r.ID())
	}
	if r.Prev != 0 && v.found[r.Prev] == nil {
		ids = append(ids, r.Prev)
	}
	return ids
}

// batch are the values that row i needs, and of what the rows after it need, as many as come to
// ReadBytes if they are as large as those that were read. So row 0 is read alone.
func (v *pastValues) batch(i int) []contract.RowID {
	ids, most := v.missing(i), 0
	if n := len(v.found); n > 0 {
		most = min(valuesOf, (contract.ReadBytes-v.bytes)/max(v.bytes/n, 1))
	}
	for i++; i < len(v.p.Rows) && len(ids) < most; i++ {
		ids = append(ids, v.missing(i)...)
	}
	slices.Sort(ids)
	return slices.Compact(ids) // a row names the one after it, which is there itself
}

// row returns a row that row i of the page needs, nil if it is not there. It is read in a batch,
// and if that read ends at its bound before it has come to the row, alone.
func (v *pastValues) row(ctx context.Context, id contract.RowID, i int) (*contract.Row, error) {
	if row := v.found[id]; row != nil {
		return row, nil
	}
	for _, ids := range [][]contract.RowID{v.batch(i), {id}} {
		var rows []contract.Row
		st, err := v.s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
			rows, st, err = v.s.b.Values(ctx, ids)
			return st, err
		})
		if err != nil {
			return nil, err
		}
		v.p.State = st
		for i := range rows {
			if v.found[rows[i].ID()] == nil {
				v.bytes += len(rows[i].Value)
			}
			v.found[rows[i].ID()] = &rows[i]
		}
		if row := v.found[id]; row != nil {
			return row, nil
		}
	}
	return nil, nil
}

// chain reads rows of one key back from one of them.
func (s *Engine) chain(ctx context.Context, key contract.Key, id contract.RowID,
	limit int) ([]PastRow, contract.State, error) {
	return s.past(ctx, func(ctx context.Context) ([]contract.Row, contract.State, error) {
		return s.b.Chain(ctx, key, id, limit)
	})
}

// changes scans the log.
func (s *Engine) changes(ctx context.Context, q contract.ChangesQuery) ([]PastRow, contract.State,
	error) {
	return s.past(ctx, func(ctx context.Context) ([]contract.Row, contract.State, error) {
		return s.b.Changes(ctx, q)
	})
}

func (s *Engine) past(ctx context.Context, read func(context.Context) ([]contract.Row,
	contract.State, error)) ([]PastRow, contract.State, error) {
	var found []contract.Row
	st, err := s.read(ctx, func(ctx context.Context) (st contract.State, err error) {
		found, st, err = read(ctx)
		return st, err
	})
	rows := make([]PastRow, len(found))
	for i := range rows {
		rows[i].Row = found[i]
	}
	return rows, st, err
}

// RevisionAt returns the newest revision that is not after a time, by the database's clock, or 0 if
// that is at the boundary of compaction or before it.
func (s *Engine) RevisionAt(ctx context.Context, when time.Time) (contract.Revision, error) {
	st, err := s.State(ctx)
	if err != nil {
		return 0, err
	}
	r, err := s.newestUntil(ctx, st.Compacted, st.Head.Revision+1, when)
	if r == st.Compacted {
		r = 0
	}
	return r, err
}
