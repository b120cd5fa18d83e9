package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// story is a history in the making, by which the checker's rules are tried: what is told of it is
// true until a test changes it.
type story struct {
	ops     []history.Op
	epochs  []history.Epoch
	streams []*history.Stream
	inform  []history.Informer
	missed  int64
	final   []history.Row
	live    []history.Object
	fences  bool
}

// kept is what the story is about: two objects are created, changed and deleted, listed and
// watched, at revisions 2 to 6; the time of revision n is 10n.
//
//	2 a created (red)   3 b created (blue)   4 a becomes blue   5 b deleted   6 b created again (red)
func kept() *story {
	object := func(name string, rv int64, colour string) history.Object {
		return history.Object{Key: "pipelines/n/" + name, RV: rv, Value: fmt.Sprint("v", rv),
			Colour: colour, Image: "i"}
	}
	a2, b3, a4, b6 := object("a", 2, "red"), object("b", 3, "blue"), object("a", 4, "blue"),
		object("b", 6, "red")
	s := &story{}
	row := func(o history.Object, prev int64) {
		s.epochs[0].Rows = append(s.epochs[0].Rows, history.Row{Revision: o.RV, Prev: prev,
			Key: o.Key, Token: fmt.Sprint("t", o.RV), Object: o})
	}
	s.epochs = make([]history.Epoch, 1)
	row(a2, 0)
	row(b3, 0)
	row(a4, 2)
	s.epochs[0].Rows = append(s.epochs[0].Rows, history.Row{Revision: 5, Prev: 3, Key: b3.Key,
		Token: "t5", Deleted: true})
	row(b6, 0)
	s.final, s.live = slices.Clone(s.epochs[0].Rows[2:]), []history.Object{a4, b6}

	write := func(verb history.Verb, o history.Object, expect int64) {
		w := o
		s.ops = append(s.ops, history.Op{Verb: verb, Key: o.Key, Object: &w, RV: o.RV,
			Expect: expect, Call: 10*o.RV - 2, Return: 10*o.RV + 2,
			Outcome: history.Done, Code: 200})
	}
	write(history.Create, a2, 0)
	write(history.Create, b3, 0)
	write(history.Update, a4, 2)
	s.ops = append(s.ops, history.Op{Verb: history.Delete, Key: b3.Key,
		Object: &history.Object{Value: "v5"}, Expect: 3, Call: 48, Return: 52,
		Outcome: history.Done, Code: 200})
	write(history.Create, b6, 0)
	list := func(rv int64, items ...history.Object) {
		s.ops = append(s.ops, history.Op{Verb: history.List, Match: history.Consistent,
			Selector: history.Selector{Resource: "pipelines", Namespace: "n"}, RV: rv, Items: items,
			Pages:   1,
			PageRVs: []int64{rv}, Call: 10*rv + 4, Return: 10*rv + 6, Outcome: history.Done,
			Code: 200})
	}
	list(3, a2, b3)
	list(6, a4, b6)
	get := a4
	s.ops = append(s.ops, history.Op{Verb: history.Get, Key: a4.Key, Object: &get, RV: 4, Call: 44,
		Return: 46, Outcome: history.Done, Code: 200})

	stream := func(selector history.Selector, from int64, initial bool, events ...history.Event) {
		st := &history.Stream{Name: "watch", Selector: selector, From: from, Initial: initial}
		for _, e := range events {
			e.Time = 10*e.Object.RV + 3
			if initial {
				e.Time = 35
			}
			st.Add(e)
		}
		s.streams = append(s.streams, st)
	}
	event := func(t history.EventType, o history.Object) history.Event {
		return history.Event{Type: t, Object: o}
	}
	gone := b3
	gone.RV = 5
	stream(history.Selector{Resource: "pipelines"}, 2, false, event(history.Added, b3),
		event(history.Modified, a4), event(history.Deleted, gone),
		event(history.Bookmark, history.Object{RV: 5}), event(history.Added, b6))
	left := a2
	left.RV = 4
	stream(history.Selector{Resource: "pipelines", Colour: "red"}, 2, false,
		event(history.Deleted, left), event(history.Added, b6))
	end := event(history.Bookmark, history.Object{RV: 3})
	end.InitialEnd = true
	stream(history.Selector{Resource: "pipelines"}, 0, true, event(history.Added, a2),
		event(history.Added, b3), end)
	s.inform = []history.Informer{{Name: "informer", Cache: []history.Object{b6, a4},
		List: []history.Object{a4, b6}}}
	return s
}

// lost goes on with the story: revisions 5 and 6 are lost, the history begins anew, and b, which is
// there again, is changed.
func (s *story) lost() {
	const fence = 6 + 1<<32
	s.fences = true
	b := s.epochs[0].Rows[1].Object
	b.RV, b.Value, b.Colour = fence+1, "anew", "green"
	s.epochs = append(s.epochs, history.Epoch{Fence: fence, Survived: 4, Begun: 80, Noticed: 100,
		Rows: []history.Row{{Revision: b.RV, Prev: 3, Key: b.Key, Token: "t-anew", Object: b}}})
	w := b
	s.ops = append(s.ops, history.Op{Verb: history.Update, Key: b.Key, Object: &w, RV: b.RV,
		Expect: 3, Call: 110, Return: 112, Outcome: history.Done, Code: 200})
	a := s.epochs[0].Rows[2].Object
	s.final = append(slices.Clone(s.epochs[0].Rows[1:3]), s.epochs[1].Rows...)
	s.live = []history.Object{a, b}
	s.inform = nil
	s.ops = append(s.ops, history.Op{Verb: history.List, Match: history.Consistent,
		Selector: history.Selector{Resource: "pipelines", Namespace: "n"}, RV: b.RV, Items: s.live,
		Pages:   1,
		PageRVs: []int64{b.RV}, Call: 114, Return: 116, Outcome: history.Done, Code: 200})
}

func (s *story) check() Report {
	h := history.New()
	for _, op := range s.ops {
		h.AddOp(op)
	}
	for _, st := range s.streams {
		h.AddStream(st)
	}
	for _, i := range s.inform {
		h.AddInformer(i)
	}
	h.Log, h.Missed, h.Final, h.Live, h.FencesExpected = s.epochs, s.missed, s.final,
		s.live, s.fences
	return Check(h)
}

// rewrite replaces the events of a stream.
func (s *story) rewrite(i int, change func([]history.Event) []history.Event) {
	old := s.streams[i]
	events, _ := old.Events()
	st := &history.Stream{Name: old.Name, Selector: old.Selector, From: old.From,
		Initial: old.Initial}
	for _, e := range change(slices.Clone(events)) {
		st.Add(e)
	}
	s.streams[i] = st
}

func TestKept(t *testing.T) {
	r := kept().check()
	if len(r.Violations) > 0 {
		t.Fatal(r.Violations)
	}
	if r.Ops != 8 || r.Writes != 5 || r.Lists != 2 || r.Streams != 3 || r.Events != 8 ||
		r.Bookmarks != 1 || r.Revisions != 5 {
		t.Errorf("counted are %+v", r)
	}
}

func TestLost(t *testing.T) {
	s := kept()
	s.lost()
	r := s.check()
	if len(r.Violations) > 0 {
		t.Fatal(r.Violations)
	}
	if r.Fences != 1 || r.Lost != 2 {
		t.Errorf("counted are %+v", r)
	}
}

// Each rule finds what it is for.
func TestViolations(t *testing.T) {
	type change = func(*story)
	tests := []struct {
		name, rule, text string
		change           change
	}{
		{"a gap in the log", "log", "revision 5 follows 3", func(s *story) {
			s.epochs[0].Rows = slices.Delete(s.epochs[0].Rows, 2, 3)
		}},
		{"unrecorded revisions", "log", "compacted before they could be recorded", func(s *story) {
			s.missed = 3
		}},
		{"a wrong previous revision", "log", "says that it replaced 1", func(s *story) {
			s.epochs[0].Rows[2].Prev = 1
		}},
		{"a revision used twice", "log", "was not when it was written", func(s *story) {
			s.final[0].Token = "other"
		}},
		{"a changed row", "log", "is {", func(s *story) { s.final[0].Object.Colour = "other" }},
		{"an object that is not there in the end", "log", "does not exist in the end",
			func(s *story) {
				s.live = s.live[:1]
			}},
		{"an object that should not be there in the end", "log", "exists in the end",
			func(s *story) {
				s.live = append(s.live, history.Object{Key: "pipelines/n/c", RV: 9})
			}},
		{"a lost write", "durable", "not in the log", func(s *story) {
			s.ops = append(s.ops, history.Op{Verb: history.Create, Key: "pipelines/n/c",
				Object: &history.Object{Value: "v9"}, RV: 9, Call: 90, Return: 91,
				Outcome: history.Done})
		}},
		{"another revision than acknowledged", "durable", "acknowledged at 7, and in the log at 6",
			func(s *story) {
				s.ops[4].RV = 7
			}},
		{"another content than acknowledged", "durable", "written was", func(s *story) {
			s.ops[0].Object.Colour = "green"
		}},
		{"a write that was said not to be done", "durable", "nothing was written", func(s *story) {
			s.ops[4].Outcome = history.NotDone
		}},
		{"a refused write in the log", "durable", "refused with", func(s *story) {
			s.ops[4].Outcome, s.ops[4].Code = history.Refused, 409
		}},
		{"a deletion acknowledged twice", "durable", "both acknowledged", func(s *story) {
			s.ops = append(s.ops, s.ops[3])
		}},
		{"two writes at one revision", "real-time", "both acknowledged at 6", func(s *story) {
			s.ops[2].RV = 6
		}},
		{"a revision lower than one seen before", "real-time", "though 5 was seen", func(s *story) {
			s.ops[1].Call, s.ops[1].Return = 60, 61
		}},
		{"a bookmark beyond the future", "real-time", "BOOKMARK", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				es[3].Object.RV = 6
				return es[:4]
			})
		}},
		{"a stale list", "fresh", "though 6 was seen", func(s *story) {
			s.ops[5].Call, s.ops[5].Return = 70, 71
		}},
		{"a list older than it was asked for", "fresh", "4 was asked for", func(s *story) {
			s.ops[5].Match, s.ops[5].At = history.NotOlder, 4
		}},
		{"a list at another revision than asked for", "fresh", "2 was asked for", func(s *story) {
			s.ops[5].Match, s.ops[5].At = history.Exact, 2
		}},
		{"a list that lacks an object", "list", "is missing", func(s *story) {
			s.ops[5].Items = s.ops[5].Items[1:]
		}},
		{"a list that has too much", "list", "was not there", func(s *story) {
			s.ops[5].Items = append(s.ops[5].Items, history.Object{Key: "pipelines/n/c", RV: 3})
		}},
		{"a list that has an object twice", "list", "twice", func(s *story) {
			s.ops[5].Items = append(s.ops[5].Items, s.ops[5].Items[0])
		}},
		{"a list with another state of an object", "list", "another state", func(s *story) {
			s.ops[6].Items[0].Colour = "red"
		}},
		{"pages at different revisions", "list", "pages at", func(s *story) {
			s.ops[5].PageRVs = []int64{3, 4}
		}},
		{"a missing event", "watch", "was not sent", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				return slices.Delete(es, 1, 2)
			})
		}},
		{"a missing event before a bookmark", "watch", "is ahead of", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				return slices.Delete(es, 2, 3)
			})
		}},
		{"events in another order", "watch", "was not sent", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				es[0], es[1] = es[1], es[0]
				return es
			})
		}},
		{"an event sent twice", "watch", "twice", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				return slices.Insert(es, 1, es[0])
			})
		}},
		{"an event of the wrong type", "watch", "in the log it is ADDED", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				es[0].Type = history.Modified
				return es
			})
		}},
		{"an event of the wrong object", "watch", "in the log it is", func(s *story) {
			s.rewrite(1, func(es []history.Event) []history.Event {
				es[0].Object.Colour = "blue"
				return es
			})
		}},
		{"an event that nothing is behind", "watch", "not in the log for this selector",
			func(s *story) {
				s.rewrite(1, func(es []history.Event) []history.Event {
					es[1].Object.RV = 9
					es[0].Type = history.Deleted
					return append(es, es[1])
				})
				s.rewrite(1, func(es []history.Event) []history.Event {
					es[1].Object.RV = 5
					return es[:2]
				})
			}},
		{"a bookmark that goes back", "watch", "follows", func(s *story) {
			s.rewrite(0, func(es []history.Event) []history.Event {
				es[3].Object.RV = 4
				return es
			})
		}},
		{"initial events that lack an object", "watch", "is missing", func(s *story) {
			s.rewrite(2, func(es []history.Event) []history.Event { return es[1:] })
		}},
		{"an informer that lacks an object", "informer", "lacks", func(s *story) {
			s.inform[0].Cache = s.inform[0].Cache[1:]
		}},
		{"an informer with an old object", "informer", "a list has", func(s *story) {
			s.inform[0].Cache[0].RV = 3
		}},
		{"a stale get", "linearizable", "no order explains", func(s *story) {
			s.ops[7].Object, s.ops[7].RV = &history.Object{Key: "pipelines/n/a", RV: 2}, 2
		}},
		{"a conflict without reason", "linearizable", "no order explains", func(s *story) {
			s.ops = append(s.ops, history.Op{Verb: history.Update, Key: "pipelines/n/a",
				Object: &history.Object{Value: "v8"}, Expect: 4, Call: 70, Return: 71,
				Outcome: history.Refused, Code: 409})
		}},
		{"a list that mixes two times", "linearizable", "no order explains", func(s *story) {
			s.ops[5].Items[0].RV = 4
		}},
		{"a fence without a loss", "fence", "nothing was lost", func(s *story) {
			s.lost()
			s.fences = false
		}},
		{"a fence that is too near", "fence", "not far beyond", func(s *story) {
			s.lost()
			s.epochs[1].Fence = 7
		}},
		{"a stream over a fence", "watch", "over the fence", func(s *story) {
			s.lost()
			s.rewrite(0, func(es []history.Event) []history.Event {
				return append(es, history.Event{Type: history.Added, Time: 120,
					Object: s.epochs[1].Rows[0].Object})
			})
		}},
		{"the lost history after the new one was seen", "fresh", "was seen", func(s *story) {
			s.lost()
			old := s.ops[6]
			old.Call, old.Return = 120, 121
			s.ops = append(s.ops, old)
		}},
		{"a write lost that was not in the lost part", "durable", "not in the log", func(s *story) {
			s.lost()
			s.ops = append(s.ops, history.Op{Verb: history.Create, Key: "pipelines/n/c",
				Object: &history.Object{Value: "v9"}, RV: 9 + 1<<32, Call: 130, Return: 131,
				Outcome: history.Done})
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := kept()
			test.change(s)
			r := s.check()
			for _, v := range r.Violations {
				if v.Rule == test.rule && strings.Contains(v.Text, test.text) {
					return
				}
			}
			t.Errorf("no violation of %q with %q in %v", test.rule, test.text, r.Violations)
		})
	}
}

// A write without an answer may have been done, or not.
func TestUnknown(t *testing.T) {
	s := kept()
	s.ops[4].Outcome, s.ops[4].RV, s.ops[4].Return = history.Unknown, 0, 61
	s.ops = append(s.ops,
		history.Op{Verb: history.Update, Key: "pipelines/n/a",
			Object: &history.Object{Value: "never"}, Expect: 4, Call: 65, Return: 66,
			Outcome: history.Unknown},
		history.Op{Verb: history.List, Match: history.Consistent,
			Selector: history.Selector{Resource: "pipelines", Namespace: "n"}, RV: 6,
			Items: []history.Object{{Key: "pipelines/n/a", RV: 4}},
			// It is the first of two pages.
			Pages: 1, PageRVs: []int64{6}, Call: 67, Return: 68, Outcome: history.Unknown},
		history.Op{Verb: history.Delete, Key: "pipelines/n/b",
			Object: &history.Object{Value: "late"}, Expect: 3, Call: 49, Return: 55,
			Outcome: history.Refused, Code: 404})
	r := s.check()
	if len(r.Violations) > 0 || r.Unknown != 3 {
		t.Errorf("%d unknown: %v", r.Unknown, r.Violations)
	}
}

// The same revision is deleted again after its deletion was lost. Each request has done its own.
func TestDeletedAgain(t *testing.T) {
	for _, first := range []history.Outcome{history.Done, history.Unknown} {
		s := kept()
		s.lost()
		// b is deleted in the new history, not changed.
		update, list := len(s.ops)-2, len(s.ops)-1
		b := s.epochs[1].Rows[0]
		b.Deleted, b.Object = true, history.Object{}
		s.epochs[1].Rows[0] = b
		again := &s.ops[update]
		again.Verb, again.Object, again.RV = history.Delete, &history.Object{Value: "again"}, 0
		s.ops[list].Items, s.live = s.live[:1], s.live[:1]
		s.final[len(s.final)-1] = b
		lost := 2
		if s.ops[3].Outcome = first; first == history.Unknown {
			lost = 1
		}
		if r := s.check(); len(r.Violations) > 0 || r.Lost != lost {
			t.Errorf("the first deletion is %s: %d writes were lost: %v", first, r.Lost,
				r.Violations)
		}
		// A third one has no row.
		third := s.ops[update]
		third.Call, third.Return, third.Outcome = 117, 118, history.Done
		s.ops = append(s.ops, third)
		r := s.check()
		if !slices.ContainsFunc(r.Violations, func(v Violation) bool {
			return v.Rule == "durable" && strings.Contains(v.Text, "both acknowledged")
		}) {
			t.Errorf("the first deletion is %s, and two are acknowledged after the loss: %v", first,
				r.Violations)
		}
	}
}
