// Package check tests if a history is linearizable: one store that does one thing after the other
// could have told clients and watchers all that they were told. It also tests that nothing
// acknowledged is lost, and that the order of events is that of resourceVersions.
//
// The log of the database is the order. That it is one is checked first: revisions are dense and
// unique. Then everything is compared with it:
//
//   - log: rows are dense but for the marker of a fence, each names the row that it replaced,
//     nothing in it changes, and what exists in the end is what it says.
//   - durable: an acknowledged write is in the log, as it was written, at the resourceVersion that
//     the client was told. One that was answered "nothing was written" is not.
//   - real-time: a write has a greater resourceVersion than anything that anybody had seen before
//     it began: an answer, an event, a bookmark.
//   - fresh: a list without a resourceVersion is not older than anything that anybody had seen
//     before it began; one "not older" than the one that it names; an exact one is at it.
//   - list: the items of a list, all its pages together, are the state at its resourceVersion.
//   - watch: the events of a stream are those of the log for its selector, from its beginning on,
//     without a gap, in order, once; a bookmark is never ahead of an event; the initial events are
//     the state at the bookmark that ends them.
//   - informer: an informer's cache is what a list says.
//   - linearizable: the gets, writes and lists of each namespace have an order that explains their
//     answers and that keeps to real time and to the writes' resourceVersions (porcupine).
//   - bundle: keys that are written together are seen together, at any revision and in any response
//     of a watch; see [Bundles].
//   - fence: a history begins anew only where one was lost, and no stream goes on over that.
//
// # What is allowed when history is lost
//
// After an older dump was restored, a standby without the tail was promoted, or the power failed
// under a database with relaxed durability, the acknowledged writes after the last revision that
// survived are gone. That and nothing else is forgiven: "durable" does not count writes of the lost
// part, and for "linearizable" all keys go back to the surviving state, once, at some time between
// the beginning of the loss and the first sight of the fence. All other rules hold unchanged. As a
// fence moves the revisions beyond all that was seen, "fresh" and "real-time" see to it that
// nothing of the lost history is served after anybody has seen something of the new one, and a
// stream that goes on over the fence, instead of ending with 410, is a violation.
package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Violation is something that must not be.
type Violation struct {
	// Rule is the name of the rule in the documentation of the package.
	Rule string
	Text string
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// Report is the judgement.
type Report struct {
	Violations []Violation
	// Ops are requests that were answered with a success or a refusal; Unknown those whose outcome
	// stayed open.
	Ops, Writes, Unknown int
	Lists, Pages         int
	Streams, Events      int
	Bookmarks            int
	Revisions            int64
	Fences               int
	// Lost counts acknowledged writes in a part of the history that was lost.
	Lost int
	// Bundles counts the transactions of several keys, and what was seen of them.
	Bundles struct{ Writes, Reads, Responses int }
}

// keep is how many violations of a rule are told.
const keep = 20

type checker struct {
	h      *history.History
	log    *Log
	ops    []history.Op
	report Report
	told   map[string]int
}

// Check judges a history.
func Check(h *history.History) Report {
	c := &checker{h: h, log: NewLog(h.Log), ops: slices.Clone(h.Ops()), told: map[string]int{}}
	c.checkLog()
	c.resolve()
	c.checkRealTime()
	c.checkLists()
	for _, s := range h.Streams() {
		c.checkStream(s)
	}
	for _, i := range h.Informers() {
		c.checkInformer(i)
	}
	c.checkLinearizable()
	return c.report
}

func (c *checker) violate(rule, format string, args ...any) {
	c.told[rule]++
	switch {
	case c.told[rule] < keep:
		c.report.Violations = append(c.report.Violations,
			Violation{rule, fmt.Sprintf(format, args...)})
	case c.told[rule] == keep:
		c.report.Violations = append(c.report.Violations, Violation{rule, "and more"})
	}
}

func describe(op *history.Op) string {
	s := fmt.Sprintf("client %d at server %d, %s %s", op.Client, op.Server, op.Verb, op.Key)
	if op.Verb == history.List {
		s = fmt.Sprintf("client %d at server %d, %s list of %+v", op.Client, op.Server, op.Match,
			op.Selector)
	}
	return fmt.Sprintf("%s, from %.6f s to %.6f s", s, float64(op.Call)/1e9, float64(op.Return)/1e9)
}

func (c *checker) checkLog() {
	if c.h.Missed > 0 {
		c.violate("log", "%d revisions were compacted before they could be recorded: nothing can "+
			"be said of them", c.h.Missed)
	}
	rows := map[string]history.Row{} // by revision and token
	for i, e := range c.h.Log {
		if i > 0 {
			c.report.Fences++
			if !c.h.FencesExpected {
				c.violate("fence", "the history begins anew at %d, though nothing was lost",
					e.Fence)
			}
			// It is 2^24 at least from what the server had seen that noticed, which may have been
			// behind another one.
			far := int64(1 << 23)
			if c.h.FencedUnseen {
				far = 1
			}
			if last := c.log.last(i - 1); e.Fence < last+far {
				c.violate("fence", "the fence at %d is not far beyond %d, which was there before",
					e.Fence, last)
			}
		}
		want := int64(0)
		for _, r := range e.Rows {
			c.report.Revisions++
			rows[rowID(r)] = r
			if want != 0 && r.Revision != want && r.Revision != e.Fence+1 {
				c.violate("log", "revision %d follows %d", r.Revision, want-1)
			}
			if i > 0 && want == 0 && r.Revision != e.Survived+1 && r.Revision != e.Fence+1 {
				c.violate("log", "revision %d follows the fence at %d", r.Revision, e.Fence)
			}
			if want = r.Revision; r.Part == 0 {
				want++
			}
		}
	}
	c.checkPrev()
	// The rows that the log still holds in the end are the rows that were recorded.
	for _, r := range c.h.Final {
		if r.Key == "" {
			continue
		}
		was, ok := rows[rowID(r)]
		if !ok {
			c.violate("log", "the row %d of %s is in the log in the end, and was not when it was "+
				"written", r.Revision, r.Key)
		} else if was != r {
			c.violate("log", "the row %d was %+v, and is %+v in the end", r.Revision, was, r)
		}
	}
	if len(c.h.Log) == 0 {
		return
	}
	state := c.log.State(len(c.h.Log)-1, -1)
	for _, o := range c.h.Live {
		if want, ok := state[o.Key]; !ok || want != o {
			c.violate("log", "%+v exists in the end; by the log it is %+v", o, want)
		}
		delete(state, o.Key)
	}
	for key, o := range state {
		c.violate("log", "%s, written at %d, does not exist in the end", key, o.RV)
	}
}

func rowID(r history.Row) string { return fmt.Sprint(r.Revision, "/", r.Part, "/", r.Token) }

// checkPrev checks that each row names the one that it replaced.
func (c *checker) checkPrev() {
	for i := range c.h.Log {
		state := c.log.base(i)
		for _, r := range c.h.Log[i].Rows {
			if r.Key == "" {
				continue
			}
			if was := state[r.Key].RV; r.Prev != was {
				c.violate("log", "the row %d of %s says that it replaced %d; it replaced %d",
					r.Revision, r.Key, r.Prev, was)
			}
			if r.Deleted {
				if r.Prev == 0 {
					c.violate("log", "the row %d deletes %s, which did not exist",
						r.Revision, r.Key)
				}
				delete(state, r.Key)
			} else {
				state[r.Key] = r.Object
			}
		}
	}
}

// resolve finds each write in the log. A write that was not acknowledged and is there was done
// nevertheless, at some time; one that is not there was not.
func (c *checker) resolve() {
	deleters := c.deleters()
	acknowledged := map[int64]*history.Op{}
	for i := range c.ops {
		op := &c.ops[i]
		switch op.Outcome {
		case history.Done, history.Refused:
			c.report.Ops++
		default:
			c.report.Unknown++
		}
		if op.Verb == history.Get || op.Verb == history.List {
			if op.Verb == history.List && op.Outcome == history.Done {
				c.report.Lists++
				c.report.Pages += op.Pages
			}
			continue
		}
		if op.Outcome == history.Done {
			c.report.Writes++
			if other := acknowledged[op.RV]; other != nil && op.RV != 0 {
				c.violate("real-time", "%s and %s were both acknowledged at %d", describe(op),
					describe(other), op.RV)
			}
			acknowledged[op.RV] = op
		}
		var p place
		var ok bool
		if op.Verb == history.Delete {
			p, ok = deleters[op]
		} else {
			p, ok = c.log.byValue[op.Object.Value]
		}
		var row *history.Row
		var lost bool
		if ok {
			row, lost = c.log.row(p)
		}
		c.resolveOne(op, row, lost)
	}
}

// deleters finds for each deletion in the log the request that did it: one that was acknowledged,
// else the first whose outcome is unknown, else any. A revision is deleted twice if the first
// deletion was lost: then the earlier request has done the earlier one, if it can have.
func (c *checker) deleters() map[*history.Op]place {
	rank := map[history.Outcome]int{history.Done: 3, history.Unknown: 2, history.NotDone: 1}
	asked := map[deletion][]*history.Op{}
	for i := range c.ops {
		if op := &c.ops[i]; op.Verb == history.Delete {
			d := deletion{op.Key, op.Expect}
			asked[d] = append(asked[d], op)
		}
	}
	deleters := map[*history.Op]place{}
	for d, ops := range asked {
		slices.SortStableFunc(ops, func(a, b *history.Op) int {
			return cmp.Or(cmp.Compare(rank[b.Outcome], rank[a.Outcome]),
				cmp.Compare(a.Call, b.Call))
		})
		rows := slices.Clone(c.log.deletions[d])
		var acknowledged *history.Op
		for _, op := range ops {
			i := slices.IndexFunc(rows, func(p place) bool { return c.log.during(op, p.epoch) })
			switch {
			case i >= 0:
				deleters[op] = rows[i]
				rows = slices.Delete(rows, i, i+1)
			case op.Outcome == history.Done && acknowledged != nil:
				c.violate("durable", "%s and %s were both acknowledged", describe(acknowledged),
					describe(op))
			}
			if op.Outcome == history.Done {
				acknowledged = op
			}
		}
	}
	return deleters
}

func (c *checker) resolveOne(op *history.Op, row *history.Row, lost bool) {
	switch {
	case row == nil && op.Outcome == history.Done:
		c.violate("durable", "%s: acknowledged at %d, and not in the log", describe(op), op.RV)
	case row == nil:
	case op.Outcome == history.NotDone:
		c.violate("durable", "%s: answered with %d that nothing was written, and it is in the "+
			"log at %d", describe(op), op.Code, row.Revision)
	case op.Outcome == history.Refused:
		c.violate("durable", "%s: refused with %d, and it is in the log at %d", describe(op),
			op.Code, row.Revision)
	case op.Outcome == history.Unknown:
		op.Return = c.log.end() // it may have been done at any time after its call
		op.RV = row.Revision
	default:
		if op.RV != 0 && op.RV != row.Revision {
			c.violate("durable", "%s: acknowledged at %d, and in the log at %d", describe(op),
				op.RV, row.Revision)
		}
		if op.Verb == history.Create || op.Verb == history.Update {
			if want := *op.Object; row.Object.Colour != want.Colour ||
				row.Object.Image != want.Image || row.Key != op.Key {
				c.violate("durable", "%s: written was %+v, in the log is %+v", describe(op), want,
					row.Object)
			}
		}
		op.RV = row.Revision
		if lost {
			c.report.Lost++
		}
	}
}

func (c *checker) checkInformer(i history.Informer) {
	list := map[string]history.Object{}
	for _, o := range i.List {
		list[o.Key] = o
	}
	for _, o := range i.Cache {
		if want, ok := list[o.Key]; !ok || want != o {
			c.violate("informer", "%s has %+v; a list has %+v", i.Name, o, want)
		}
		delete(list, o.Key)
	}
	for _, o := range list {
		c.violate("informer", "%s lacks %+v, which a list has", i.Name, o)
	}
}
