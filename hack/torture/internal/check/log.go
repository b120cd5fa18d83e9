package check

import (
	"math"
	"sort"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Log finds things in the recorded log.
type Log struct {
	epochs []history.Epoch
	// changes are the rows of each epoch by resource, with what they replaced, preceded by what
	// survived of the epochs before.
	changes []map[string][]change
	byValue map[string]place
	// deletions are the rows that delete a revision, in order. There are several if some were lost.
	deletions map[deletion][]place
}

// deletion names what a client deletes.
type deletion struct {
	key    string
	expect int64
}

// change is a row and the object that it replaced.
type change struct {
	row  *history.Row
	prev *history.Object
}

type place struct{ epoch, row int }

// NewLog indexes the epochs.
func NewLog(epochs []history.Epoch) *Log {
	l := &Log{epochs: epochs, byValue: map[string]place{}, deletions: map[deletion][]place{}}
	for i := range epochs {
		e := &epochs[i]
		changes := map[string][]change{}
		current := map[string]*history.Object{}
		if i > 0 {
			for resource, earlier := range l.changes[i-1] {
				n := sort.Search(len(earlier), func(k int) bool {
					return earlier[k].row.Revision > e.Survived
				})
				changes[resource] = earlier[:n:n]
				for _, c := range changes[resource] {
					set(current, c.row)
				}
			}
		}
		for k := range e.Rows {
			r := &e.Rows[k]
			if r.Key == "" {
				continue
			}
			resource, _, _ := history.Split(r.Key)
			changes[resource] = append(changes[resource], change{r, current[r.Key]})
			if r.Deleted {
				d := deletion{r.Key, r.Prev}
				l.deletions[d] = append(l.deletions[d], place{i, k})
			} else {
				l.byValue[r.Object.Value] = place{i, k}
			}
			set(current, r)
		}
		l.changes = append(l.changes, changes)
	}
	return l
}

func set(state map[string]*history.Object, r *history.Row) {
	if r.Deleted {
		delete(state, r.Key)
	} else {
		state[r.Key] = &r.Object
	}
}

// row returns the row at a place, and whether it was lost later.
func (l *Log) row(p place) (row *history.Row, lost bool) {
	row = &l.epochs[p.epoch].Rows[p.row]
	return row, l.lost(p.epoch, row.Revision)
}

// during tells whether a request can have written a row of the epoch: it did not begin after the
// epoch was over, nor end before it began.
func (l *Log) during(op *history.Op, epoch int) bool {
	if op.Outcome == history.Done && op.Return < l.epochs[epoch].Begun {
		return false
	}
	return epoch+1 == len(l.epochs) || op.Call <= l.epochs[epoch+1].Noticed
}

// lost tells whether a revision of an epoch was lost later.
func (l *Log) lost(epoch int, revision int64) bool {
	for _, e := range l.epochs[epoch+1:] {
		if revision > e.Survived {
			return true
		}
	}
	return false
}

// last is the newest revision of an epoch.
func (l *Log) last(epoch int) int64 {
	e := l.epochs[epoch]
	last := e.Fence
	if n := len(e.Rows); n > 0 {
		last = max(last, e.Rows[n-1].Revision)
	}
	return last
}

// end is later than everything.
func (l *Log) end() int64 { return math.MaxInt64 / 2 }

// epochsOf returns the epochs whose state at a revision a reader may have been told.
func (l *Log) epochsOf(revision int64) []int {
	var found []int
	for i, e := range l.epochs {
		next := int64(math.MaxInt64)
		if i+1 < len(l.epochs) {
			next = l.epochs[i+1].Fence
		}
		early := len(e.Rows) > 0 && e.Rows[0].Revision < e.Fence && revision > e.Survived &&
			revision < e.Fence
		if revision >= e.Fence && revision < next || early {
			found = append(found, i)
		}
	}
	return found
}

// base is the state with which an epoch begins.
func (l *Log) base(epoch int) map[string]history.Object {
	if epoch == 0 {
		return map[string]history.Object{}
	}
	return l.State(epoch-1, l.epochs[epoch].Survived)
}

// State is the state of an epoch at a revision, -1 for the newest.
func (l *Log) State(epoch int, revision int64) map[string]history.Object {
	state := map[string]history.Object{}
	for _, changes := range l.changes[epoch] {
		for _, c := range changes {
			if revision >= 0 && c.row.Revision > revision {
				break
			}
			if c.row.Deleted {
				delete(state, c.row.Key)
			} else {
				state[c.row.Key] = c.row.Object
			}
		}
	}
	return state
}

// Last returns the revision of the newest event for a selector, 0 if there is none.
func (l *Log) Last(s history.Selector) int64 {
	if len(l.epochs) == 0 {
		return 0
	}
	changes := l.changes[len(l.epochs)-1][s.Resource]
	for i := len(changes) - 1; i >= 0; i-- {
		if _, ok := changes[i].event(s); ok {
			return changes[i].row.Revision
		}
	}
	return 0
}

// Lasts returns Last, which remembers what it has found: to look for a selector without a new event
// takes long in a long log.
func (l *Log) Lasts() func(history.Selector) int64 {
	found := map[history.Selector]int64{}
	return func(s history.Selector) int64 {
		last, ok := found[s]
		if !ok {
			last = l.Last(s)
			found[s] = last
		}
		return last
	}
}

// event is what a watcher with the selector is sent for the change, if anything.
func (c change) event(s history.Selector) (history.Event, bool) {
	was := c.prev != nil && s.Matches(*c.prev)
	is := !c.row.Deleted && s.Matches(c.row.Object)
	e := history.Event{Object: c.row.Object}
	switch {
	case is && was:
		e.Type = history.Modified
	case is:
		e.Type = history.Added
	case was:
		e.Type = history.Deleted
		e.Object = *c.prev // as it was when it was seen last
		e.Object.RV = c.row.Revision
	default:
		return e, false
	}
	return e, true
}
