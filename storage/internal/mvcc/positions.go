package mvcc

import "sort"
import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

// trail is what a process has seen of the present history: positions, in order of their revisions.
// Each was the head of some answer, so a client may know its revision. A database that has lost its
// newest rows writes others in their place, and only the tokens tell. So each position is kept
// until the log is read up to it, and is compared then. It is not enough to compare the newest one:
// if lists saw 3 and 5, and 5 alone was seen after a loss, then 5 is right and 3 is not. A group
// that begins before the log is read so far takes them along (Group.Earlier): a writer may expect
// what was read with any of them.
//
// The zero value is not valid; reset comes first.
type trail struct {
	// passed are the last rows of the groups that were delivered last, the newest at the end. It is
	// never empty.
	passed []contract.Position
	// ahead was seen, and is not delivered yet.
	ahead []contract.Position
}

const (
	// maxPassed is how many groups are remembered after their delivery, for reads that took longer
	// than the delivery of what they have seen. They take 128 KiB.
	maxPassed = 1 << 12
	// maxAhead is how many positions may wait for the log, in at most 2 MiB. It takes a minute
	// without any progress to fill them.
	maxAhead = 1 << 16
	// maxEarlier is how many positions a group takes along at most. Groups wait for the tailer
	// while there are more: it has not read for as many writes of others.
	maxEarlier = 1 << 12
)

// sight is what a position means beside the positions that were seen before.
type sight int

const (
	// agrees: nothing contradicts it, and it is remembered.
	agrees sight = iota
	// contradicts: another group is known to have written that revision.
	contradicts
	// unproven: it is older than what is remembered.
	unproven
	// crowded: it cannot be remembered, as too many wait for the log.
	crowded
)

func (t *trail) reset(p contract.Position) { t.passed, t.ahead = []contract.Position{p}, nil }

func (t *trail) delivered() contract.Position { return t.passed[len(t.passed)-1] }

func (t *trail) newest() contract.Position {
	if n := len(t.ahead); n > 0 {
		return t.ahead[n-1]
	}
	return t.delivered()
}

// at returns the place of the first position whose revision is not lower.
func at(positions []contract.Position, r contract.Revision) int {
	return sort.Search(len(positions), func(i int) bool { return positions[i].Revision >= r })
}

// see takes a position of this history. If it contradicts, known is what it contradicts.
func (t *trail) see(p contract.Position) (known contract.Position, s sight) {
	if p.Revision <= t.delivered().Revision {
		i := at(t.passed, p.Revision)
		if known = t.passed[i]; i == 0 && known.Revision != p.Revision {
			return known, unproven
		}
		known.Revision = p.Revision // of the same group
		return known, compare(known, p)
	}
	i := at(t.ahead, p.Revision)
	switch {
	case i < len(t.ahead) && t.ahead[i].Revision == p.Revision:
		return t.ahead[i], compare(t.ahead[i], p)
	case len(t.ahead) >= maxAhead:
		return p, crowded
	}
	t.ahead = append(t.ahead, p)
	copy(t.ahead[i+1:], t.ahead[i:])
	t.ahead[i] = p
	return p, agrees
}

func compare(known, p contract.Position) sight {
	if known == p {
		return agrees
	}
	return contradicts
}

// pass moves on over rows, of which groups are the last ones of each group. It does nothing if they
// contradict a position that was seen, and returns that one.
func (t *trail) pass(groups []contract.Position) (known contract.Position, ok bool) {
	last := groups[len(groups)-1].Revision
	n := 0
	for ; n < len(t.ahead) && t.ahead[n].Revision <= last; n++ {
		if p := t.ahead[n]; groups[at(groups, p.Revision)].Token != p.Token {
			return p, false
		}
	}
	if t.ahead = t.ahead[n:]; len(t.ahead) == 0 {
		t.ahead = nil
	}
	t.passed = append(t.passed, groups...)
	if len(t.passed) >= 2*maxPassed {
		t.passed = append([]contract.Position(nil), t.passed[len(t.passed)-maxPassed:]...)
	}
	return known, true
}

// skip moves on to the state of a database that has compacted what comes next. Of the positions
// that were seen, those below compacted do not matter any more, as nobody can ask for anything
// there. The first of the others is where the reading of the log goes on, so that it is compared,
// and all after it.
func (t *trail) skip(st contract.State) {
	i := at(t.ahead, st.Compacted)
	if i == len(t.ahead) || t.ahead[i].Revision > st.Head.Revision {
		t.passed, t.ahead = []contract.Position{st.Head}, t.ahead[i:]
		return
	}
	t.passed, t.ahead = []contract.Position{t.ahead[i]}, t.ahead[i+1:]
}

// groupsOf returns the last position of each group of rows.
func groupsOf(epoch contract.Epoch, rows []contract.Row) []contract.Position {
	var groups []contract.Position
	for i := range rows {
		p := contract.Position{Epoch: epoch, Revision: rows[i].Revision, Token: rows[i].Token}
		if n := len(groups); n > 0 && groups[n-1].Token == p.Token {
			groups[n-1] = p
		} else {
			groups = append(groups, p)
		}
	}
	return groups
}
