package contract

import (
	"context"
	"fmt"
)

// Quota bounds what a store holds. 0 is no bound. Writes are refused that would exceed it; history
// is compacted early, so that what was replaced needs no more bytes than what there is may need.
type Quota Usage

// leaseBytes is about what a lease needs.
const leaseBytes = 64

// WithLeases returns the usage of a store with so many leases, each of which counts as an object.
// Without that, a store with a quota could be filled with leases.
func WithLeases(u Usage, leases int64) Usage {
	return Usage{Objects: u.Objects + leases, Bytes: u.Bytes + leases*leaseBytes}
}

// Excess says which bounds of a quota a store has reached.
type Excess struct {
	// Objects: as many objects exist as may. Bytes: they are as large as they may be. At least one
	// of them is true.
	Objects, Bytes bool
	// Usage is what the store held when it was measured.
	Usage Usage
	Quota Quota
}

// ExcessOf returns what a store with this usage has reached of its quota, nil if nothing.
func ExcessOf(q Quota, u Usage) *Excess {
	e := Excess{Objects: q.Objects > 0 && u.Objects >= q.Objects,
		Bytes: q.Bytes > 0 && u.Bytes >= q.Bytes, Usage: u, Quota: q}
	if !e.Objects && !e.Bytes {
		return nil
	}
	return &e
}

// Refuses decides whether a write is refused: one that creates a key or a lease, or replaces a
// value by a longer one. Everything else makes room, or keeps what there is. It returns an error of
// class [Full] that wraps a *[QuotaError].
func (e *Excess) Refuses(creates bool, growth int) error {
	switch {
	case e.Objects && creates:
		return &Error{Class: Full, Err: &QuotaError{"objects", e.Usage.Objects, e.Quota.Objects}}
	case e.Bytes && (creates || growth > 0):
		return &Error{Class: Full, Err: &QuotaError{"bytes", e.Usage.Bytes, e.Quota.Bytes}}
	}
	return nil
}

// Aged is a piece of history: the bytes that its rows and what they have replaced need, up to a
// revision and after those of the piece before.
type Aged struct {
	Until Revision
	Bytes int64
}

// historyRowBytes is about what a row of the log needs besides its key and its value. Without that,
// a history of small values could be of any size.
const historyRowBytes = 128

// PieceOf is the piece of a history whose rows follow one revision, up to another one, and have
// changed what g says. A history is dense, so there are as many rows as revisions, and the parts of
// transactions besides. If it is not known what they have changed, the revisions count.
func PieceOf(after, until Revision, g Growth) Aged {
	rows := max(g.Rows, int64(until-after))
	return Aged{Until: until, Bytes: g.Replaced + historyRowBytes*rows}
}

// historyPieces is how finely history is measured: a piece is grown until it has this part of what
// may be kept.
const historyPieces = 64

// Age adds a piece to a history of which a store keeps at most so many bytes. It forgets what the
// compacted revision has passed. The pieces stay few, since two neighbours have more than a 64th.
func Age(history []Aged, piece Aged, compacted Revision, most int64) []Aged {
	for len(history) > 0 && history[0].Until <= compacted {
		history = history[1:]
	}
	if n := len(history); n > 0 && history[n-1].Bytes+piece.Bytes <= most/historyPieces {
		history[n-1] = Aged{piece.Until, history[n-1].Bytes + piece.Bytes}
		return history
	}
	return append(history, piece)
}

// EarlyBoundary decides up to which revision a history is compacted, so that it keeps at most so
// many bytes: 0 if it keeps no more now. A compaction to a revision lets go of all that the rows up
// to there have replaced, and of nothing else.
func EarlyBoundary(history []Aged, most int64) Revision {
	var kept int64
	for i := len(history) - 1; i >= 0; i-- {
		if kept += history[i].Bytes; kept > most {
			return history[i].Until
		}
	}
	return 0
}

// QuotaError says that a store holds as much as it may.
type QuotaError struct {
	// What is "objects" or "bytes".
	What string
	// Used is how many of them there were, Limit how many there may be.
	Used, Limit int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("the store has %d %s, and its quota is %d: delete what is not needed, or have "+
		"the quota raised", e.Used, e.What, e.Limit)
}

// SetQuota records what a store may hold. Processes that use it heed that within one and a half of
// their QuotaInterval.
func SetQuota(ctx context.Context, b Backend, q Quota) error {
	return retried(ctx, func() error {
		return repeatable(ctx, b, LockOptions{}, func(tx Tx) error { return tx.SetQuota(q) })
	})
}
