package contract

import "time"

// DecideGroup is the rule by which a group is decided, for backends that decide in Go. PostgreSQL
// says the same in SQL.
//
// A transaction is accepted if each of its mutations is, and else refused as a whole: the outcomes
// of those that would have been accepted then say where their keys are. Its mutations are the only
// ones of the group, so Decide's argument for an order among them is not needed. They all have the
// next revision. The last one is the row at it, and the others are its parts in their order.
func DecideGroup(g *Group, before Revision, f *Found) (outcomes []Outcome, accepted int) {
	outcomes, accepted = Decide(g.Mutations, before, f)
	if !g.Whole {
		return outcomes, accepted
	}
	last := len(outcomes) - 1
	full := g.Full(before)
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case accepted <= last && o.Accepted:
			*o = Outcome{Revision: o.Prev.Revision()}
		case full != nil && o.Accepted:
			*o = Outcome{Revision: o.Prev.Revision(), Err: full}
		case o.Accepted:
			if o.Revision = before + 1; o.Prev == 0 {
				o.Create = o.Revision
			}
			if i < last {
				o.Part = i + 1
			}
		}
	}
	if accepted <= last || full != nil {
		accepted = 0
	}
	return outcomes, accepted
}

// Full returns why a transaction cannot be numbered after a revision, nil if it can.
func (g *Group) Full(before Revision) error {
	if g.Whole && before >= lastOfParts {
		return errNoParts
	}
	return nil
}

// errNoParts is for a history that no write and no fence brings about before the year 2106.
var errNoParts = Errorf(Invalid, "the store's revisions have become too great for a write of several "+
	"keys at once: write the keys one after the other")

// Decide decides the mutations of a group that is no transaction: per key, the first mutation in
// order of arrival whose expectation holds against the state before the group is accepted, and all
// others of that key are refused. An expectation of Any holds, but for a deletion of a key that
// does not exist.
//
// Why this is linearizable. All mutations of a group wait at the same time, so any order of them
// may be chosen. For each key, this one is. First come the refused mutations that expected another
// state. They fail there. Then comes the accepted one. Then come the refused ones that expected the
// same state. They fail too, since no caller can know the revision that the accepted one was given.
//
// The argument does not hold for a mutation that expects Any: it would have to be accepted after
// the accepted one. Nor does it hold for one that may be refused for its lease: what came after it
// would have to be accepted in its place. So such a mutation is the only one of its key in a group
// (see [Mutation.Alone]; the queue keeps the others for the next group).
//
// A mutation whose condition is not met is refused for that, whatever else would refuse it.
//
// The outcomes' revisions are numbered from before+1.
//
// A mutation that would be accepted is refused alone if the value that it has to return is lost, or
// its lease has ended: one damaged key, or one lease that is gone, must not fail the others'
// writes. The mutation writes nothing, and its outcome says why, as does that of the others that
// expect the same of this key.
func Decide(mutations []*Mutation, before Revision, f *Found) (outcomes []Outcome, accepted int) {
	outcomes = make([]Outcome, len(mutations))
	var taken map[Key]struct{}
	if len(mutations) > 1 {
		taken = make(map[Key]struct{}, len(mutations))
	}
	var refused map[Key]error
	for i, m := range mutations {
		at := f.Current(m.Key)
		if _, late := taken[m.Key]; late || !m.Expects(at.ID) {
			outcomes[i].Revision = at.ID.Revision()
			continue
		}
		value, err := []byte(nil), refused[m.Key]
		if err == nil {
			if value, err = f.check(m, at.ID); err != nil {
				if refused == nil {
					refused = map[Key]error{}
				}
				refused[m.Key] = err
			}
		}
		if err != nil {
			outcomes[i] = Outcome{Revision: at.ID.Revision(), Err: err}
			continue
		}
		if taken != nil {
			taken[m.Key] = struct{}{}
		}
		accepted++
		own := before + Revision(accepted)
		o := &outcomes[i]
		*o = Outcome{Accepted: true, Revision: own, Prev: at.ID, Create: at.Create,
			Version: at.Version + 1, Lease: m.Lease, PrevValue: value}
		if at.ID == 0 {
			o.Create = own
		}
		if m.Delete {
			o.Lease = at.Lease
		}
	}
	return outcomes, accepted
}

// Found is what a backend has found, or finds when it is asked, of the keys of a group.
type Found struct {
	// Current returns the key's state before the group, zero if it does not exist.
	Current func(Key) Current
	// Compacted is the compacted revision.
	Compacted Revision
	// Compared tells of a comparison of a condition whether there is a key in its range, and
	// whether there is one that does not fit; see [Comparison.Holds]. It is not asked where no
	// mutation has a condition. If the comparison is Changed, the keys of rows and parts after the
	// condition's Since are looked at only.
	Compared func(*Condition, *Comparison) (some, misfit bool)
	// Touched tells whether a row after the condition's Since, or a part, has a key in one of the
	// ranges Untouched. It is not asked where there are none.
	Touched func(*Condition) bool
	// Held tells whether there is a lease, and it has not ended. It is not asked where no mutation
	// has a lease.
	Held func(Lease) bool
	// Removed returns the value of a row, for a mutation that wants it, and whether it is in the
	// log. A backend that reads the values later returns nil. The error refuses this mutation
	// alone: it is of class [Data].
	Removed func(m *Mutation, at RowID) (value []byte, there bool, err error)
	// Returned bounds the values that the outcomes have.
	Returned Returned
}

// check decides whether a mutation is refused although its expectation holds. If not, it returns
// the value that the outcome has.
func (f *Found) check(m *Mutation, at RowID) (value []byte, err error) {
	if m.If != nil && !f.met(m.If) {
		return nil, ErrCondition
	}
	if m.Lease != 0 && !f.Held(m.Lease) {
		return nil, ErrNoLease
	}
	if !m.WantsPrevious() {
		return nil, nil
	}
	value, there, err := f.Removed(m, at)
	switch {
	case err != nil:
		return nil, err
	case !there:
		return nil, lostPrevious(m.Key, at)
	case value != nil && !f.Returned.Takes(len(value)):
		return nil, nil
	}
	return value, nil
}

// met decides whether a condition is met.
func (f *Found) met(c *Condition) bool {
	return (c.Since == 0 || c.Since >= f.Compacted) && (len(c.Untouched) == 0 || !f.Touched(c)) &&
		c.Met(func(p *Comparison) bool { return p.Holds(f.Compared(c, p)) })
}

// lostPrevious refuses one deletion, and not its group.
func lostPrevious(k Key, at RowID) error {
	lost := LostValue(k, at.Revision())
	return Errorf(Data, "%w", lost)
}

// Refused is the outcome of a mutation that was not accepted where its key was at a row, for a
// backend whose statement decides. met says whether its condition is met, if it has one. wanted
// says whether the mutation that stood for it wants the value that it removes: equal expectations
// of a key are decided once. If the expectation holds, what Found.check refuses is the only reason
// that is left.
func Refused(m *Mutation, current RowID, met, wanted bool) Outcome {
	o := Outcome{Revision: current.Revision()}
	switch holds := m.Expects(current); {
	case holds && m.If != nil && !met:
		o.Err = ErrCondition
	case holds && wanted:
		o.Err = lostPrevious(m.Key, current)
	case holds && m.Lease != 0:
		o.Err = ErrNoLease
	}
	return o
}

// Returned counts the values that the outcomes of a group have.
type Returned struct {
	// Bound is how many bytes they may have together: [Limits].GroupBytes.
	Bound int
	bytes int
}

// Takes counts the next value, and tells whether the outcome has it. None has after the bound was
// reached.
func (r *Returned) Takes(bytes int) bool {
	r.bytes += bytes
	return r.bytes <= r.Bound
}

// Current is the live row of a key before a group, zero if it does not exist.
type Current struct {
	ID      RowID
	Create  Revision
	Version int64
	Lease   Lease
}

// Expects tells whether the mutation's expectation holds where the key is at the row, 0 if it does
// not exist.
func (m *Mutation) Expects(at RowID) bool {
	return m.Expect == at.Revision() || m.Expect == Any && (at != 0 || !m.Delete)
}

// WantsPrevious tells whether the mutation's outcome has the value that it removes.
func (m *Mutation) WantsPrevious() bool { return m.Delete && !m.HasPrev }

// Alone tells whether the mutation has to be the only one of its key in a group.
func (m *Mutation) Alone() bool { return m.Expect == Any || m.Lease != 0 }

// TTLMicros is the mutation's TTL in microseconds, rounded up: a key that expires must not become
// one that never does. With a lease, it is the negative of the lease's ID.
func (m *Mutation) TTLMicros() int64 {
	if m.Lease != 0 {
		return -int64(m.Lease)
	}
	return int64((m.TTL + time.Microsecond - 1) / time.Microsecond)
}

// Expiry is the expiry of the live row that the mutation writes at the time now of the database's
// clock: when the key expires, in microseconds since 1970, 0 for never, and with a lease the
// negative of the lease's ID. So the index on the expiry finds the keys of a lease, too, and a key
// with neither is not in it.
func (m *Mutation) Expiry(now time.Time) int64 {
	micros := m.TTLMicros()
	if micros > 0 {
		micros += now.UnixMicro()
	}
	return micros
}
