package check

import (
	"cmp"
	"slices"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// sight is a revision that somebody had seen at a time.
type sight struct {
	time, revision int64
	by             string
}

// checkRealTime compares the resourceVersion of each write and each consistent list with the newest
// one that anybody had seen when it began.
func (c *checker) checkRealTime() {
	var sights []sight
	for i := range c.ops {
		op := &c.ops[i]
		if op.Outcome != history.Done {
			continue
		}
		s := sight{time: op.Return, revision: op.RV}
		switch op.Verb {
		case history.Get:
			if op.Object == nil {
				continue
			}
			s.revision = op.Object.RV
		case history.List:
		}
		s.by = string(op.Verb) + " " + op.Key
		sights = append(sights, s)
	}
	for _, stream := range c.h.Streams() {
		events, _ := stream.Events()
		for _, e := range events {
			sights = append(sights, sight{e.Time, e.Object.RV, "watch " + stream.Name + " " +
				string(e.Type)})
		}
	}
	slices.SortFunc(sights, func(a, b sight) int { return cmp.Compare(a.time, b.time) })
	calls := make([]*history.Op, 0, len(c.ops))
	for i := range c.ops {
		calls = append(calls, &c.ops[i])
	}
	slices.SortFunc(calls, func(a, b *history.Op) int { return cmp.Compare(a.Call, b.Call) })
	next, newest := 0, sight{}
	for _, op := range calls {
		for next < len(sights) && sights[next].time < op.Call {
			if sights[next].revision > newest.revision {
				newest = sights[next]
			}
			next++
		}
		switch {
		case op.Writes() && op.RV != 0 && op.RV <= newest.revision:
			c.violate("real-time", "%s: it was given %d, though %d was seen %.6f s before it "+
				"began (%s)", describe(op), op.RV, newest.revision,
				float64(op.Call-newest.time)/1e9, newest.by)
		case op.Verb != history.List || op.Outcome != history.Done:
		case op.Match == history.Consistent && op.RV < newest.revision:
			c.violate("fresh", "%s: it is at %d, though %d was seen %.6f s before it began (%s)",
				describe(op), op.RV, newest.revision, float64(op.Call-newest.time)/1e9, newest.by)
		case op.Match == history.NotOlder && op.RV < op.At, op.Match == history.Exact &&
			op.RV != op.At:
			c.violate("fresh", "%s: it is at %d, though %d was asked for", describe(op),
				op.RV, op.At)
		}
	}
}
