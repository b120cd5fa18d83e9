package check

import (
	"fmt"
	"slices"
	"sort"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// checkStream compares a watch with the log.
func (c *checker) checkStream(s *history.Stream) {
	events, _ := s.Events()
	c.report.Streams++
	from := s.From
	if s.Initial {
		var ok bool
		if from, events, ok = c.checkInitial(s, events); !ok {
			return
		}
	}
	for _, e := range events {
		if e.Type == history.Bookmark {
			c.report.Bookmarks++
		} else {
			c.report.Events++
		}
	}
	if len(events) == 0 {
		return
	}
	var first string
	for _, epoch := range c.log.epochsOf(from) {
		text := c.compareStream(s, epoch, from, events)
		if text == "" {
			return
		}
		first = text
	}
	if first == "" {
		first = "there was no such revision"
	}
	c.violate("watch", "%s at server %d, %+v from %d: %s", s.Name, s.Server, s.Selector,
		from, first)
}

// compareStream says how the events differ from those of an epoch after a revision, "" if they do
// not.
func (c *checker) compareStream(s *history.Stream, epoch int, from int64,
	events []history.Event) string {
	changes := c.log.changes[epoch][s.Selector.Resource]
	next := sort.Search(len(changes), func(i int) bool { return changes[i].row.Revision > from })
	// expected returns the next event of the log that the stream has to have, up to a revision.
	expected := func(upto int64) (history.Event, bool) {
		for ; next < len(changes) && changes[next].row.Revision <= upto; next++ {
			if e, ok := changes[next].event(s.Selector); ok {
				return e, true
			}
		}
		return history.Event{}, false
	}
	seen := from
	for i, e := range events {
		at := e.Object.RV
		if epoch+1 < len(c.log.epochs) && at >= c.log.epochs[epoch+1].Fence {
			return fmt.Sprintf("it went on to %d, over the fence at %d, instead of ending", at,
				c.log.epochs[epoch+1].Fence)
		}
		want, ok := expected(at)
		switch {
		case e.Type == history.Bookmark && ok:
			return fmt.Sprintf("a bookmark at %d is ahead of %s of %s at %d, which had not been sent", at, want.Type, want.Object.Key, want.Object.RV)
		case e.Type == history.Bookmark && at < seen:
			return fmt.Sprintf("a bookmark at %d follows %d", at, seen)
		case e.Type == history.Bookmark:
			seen = at
			continue
		case !ok && at <= seen:
			return fmt.Sprintf("event %d, %s of %s at %d, follows %d: it was sent twice, or out "+
				"of order", i, e.Type, e.Object.Key, at, seen)
		case !ok:
			return fmt.Sprintf("event %d, %s of %s at %d, is not in the log for this selector", i,
				e.Type, e.Object.Key, at)
		case want.Object.RV != at:
			return fmt.Sprintf("event %d is %s of %s at %d; before it, %s of %s at %d was not sent",
				i, e.Type, e.Object.Key, at, want.Type, want.Object.Key, want.Object.RV)
		case want.Type != e.Type || want.Object != e.Object:
			return fmt.Sprintf("event %d is %s %+v; in the log it is %s %+v", i, e.Type, e.Object,
				want.Type, want.Object)
		}
		next++
		seen = at
	}
	return ""
}

// checkInitial compares the initial events of a stream with the state at the bookmark that ends
// them, and returns that bookmark's revision and the events after it.
func (c *checker) checkInitial(s *history.Stream,
	events []history.Event) (from int64, rest []history.Event, ok bool) {
	end := slices.IndexFunc(events, func(e history.Event) bool { return e.InitialEnd })
	if end < 0 {
		return 0, nil, false // it ended before
	}
	list := history.Op{Verb: history.List, Selector: s.Selector, RV: events[end].Object.RV}
	for _, e := range events[:end] {
		c.report.Events++
		switch e.Type {
		case history.Added:
			list.Items = append(list.Items, e.Object)
		case history.Bookmark:
		default:
			c.violate("watch", "%s at server %d: %s among the initial events", s.Name,
				s.Server, e.Type)
			return 0, nil, false
		}
	}
	text := "there was no such revision"
	for _, epoch := range c.log.epochsOf(list.RV) {
		r := &replay{changes: c.log.changes[epoch][s.Selector.Resource],
			namespaces: map[string]map[string]history.Object{}}
		r.to(list.RV)
		if text = r.compare(&list); text == "" {
			return list.RV, events[end+1:], true
		}
	}
	c.violate("watch", "%s at server %d, initial events of %+v at %d: %s", s.Name, s.Server,
		s.Selector, list.RV, text)
	return 0, nil, false
}
