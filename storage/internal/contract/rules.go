package contract

import (
	"encoding/binary"
	"sync"
)

// The rules of the history: what may be written, what became of a group, what is removed, where a
// fence goes. They are pure functions, so that tables can test them. A backend reads rows and runs
// statements; it decides nothing. The exceptions are statements that hold the commit lock for no
// round trip. PostgreSQL's sqlGroup says in SQL what CheckGroup and Decide say, and a test compares
// them. Its sqlLock and sqlSweepLock say what CheckWriter says, and its sweep what SweepPlan.Check
// says. MySQL's updateSwept says both. Whether a lease or a key has ended is in the statements that
// read them, since the database's clock decides.

// Guard is what a backend reads, under the commit lock and in one snapshot, about a group and the
// position after which it was begun ([Group.Seen]).
type Guard struct {
	State State
	// At is the token of the row at the position's revision, zero if there is no such row.
	At Token
	// Earlier are those at the revisions of [Group.Earlier].
	Earlier []Token
	// Aborted tells whether the group's token is recorded as aborted.
	Aborted bool
	// Generation is that of the declarations of indexes.
	Generation int64
}

// CheckGroup decides whether the group may be decided and written. Its errors are of class
// [Aborted] or [Fenced], or [ErrOvertaken], [ErrDropped] or [ErrOtherIndexes].
//
// A group whose token is recorded was answered "not done" already. A group that was begun after a
// position of another history expects revisions that stand for other content in this one (see
// fence.go of the engine). If a row that was seen is gone, nothing proves that the history is the
// same. And a group that compaction has overtaken may be one whose token was recorded and forgotten
// (ForgetAborted).
func CheckGroup(g *Group, at Guard) error {
	holds, gone := g.Seen.in(at.State, at.At), at.At == (Token{})
	for i := range g.Earlier {
		holds = holds && g.Earlier[i].in(at.State, at.Earlier[i])
		gone = gone || at.Earlier[i] == (Token{})
	}
	if err := Refusal(g, at.State, at.Aborted, holds, gone); err != nil {
		return err
	}
	return g.CheckGeneration(at.Generation)
}

// ErrOvertaken refuses a group that was begun at a revision below compacted, or whose process has
// seen a row that compaction has removed. Nothing was written, and nothing is wrong. The mutations
// can be tried in a group that is begun after a read, when this process has read the log up to the
// head.
var ErrOvertaken = Errorf(Transient, "compaction has passed what this process had seen when the "+
	"write was begun, and nothing was written: read again")

// Refusal is the error of a group, nil if there is none: aborted, holds and gone are the answers
// that CheckGroup finds in the guard, for a backend whose statement finds them itself.
func Refusal(g *Group, st State, aborted, holds, gone bool) error {
	switch {
	case st.Dropped():
		return ErrDropped
	case aborted:
		return Errorf(Aborted, "the group was declared not done before it had the commit lock")
	case !holds:
		return Errorf(Fenced, "the database's history (revision %d in epoch %d) is not the one "+
			"that this process has seen (up to revision %d in epoch %d)",
			st.Head.Revision, st.Head.Epoch, g.Seen.Revision, g.Seen.Epoch)
	case gone, g.Seen.Revision < st.Compacted:
		return ErrOvertaken
	}
	return nil
}

// in tells whether the position is one of the history that the database holds in state st. at is
// the token of the row at its revision, zero if there is no such row.
//
// A database that lost its tail may give a revision again in the same epoch. The token tells the
// two rows apart. A row that is missing proves something only where it cannot have been compacted.
// Reads at compacted itself are still answered, and a sweep leaves the row there alone for that
// reason.
func (p Position) in(st State, at Token) bool {
	if st.Head.Epoch != p.Epoch || st.Head.Revision < p.Revision {
		return false
	}
	if at != (Token{}) {
		return at == p.Token
	}
	return p.Revision < st.Compacted
}

// Resolve decides what became of a group with an unknown outcome, which was begun when the history
// went over the position after. rows are those with its token and a greater revision. record tells
// that the token has to be recorded as aborted, in the same transaction, to make the resolution
// true.
//
// The group's rows prove that it was committed, and the record of its token that it never will be:
// both are written under the commit lock, each only if the other is not there. If neither is there,
// the group can be ended by the record, unless it may have been committed and its rows be gone:
//
//   - Its rows can only follow the position, in the position's epoch, since it checked that under
//     the lock. So if the position is not in this history, the rows may be in the one that was
//     lost.
//   - A sweep removes rows up to compacted. So if compacted has passed the position, they may have
//     been swept. The swept revision would be more exact. A backend may record it late, so it is
//     not used. The record may have been forgotten, too, as the group cannot commit any more.
func Resolve(after Position, at Guard, rows []Row) (r Resolution, record bool) {
	r = Resolution{State: at.State, Rows: rows, Committed: len(rows) > 0}
	switch {
	case r.Committed:
	case at.Aborted:
		r.Aborted = true
	case after.in(at.State, at.At) && at.State.Compacted <= after.Revision:
		r.Aborted, record = true, true
	}
	return r, record
}

// CheckWriter decides under the commit lock whether a program of a schema version may write. oldest
// is the oldest version whose programs may: a migration that removes what they need raises it.
func CheckWriter(oldest, version int64) error {
	if oldest <= version {
		return nil
	}
	return Errorf(Invalid, "a newer rowkeeper has migrated the database, and this one, of schema "+
		"version %d, must not write to it any more; use a newer rowkeeper", version)
}

// CompactTo decides how far a compaction goes in state st: never back, and never beyond the head,
// which has to stay readable. It returns the state after it, and whether anything has to be written
// for that.
func CompactTo(st State, revision Revision) (after State, write bool) {
	revision = min(revision, st.Head.Revision)
	if revision <= st.Compacted {
		return st, false
	}
	st.Compacted = revision
	return st, true
}

// SweepRow is a row of the log, as a sweep looks at it: its ID, and that of the row that it
// replaced.
type SweepRow struct {
	ID, Prev RowID
	// Deleted is true of tombstones and markers.
	Deleted bool
}

// Sweepable is what a batch of the sweep is planned from, of one snapshot.
type Sweepable struct {
	// State has in Swept the revision from which Rows were read. That may be later than what is
	// recorded.
	State State
	// Rows are those from the swept revision to compacted, in order of revision: the one at the
	// swept revision, if it is there, and after it at most as many as the batch may look at, or one
	// more.
	Rows []SweepRow
	// Parts are the parts of transactions from the swept revision to compacted, in order. If there
	// are too many for a batch, those at Cut and later revisions may be missing. Cut is greater
	// than the swept revision then, and else 0.
	Parts []SweepRow
	Cut   Revision
	// Aborted is the lowest revision that is recorded with an aborted token, 0 if there is no
	// token.
	Aborted Revision
	// Users: the store has recorded users. If it has none in this snapshot, no row that a plan
	// of it removes has one: such a row was committed before, and its user with it.
	Users bool
}

// SweepPlan is what a batch of the sweep does.
type SweepPlan struct {
	// Epoch and Compacted are those of the state in which it was planned; see Check.
	Epoch     Epoch
	Compacted Revision
	// Rows are the rows to delete. Users tells whether some of them may have users' rows, which
	// are deleted with them.
	Rows  []RowID
	Users bool
	// Swept is what the swept revision rises to, if it is lower. Done tells that it is the
	// compacted one.
	Swept Revision
	Done  bool
	// Moves tells whether that is more than what the plan was made from.
	Moves bool
	// Forget is the revision such that the aborted tokens with a lower one are forgotten, 0 for
	// none.
	Forget Revision
}

// Empty tells whether there is nothing to do.
func (p *SweepPlan) Empty() bool { return len(p.Rows) == 0 && !p.Moves && p.Forget == 0 }

// Check decides, in the transaction that carries out the plan and finds the state st, whether it
// still holds. In the same epoch, compacted only rises and no revision is used twice, so what could
// be removed can be removed for ever, however late and by however many processes. An import may use
// revisions again, in another epoch. And a copy from the past, in the database's place, may have
// been compacted less far.
func (p *SweepPlan) Check(st State) error {
	if !st.Writable {
		return Errorf(ReadOnly, "the database is read-only (a standby, or demoted), and cannot "+
			"be swept")
	}
	if st.Head.Epoch != p.Epoch || st.Compacted < p.Compacted {
		return ErrVoidPlan
	}
	return nil
}

// SweptSoFar remembers how far a process has swept, for a database in which it has a price to
// record that with each batch: in PostgreSQL, each version of the store row stays under a long
// snapshot, and all commits walk them. It says when a batch records it. Another process that sweeps
// the same rows once more finds them gone; see Check.
type SweptSoFar struct {
	// mu protects the fields below.
	mu sync.Mutex
	at Position
	// unrecorded counts the batches since it was recorded.
	unrecorded int
}

// recordSweeps is the number of batches after which a sweep records how far it came.
const recordSweeps = 64

// From returns the epoch in which the process has swept, and up to where. The rows of the next
// batch begin there, if that is farther than what is recorded.
func (s *SweptSoFar) From() (Epoch, Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at.Epoch, s.at.Revision
}

// Records decides whether the batch of a plan records how far it came: the last one of a pass does,
// and one of recordSweeps.
func (s *SweptSoFar) Records(p *SweepPlan) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.Done || s.unrecorded+1 >= recordSweeps
}

// Did is called when a plan was carried out, with what Records said of it.
func (s *SweptSoFar) Did(p *SweepPlan, recorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = Position{Epoch: p.Epoch, Revision: p.Swept}
	if s.unrecorded++; recorded {
		s.unrecorded = 0
	}
}

// ErrVoidPlan says that a plan does not hold any more.
var ErrVoidPlan = Errorf(Transient,
	"the database's history has changed since the sweep was planned")

// PlanSweep decides what the next batch of the sweep removes, which looks at no more than limit
// rows, and the parts that belong to them.
//
// A state at or after compacted is made of each key's newest row up to there. A row that was
// replaced at or below compacted is none of them, and a tombstone or a marker stands for nothing. A
// row has a greater revision than the row that it replaced, so it is enough to look at the rows up
// to compacted, once each. The row at compacted stays, whatever it is: it may be the head, and it
// is a proof for all that have seen it (see Position.in). If it is a tombstone, the batch that
// finds it at the swept revision removes it, when compacted has passed it.
//
// All that goes for parts, too: a watch at compacted delivers a whole transaction. The swept
// revision rises only to where the parts are known.
func PlanSweep(from Sweepable, limit int) SweepPlan {
	st := from.State
	p := SweepPlan{Epoch: st.Head.Epoch, Compacted: st.Compacted, Swept: st.Swept,
		Users: from.Users}
	upto, looked := st.Compacted, 0
	if from.Cut != 0 {
		upto = min(upto, from.Cut-1)
	}
	for _, r := range from.Rows {
		if r.ID > st.Swept {
			if r.ID > upto {
				break
			}
			if looked++; looked > limit {
				break
			}
			p.Swept = r.ID
		}
		p.remove(r, st)
	}
	if looked < limit {
		p.Swept = max(upto, st.Swept)
	}
	for _, r := range from.Parts {
		if r.ID.Revision() <= p.Swept {
			p.remove(r, st)
		}
	}
	p.Done = p.Swept == st.Compacted
	p.Moves = p.Swept > st.Swept
	if below := ForgetAborted(st); from.Aborted != 0 && from.Aborted < below {
		p.Forget = below
	}
	return p
}

// remove removes what nobody needs when a row has been looked at: the row that it replaced, and the
// row itself, if it stands for nothing.
func (p *SweepPlan) remove(r SweepRow, st State) {
	at := r.ID.Revision()
	if at > st.Swept && r.Prev != 0 {
		p.Rows = append(p.Rows, r.Prev)
	}
	if r.Deleted && at < st.Compacted {
		p.Rows = append(p.Rows, r.ID)
	}
}

// ForgetAborted returns the revision below which aborted tokens can be forgotten, in state st. With
// each token, the revision is recorded that its group had seen.
//
// The token keeps its group from writing, which may still wait for the commit lock, and nobody
// knows for how long: a proxy may hold it, and clocks jump. But whoever finds the token forgotten
// finds compacted above what the group had seen, since both are read in one snapshot, and compacted
// was committed before the sweep was planned. So [CheckGroup] refuses the group all the same, and
// for ever: compacted never falls in the group's epoch, and it may commit in no other. A sweep does
// nothing in another epoch than its plan's (SweepPlan.Check), nor where less was compacted.
func ForgetAborted(st State) Revision { return st.Compacted }

// Adoptable tells whether a process that has seen revisions up to seen may go over to a history of
// another epoch, as the database holds it in state st.
//
// The epoch proves nothing by itself. It counts the fences of one copy, and a copy that was fenced
// twice elsewhere has a greater one than the database whose place it takes. Neither does the head:
// with 100 seen, a copy that was fenced at 50 and has come to 150 since would use 51 to 100 again.
// All revisions that anybody has seen have to be below compacted, so that none of them can be asked
// for. Half a jump is left for processes that had seen more than this one and cannot be asked any
// more. A fence leaves a whole jump. So a process that is less than half a jump ahead of the one
// that fenced goes over to that fence.
func Adoptable(seen Revision, st State) bool {
	return st.Compacted >= seen+JumpBefore(st.Compacted)/2
}

// After decides under the commit lock, where the state is st, what the fence does: it returns the
// state after it, and whether anything has to be written for that.
//
// Somebody else may have fenced since the caller looked. Then the epoch is not the one that this
// fence replaces, and if that fence is safely beyond what the caller has seen, it will do for both.
// The epoch alone would not tell: the database may be another one than the caller knew, with any
// epoch.
func (f *Fence) After(st State) (after State, write bool) {
	if st.Head.Epoch != f.Replaces && Adoptable(f.Seen.Revision, st) {
		return st, false
	}
	st.Head = Position{Epoch: max(st.Head.Epoch, f.Seen.Epoch) + 1, Revision: f.Marker(st),
		Token: f.Token}
	st.Compacted = st.Head.Revision
	return st, true
}

// Marker returns where the fence puts the marker row in a database whose state under the commit
// lock is st. A history that would come to revisions which JavaScript's numbers cannot hold, or at
// which there is no room for transactions, goes on at another pace.
//
// Two copies of one database may be fenced at the same moment, or while the clock is set back. The
// fence's token, which is random, then keeps their markers apart: by up to a 64th of what a second
// counts, so that fences that are a 32nd of a second apart stay in order, unless more writes come
// between them than half of what the clock counts.
func (f *Fence) Marker(st State) Revision {
	marker := f.marker(st, f.Jump, 0, f.PerSecond)
	if f.PerSecond == slowPerSecond && marker >= exact {
		marker = f.marker(st, slowJump, exact, halfPerSecond)
		if marker >= lastOfParts {
			marker = f.marker(st, fastJump, 0, fastPerSecond)
		}
	}
	return marker
}

func (f *Fence) marker(st State, jump, from, perSecond Revision) Revision {
	const micros = 1_000_000
	beyond := max(f.Seen.Revision, st.Head.Revision) + jump
	marker := max(beyond, from+Revision(st.Now.Unix())*perSecond+
		Revision(st.Now.Nanosecond()/1000)*perSecond/micros)
	if chance := perSecond / 64; chance > 0 {
		marker += Revision(binary.BigEndian.Uint32(f.Token[4:])) % chance
	}
	return marker
}

// Continues decides whether what was read in state st may be put beside what was read before it, in
// state first: it is not of an earlier time, nor of another history, as the answer of a standby or
// of another server may be. What first itself is worth has to be judged besides.
func (st State) Continues(first State) bool {
	later := st.Head.Epoch == first.Head.Epoch && st.Head.Revision > first.Head.Revision
	return (later || st.Head == first.Head) && (st.Writable || !first.Writable)
}

// Follows tells whether a piece of the log, read from the position on, belongs to the same history:
// its first row is the one at the position, or nobody can ask for anything at the position any
// more.
func Follows(p Position, t *Tail) bool {
	var at Token
	if len(t.Rows) > 0 && t.Rows[0].Revision == p.Revision {
		at = t.Rows[0].Token
	}
	return p.in(t.State, at)
}
