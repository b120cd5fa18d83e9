package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// judge knows all that the database ever held, and compares with it what clients are told. The
// package documentation has its rules.
type judge struct {
	w         *world
	violation *violation
	// states are what the database held, one after the other.
	states []moment
	// head is the newest row of the present history, and model what exists there.
	head  *node
	model map[contract.Key]*node
	// tips are the newest rows of histories that were lost.
	tips []*node
	// byRevision are all rows that there ever were.
	byRevision map[contract.Revision][]*node
	// ops are all requests, and writers tells which of them has written a row.
	ops     []*op
	writers map[rowName]*op
	// groups are what groups had seen, by their tokens.
	groups map[contract.Token]contract.Position
	// declared are the turns in which tokens were first recorded as those of groups that are not
	// done, in whatever history.
	declared map[contract.Token]int
	// over are watches of processes that have ended.
	over []*watch
}

// violation is something that must not be.
type violation struct{ rule, text string }

func (v *violation) String() string { return v.rule + ": " + v.text }

// moment is what the database held from a turn on.
type moment struct {
	turn int
	v    memdb.Version
	st   contract.State
	head *node
}

// node is a row of the log, after the one that was the head before it.
type node struct {
	row    contract.Row
	parent *node
	// prev is the row that it replaced.
	prev *node
	op   *op
	turn int
	// relaxed: it was not durable yet when commits were confirmed before they are.
	relaxed bool
	// acked: its writer knows of it. shown: somebody does.
	acked, shown bool
	// lost is why it is not there any more, "" if it is. noticed: whoever opens or connects to the
	// database finds out.
	lost    string
	noticed bool
}

func (n *node) rev() contract.Revision { return n.row.Revision }

type rowName struct {
	revision contract.Revision
	token    contract.Token
}

func (j *judge) begin(w *world) {
	v := w.s.db.Version()
	st := v.State()
	root := &node{row: v.Log(0)[0]}
	*j = judge{w: w, head: root, model: map[contract.Key]*node{},
		byRevision: map[contract.Revision][]*node{root.rev(): {root}}, writers: map[rowName]*op{},
		groups: map[contract.Token]contract.Position{}, declared: map[contract.Token]int{}, states: []moment{{0, v, st, root}}}
}

func (j *judge) violate(rule, format string, args ...any) {
	if j.violation == nil {
		j.violation = &violation{rule, fmt.Sprintf(format, args...)}
		j.w.log("VIOLATION %s", j.violation)
	}
}

// begun remembers what a group had seen.
func (w *world) begun(g *contract.Group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.groups[g.Token] = g.Seen
}

// wrote remembers whose rows a group has written.
func (w *world) wrote(g *contract.Group, r *contract.GroupResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range r.Outcomes {
		if o.Part != 0 {
			continue // the last row of a transaction stands for it
		}
		if id, err := strconv.Atoi(string(g.Mutations[i].Value)); o.Accepted && err == nil {
			w.judge.writers[rowName{o.Revision, g.Token}] = w.judge.ops[id]
		}
	}
}

// record looks at what was committed since it looked last.
func (j *judge) record() {
	v := j.w.s.db.Version()
	last := &j.states[len(j.states)-1]
	if v == last.v {
		return
	}
	st := v.State()
	if st.Compacted < last.st.Compacted || st.Swept > st.Compacted ||
		st.Head.Epoch < last.st.Head.Epoch {
		j.violate("log", "the state went from %+v to %+v", last.st, st)
	}
	rows := v.Log(j.head.rev() + 1)
	if len(rows) > 0 {
		j.w.report.Commits++
	}
	for _, r := range rows {
		j.append(r, st, last)
	}
	if len(rows) == 0 && st.Head != last.st.Head {
		j.violate("log", "the head went from %+v to %+v", last.st.Head, st.Head)
	}
	j.w.log("head %d of %d compacted %d swept %d", st.Head.Revision, st.Head.Epoch, st.Compacted,
		st.Swept)
	j.states = append(j.states, moment{j.w.turns.now(), v, st, j.head})
	j.checkTables(v, st)
}

// append judges a row that was written.
func (j *judge) append(r contract.Row, st contract.State, last *moment) {
	n := &node{row: r, parent: j.head, turn: j.w.turns.now(), relaxed: j.w.s.relaxed.Load()}
	for _, other := range j.byRevision[r.Revision] {
		if other.noticed && other.shown {
			j.violate("fence", "revision %d was shown and then lost, which everybody could notice, "+
				"and is written again", r.Revision)
		}
	}
	j.byRevision[r.Revision] = append(j.byRevision[r.Revision], n)
	j.head = n
	if r.Marker() {
		j.w.report.Fences++
		if st.Head.Revision != r.Revision || st.Compacted != r.Revision ||
			st.Head.Epoch <= last.st.Head.Epoch || r.Revision < n.parent.rev()+contract.JumpBefore(r.Revision) {
			j.violate("fence", "a fence at %d comes after %d: %+v after %+v", r.Revision,
				n.parent.rev(), st, last.st)
		}
		return
	}
	if seen, ok := j.groups[r.Token]; ok && seen.Revision < last.st.Compacted {
		j.violate("refused", "row %d is of a group that had seen %d, and compacted was %d: a record "+
			"that it is not done may be forgotten", r.Revision, seen.Revision, last.st.Compacted)
	}
	if before := &n.parent.row; before.Part == 0 && (r.Revision != before.Revision+1 || r.Part > 1) ||
		before.Part != 0 && (r.Revision != before.Revision || r.Token != before.Token ||
			r.Part != 0 && r.Part != before.Part+1 || r.Part == 0 && r.Parts() != before.Part) ||
		st.Head.Epoch != last.st.Head.Epoch {
		j.violate("log", "row %d follows %d", r.ID(), before.ID())
	}
	was := j.model[r.Key]
	n.prev = was
	create, version, prev := r.Revision, int64(1), contract.RowID(0)
	if was != nil {
		create, version, prev = was.row.Create, was.row.Version+1, was.row.ID()
	}
	if r.Prev != prev || r.Create != create || r.Version != version {
		j.violate("log", "the row %d of %s replaces %d, created at %d, version %d; it should "+
			"replace %d, created at %d, version %d", r.Revision, r.Key, r.Prev, r.Create, r.Version,
			prev, create, version)
	}
	if r.Deleted {
		if was == nil {
			j.violate("log", "the row %d deletes %s, which does not exist", r.Revision, r.Key)
		}
		delete(j.model, r.Key)
	} else {
		j.model[r.Key] = n
	}
	if r.Part == 0 {
		n.op = j.writers[rowName{r.Revision, r.Token}]
	}
	switch {
	case n.op != nil:
		j.done(n)
	case r.Deleted && r.Part == 0 && r.Parts() == 0:
		if l, ok := last.v.Live(r.Key); ok && (l.Expiry == 0 ||
			l.Expiry > j.w.s.newestTime().UnixMicro()) {
			j.violate("expiry", "%s, which expires at %d, was deleted at %d, at the time %d",
				r.Key, l.Expiry, r.Revision, r.Time.UnixMicro())
		}
	}
}

// done judges the row of a request, or all rows of a transaction, of which this is the last one.
func (j *judge) done(n *node) {
	o, r := n.op, &n.row
	ms := o.all()
	row := n
	for i := len(ms) - 1; i >= 0; i-- {
		if (row == n) != (row.row.Part == 0) || row.rev() != n.rev() || row.row.Part%len(ms) != (i+1)%len(ms) {
			j.violate("log", "request %d has %d keys, and row %d is among its rows", o.id, len(ms),
				row.row.ID())
			return
		}
		j.did(o, &ms[i], row)
		row = row.parent
	}
	if o.refused {
		j.violate("refused", "request %d was told that nothing was written, and is in the log "+
			"at %d", o.id, r.Revision)
	}
	for _, other := range o.nodes {
		if n.on(other) && !j.undone(other) {
			j.violate("twice", "request %d is in the log at %d and %d", o.id, other.rev(), n.rev())
		}
	}
	o.nodes = append(o.nodes, n)
}

// did judges the row of a mutation.
func (j *judge) did(o *op, m *contract.Mutation, n *node) {
	r := &n.row
	if r.Key != m.Key || r.Deleted != m.Delete || !m.Delete && string(r.Value) != string(m.Value) {
		j.violate("log", "request %d wrote %q to %s, and row %d is %q of %s", o.id, m.Value, m.Key,
			r.Revision, r.Value, r.Key)
	}
	if !m.Expects(r.Prev) {
		j.violate("expectation", "request %d expects %s at %d, and has replaced %d", o.id, m.Key,
			m.Expect, r.Prev)
	}
	if o.rest == nil && m.Expect > 0 && n.prev != nil && string(n.prev.row.Value) != o.expected {
		j.violate("expectation", "request %d had read %s at %d as %q, and has replaced %q there",
			o.id, m.Key, m.Expect, o.expected, n.prev.row.Value)
	}
}

// begin returns the first row of the transaction of which the row is the last one.
func (n *node) begin() *node {
	for n.parent != nil && n.parent.row.Part != 0 {
		n = n.parent
	}
	return n
}

// declare judges that a group is declared not done: what it had seen is in this history, and no row
// after that can be swept.
func (j *judge) declare(token contract.Token, st contract.State) {
	seen, ok := j.groups[token]
	if !ok {
		return // it stands for no group
	}
	if n := j.head.at(seen.Revision); st.Compacted > seen.Revision || n == nil ||
		n.row.Token != seen.Token {
		j.violate("refused", "a group that had seen %d is declared not done at %d, where nothing "+
			"tells that: compacted is %d", seen.Revision, st.Head.Revision, st.Compacted)
	}
}

// undone tells whether the row's group was lost and then declared not done. If the row is there all
// the same, the database was replaced by a copy that has the group and not the declaration; see
// TestLostGroupComesBack. A row that is written after the declaration is not undone.
func (j *judge) undone(n *node) bool {
	declared, ok := j.declared[n.row.Token]
	return ok && declared > n.turn
}

// on tells whether another row comes before this one, or is this one.
func (n *node) on(other *node) bool { return n.at(other.rev()) == other }

// at returns the newest row up to a revision before this one.
func (n *node) at(r contract.Revision) *node {
	for n != nil && n.rev() > r {
		n = n.parent
	}
	return n
}

// stateAt returns what exists at a row.
func (n *node) stateAt() map[contract.Key]*node {
	state, seen := map[contract.Key]*node{}, map[contract.Key]bool{}
	for ; n != nil; n = n.parent {
		if k := n.row.Key; k != "" && !seen[k] {
			seen[k] = true
			if !n.row.Deleted {
				state[k] = n
			}
		}
	}
	return state
}

// checkTables compares what the tables hold with what they should.
func (j *judge) checkTables(v memdb.Version, st contract.State) {
	live := v.AllLive()
	if len(live) != len(j.model) {
		j.violate("log", "%d keys are live at %d, not %d", len(live), st.Head.Revision,
			len(j.model))
	}
	for _, l := range live {
		n := j.model[l.Key]
		if n == nil || n.row.ID() != l.ID() || n.row.Create != l.Create || n.row.Version != l.Version {
			j.violate("log", "the live row of %s is %+v", l.Key, l)
		}
	}
	j.checkIndexes(v)
	j.checkReplaced(v)
	aborted := v.Aborted()
	for _, token := range aborted {
		if _, before := j.declared[token]; !before {
			j.declared[token] = j.w.turns.now()
			j.declare(token, st)
		}
	}
	// What can be read has to be there.
	have := map[contract.RowID]bool{}
	for _, r := range v.Log(0) {
		have[r.ID()] = true
		if slices.Contains(aborted, r.Token) {
			j.violate("refused", "row %d is in the log, and its group is declared not done",
				r.Revision)
		}
	}
	users := v.Users()
	for id := range users {
		if !have[id] {
			j.violate("users", "row %d has a user, and is not in the log", id)
		}
	}
	seen := map[contract.Key]bool{}
	for n := j.head; n != nil; n = n.parent {
		if id := n.row.ID(); have[id] && users[id] != n.op.user() {
			j.violate("users", "row %d is of %q, not %q", id, users[id].Name, n.op.user().Name)
		}
		needed := n.rev() > st.Compacted || n.rev() == st.Compacted && n == j.head
		if k := n.row.Key; n.rev() <= st.Compacted && k != "" && !seen[k] {
			seen[k] = true
			needed = needed || !n.row.Deleted
		}
		if needed && !have[n.row.ID()] {
			j.violate("compaction", "row %d of %s is gone, and compacted is %d", n.rev(), n.row.Key,
				st.Compacted)
		}
		if n.rev() <= st.Compacted && len(seen) == len(allKeys)+len(j.w.processes) {
			break
		}
	}
}

// checkIndexes compares what the indexes have of the keys with their values: of all keys if an
// index is ready, and of those that a walk has passed if it is not.
func (j *judge) checkIndexes(v memdb.Version) {
	x := v.Indexes()
	for _, d := range x.In(indexed) {
		for k, n := range j.model {
			if !strings.HasPrefix(string(k), string(indexed)) ||
				d.State != contract.IndexReady && string(k) > string(d.Built) {
				continue
			}
			want := entriesOf(&contract.Indexes{All: []contract.Index{*d}}, n.row.Value)
			var has []contract.Entry
			for _, e := range v.Entries(k) {
				if e.Index() == d.ID {
					has = append(has, e)
				}
			}
			if len(has) != 1 || has[0] != contract.UnknownEntry(d.ID) &&
				has[0] != want[0] {
				j.violate("index", "the index %d, which is %s, has %q of %s, whose value is %s", d.ID,
					d.State, has, k, n.row.Value)
			}
		}
	}
}

// checkReplaced compares what the log has of the keys whose rows were replaced, since an index was
// ready, with their values.
func (j *judge) checkReplaced(v memdb.Version) {
	for _, d := range v.Indexes().In(indexed) {
		for n := j.head; d.State == contract.IndexReady && n != nil && n.rev() > d.Since; n = n.parent {
			said, known := v.Said(n.row.ID())
			if n.prev == nil || !known {
				continue
			}
			has := slices.DeleteFunc(slices.Clone(said),
				func(e contract.Entry) bool { return e.Index() != d.ID })
			value := n.prev.row.Value
			want := entriesOf(&contract.Indexes{All: []contract.Index{*d}}, value)
			if len(has) != 1 || has[0] != contract.UnknownEntry(d.ID) && has[0] != want[0] {
				j.violate("index", "the log has %q of %s before %d, where its value was %s", has,
					n.row.Key, n.rev(), value)
			}
		}
	}
}

// earlier returns what the database held some changes ago.
func (j *judge) earlier(n int) memdb.Version {
	return j.states[max(len(j.states)-1-n, 0)].v
}

// goBack makes the database lose what came after a version.
func (j *judge) goBack(v memdb.Version, cause string) {
	w := j.w
	i := len(j.states) - 1
	for j.states[i].v != v {
		i--
	}
	m := j.states[i]
	recorded, boot := m.v.Recorded()
	noticed := cause == "restore" && recorded != "" && recorded != w.s.name() ||
		cause == "crash" && boot != "" && boot != w.s.boot()
	if cause == "restore" && !noticed {
		for _, nodes := range j.byRevision {
			for _, n := range nodes {
				n.noticed = false
			}
		}
	}
	w.report.Losses++
	w.log("the database goes back to %d: %s, noticed %t", m.head.rev(), cause, noticed)
	j.tips = append(j.tips, j.head)
	for n := j.head; n != nil && !m.head.on(n); n = n.parent {
		n.lost, n.noticed = cause, noticed
		j.checkLoss(n)
	}
	for n := m.head; n != nil && n.lost != ""; n = n.parent {
		n.lost, n.noticed = "", false // a copy of a history that was lost has come back
	}
	j.head, j.model = m.head, m.head.stateAt()
	w.s.db.Return(v)
	j.states = append(j.states, moment{w.turns.now(), w.s.db.Version(), m.st, m.head})
	w.s.flush()
}

// relax notes that commits are confirmed from now on before they are durable: what is visible, and
// not durable yet, may be confirmed by one of them.
func (j *judge) relax() {
	durable := j.w.s.durable.Load().State().Head.Revision
	for n := j.head; n != nil && n.rev() > durable; n = n.parent {
		n.relaxed = true
	}
}

// checkLoss judges that an acknowledged row is lost.
func (j *judge) checkLoss(n *node) {
	if n.acked && n.lost == "crash" && !n.relaxed {
		j.violate("durable", "row %d of %s was acknowledged, and is gone after a power failure, "+
			"though the settings are strict", n.rev(), n.row.Key)
	}
}

// during returns the moments of a time.
func (j *judge) during(call, end int) []moment {
	last := len(j.states)
	for last > 1 && j.states[last-1].turn > end {
		last--
	}
	first := last - 1
	for first > 0 && j.states[first].turn >= call {
		first--
	}
	return j.states[first:last]
}

// some tells whether something was so at some moment of a request.
func (j *judge) some(o *op, f func(*moment) bool) bool {
	ms := j.during(o.call, o.end)
	for i := range ms {
		if f(&ms[i]) {
			return true
		}
	}
	return false
}

// allowed judges an error by which something failed that had to reach the database.
func (j *judge) allowed(what string, err error) {
	var e *contract.Error
	switch {
	case err == nil, errors.Is(err, contract.ErrClosed), errors.Is(err, contract.ErrCompacted),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, contract.ErrUnknownOutcome):
	case errors.As(err, &e) && e.Class != contract.Invalid && e.Class != contract.Data:
	default:
		j.violate("error", "%s: %v", what, err)
	}
}

// show notes that a head was shown to a client, and judges that it goes on from what was shown
// before. among are the rows that it may have been.
func (j *judge) show(o *op, head contract.Revision, among []*node) {
	if o.gone {
		return
	}
	if head < o.floor {
		j.violate("backwards", "request %d, %s at process %d, shows the head %d after %d", o.id,
			o.verb, o.p.id, head, o.floor)
	}
	m := o.memory
	m.floor = max(m.floor, head)
	if len(among) != 1 {
		return
	}
	n := among[0]
	n.shown = true
	for _, h := range m.heads {
		if h.n.rev() == n.rev() && h.n != n {
			j.violate("history", "request %d, %s at process %d, shows the head %d of another "+
				"history than before", o.id, o.verb, o.p.id, head)
		}
	}
	if len(m.heads) == 0 || m.heads[len(m.heads)-1].n != n {
		m.heads = append(m.heads, shown{j.w.turns.now(), n})
	}
}

// heads are the rows that may have been the head for a request.
func (j *judge) heads(o *op, end int, f func(*moment) bool) (heads []*node) {
	for _, m := range j.during(o.call, end) {
		if f(&m) && !slices.Contains(heads, m.head) {
			heads = append(heads, m.head)
		}
	}
	return heads
}

// get judges a read of a key.
func (j *judge) get(o *op, kv *mvcc.KeyValue, head contract.Revision, err error) bool {
	j.allowed("get", err)
	if err != nil {
		return false
	}
	j.w.report.Reads++
	heads := j.heads(o, o.end, func(m *moment) bool {
		if m.head.rev() != head {
			return false
		}
		l, ok := m.v.Live(o.key)
		if kv == nil || !ok {
			return kv == nil && !ok
		}
		return l.Revision == kv.Revision && l.Version == kv.Version && l.Create == kv.Create &&
			string(m.head.stateAt()[o.key].row.Value) == string(kv.Value)
	})
	if len(heads) == 0 {
		j.violate("linearizable", "request %d at process %d reads %s at the head %d as %+v; it "+
			"never was between the turns %d and %d", o.id, o.p.id, o.key, head, kv, o.call, o.end)
	}
	j.show(o, head, heads)
	return true
}

// head judges a read of the head.
func (j *judge) headRead(o *op, head contract.Revision, err error) {
	j.allowed("head", err)
	if err != nil {
		return
	}
	j.w.report.Reads++
	heads := j.heads(o, o.end, func(m *moment) bool { return m.head.rev() == head })
	if len(heads) == 0 {
		j.violate("linearizable", "request %d at process %d reads the head %d; it never was "+
			"between the turns %d and %d", o.id, o.p.id, head, o.call, o.end)
	}
	j.show(o, head, heads)
}

// counted judges a count of a range.
func (j *judge) counted(o *op, n int64, err error) {
	j.allowed("count", err)
	if err != nil {
		return
	}
	j.w.report.Reads++
	if !j.some(o, func(m *moment) bool {
		var have int64
		for _, l := range m.v.AllLive() {
			if l.Key >= "/a/" && l.Key < "/b/1" {
				have++
			}
		}
		return have == n
	}) {
		j.violate("linearizable", "request %d counts %d keys; there never were as many between "+
			"the turns %d and %d", o.id, n, o.call, o.end)
	}
}

// list judges a list and its pages.
func (j *judge) list(o *op, l *list) {
	var future *contract.FutureRevisionError
	switch {
	case errors.As(l.err, &future):
		if !j.some(o, func(m *moment) bool { return m.head.rev() < future.Revision }) {
			j.violate("list", "request %d is refused: %v", o.id, l.err)
		}
	case errors.Is(l.err, contract.ErrCompacted):
		if !j.some(o, func(m *moment) bool { return m.st.Compacted > l.q.At }) {
			j.violate("list", "request %d, a list at %d, is refused as compacted", o.id, l.q.At)
		}
	default:
		j.allowed("list", l.err)
	}
	if len(l.pages) == 0 {
		return
	}
	j.w.report.Reads++
	first := l.pages[0]
	newest := o.verb == "list"
	var at []*node
	for _, m := range j.during(o.call, l.firstEnd) {
		n := m.head.at(first.Revision)
		if m.head.rev() >= first.Revision && n != nil && (!newest || n == m.head) &&
			!slices.Contains(at, n) {
			at = append(at, n)
		}
	}
	got := ""
	for _, p := range l.pages {
		if p.Revision != first.Revision {
			j.violate("list", "request %d, a list at %d, has a page at %d", o.id, first.Revision,
				p.Revision)
		}
		for _, kv := range p.KVs {
			got += fmt.Sprintf("%s@%d/%d/%d %s;", kv.Key, kv.Revision, kv.Create, kv.Version, kv.Value)
		}
	}
	if !slices.ContainsFunc(at, func(n *node) bool {
		want, left := "", int64(0)
		state := n.stateAt()
		keys := make([]contract.Key, 0, len(state))
		for k := range state {
			if k >= l.q.Start && k < l.q.End {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			r := state[k].row
			if l.q.KeysOnly {
				r.Value = nil
			}
			want += fmt.Sprintf("%s@%d/%d/%d %s;", k, r.Revision, r.Create, r.Version, r.Value)
		}
		left = int64(len(keys))
		for _, p := range l.pages {
			if l.q.Count && p.Count != left {
				return false
			}
			left -= int64(len(p.KVs))
		}
		if l.err != nil {
			return strings.HasPrefix(want, got)
		}
		return want == got
	}) {
		j.violate("linearizable", "request %d at process %d, a list of %+v, has %d pages at %d: %s; "+
			"that never was between the turns %d and %d", o.id, o.p.id, l.q, len(l.pages),
			first.Revision, got, o.call, l.firstEnd)
	}
	if newest {
		j.show(o, first.Revision, at)
	}
}

// written judges the answer to a write.
func (j *judge) written(o *op, done contract.Outcome, err error) {
	var conflict *contract.ConflictError
	switch {
	case o.gone:
		return // nobody has heard it
	case err == nil:
		j.acknowledged(o, done)
		return
	case errors.Is(err, contract.ErrUnknownOutcome):
		return
	case errors.As(err, &conflict):
		// What it finds is the state before the group. The first one of the group that expects the
		// same may have changed it.
		found := func(is func(contract.Revision) bool) bool {
			return j.some(o, func(m *moment) bool {
				l, _ := m.v.Live(conflict.Key)
				return is(l.Revision)
			})
		}
		if !j.some(o, func(m *moment) bool {
			return slices.ContainsFunc(o.all(), func(w contract.Mutation) bool {
				l, _ := m.v.Live(w.Key)
				return !w.Expects(l.ID())
			})
		}) ||
			conflict.Current >= 0 &&
				!found(func(r contract.Revision) bool { return r == conflict.Current }) {
			j.violate("conflict", "request %d expects %s at %d, and is refused: %v; it was not so "+
				"between the turns %d and %d", o.id, o.m.Key, o.m.Expect, err, o.call, o.end)
		}
	case errors.Is(err, contract.ErrCondition):
		since := o.m.If.Since
		if !j.some(o, func(m *moment) bool {
			return !met(o.m.If, m.v.AllLive()) || m.st.Compacted > since || m.head.touched(o.m.If)
		}) {
			j.violate("condition", "request %d is refused because of its condition, which was met "+
				"between the turns %d and %d", o.id, o.call, o.end)
		}
	case string(o.m.Value) == poison && contract.ClassOf(err) == contract.Data:
	default:
		j.allowed("write", err)
	}
	// Nothing was written, and never will be.
	o.refused = true
	for _, n := range o.nodes {
		if n.lost == "" && !j.undone(n) {
			j.violate("refused", "request %d was told that nothing was written (%v), and is in the "+
				"log at %d", o.id, err, n.rev())
		}
	}
}

// touched tells whether a row up to this one has touched what a condition demands to be untouched.
func (n *node) touched(c *contract.Condition) bool {
	for ; n != nil && n.rev() > c.Since; n = n.parent {
		if c.Touches(n.row.Key) {
			return true
		}
	}
	return false
}

// met tells whether the comparisons of a condition come out as it demands, of which no comparison
// is of a value.
func met(c *contract.Condition, live []contract.Record) bool {
	return c.Met(func(c *contract.Comparison) bool {
		some, misfit := false, false
		for _, r := range live {
			if r.Key >= c.Start && r.Key < c.End {
				some, misfit = true, misfit || !c.Fits(contract.Current{ID: r.ID(),
					Create: r.Create, Version: r.Version, Lease: r.Lease}, nil)
			}
		}
		return c.Holds(some, misfit)
	})
}

// acknowledged judges a write that its client takes for done.
func (j *judge) acknowledged(o *op, done contract.Outcome) {
	j.w.report.Acknowledged++
	i := len(o.nodes) - 1 // earlier ones were lost
	for i >= 0 && o.nodes[i].rev() != done.Revision {
		i--
	}
	if i < 0 {
		j.violate("durable", "request %d was acknowledged at %d, and is not in the log", o.id,
			done.Revision)
		return
	}
	n := o.nodes[i]
	if o.rest == nil && (n.row.Prev != done.Prev || n.row.Create != done.Create || n.row.Version != done.Version) ||
		!done.Accepted {
		j.violate("log", "request %d was told %+v of its row %+v", o.id, done, n.row)
	}
	if n.turn < o.call {
		j.violate("linearizable", "request %d was done before it began", o.id)
	}
	n.acked, n.shown = true, true
	if o.m.If != nil {
		var before []contract.Record
		found := n.begin().parent
		for _, b := range found.stateAt() {
			before = append(before, contract.Record{Key: b.row.Key, Revision: b.rev(),
				Create: b.row.Create, Version: b.row.Version, Lease: b.row.Lease})
		}
		if !met(o.m.If, before) || found.touched(o.m.If) {
			j.violate("condition", "request %d is written at %d, where its condition was not met",
				o.id, n.rev())
		}
	}
	if n.rev() <= o.floor {
		j.violate("backwards", "request %d at process %d is written at %d, after %d was shown", o.id,
			o.p.id, n.rev(), o.floor)
	}
	j.checkLoss(n)
	for _, h := range o.memory.heads {
		if h.turn >= o.call || h.n.rev() >= n.rev() || n.on(h.n) {
			continue
		}
		fenced := false
		for x := n; x != nil && x.rev() > h.n.rev(); x = x.parent {
			fenced = fenced || x.row.Marker()
		}
		if !fenced {
			j.violate("history", "request %d at process %d is written at %d, in another history "+
				"than the head %d that was shown before", o.id, o.p.id, n.rev(), h.n.rev())
		}
	}
	m := o.memory
	m.floor = max(m.floor, n.rev())
	m.heads = append(m.heads, shown{j.w.turns.now(), n})
	for first := n.begin().parent; n != first; n = n.parent {
		if n.row.Deleted {
			delete(m.known, n.row.Key)
		} else {
			m.known[n.row.Key] = known{revision: n.rev(), era: o.era, value: string(n.row.Value)}
		}
	}
}

// watchRefused judges that a watch could not begin.
func (j *judge) watchRefused(x *watch, err error) {
	j.allowed("watch", err)
	if errors.Is(err, contract.ErrCompacted) && !slices.ContainsFunc(j.states, func(m moment) bool {
		return m.st.Compacted > x.after
	}) {
		j.violate("watch", "a watch after %d is refused as compacted", x.after)
	}
}

// watches judges all watches that there were.
func (j *judge) watches() {
	j.tips = append(j.tips, j.head)
	for _, x := range j.over {
		j.w.report.Events += len(x.events)
		j.watch(x)
	}
}

// watch judges a watch: what it has seen is a piece of one history, without a fence in it.
func (j *judge) watch(x *watch) {
	if errors.Is(x.err, contract.ErrCompacted) {
		if !slices.ContainsFunc(j.states, func(m moment) bool {
			return m.st.Compacted > x.progress
		}) && len(j.tips) == 1 {
			j.violate("watch", "a watch after %d, at %d by now, has ended as compacted", x.after,
				x.progress)
		}
	} else {
		j.allowed("watch", x.err)
	}
	upto := x.progress
	got := make([]string, len(x.events))
	for i, e := range x.events {
		got[i] = fmt.Sprintf("%d %s %q %t replaces %d, created %d, version %d", e.Revision, e.Key,
			e.Value, e.Deleted, e.Prev, e.Create, e.Version)
		upto = max(upto, e.Revision)
	}
	var wants []string
	for _, tip := range j.tips {
		if tip.rev() < upto {
			continue
		}
		var want []string
		over := false
		for n := tip.at(upto); n != nil && n.rev() > x.after; n = n.parent {
			r := &n.row
			// A watch may begin at the fence itself: nobody has seen the revision before it.
			over = over || r.Marker() && r.Revision > x.after+1
			if !r.Marker() && x.matches(r.Key) {
				want = append(want, fmt.Sprintf("%d %s %q %t replaces %d, created %d, version %d",
					r.Revision, r.Key, r.Value, r.Deleted, r.Prev, r.Create, r.Version))
			}
		}
		slices.Reverse(want)
		if slices.Equal(got, want) && !over {
			return
		}
		wants = append(wants, fmt.Sprintf("%q (over a fence: %t)", want, over))
	}
	j.violate("watch", "request %d at process %d, a watch of %+v, has seen up to %d, until turn %d "+
		"(%v): %q; possible was %s", x.o.id, x.p.id, x.opts, upto, x.endTurn, x.err, got,
		strings.Join(wants, " or "))
}

func (x *watch) matches(k contract.Key) bool {
	switch {
	case x.opts.Prefix != "":
		return strings.HasPrefix(string(k), string(x.opts.Prefix))
	case x.opts.Key != "":
		return k == x.opts.Key
	}
	return k >= x.opts.Start && k < x.opts.End
}

// ready judges what is there when everything is repaired.
func (j *judge) ready() {
	st := j.states[len(j.states)-1].st
	for _, p := range j.w.processes {
		for _, h := range p.memory.heads {
			if h.n.rev() > st.Compacted && !j.head.on(h.n) {
				j.violate("fence", "process %d has shown the head %d, which is lost, and nobody "+
					"has fenced: compacted is %d", p.id, h.n.rev(), st.Compacted)
			}
		}
	}
}

// swept judges what is left after the last compaction, and after the last look at what had expired,
// by the database's clock.
func (j *judge) swept(reaped time.Time) {
	m := &j.states[len(j.states)-1]
	now := m.v
	if m.st.Swept != m.st.Compacted {
		j.violate("compaction", "swept is %d, and compacted %d", m.st.Swept, m.st.Compacted)
	}
	for _, token := range now.Aborted() {
		if seen, ok := j.groups[token]; ok && seen.Revision < m.st.Compacted {
			j.violate("compaction", "the record of a group that had seen %d is still there, and "+
				"compacted is %d", seen.Revision, m.st.Compacted)
		}
	}
	live := map[contract.RowID]bool{}
	for _, l := range now.AllLive() {
		live[l.ID()] = true
		n := j.model[l.Key]
		if o := n.op; o != nil && o.m.TTL > 0 && n.row.Time.Add(o.m.TTL).Before(reaped) {
			j.violate("expiry", "%s, which was written at %d for %s, still exists", l.Key,
				l.Revision, o.m.TTL)
		}
	}
	for _, r := range now.Log(0) {
		if r.Revision < m.st.Compacted && !live[r.ID()] {
			j.violate("compaction", "the row %d of %q is still there, and compacted is %d",
				r.Revision, r.Key, m.st.Compacted)
		}
	}
}
