package check

import (
	"cmp"
	"slices"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// checkLists compares the items of each list with the state at its resourceVersion.
func (c *checker) checkLists() {
	var lists []*history.Op
	for i := range c.ops {
		op := &c.ops[i]
		if op.Verb != history.List || op.Outcome != history.Done {
			continue
		}
		for _, rv := range op.PageRVs {
			if rv != op.RV {
				c.violate("list", "%s: it has pages at %d and at %d", describe(op), op.RV, rv)
				break
			}
		}
		lists = append(lists, op)
	}
	wrong := map[*history.Op]string{}
	right := map[*history.Op]bool{}
	slices.SortStableFunc(lists, func(a, b *history.Op) int { return cmp.Compare(a.RV, b.RV) })
	for epoch := range c.log.epochs {
		states := map[string]*replay{}
		for _, op := range lists {
			if !slices.Contains(c.log.epochsOf(op.RV), epoch) {
				continue
			}
			r := states[op.Selector.Resource]
			if r == nil {
				r = &replay{changes: c.log.changes[epoch][op.Selector.Resource],
					namespaces: map[string]map[string]history.Object{}}
				states[op.Selector.Resource] = r
			}
			r.to(op.RV)
			if text := r.compare(op); text != "" {
				wrong[op] = text
			} else {
				right[op] = true
			}
		}
	}
	for _, op := range lists {
		if !right[op] {
			c.violate("list", "%s, at %d: %s", describe(op), op.RV,
				cmp.Or(wrong[op], "there was no such revision"))
		}
	}
}

// replay is the state of a resource, by namespace, as it moves through the log.
type replay struct {
	changes    []change
	next       int
	namespaces map[string]map[string]history.Object
}

func (r *replay) to(revision int64) {
	for ; r.next < len(r.changes) && r.changes[r.next].row.Revision <= revision; r.next++ {
		row := r.changes[r.next].row
		_, namespace, _ := history.Split(row.Key)
		if r.namespaces[namespace] == nil {
			r.namespaces[namespace] = map[string]history.Object{}
		}
		if row.Deleted {
			delete(r.namespaces[namespace], row.Key)
		} else {
			r.namespaces[namespace][row.Key] = row.Object
		}
	}
}

// compare says how a list differs from the state, "" if it does not.
func (r *replay) compare(op *history.Op) string {
	listed := make(map[string]history.Object, len(op.Items))
	for _, o := range op.Items {
		if _, twice := listed[o.Key]; twice {
			return o.Key + " is in it twice"
		}
		listed[o.Key] = o
	}
	differ := ""
	each := func(state map[string]history.Object) {
		for key, o := range state {
			if !op.Selector.Matches(o) {
				continue
			}
			if got, ok := listed[key]; !ok {
				differ = cmp.Or(differ, key+" is missing")
			} else if got != o {
				differ = cmp.Or(differ, key+" is in it in another state")
			}
			delete(listed, key)
		}
	}
	if op.Selector.Namespace != "" {
		each(r.namespaces[op.Selector.Namespace])
	} else {
		for _, state := range r.namespaces {
			each(state)
		}
	}
	for key := range listed {
		differ = cmp.Or(differ, key+" is in it, and was not there")
	}
	return differ
}
