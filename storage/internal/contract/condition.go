package contract

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
)

// Condition is what a mutation demands of other keys than its own, or what the mutations of a
// transaction demand together. It is decided under the commit lock, in the transaction that writes,
// against the state before the write. It demands two things:
//
// The comparisons are made anew. So nothing that was read before can be out of date, in whatever
// epoch it was read. And a compared key that others write all the time holds nobody up: the
// mutation is refused only if the comparisons come out otherwise than its writer has found.
//
// Ranges of keys are untouched since their writer has read them.
//
// A range may have a million keys, and while they were read all writers of the store would wait. So
// it is not read: only what was written since the writer has read it is looked at, in the era that
// the mutations name. If compaction has passed the revision of that reading, rows may be gone, and
// the condition is not met. Its writer reads again at a later one.
//
// Decide compares each mutation with the state before its group. If two mutations of a group each
// compared the key that the other one writes, both would be accepted, although in no order both
// can be: a lock would be deleted, and what it guards would be written after it was lost. So a
// mutation with a condition is the only one of its group, or the first one of a transaction, which
// is a group by itself. The queue sees to that.
type Condition struct {
	Comparisons []Comparison
	// Hold tells what is demanded: that all comparisons hold, or that at least one does not.
	Hold bool
	// Untouched are ranges of keys that nobody must have written since the revision Since.
	Untouched []Span
	// Since is when the ranges were read, 0 if there are none.
	Since Revision
}

// Span is a range of keys, from Start (inclusive) to End (exclusive).
type Span struct{ Start, End Key }

// Touches tells whether a key that was written since is in one of the ranges.
func (c *Condition) Touches(k Key) bool {
	return slices.ContainsFunc(c.Untouched, func(s Span) bool { return k >= s.Start && k < s.End })
}

// ErrCondition refuses a mutation whose condition is not met. Nothing was written.
var ErrCondition = errors.New("the comparisons of other keys come out otherwise by now, or " +
	"keys were written that had to be untouched")

// Comparison compares a property of each key in a range, as etcd's transactions do.
type Comparison struct {
	// Start (inclusive) and End (exclusive) bound the keys.
	Start, End Key
	Property   Property
	Operator   Operator
	// Number is what is compared with, and Value if the property is CompareValue.
	Number int64
	Value  []byte
	// Changed: the comparison held at the condition's Since, and only the keys that were written
	// later are looked at, besides whether there is a key in the range at all.
	Changed bool
}

// Property is what is compared of a key. The numbers are etcd's.
type Property int

const (
	CompareVersion Property = iota
	CompareCreate
	CompareRevision
	CompareValue
	CompareLease
)

// Operator says how a property has to compare with what the comparison names. The numbers are
// etcd's.
type Operator int

const (
	Equal Operator = iota
	Greater
	Less
	NotEqual
)

// Met decides whether the condition is met, where holds decides a comparison.
func (c *Condition) Met(holds func(*Comparison) bool) bool {
	for i := range c.Comparisons {
		if !holds(&c.Comparisons[i]) {
			return !c.Hold
		}
	}
	return c.Hold
}

// comparisonBytes is more than half of what a statement needs for a comparison, without its keys
// and its value.
const comparisonBytes = 320

// Bytes is the size of the condition: no less than half of its text in a statement, in which each
// byte may be escaped, and the keys may be written twice.
func (c *Condition) Bytes() (n int) {
	if c == nil {
		return 0
	}
	for i := range c.Comparisons {
		p := &c.Comparisons[i]
		n += comparisonBytes + 2*(len(p.Start)+len(p.End)) + len(p.Value)
	}
	for _, s := range c.Untouched {
		n += comparisonBytes + 2*(len(s.Start)+len(s.End))
	}
	return n
}

// Holds decides a comparison. some tells whether there is a key in the range, and misfit whether
// one of them does not fit. If there is none, as in etcd, all its numbers are 0, and it has no
// value.
func (c *Comparison) Holds(some, misfit bool) bool {
	if some {
		return !misfit
	}
	return c.Fits(Current{}, nil)
}

// Fits decides whether a key is as the comparison says. The value is nil if something else is
// compared, or if there is none: then no comparison of it holds. That goes for a value that is
// lost, too. A read of the value is told so.
func (c *Comparison) Fits(at Current, value []byte) bool {
	order := 0
	switch c.Property {
	case CompareVersion:
		order = cmp.Compare(at.Version, c.Number)
	case CompareCreate:
		order = cmp.Compare(int64(at.Create), c.Number)
	case CompareRevision:
		order = cmp.Compare(int64(at.ID.Revision()), c.Number)
	case CompareLease:
		order = cmp.Compare(int64(at.Lease), c.Number)
	case CompareValue:
		if value == nil {
			return false
		}
		order = bytes.Compare(value, c.Value)
	}
	switch c.Operator {
	case Equal:
		return order == 0
	case Greater:
		return order > 0
	case Less:
		return order < 0
	}
	return order != 0
}
