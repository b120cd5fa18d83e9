// Package history holds what a run has seen: what clients asked and were told, what watchers were
// sent, and the log that the database holds. It does nothing but take notes; package check judges
// them.
package history

import (
	"sync"
	"time"
)

// Object is an object as far as the checks look at it. Key is resource/namespace/name.
type Object struct {
	Key string
	// RV is the resourceVersion.
	RV int64
	// Value is different for every write of a run. Colour is a label, Image a field, by which
	// watchers and lists select.
	Value, Colour, Image string
}

// Selector selects objects of a resource. An empty field selects all.
type Selector struct {
	Resource, Namespace, Name, Colour, Image string
}

// Verb is what a client asked for.
type Verb string

// The verbs. A patch names no resourceVersion.
const (
	Create Verb = "create"
	Update Verb = "update"
	Patch  Verb = "patch"
	Delete Verb = "delete"
	Get    Verb = "get"
	List   Verb = "list"
)

// Outcome is what a client was told.
type Outcome string

// The outcomes.
const (
	// Done: the answer is a success.
	Done Outcome = "done"
	// Refused: the object is not there, or is already, or is at another resourceVersion.
	Refused Outcome = "refused"
	// NotDone: an error that says that nothing was written, by asking to try again (Retry-After).
	NotDone Outcome = "not done"
	// Unknown: no answer, or an error that leaves open whether a write was done.
	Unknown Outcome = "unknown"
)

// Match is how a list names its resourceVersion.
type Match string

// The matches.
const (
	// Consistent: none is named, so the list is at least as new as anything acknowledged before.
	Consistent Match = "consistent"
	// Any is resourceVersion=0.
	Any Match = "any"
	// NotOlder and Exact are the values of resourceVersionMatch.
	NotOlder Match = "not older"
	Exact    Match = "exact"
)

// Op is one request. Times are nanoseconds since the run began.
type Op struct {
	Client, Server int
	Verb           Verb
	Key            string
	Call, Return   int64
	Outcome        Outcome
	// Code is the HTTP status, 0 if there was no answer.
	Code int

	// Expect is the resourceVersion that an update or a deletion names.
	Expect int64
	// Object is what was written, or what a get found (nil: nothing). RV is the object's or the
	// list's resourceVersion, 0 if the answer has none.
	Object *Object
	RV     int64

	// Selector, Match, At and Items are a list's. Its pages are joined.
	Selector Selector
	Match    Match
	At       int64
	Items    []Object
	Pages    int
	// PageRVs are the resourceVersions of the pages.
	PageRVs []int64
}

// Writes tells whether the request has written something, or may have.
func (o *Op) Writes() bool {
	return o.Verb != Get && o.Verb != List && (o.Outcome == Done || o.Outcome == Unknown)
}

// EventType is the type of a watch event.
type EventType string

// The types.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK"
)

// Event is an event of a watch.
type Event struct {
	Type   EventType
	Object Object
	// Time is when it arrived.
	Time int64
	// InitialEnd marks the bookmark after the initial events.
	InitialEnd bool
}

// Stream is one watch, from its request to its end.
type Stream struct {
	Name     string
	Server   int
	Selector Selector
	// From is the resourceVersion that the watch began at. Initial: it asked for the initial events
	// instead.
	From    int64
	Initial bool
	Begun   int64

	mu     sync.Mutex
	events []Event
	ended  bool
	end    string
}

// Add takes an event.
func (s *Stream) Add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// End notes that the stream has ended, and why.
func (s *Stream) End(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.end = true, why
}

// Events returns the events so far, and whether the stream has ended.
func (s *Stream) Events() (events []Event, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[:len(s.events):len(s.events)], s.ended
}

// Seen returns up to where the stream has told everything, by an event or a bookmark.
func (s *Stream) Seen() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Initial {
		seen := int64(0)
		for i := len(s.events) - 1; i >= 0; i-- {
			seen = max(seen, s.events[i].Object.RV)
			if s.events[i].InitialEnd {
				return seen
			}
		}
		return 0
	}
	if len(s.events) == 0 {
		return s.From
	}
	return s.events[len(s.events)-1].Object.RV
}

// Informer is what a cache held in the end, and what a list said then.
type Informer struct {
	Name        string
	Cache, List []Object
}

// Row is a row of the log. A marker has no key. The rows of a transaction of several keys have one
// revision and one token. They are its parts, from 1 on, and then the last one, which is part 0.
type Row struct {
	Revision, Prev int64
	Part           int
	Key            string
	Deleted        bool
	Token          string
	// Time is by the database's clock.
	Time   time.Time
	Object Object
}

// Epoch is a part of the log without a fence in it.
type Epoch struct {
	// Fence is the revision of the marker with which it begins, 0 for the first one.
	Fence int64
	// Survived is the last revision of the epoch before that still counts: all that came after it
	// was lost.
	Survived int64
	// Rows are the rows after Survived, without the marker, in order. Those below Fence were
	// written after the loss and before it was noticed.
	Rows []Row
	// Begun and Noticed enclose the time in which the history changed.
	Begun, Noticed int64
}

// History is what a run has seen.
type History struct {
	began time.Time

	mu        sync.Mutex
	ops       []Op
	streams   []*Stream
	informers []Informer

	// Log is what the database held, as it was recorded meanwhile.
	Log []Epoch
	// Missed are revisions that were compacted before they could be recorded.
	Missed int64
	// Final is what the log still held in the end.
	Final []Row
	// Live is what the database said in the end that exists.
	Live []Object
	// FencesExpected: the scenario changes or loses history, so that fences are right.
	FencesExpected bool
	// FencedUnseen: a fence was made by one who had seen nothing of the history that a copy has
	// replaced, since no server ran meanwhile. It knows only the copy that it finds, and the clock,
	// which is what keeps it beyond that history.
	FencedUnseen bool
}

// New begins a history.
func New() *History { return &History{began: time.Now()} }

// Now is the time since the history began.
func (h *History) Now() int64 { return int64(time.Since(h.began)) }

// AddOp takes a request that has ended.
func (h *History) AddOp(op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// AddStream takes a watch that begins.
func (h *History) AddStream(s *Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams = append(h.streams, s)
}

// AddInformer takes an informer's end.
func (h *History) AddInformer(i Informer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.informers = append(h.informers, i)
}

// Ops returns the requests so far.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ops[:len(h.ops):len(h.ops)]
}

// Streams returns the watches so far.
func (h *History) Streams() []*Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams[:len(h.streams):len(h.streams)]
}

// Informers returns the informers.
func (h *History) Informers() []Informer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.informers
}
