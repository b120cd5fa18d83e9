package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/directory"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// spreadJudge sees every version of every store, and knows what every client was told; see the
// package documentation.
type spreadJudge struct {
	w         *spread
	violation *violation
	// stories are what the names have held.
	stories map[string]*story
	tasks   []*task
	// writers tells which request has written a row. stage.mu protects it.
	writers map[rowName]*task
	// looked are the versions of stores that were looked at, and control the versions of the
	// directory's.
	looked  map[*server]memdb.Version
	control []memdb.Version
}

// story is what a name has held, wherever it was open.
type story struct {
	name string
	// tip is the newest row, and place where the name is open, nil if it is not.
	tip   *entry
	place *server
	// dropped: there is no store of the name.
	dropped bool
	at      map[contract.Revision][]*entry
	moments []instant
}

// quiet tells whether nothing but its creation has happened to a name.
func (y *story) quiet() bool { return len(y.moments) <= 2 }

// instant is what a name holds from a turn on: nil if it is not open.
type instant struct {
	turn int
	tip  *entry
}

// entry is a row, or the marker of a history.
type entry struct {
	rev    contract.Revision
	key    contract.Key // "" of a marker
	record contract.Record
	value  string
	gone   bool // it is a deletion
	by     *task
	place  *server
	turn   int
	parent *entry
	live   map[contract.Key]*entry
	// acked: its writer knows of it. lost: a power failure took it away.
	acked, lost bool
	// dropped: there was no store of the name after it.
	dropped bool
}

func (j *spreadJudge) begin(w *spread) {
	*j = spreadJudge{w: w, stories: map[string]*story{}, writers: map[rowName]*task{},
		looked: map[*server]memdb.Version{}}
	for i := range spreadNames {
		none := &entry{dropped: true, live: map[contract.Key]*entry{}}
		j.stories[nameOf(i)] = &story{name: nameOf(i), tip: none, dropped: true,
			at: map[contract.Revision][]*entry{}, moments: []instant{{}}}
	}
}

func (j *spreadJudge) violate(rule, format string, args ...any) {
	if j.violation == nil {
		j.violation = &violation{rule, fmt.Sprintf(format, args...)}
		j.w.log("VIOLATION %s", j.violation)
	}
}

// wrote remembers whose rows a group has written.
func (j *spreadJudge) wrote(g *contract.Group, r *contract.GroupResult) {
	j.w.mu.Lock()
	defer j.w.mu.Unlock()
	for i, o := range r.Outcomes {
		if id, err := strconv.Atoi(string(g.Mutations[i].Value)); o.Accepted && err == nil {
			j.writers[rowName{o.Revision, g.Token}] = j.tasks[id]
		}
	}
}

// servers are those of all stores, in the order in which they were made.
func (w *spread) all() []*server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.servers)
}

// record looks at what was committed since it looked last.
func (j *spreadJudge) record() {
	changed := false
	for _, s := range j.w.all() {
		v := s.db.Version()
		if j.looked[s] == v {
			continue
		}
		j.looked[s], changed = v, true
		if y := j.stories[s.store]; y != nil {
			j.look(y, s, v)
		} else if s == j.w.servers[0] {
			j.control = append(j.control, v)
		}
	}
	if changed {
		j.rows()
	}
}

// opened tells whether a version is a store of a name that is open, and what its home is.
func opened(v memdb.Version) (home contract.Home, open bool) {
	if v.Home() == "" {
		return home, false
	}
	if err := json.Unmarshal([]byte(v.Home()), &home); err != nil {
		panic(err)
	}
	return home, !v.State().Dropped()
}

// look goes on with the story of a name, of which a store has changed.
func (j *spreadJudge) look(y *story, s *server, v memdb.Version) {
	home, open := opened(v)
	switch {
	case y.place == s:
		for _, r := range v.Log(y.tip.rev + 1) {
			j.append(y, s, r)
		}
		if !open {
			y.place, y.dropped = nil, home.To == ""
			y.tip.dropped = y.dropped
			y.moments = append(y.moments, instant{j.w.turns.now(), nil})
			j.w.log("%s is closed in %s: %s", y.name, s.label, v.Home())
			return
		}
	case !open:
		return
	case y.place != nil:
		j.violate("two", "%s is open in %s, and was opened in %s, %s", y.name, y.place.label, s.label,
			v.Home())
		return
	default:
		j.opened(y, s, v, home)
	}
	live := v.AllLive()
	for i := range live {
		e := y.tip.live[live[i].Key]
		if e == nil || !reflect.DeepEqual(e.record, live[i]) {
			j.violate("lost", "%s has %+v in %s, and should have %+v", y.name, live[i], s.label, e)
		}
	}
	if len(live) != len(y.tip.live) {
		j.violate("lost", "%s has %+v in %s, and should have %+v", y.name, live, s.label, y.tip.live)
	}
}

// opened goes on with a story where a name was opened.
func (j *spreadJudge) opened(y *story, s *server, v memdb.Version, home contract.Home) {
	j.w.log("%s is opened in %s: %s", y.name, s.label, v.Home())
	created := home.From == "" && home.Undone != home.Move && home.Move != ""
	log := v.Log(0)
	marker := log[len(log)-1]
	if created != y.dropped {
		j.violate("lost", "%s is opened in %s with the home %s: a creation is %t, and it was dropped: %t",
			y.name, s.label, v.Home(), created, y.dropped)
	}
	if marker.Revision <= y.tip.rev || !marker.Marker() {
		j.violate("backwards", "%s is opened in %s at %d, after %d", y.name, s.label, marker.Revision,
			y.tip.rev)
	}
	if created {
		y.tip = &entry{rev: y.tip.rev, dropped: true, parent: y.tip, live: map[contract.Key]*entry{}}
	} else {
		for _, r := range log {
			if e := y.tip.live[r.Key]; e != nil && e.rev == r.Revision && e.value != string(r.Value) {
				j.violate("lost", "%s has %q of %s at %d in %s, and %q was written", y.name, r.Value, r.Key,
					r.Revision, s.label, e.value)
			}
		}
		j.w.report.Fences++
	}
	y.place, y.dropped = s, false
	j.append(y, s, marker)
}

// append adds a row to a story.
func (j *spreadJudge) append(y *story, s *server, r contract.Row) {
	e := &entry{rev: r.Revision, key: r.Key, value: string(r.Value), gone: r.Deleted, place: s,
		turn: j.w.turns.now(), parent: y.tip, live: y.tip.live}
	j.w.report.Commits++
	if r.Marker() {
		e.key = ""
	} else {
		e.record = contract.Record{Key: r.Key, Revision: r.Revision, Part: r.Part, Create: r.Create,
			Version: r.Version, Lease: r.Lease}
		e.live = maps.Clone(e.live)
		if e.live[r.Key] = e; e.gone {
			delete(e.live, r.Key)
		}
		j.w.mu.Lock()
		e.by = j.writers[rowName{r.Revision, r.Token}]
		j.w.mu.Unlock()
		switch t := e.by; {
		case t == nil && e.value != "heal":
			j.violate("log", "nobody has written %+v of %s", r, y.name)
		case t == nil:
		case t.refused:
			j.violate("refused", "request %d was told that nothing was written, and is in %s at %d", t.id,
				s.label, r.Revision)
		case t.name != y.name || t.key != r.Key || t.wrote.Delete != r.Deleted || len(t.entries) > 0 &&
			!t.entries[len(t.entries)-1].lost:
			j.violate("log", "request %d is in %s at %d as %+v, and was %+v", t.id, s.label, r.Revision, r,
				t.wrote)
		default:
			t.entries = append(t.entries, e)
		}
	}
	for _, o := range y.at[e.rev] {
		if !o.lost {
			j.violate("twice", "%s has the revision %d in %s, and had it in %s", y.name, e.rev, s.label,
				o.place.label)
		}
	}
	y.at[e.rev] = append(y.at[e.rev], e)
	y.tip = e
	y.moments = append(y.moments, instant{e.turn, e})
}

// lose takes from a store what is not durable.
func (j *spreadJudge) lose(s *server) {
	j.w.settle()
	durable := *s.durable.Load()
	if durable == s.db.Version() {
		return
	}
	s.db.Return(durable)
	s.flush()
	j.w.report.Losses++
	y, head := j.stories[s.store], durable.State().Head.Revision
	if y == nil {
		return
	}
	before := y.tip
	for y.tip.place == s && y.tip.rev > head {
		e := y.tip
		if e.lost = true; e.acked {
			j.violate("durable", "request %d was acknowledged at %d, which a power failure took from %s",
				e.by.id, e.rev, s.label)
		}
		y.tip = e.parent
	}
	if y.tip == before {
		return
	}
	if _, open := opened(durable); open {
		y.place, y.dropped = s, false
	} else {
		y.place, y.dropped = nil, y.tip.dropped
	}
	j.looked[s] = s.db.Version()
	in := instant{turn: j.w.turns.now()}
	if y.place != nil {
		in.tip = y.tip
	}
	y.moments = append(y.moments, in)
	j.rows()
}

// rows judges the directory: a store is open where the directory says so.
func (j *spreadJudge) rows() {
	v := j.w.servers[0].db.Version()
	values := map[contract.RowID][]byte{}
	for _, r := range v.Log(0) {
		values[r.ID()] = r.Value
	}
	for _, live := range v.AllLive() {
		_, name, found := strings.Cut(string(live.Key), "directory/")
		if !found {
			continue
		}
		var r directory.Row
		if err := json.Unmarshal(values[live.ID()], &r); err != nil {
			j.violate("directory", "the row of %s cannot be read: %v", name, err)
			continue
		}
		if r.State != directory.Open {
			continue
		}
		at := j.w.store(r.Database, name)
		if y := j.stories[name]; y.place == nil || y.place != at {
			j.violate("directory", "the row of %s is %+v, and it is not open there", name, r)
		} else if home, _ := opened(at.db.Version()); home.Generation != r.Generation {
			j.violate("directory", "the row of %s is %+v, and the store's is %+v", name, r, home)
		}
	}
}

// administered judges an error of what a process does with a store: the rows agree.
func (j *spreadJudge) administered(what, name string, err error) {
	for _, sign := range []string{"which is not what the directory says", "was set back", "damaged",
		"cannot be read ("} {
		if err != nil && strings.Contains(err.Error(), sign) {
			j.violate("disagree", "%s of %s: %v", what, name, err)
		}
	}
}

// some tells whether a name was such during a request.
func (j *spreadJudge) some(t *task, is func(*entry) bool) bool {
	y := j.stories[t.name]
	for i, m := range y.moments {
		over := i+1 < len(y.moments) && y.moments[i+1].turn < t.call
		if !over && m.turn <= t.end && m.tip != nil && is(m.tip) {
			return true
		}
	}
	return false
}

// show notes that a head was shown.
func (j *spreadJudge) show(t *task, head contract.Revision) {
	if head < t.floor {
		j.violate("backwards", "request %d, %s of %s by %d, shows %d after %d", t.id, t.verb, t.name, t.m.id,
			head, t.floor)
	}
	t.m.floor[t.name] = max(t.m.floor[t.name], head)
}

// is tells whether what was read is what a moment holds.
func (e *entry) is(key contract.Key, kv *mvcc.KeyValue) bool {
	l := e.live[key]
	if l == nil || kv == nil {
		return l == nil && kv == nil
	}
	return l.rev == kv.Revision && l.value == string(kv.Value) && l.record.Create == kv.Create &&
		l.record.Version == kv.Version
}

func (j *spreadJudge) get(t *task, kv *mvcc.KeyValue, head contract.Revision, err error) {
	if err != nil {
		return
	}
	j.w.report.Reads++
	if !j.some(t, func(e *entry) bool { return e.rev == head && e.is(t.key, kv) }) {
		j.violate("linearizable", "request %d reads %s of %s by %d at the head %d as %+v; it never was so "+
			"between the turns %d and %d", t.id, t.key, t.name, t.m.id, head, kv, t.call, t.end)
	}
	j.show(t, head)
	k := known{}
	if kv != nil {
		k.revision, k.value = kv.Revision, string(kv.Value)
	}
	j.knows(t, k)
}

func (j *spreadJudge) knows(t *task, k known) {
	if t.m.known[t.name] == nil {
		t.m.known[t.name] = map[contract.Key]known{}
	}
	t.m.known[t.name][t.key] = k
}

func (j *spreadJudge) list(t *task, l *mvcc.RangeResult, err error) {
	if err != nil {
		return
	}
	j.w.report.Reads++
	if !j.some(t, func(e *entry) bool {
		same := e.rev == l.Revision && len(l.KVs) == len(e.live)
		for i := range l.KVs {
			same = same && e.is(l.KVs[i].Key, &l.KVs[i])
		}
		return same
	}) {
		j.violate("linearizable", "request %d lists %s by %d at %d as %+v; it never was so between the "+
			"turns %d and %d", t.id, t.name, t.m.id, l.Revision, l.KVs, t.call, t.end)
	}
	j.show(t, l.Revision)
}

// written judges a write.
func (j *spreadJudge) written(t *task, at contract.Revision, err error) {
	var conflict *contract.ConflictError
	switch {
	case err == nil:
		j.acknowledged(t, at)
		return
	case errors.Is(err, contract.ErrUnknownOutcome):
		return
	case errors.As(err, &conflict):
		if !j.some(t, func(e *entry) bool {
			is := contract.Revision(0)
			if l := e.live[t.key]; l != nil {
				is = l.rev
			}
			return is != t.wrote.Expect
		}) {
			j.violate("conflict", "request %d expects %s of %s at %d, and is refused: %v", t.id, t.key, t.name,
				t.wrote.Expect, err)
		}
	case contract.ClassOf(err) == contract.Data:
		j.violate("error", "request %d, %s of %s: %v", t.id, t.verb, t.name, err)
	}
	t.refused = true
	for _, e := range t.entries {
		if !e.lost {
			j.violate("refused", "request %d was told that nothing was written (%v), and is in %s at %d", t.id,
				err, e.place.label, e.rev)
		}
	}
}

func (j *spreadJudge) acknowledged(t *task, at contract.Revision) {
	j.w.report.Acknowledged++
	if len(t.entries) == 0 {
		j.violate("durable", "request %d was acknowledged at %d, and is nowhere", t.id, at)
		return
	}
	e := t.entries[len(t.entries)-1]
	if e.lost || e.rev != at || e.turn < t.call {
		j.violate("durable", "request %d was acknowledged at %d, and is %+v", t.id, at, e)
	}
	e.acked = true
	j.show(t, at)
	k := known{revision: at, value: e.value}
	if e.gone {
		k = known{}
	}
	j.knows(t, k)
}

// events judges what a watch was told: a piece of the story, without a gap and without a marker.
func (j *spreadJudge) events(f *follower, events []*mvcc.Event) {
	t := f.t
	if t.m.life != t.life {
		return
	}
	for _, got := range events {
		j.w.report.Events++
		var e *entry
		for _, o := range j.stories[t.name].at[got.Revision] {
			if o.key == got.Key && o.gone == got.Deleted && (o.gone || o.value == string(got.Value)) {
				e = o
			}
		}
		if e == nil {
			j.violate("watch", "watch %d of %s by %d is told %+v, which never was", t.id, t.name, t.m.id, got)
			return
		}
		t.m.floor[t.name] = max(t.m.floor[t.name], e.rev)
		for p := e.parent; p != nil && p.rev > f.after; p = p.parent {
			if p.key == "" && p.rev == f.after+1 {
				break // nobody has seen the revision before it
			}
			j.violate("watch", "watch %d of %s by %d is told %d, and was not told of %q at %d after %d",
				t.id, t.name, t.m.id, e.rev, p.key, p.rev, f.after)
			return
		}
		if e.rev <= f.after {
			j.violate("watch", "watch %d of %s by %d is told %d after %d", t.id, t.name, t.m.id, e.rev,
				f.after)
		}
		f.after = e.rev
	}
}

// healed judges what is there when everything is repaired: each name is open, and the directory
// says where.
func (j *spreadJudge) healed() {
	for _, name := range slices.Sorted(maps.Keys(j.stories)) {
		if y := j.stories[name]; y.place == nil {
			j.violate("liveness", "%s is not open in the end", name)
		}
	}
}
