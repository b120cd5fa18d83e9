package simulate

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var mutants = flag.String("sim.mutants", "", "a regular expression: put each of these faults into "+
	"mvcc or memdb, and say after how many operations it is found; takes half a minute for each")

var mutantBudget = flag.Duration("sim.mutant-budget", time.Minute,
	"how long each fault is looked for")

// mutant is a deliberate fault: in a file below storage/internal, old is replaced by new.
type mutant struct {
	breaks, what, file, old, new string
	// also are further replacements.
	also []string
	// unseen says why the simulation cannot find it, where that is so.
	unseen string
}

// allMutants are deliberate faults, by the invariant that they break.
var allMutants = []mutant{
	// One history.
	{breaks: "I1", what: "a transaction reads before it has the lock", file: "memdb/transaction.go",
		old: "	select {\n	case b.d.lock",
		new: "	early := b.d.version.Load()\n	select {\n	case b.d.lock",
		also: []string{"newest.next()", "early.next()", "!b.d.version.CompareAndSwap(newest, t)",
			"!b.d.version.CompareAndSwap(newest, t) && newest == early"}},
	{breaks: "I1", what: "a group does not look at the history", file: "mvcc/rules.go",
		old: "	case !holds:", new: "	case false:"},
	{breaks: "I1", what: "a group accepts two writes of a key", file: "mvcc/decide.go",
		old: "late || !m.Expects(at.Revision)", new: "!late && !m.Expects(at.Revision)"},
	{breaks: "I1", what: "a group does not look at expectations", file: "mvcc/decide.go",
		old: "late || !m.Expects(at.Revision)", new: "late"},
	{breaks: "I1", what: "two writes of a key, one of which expects any state, in a group",
		file: "mvcc/queue.go", old: "return found && (alone || w.m.Alone())",
		new: "return false && alone && found"},
	{breaks: "I1", what: "a row replaces another one than it says", file: "mvcc/decide.go",
		old: "Version: at.Version + 1", new: "Version: at.Version"},
	// Nothing acknowledged is lost, nothing refused is done.
	{breaks: "I2", what: "an unknown outcome is taken for a failure", file: "mvcc/commit.go",
		old: "		if class == Unknown {",
		new: "		if class == Unknown {\n			class = Transient\n		}\n		if false {"},
	{breaks: "I2", what: "a group is declared not done without a record", file: "mvcc/rules.go",
		old: "r.Aborted, record = true, true", new: "r.Aborted, record = true, false"},
	{breaks: "I2", what: "a group does not look for its token", file: "mvcc/rules.go",
		old: "	case aborted:", new: "	case false:"},
	{breaks: "I2", what: "an aborted token is not found", file: "memdb/tables.go",
		old: "return a.token == token", new: "return false"},
	{breaks: "I2", what: "tokens are forgotten too early", file: "mvcc/rules.go",
		old: "func ForgetAborted(st State) Revision { return st.Compacted }",
		new: "func ForgetAborted(st State) Revision { return st.Head.Revision + 1 }"},
	{breaks: "I2", what: "tokens are recorded with a revision of before", file: "memdb/locked.go",
		old: "abortedRow{token, seen}", new: "abortedRow{token, 1}"},
	{breaks: "I2", what: "compaction does not refuse a late group", file: "mvcc/rules.go",
		old: "	case gone, g.Seen.Revision < st.Compacted:", new: "	case gone:"},
	{breaks: "I2", what: "what was swept is taken for not done", file: "mvcc/rules.go",
		old: "after.in(at.State, at.At) && at.State.Compacted <= after.Revision",
		new: "after.in(at.State, at.At)"},
	{breaks: "I2", what: "a group of a lost history is taken for not done", file: "mvcc/rules.go",
		old: "case after.in(at.State, at.At) && at.State", new: "case at.State"},
	{breaks: "I2", what: "a resolution is not durable", file: "mvcc/locked.go",
		old: "return tx.Abort(newToken(), after.Revision)", new: "return nil"},
	{breaks: "I2", what: "the rows of a group are looked for too late in the log",
		file: "memdb/locked.go", old: "x.t.from(after + 1)", new: "x.t.from(after + 2)"},
	{breaks: "I2", what: "one writer is told of another one's row", file: "mvcc/commit.go",
		old: "row != nil && w.m.Expects(row.Prev) &&", new: "row != nil &&"},
	// Every event once and in order.
	{breaks: "I3", what: "the hub takes groups that do not follow", file: "mvcc/hub.go",
		old: "if h.closed != nil || before != h.delivered {", new: "if h.closed != nil {"},
	{breaks: "I3", what: "rows are delivered again", file: "mvcc/hub.go",
		old: "return rows[i].Revision > h.delivered.Revision",
		new: "return rows[i].Revision > from.Revision"},
	{breaks: "I3", what: "a watch goes on from a swept delivered row", file: "mvcc/tailer.go",
		old: "case !proven, gap != 0 &&", new: "case gap != 0 &&"},
	{breaks: "I3", what: "a watch goes on over compaction", file: "mvcc/watch.go",
		old: "tail.State.Head.Epoch != w.epoch || tail.State.Compacted > cursor",
		new: "tail.State.Head.Epoch != w.epoch"},
	{breaks: "I3", what: "a watch changes to a ring that begins later", file: "mvcc/watch.go",
		old: "case !w.attached && w.cursor >= h.ringStart:", new: "case !w.attached:"},
	{breaks: "I3", what: "a watch does not see that the ring has passed it", file: "mvcc/watch.go",
		old: "case w.first != 0 && w.first <= h.ringStart:", new: "case false:"},
	{breaks: "I3", what: "watches go on over a fence", file: "mvcc/hub.go",
		old: "	for w := range h.all {\n		h.endLocked(w, ErrCompacted)\n	}\n	h.arriveLocked()",
		new: "	h.arriveLocked()"},
	{breaks: "I3", what: "a long batch leaves out its end", file: "mvcc/watch.go",
		old: "w.first = 0\n			if len(piece) > maxBatch {",
		new: "w.first = 0\n			piece = piece[:min(len(piece), 2)]\n			if len(piece) > maxBatch {"},
	{breaks: "I3", what: "the tail leaves out a row", file: "memdb/read.go",
		old: "		tail.Rows = append(tail.Rows, r)\n		bytes",
		new: "		if len(tail.Rows) != 3 {\n			tail.Rows = append(tail.Rows, r)\n		}\n		bytes"},
	// Reads are linearizable.
	{breaks: "I4", what: "a standby's answer is used", file: "mvcc/store.go",
		old: "	if !st.Writable {\n		s.metrics.notReady()", new: "	if false {\n		s.metrics.notReady()"},
	{breaks: "I4", what: "the head is what was delivered", file: "mvcc/coalesce.go",
		old: "return q.head, nil\n}\n\n// Get",
		new: "return s.hub.position().Revision + 0*q.head, nil\n}\n\n// Get"},
	// A range is one snapshot.
	{breaks: "I5", what: "a page takes the delta of a later one", file: "mvcc/snapshot.go",
		old: "	if d.upto > upto {", new: "	if false {"},
	{breaks: "I5", what: "a list at an old revision is that of now", file: "mvcc/snapshot.go",
		old: "	if res.Revision < st.Head.Revision {\n		d, err", new: "	if false {\n		d, err"},
	{breaks: "I5", what: "a delta does not look at compaction", file: "mvcc/snapshot.go",
		old: "	case st.Compacted > q.At:", new: "	case st.Compacted > q.At && false:"},
	{breaks: "I5", what: "a page has rows of later", file: "memdb/read.go",
		old: "if !l.visible(q.At) {\n			continue", new: "if false {\n			continue"},
	{breaks: "I5", what: "a delta leaves out the revision itself", file: "memdb/read.go",
		old: "r.Prev <= q.At", new: "r.Prev < q.At"},
	// No revision twice.
	{breaks: "I6", what: "any other epoch is accepted", file: "mvcc/rules.go",
		old: "return st.Compacted >= seen+minJump/2", new: "return true"},
	{breaks: "I6", what: "a fence does nothing in a greater epoch",
		file: "mvcc/rules.go", old: "st.Head.Epoch != f.Replaces && Adoptable(f.Seen.Revision, st)",
		new: "st.Head.Epoch > f.Seen.Epoch"},
	{breaks: "I6", what: "a power failure is not noticed", file: "mvcc/durability.go",
		old: "	if d.Lost() {\n		s.log.Warn", new: "	if false {\n		s.log.Warn"},
	{breaks: "I6", what: "no boot is recorded", file: "mvcc/durability.go",
		old: "return s.b.RecordBoot(ctx, d.Recorded, d.AtRisk())", new: "return nil"},
	{breaks: "I6", what: "positions are forgotten without proof",
		file: "mvcc/trail.go", old: "groups[at(groups, p.Revision)].Token != p.Token",
		new: "groups[at(groups, p.Revision)].Token != p.Token && n < 0"},
	{breaks: "I6", what: "a group takes the newest position alone",
		file: "mvcc/commit.go", old: "Earlier: seen[:newest]", new: "Earlier: nil"},
	{breaks: "I6", what: "a write queued before a fence is done after it", file: "mvcc/commit.go",
		old: "return w.m.Expect > 0 && w.m.Era != era", new: "return false"},
	{breaks: "I6", what: "what a resolution has found is not seen", file: "mvcc/commit.go",
		old: "	if _, sight := s.hub.saw(r.State.Head); sight != agrees {", new: "	if false {"},
	{breaks: "I6", what: "a lower head is believed", file: "mvcc/store.go",
		old: "st.Head.Epoch != seen.Epoch || st.Head.Revision < seen.Revision",
		new: "st.Head.Epoch != seen.Epoch"},
	{breaks: "I6", what: "tokens are not compared", file: "mvcc/rules.go",
		old: "		return at == p.Token", new: "		return true"},
	{breaks: "I6", what: "another head at the same revision is believed", file: "mvcc/trail.go",
		old: "	if known == p {", new: "	if true {"},
	{breaks: "I6", what: "a moved database is not fenced", file: "mvcc/store.go",
		old: "} else if id.Moved() {", new: "} else if false {"},
	{breaks: "I6", what: "a fence is not far", file: "mvcc/rules.go",
		old: "st.Head.Revision) + f.Jump", new: "st.Head.Revision) + 1"},
	{breaks: "I6", what: "a fence does not compact", file: "mvcc/rules.go",
		old: "	st.Compacted = st.Head.Revision\n	return st, true", new: "	return st, true"},
	{breaks: "I6", what: "a suspicion is always false", file: "mvcc/fence.go",
		old: "		if intact {", new: "		if true {"},
	{breaks: "I6", what: "a fence records no fingerprint", file: "memdb/locked.go",
		old: "		s.fingerprint = fingerprint", new: "		_ = fingerprint"},
	{breaks: "I6", what: "an era does not end", file: "mvcc/hub.go", old: "	h.era++", new: ""},
	{breaks: "I6", what: "deltas survive a fence", file: "mvcc/fence.go",
		old: "	s.snapshots.forget()", new: "",
		unseen: "a delta is named by its revision, and a fence compacts all of before"},
	// Bounded growth.
	{breaks: "I7", what: "replaced rows stay", file: "mvcc/rules.go",
		old: "p.Revisions = append(p.Revisions, r.Prev)", new: "_ = r.Prev"},
	{breaks: "I7", what: "the sweep removes too much", file: "mvcc/rules.go",
		old: "			if looked++; looked > limit {",
		new: "			p.Revisions = append(p.Revisions, r.Revision)\n" +
			"			if looked++; looked > limit {"},
	{breaks: "I7", what: "the sweep removes the row at compacted", file: "mvcc/rules.go",
		old: "r.Deleted && r.Revision < st.Compacted", new: "r.Deleted"},
	{breaks: "I7", what: "a sweep is carried out in another history", file: "mvcc/rules.go",
		old: "st.Head.Epoch != p.Epoch || st.Compacted < p.Compacted", new: "false"},
	{breaks: "I7", what: "compaction goes beyond the head", file: "mvcc/rules.go",
		old: "	revision = min(revision, st.Head.Revision)", new: "	revision++"},
	{breaks: "I7", what: "compacted goes back", file: "mvcc/rules.go",
		old: "	if revision <= st.Compacted {\n		return st, false",
		new: "	if revision == st.Compacted {\n		return st, false"},
	{breaks: "I7", what: "tombstones stay", file: "mvcc/rules.go",
		old: "if r.Deleted && r.Revision < st.Compacted {", new: "if false {"},
	{breaks: "I7", what: "a batch takes what it has not looked at for swept", file: "mvcc/rules.go",
		old: "	if looked < limit {", new: "	if true {"},
	{breaks: "I7", what: "records are never forgotten", file: "mvcc/rules.go",
		old: "		p.Forget = below", new: "		_ = below"},
	{breaks: "I7", what: "a sweep ends after a batch", file: "mvcc/compact.go",
		old: "		if debt <= 0 {", new: "		if true {"},
	// Expiry.
	{breaks: "expiry", what: "a key that was renewed is reaped", file: "mvcc/expire.go",
		old: "Expect: e.Revision, Era: era, Delete: true,\n" +
			"			PrevValue: values[e.Revision].Value, PrevLease: values[e.Revision].Lease,\n" +
			"			HasPrev: true})",
		new: "Expect: Any, Era: era, Delete: true})"},
	{breaks: "expiry", what: "the reaper takes what lives longest", file: "memdb/read.go",
		old: "cmp.Compare(a.expiry, b.expiry)", new: "cmp.Compare(b.expiry, a.expiry)"},
	{breaks: "expiry", what: "keys do not expire", file: "memdb/commit.go",
		old: "expiry: m.Expiry(now)", new: "expiry: 0"},
	{breaks: "expiry", what: "keys expire early", file: "memdb/read.go",
		old: "		if left > 0 || len(expired)", new: "		if left > time.Second || len(expired)"},
	{breaks: "time", what: "writers wait behind an unknown outcome",
		file: "mvcc/commit.go", old: "		for ctx.Err() == nil {\n			next",
		new: "		for false {\n			next"},
}

// TestMutantPlaces looks for the places of the faults: whoever changes the code has to move them.
func TestMutantPlaces(t *testing.T) {
	for _, m := range allMutants {
		code, err := os.ReadFile(filepath.Join("..", m.file))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(m.also)+2; i += 2 {
			old := append([]string{m.old, m.new}, m.also...)[i]
			if n := strings.Count(string(code), old); n != 1 {
				t.Errorf("%s: %q is in %s %d times", m.what, old, m.file, n)
			}
		}
	}
}

// TestMutants puts deliberate faults into the code, one by one, and lets the simulation find them.
func TestMutants(t *testing.T) {
	if *mutants == "" {
		t.Skip("-sim.mutants is not set")
	}
	chosen, err := regexp.Compile(*mutants)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range allMutants {
		if chosen.MatchString(m.breaks + " " + m.what) {
			m.try(t)
		}
	}
}

var (
	foundAfter = regexp.MustCompile(`found after (\d+) runs and (\d+) operations`)
	foundRule  = regexp.MustCompile(`-sim.runs 1\): ([a-z]+):`)
)

func (m *mutant) apply(code string) string {
	return strings.NewReplacer(append([]string{m.old, m.new}, m.also...)...).Replace(code)
}

func (m *mutant) try(t *testing.T) {
	path, err := filepath.Abs(filepath.Join("..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err == nil {
		err = os.WriteFile(changed, []byte(m.apply(string(code))), 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	program := filepath.Join(dir, "simulate.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay,
		"-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", m.what, err, out)
		return
	}
	out, err := exec.CommandContext(ctx, program, "-test.run", "^TestSimulation$", "-test.v",
		"-sim.whole", "-sim.seed", "1", "-sim.budget", mutantBudget.String()).CombinedOutput()
	after, rule := foundAfter.FindSubmatch(out), foundRule.FindSubmatch(out)
	switch {
	case err == nil && m.unseen == "":
		t.Errorf("| %s | %s | NOT FOUND |", m.breaks, m.what)
	case err == nil:
		t.Logf("| %s | %s | not found: %s |", m.breaks, m.what, m.unseen)
	case after == nil || rule == nil:
		t.Logf("| %s | %s | the program ends |\n%.600s", m.breaks, m.what, out)
	default:
		fmt.Printf("| %s | %s | %s | %s |\n", m.breaks, m.what, after[2], rule[1])
	}
}
