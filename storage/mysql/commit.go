package mysql

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

func (b *backend) Commit(ctx context.Context, g *contract.Group) (*contract.GroupResult, error) {
	t := transaction{what: "commit", held: heldOf(g), ask: b.text()}
	b.askGuard(&t.ask, b.server.hold, g.Seen.Revision, g.Token)
	t.ask.askTokens(g.Earlier)
	t.ask.askLive(g.Mutations)
	indexed := t.ask.askEntries(g.Mutations)
	asked := t.ask.askLost(g.Mutations)
	leases := t.ask.askHeld(g.Mutations)
	comparisons := t.ask.askCompared(g.Mutations)
	untouched := t.ask.askWritten(g.Mutations)
	var (
		res *contract.GroupResult
		// removed are the deletions whose previous values the second text asks for.
		removed map[contract.RowID]*contract.Outcome
	)
	t.decide = func(a *answers) (*text, error) {
		guard, lockWait, err := b.guard(a)
		if err != nil {
			return nil, err
		}
		if guard.Earlier, err = a.tokens(g.Earlier); err != nil {
			return nil, err
		}
		if err := contract.CheckGroup(g, guard); err != nil {
			return nil, err
		}
		current, err := a.live(len(g.Mutations))
		if err != nil {
			return nil, err
		}
		before, err := a.entries(indexed)
		if err != nil {
			return nil, err
		}
		lost, err := set(a, asked, func(r row) contract.Key { return r.key(0) })
		if err != nil {
			return nil, err
		}
		held, err := set(a, leases, func(r row) contract.Lease { return contract.Lease(r.int(0)) })
		if err != nil {
			return nil, err
		}
		compared, err := a.compared(comparisons)
		if err != nil {
			return nil, err
		}
		touched, err := a.touched(untouched)
		if err != nil {
			return nil, err
		}
		var n int
		res = &contract.GroupResult{Before: guard.State.Head, State: guard.State, Time: guard.State.Now,
			LockWait: lockWait}
		res.Outcomes, n = contract.DecideGroup(g, guard.State.Head.Revision, &contract.Found{
			Compacted: guard.State.Compacted,
			Current:   func(k contract.Key) contract.Current { return current[k] },
			Compared: func(_ *contract.Condition, c *contract.Comparison) (some, misfit bool) {
				return compared[c].some, compared[c].misfit
			},
			Touched: func(*contract.Condition) bool { return touched },
			Held:    func(l contract.Lease) bool { return held[l] },
			Removed: func(m *contract.Mutation, _ contract.RowID) ([]byte, bool, error) {
				return nil, !lost[m.Key], nil // the second text asks for the value
			},
		})
		second := b.text()
		if t.holds {
			second.variables = t.held.numbers
		}
		if n == 0 {
			b.commit(&second)
			return &second, nil
		}
		res.State.Head.Revision += g.Rises(n)
		res.State.Head.Token = g.Token
		removed = removedBy(g, res.Outcomes)
		b.writeGroup(&second, g, res, removed, before)
		return &second, nil
	}
	t.answered = func(a *answers) error {
		return a.removedValues(removed, contract.Returned{Bound: b.limits.GroupBytes})
	}
	if err := b.transact(ctx, &t); err != nil {
		return nil, err
	}
	return res, nil
}

// askTokens asks for the tokens of the rows at the positions' revisions, if there are any
// positions.
func (t *text) askTokens(positions []contract.Position) {
	if len(positions) == 0 {
		return
	}
	revisions := make([]contract.Revision, len(positions))
	for i, p := range positions {
		revisions[i] = p.Revision
	}
	t.statement(selectTokens, revisionList(revisions))
}

// tokens reads the answer to askTokens: zero for the rows that are not there.
func (a *answers) tokens(positions []contract.Position) ([]contract.Token, error) {
	if len(positions) == 0 {
		return nil, nil
	}
	found := make(map[contract.Revision]contract.Token, len(positions))
	err := a.each(2, func(r row) error { found[r.revision(0)] = r.token(1); return nil })
	tokens := make([]contract.Token, len(positions))
	for i, p := range positions {
		tokens[i] = found[p.Revision]
	}
	return tokens, err
}

// askLive asks where the mutations' keys are. Many writers may wait for one key.
func (t *text) askLive(mutations []*contract.Mutation) {
	keys := make([]contract.Key, len(mutations))
	for i, m := range mutations {
		keys[i] = m.Key
	}
	keys = slices.Compact(keys)
	t.statement(selectLive, keyList(keys))
}

func (a *answers) live(n int) (map[contract.Key]contract.Current, error) {
	found := make(map[contract.Key]contract.Current, n)
	err := a.each(5, func(r row) error {
		found[r.key(0)] = contract.Current{ID: r.revision(1), Create: r.revision(2),
			Version: r.int(3), Lease: contract.Lease(r.int(4))}
		return nil
	})
	return found, err
}

// askEntries asks which entries the keys of indexed directories have, and tells whether there are
// such keys.
func (t *text) askEntries(mutations []*contract.Mutation) bool {
	var keys []contract.Key
	for _, m := range mutations {
		if m.Indexed {
			keys = append(keys, m.Key)
		}
	}
	if len(keys) > 0 {
		t.statement(selectEntries, keyList(keys))
	}
	return len(keys) > 0
}

// entries reads the answer to askEntries.
func (a *answers) entries(asked bool) (found map[contract.Key][]contract.Entry, err error) {
	if !asked {
		return nil, nil
	}
	found = map[contract.Key][]contract.Entry{}
	err = a.each(2, func(r row) (err error) {
		found[r.key(0)], err = contract.UnpackEntries(r.value(1))
		return err
	})
	return found, err
}

// entryRow is a row of the index.
type entryRow struct {
	entry contract.Entry
	key   contract.Key
}

// writeEntries changes the index. A mutation without entries is one that has none afterwards.
func (t *text) writeEntries(gone, added []entryRow) {
	if len(gone) > 0 {
		t.statement(deleteEntries, entryRows(gone))
	}
	if len(added) == 0 {
		return
	}
	n := 0
	t.statement(insertEntries)
	for _, r := range added {
		t.comma(&n)
		t.WriteByte('(')
		t.WriteString(t.store)
		t.WriteByte(',')
		t.binary([]byte(r.entry))
		t.WriteByte(',')
		t.key(r.key)
		t.WriteByte(')')
	}
}

// entryChanges are the rows that other entries of a key remove and add, after those before.
func entryChanges(gone, added []entryRow, k contract.Key,
	before, after []contract.Entry) (_, _ []entryRow) {
	less, more := contract.EntryChanges(before, after)
	for _, e := range less {
		gone = append(gone, entryRow{e, k})
	}
	for _, e := range more {
		added = append(added, entryRow{e, k})
	}
	return gone, added
}

// askLost asks which of the keys that are deleted have lost the value that the deletion has to
// return, and tells whether there are any to ask about.
func (t *text) askLost(mutations []*contract.Mutation) bool {
	var keys []contract.Key
	for _, m := range mutations {
		if m.WantsPrevious() {
			keys = append(keys, m.Key)
		}
	}
	if len(keys) > 0 {
		t.statement(selectLost, keyList(keys))
	}
	return len(keys) > 0
}

// askHeld asks which of the leases have not ended that keys are attached to, and tells whether
// there are any to ask about.
func (t *text) askHeld(mutations []*contract.Mutation) bool {
	var leases []contract.Lease
	for _, m := range mutations {
		if m.Lease != 0 {
			leases = append(leases, m.Lease)
		}
	}
	if len(leases) > 0 {
		t.statement(selectHeld, revisionList(leases))
	}
	return len(leases) > 0
}

// askCompared asks what the conditions of mutations compare, and returns the comparisons in the
// order in which they are answered.
func (t *text) askCompared(mutations []*contract.Mutation) (asked []*contract.Comparison) {
	for _, m := range mutations {
		if m.If == nil {
			continue
		}
		for i := range m.If.Comparisons {
			c := &m.If.Comparisons[i]
			asked = append(asked, c)
			t.compare(m.If.Since, c)
		}
	}
	return asked
}

// compare asks whether there is a key in the range of a comparison, and whether there is one that
// does not fit.
func (t *text) compare(since contract.Revision, c *contract.Comparison) {
	sql := selectCompared
	if c.Property == contract.CompareValue {
		sql = selectComparedValues
	}
	if c.Changed {
		sql = onlyChanged(sql)
	}
	var start, end, fits text
	start.key(c.Start)
	end.key(c.End)
	// A part of a transaction has the revision that contract.RowID says.
	fits.WriteString([...]string{contract.CompareVersion: "l.version",
		contract.CompareCreate:   "l.create_revision",
		contract.CompareRevision: "IF(l.revision < 0, -l.revision DIV 512, l.revision)",
		contract.CompareValue:    "g.value", contract.CompareLease: "l.lease"}[c.Property])
	fits.WriteString([...]string{contract.Equal: " = ", contract.Greater: " > ",
		contract.Less: " < ", contract.NotEqual: " <> "}[c.Operator])
	if c.Property == contract.CompareValue {
		fits.binary(c.Value)
	} else {
		fits.int(c.Number)
	}
	args := []any{start.String(), end.String(), fits.String()}
	if c.Changed {
		args = append(args, int64(since), int64(contract.Lowest(since)))
	}
	t.statement(sql, args...)
}

// comparedKeys is what is found of the keys of a comparison; see [contract.Comparison.Holds].
type comparedKeys struct{ some, misfit bool }

// compared reads the answers to askCompared.
func (a *answers) compared(asked []*contract.Comparison) (map[*contract.Comparison]comparedKeys,
	error) {
	found := make(map[*contract.Comparison]comparedKeys, len(asked))
	for _, c := range asked {
		err := a.each(2, func(r row) error {
			found[c] = comparedKeys{some: r.int(0) != 0, misfit: r.int(1) != 0}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// askWritten asks what was written since a condition's Since, if a mutation demands that ranges are
// untouched. The condition is the only one of its group.
func (t *text) askWritten(mutations []*contract.Mutation) *contract.Condition {
	for _, m := range mutations {
		if m.If != nil && len(m.If.Untouched) > 0 {
			t.statement(selectWritten, int64(m.If.Since), int64(contract.Lowest(m.If.Since)))
			return m.If
		}
	}
	return nil
}

// touched reads the answer to askWritten; see [contract.Found].
func (a *answers) touched(asked *contract.Condition) (touched bool, err error) {
	if asked == nil {
		return false, nil
	}
	err = a.each(1, func(r row) error { touched = touched || asked.Touches(r.key(0)); return nil })
	return touched, err
}

// set reads an answer of one column, if it was asked for.
func set[T comparable](a *answers, asked bool, value func(row) T) (map[T]bool, error) {
	if !asked {
		return nil, nil
	}
	found := map[T]bool{}
	err := a.each(1, func(r row) error { found[value(r)] = true; return nil })
	return found, err
}

// accepted are a group's accepted mutations, in the order of their revisions.
func accepted(g *contract.Group, outcomes []contract.Outcome) iter.Seq2[*contract.Mutation, *contract.Outcome] {
	return func(yield func(*contract.Mutation, *contract.Outcome) bool) {
		for i, m := range g.Mutations {
			if outcomes[i].Accepted && !yield(m, &outcomes[i]) {
				return
			}
		}
	}
}

// removedBy finds the accepted deletions whose previous values nobody has at hand, by the
// values' rows.
func removedBy(g *contract.Group, outcomes []contract.Outcome) map[contract.RowID]*contract.Outcome {
	removed := map[contract.RowID]*contract.Outcome{}
	for m, o := range accepted(g, outcomes) {
		if m.WantsPrevious() {
			removed[o.Prev] = o
		}
	}
	return removed
}

// removedValues reads the answer to selectRemoved.
func (a *answers) removedValues(removed map[contract.RowID]*contract.Outcome,
	returned contract.Returned) error {
	if len(removed) == 0 {
		return nil
	}
	found := 0
	err := a.each(2, func(r row) error {
		if o := removed[r.revision(0)]; o != nil {
			found++
			if returned.Takes(len(r[1].bytes)) {
				o.PrevValue = r.value(1)
			}
		}
		return nil
	})
	if err == nil && found != len(removed) {
		// The transaction goes on all the same. The resolution of the outcome will find it
		// committed.
		err = contract.Errorf(contract.Unknown,
			"the log lacks %d of the %d values that a commit group deletes: the store is damaged",
			len(removed)-found, len(removed))
	}
	return err
}

// writeGroup writes the accepted mutations: their log rows, then the live rows of the keys that
// exist afterwards, then it deletes those of the others. Among the accepted a key occurs once, so
// the order of the three does not matter.
func (b *backend) writeGroup(t *text, g *contract.Group, res *contract.GroupResult,
	removed map[contract.RowID]*contract.Outcome, before map[contract.Key][]contract.Entry) {
	size, indexed, users := statementBytes, false, false
	for _, m := range g.Mutations {
		indexed, users = indexed || m.Indexed, users || m.By != nil
		size += rowBytes + 2*len(m.Key)
		if _, held := t.variables[m]; !held {
			size += len(m.Value) + len(m.Value)/16
		}
	}
	t.Grow(size)
	if len(removed) > 0 {
		t.statement(selectRemoved, revisionList(slices.Collect(maps.Keys(removed))))
	}
	b.takeTurn(t)
	n := 0
	if indexed {
		t.statement(insertIndexedLog)
	} else {
		t.statement(insertLog)
	}
	for m, o := range accepted(g, res.Outcomes) {
		t.comma(&n)
		t.logRow(m, o, g.Token, res.Time)
		switch {
		case !indexed:
		case m.Indexed && o.Prev != 0:
			t.WriteByte(',')
			t.hex(contract.PackEntries(before[m.Key])) // not NULL if there are none
		default:
			t.WriteString(",NULL")
		}
		t.WriteByte(')')
	}
	if users {
		t.writeUsers(g, res)
	}
	n = 0
	for m, o := range accepted(g, res.Outcomes) {
		if m.Delete {
			continue
		}
		if n == 0 && indexed {
			t.statement(replaceIndexedLive)
		} else if n == 0 {
			t.statement(replaceLive)
		}
		t.comma(&n)
		t.liveRow(m.Key, o, m.Expiry(res.Time))
		if indexed {
			t.packed(m.Entries)
		}
		t.WriteByte(')')
	}
	var gone []contract.Key
	for m := range accepted(g, res.Outcomes) {
		if m.Delete {
			gone = append(gone, m.Key)
		}
	}
	if len(gone) > 0 {
		t.statement(deleteLive, keyRows(gone))
	}
	if indexed {
		var less, more []entryRow
		for m := range accepted(g, res.Outcomes) {
			less, more = entryChanges(less, more, m.Key, before[m.Key], m.Entries)
		}
		t.writeEntries(less, more)
	}
	if b.tidb {
		t.statement(writeHead, int64(res.State.Head.Revision), g.Token, res.Time.UnixMicro())
	}
	b.commit(t)
}

// logRow writes the values of insertLog but for the parenthesis at their end.
func (t *text) logRow(m *contract.Mutation, o *contract.Outcome, token contract.Token, now time.Time) {
	n, held := t.variables[m]
	t.WriteByte('(')
	t.WriteString(t.store)
	t.WriteByte(',')
	if held {
		// In a session without the value, the sum is out of range, whatever its sql_mode is, and
		// the statement fails.
		t.WriteString("IF(@rowkeeper_group = ")
		t.binary(heldBy(token))
		t.WriteByte(',')
		t.int(int64(o.ID()))
		t.WriteString(",9223372036854775807 + 1)")
	} else {
		t.int(int64(o.ID()))
	}
	t.WriteByte(',')
	t.binary([]byte(m.Key))
	t.WriteByte(',')
	t.int(int64(o.Prev))
	t.WriteByte(',')
	t.int(int64(o.Create))
	t.WriteByte(',')
	t.int(o.Version)
	t.WriteByte(',')
	t.int(int64(o.Lease))
	t.WriteByte(',')
	t.hex(token[:])
	t.WriteByte(',')
	t.int(now.UnixMicro())
	if m.Delete {
		t.WriteString(",1,NULL")
		return
	}
	t.WriteString(",0,")
	if held {
		t.WriteString("@rowkeeper_")
		t.int(int64(n))
		return
	}
	t.binary(m.Value)
}

// writeUsers writes the users' rows, if an accepted mutation has a user.
func (t *text) writeUsers(g *contract.Group, res *contract.GroupResult) {
	n := 0
	for m, o := range accepted(g, res.Outcomes) {
		if m.By == nil {
			continue
		}
		if n == 0 {
			t.statement(insertUsers)
		}
		t.comma(&n)
		t.WriteByte('(')
		t.WriteString(t.store)
		t.WriteByte(',')
		t.int(int64(o.ID()))
		t.WriteByte(',')
		t.binary([]byte(m.By.Name))
		t.WriteByte(',')
		t.binary([]byte(m.By.AuditID))
		t.WriteByte(')')
	}
}

// packed writes the column entries, after the others of liveRow.
func (t *text) packed(entries []contract.Entry) {
	if len(entries) == 0 {
		t.WriteString(",NULL")
		return
	}
	t.WriteByte(',')
	t.hex(contract.PackEntries(entries))
}

// liveRow writes the values of replaceLive and insertLive but for the parenthesis at their end. The
// expiry 0 means never.
func (t *text) liveRow(key contract.Key, o *contract.Outcome, expiry int64) {
	t.WriteByte('(')
	t.WriteString(t.store)
	t.WriteByte(',')
	t.binary([]byte(key))
	t.WriteByte(',')
	t.int(int64(o.ID()))
	t.WriteByte(',')
	t.int(int64(o.Create))
	t.WriteByte(',')
	t.int(o.Version)
	t.WriteByte(',')
	t.int(int64(o.Lease))
	t.WriteByte(',')
	if expiry != 0 {
		t.int(expiry)
	} else {
		t.WriteString("NULL")
	}
}
