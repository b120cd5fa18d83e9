package contract

import "time"

// Decide is the rule by which a group's mutations are accepted, for backends that decide in Go
// (Postgres says the same in SQL): per key, the first mutation in order of arrival whose
// expectation holds against the state before the group is accepted, and all others of that key are
// refused. An expectation of Any holds, but for a deletion of a key that does not exist.
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
// current returns the key's state before the group, zero if it does not exist. The outcomes'
// revisions are numbered from before+1.
//
// lost, if not nil, is asked about each mutation that would be accepted. If it returns an error,
// the mutation has this error as its outcome, as have the others that expect the same of this key,
// and writes nothing: one damaged key, or one lease that is gone, must not fail the others' writes.
func Decide(mutations []*Mutation, before Revision, current func(Key) Current,
	lost func(i int, at Current) error) (outcomes []Outcome, accepted int) {
	outcomes = make([]Outcome, len(mutations))
	var taken map[Key]struct{}
	if len(mutations) > 1 {
		taken = make(map[Key]struct{}, len(mutations))
	}
	var damaged map[Key]error
	for i, m := range mutations {
		at := current(m.Key)
		if _, late := taken[m.Key]; late || !m.Expects(at.Revision) {
			outcomes[i].Revision = at.Revision
			continue
		}
		err := damaged[m.Key]
		if err == nil && lost != nil {
			if err = lost(i, at); err != nil {
				if damaged == nil {
					damaged = map[Key]error{}
				}
				damaged[m.Key] = err
			}
		}
		if err != nil {
			outcomes[i] = Outcome{Revision: at.Revision, Err: err}
			continue
		}
		if taken != nil {
			taken[m.Key] = struct{}{}
		}
		accepted++
		own := before + Revision(accepted)
		o := &outcomes[i]
		*o = Outcome{Accepted: true, Revision: own, Prev: at.Revision, Create: at.Create,
			Version: at.Version + 1, Lease: m.Lease}
		if at.Revision == 0 {
			o.Create = own
		}
		if m.Delete {
			o.Lease = at.Lease
		}
	}
	return outcomes, accepted
}

// Current is where a key is before a group, zero if it does not exist.
type Current struct {
	Revision, Create Revision
	Version          int64
	Lease            Lease
}

// Expects tells whether the mutation's expectation holds where the key is at the revision, 0 if it
// does not exist.
func (m *Mutation) Expects(revision Revision) bool {
	return m.Expect == revision || m.Expect == Any && (revision != 0 || !m.Delete)
}

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
