package mvcc

import (
	"context"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// The rows of a transaction have one revision. A state at a revision has all of them, or none, and
// so has every piece of the log that is delivered: nobody who resumes after it would ask for the
// rest. The rows but the last are parts, which the log does not show in its order; see
// [contract.RowID]. The token of the last row says how many parts there are.

// partRows is how many parts are read at a time, and about how many a piece of the log has.
const partRows = 4_096

// addParts puts the parts that belong to the rows of a piece of the log before them. Who has the
// piece has seen everything up to a revision, and needs no parts there. The piece becomes shorter
// if there are many parts. If a transaction lacks some, its last row is left out as well: then the
// revision is missing, as any other is that compaction has passed. Nothing follows then: if it is
// the last of the piece, the reader would ask for it again and again.
//
// The parts are read in another snapshot than the rows. They were committed with them and never
// change, so what is there is right. What is not there was swept, and so compacted was raised. It
// becomes that of the later snapshot. Whether the piece belongs to the history that this process
// has seen is for its reader to judge, by the rows.
func (s *Engine) addParts(ctx context.Context, t *contract.Tail, seen contract.Revision,
	prev contract.Prev) error {
	var first, last contract.Revision
	for i := range t.Rows {
		if r := &t.Rows[i]; r.Revision > seen && r.Parts() > 0 {
			if last = r.Revision; first == 0 {
				first = last
			}
		}
	}
	if first == 0 {
		return nil
	}
	var parts []contract.Row
	bytes := 0
	for below, more := contract.Lowest(first-1), true; more; {
		p, err := s.b.Parts(ctx, below, last, partRows, prev)
		if err != nil {
			return err
		}
		if !p.State.Continues(t.State) {
			return contract.Errorf(contract.Unavailable, "the database's answers are of different "+
				"servers or histories, and are read again")
		}
		t.State.Compacted = max(t.State.Compacted, p.State.Compacted)
		for i := range p.Rows {
			bytes += len(p.Rows[i].Value) + len(p.Rows[i].PrevValue)
		}
		parts = append(parts, p.Rows...)
		if more = len(p.Rows) == partRows || p.More; more {
			end := &parts[len(parts)-1]
			below = end.ID()
			if end.Revision > first && (len(parts) >= partRows || bytes >= contract.ReadBytes) {
				t.Rows, t.More = before(t.Rows, end.Revision), true
				more = false
			}
		}
	}
	end := t.Rows[len(t.Rows)-1].Revision
	t.Rows = interleave(t.Rows, parts, seen)
	if n := len(t.Rows); n == 0 || t.Rows[n-1].Revision < end {
		t.More = false
	}
	return nil
}

// before returns the rows before a revision.
func before(rows []contract.Row, r contract.Revision) []contract.Row {
	n := len(rows)
	for n > 0 && rows[n-1].Revision >= r {
		n--
	}
	return rows[:n]
}

// interleave puts parts before the last rows of their transactions, from the first one after a
// revision on. It leaves out transactions of which it has not all parts.
func interleave(rows, parts []contract.Row, seen contract.Revision) []contract.Row {
	whole := make([]contract.Row, 0, len(rows)+len(parts))
	for i := range rows {
		last := &rows[i]
		want := last.Parts()
		if want == 0 || last.Revision <= seen {
			whole = append(whole, *last)
			continue
		}
		for len(parts) > 0 && parts[0].Revision < last.Revision {
			parts = parts[1:]
		}
		n := 0
		for n < len(parts) && parts[n].Revision == last.Revision && parts[n].Part == n+1 &&
			parts[n].Token == last.Token {
			n++
		}
		if n == want {
			whole = append(append(whole, parts[:n]...), *last)
		}
	}
	return whole
}
