package garbagecollector

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

var (
	things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
	thing  = schema.GroupKind{Group: "example.com", Kind: "Thing"}
)

// parse reads an object: a name, which is the UID, too, and in a namespace of its own if there is a
// slash; its owners, with an exclamation mark if it blocks them; and, after a colon, how it is
// deleted. So "n/a b !c: foreground".
func parse(text string) *object {
	text, how, deleted := strings.Cut(text, ": ")
	words := strings.Fields(text)
	o := &object{resource: things, deleted: deleted}
	o.kind = thing
	o.namespace, o.name = "default", words[0]
	if namespace, name, ok := strings.Cut(words[0], "/"); ok {
		o.namespace, o.name = namespace, name
	}
	o.uid = types.UID(o.name)
	for _, owner := range words[1:] {
		name, blocks := strings.CutPrefix(owner, "!")
		o.owners = append(o.owners, metav1.OwnerReference{APIVersion: "example.com/v1",
			Kind: "Thing", Name: name, UID: types.UID(name), BlockOwnerDeletion: &blocks})
	}
	switch how {
	case "foreground":
		o.finalizers = []string{metav1.FinalizerDeleteDependents}
	case "orphan":
		o.finalizers = []string{metav1.FinalizerOrphanDependents}
	}
	o.orphans = o.orphaning()
	return o
}

func show(set sets.Set[types.UID]) string {
	names := []string{}
	for _, uid := range sets.List(set) {
		names = append(names, string(uid))
	}
	return strings.Join(names, " ")
}

// These have to be looked at after an event: "-a" is the deletion of a, everything else is an
// object as it is observed.
func TestGraphSaysWhatToLookAt(t *testing.T) {
	for _, tc := range []struct{ name, before, event, want string }{
		{"nothing", "", "a", ""},
		{"a dependent of a known owner", "a", "b a", ""},
		{"a dependent of an unknown owner", "", "b a", "b"},
		{"a dependent that has not changed for us", "b a", "b a", ""},
		{"a dependent of an owner elsewhere", "other/a", "b a", "b"},
		{"an owner without a namespace", "/a", "b a", ""},
		{"an owner that comes later", "b a", "a", ""},
		{"an owner elsewhere that comes later", "b a", "other/a", "b"},
		{"an owner that goes", "a, b a, c a d", "-a", "b c"},
		{"an unknown object that goes", "b a", "-a", ""},
		{"deleted in the background", "a, b a", "a: background", ""},
		{"deleted in the foreground", "a, b a, c !a, d c", "a: foreground", "a b c"},
		{"in the foreground, seen again", "a: foreground, b a", "a: foreground", ""},
		{"in the foreground, nothing depends on it", "a", "a: foreground", "a"},
		{"a dependent of one that is deleted in the foreground", "a: foreground", "b a", "a b"},
		{"a blocker goes", "a: foreground, b !a", "-b", "a"},
		{"a blocker stops to block", "a: foreground, b !a", "b a", "a b"},
		{"a blocker has another owner", "a: foreground, b !a, c", "b c", "a"},
		{"a blocker is deleted in the foreground", "a: foreground, b !a", "b !a: foreground",
			"a b"},
		{"orphans", "a, b a, c a", "a: orphan", "a b c"},
		{"an orphan has no owner any more", "a: orphan, b a", "b", "a"},
		{"an orphan goes", "a: orphan, b a", "-b", "a"},
		{"it owns itself", "", "a a", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGraph()
			for text := range strings.SplitSeq(tc.before, ", ") {
				if text != "" {
					g.observe(parse(text))
				}
			}
			var look sets.Set[types.UID]
			if name, gone := strings.CutPrefix(tc.event, "-"); gone {
				_, look = g.forget(things, types.UID(name))
			} else {
				look = g.observe(parse(tc.event))
			}
			if got := show(look); got != tc.want {
				t.Errorf("to look at: %q, want %q", got, tc.want)
			}
		})
	}
}

// Which of the objects that are deleted in the foreground have to wait.
func TestBlocked(t *testing.T) {
	for objects, want := range map[string]string{
		"a: foreground":                                                 "",
		"a: foreground, b a":                                            "",
		"a: foreground, b !a":                                           "a",
		"a: foreground, b !a: foreground":                               "a",
		"a: foreground, b !a: foreground, c !b":                         "a b",
		"a !a: foreground":                                              "",
		"a !b: foreground, b !a":                                        "a",
		"a !b: foreground, b !a: background":                            "a",
		"a !b: foreground, b !a: foreground":                            "",
		"a !c: foreground, b !a: foreground, c !b: foreground":          "",
		"a !c: foreground, b !a: foreground, c !b: foreground, d !b":    "b",
		"a: foreground, b !a !c: foreground, c !b: foreground":          "a",
		"a: foreground, other/b !a":                                     "",
		"/a: foreground, other/b !a":                                    "a",
		"a: foreground, /b !a":                                          "",
		"a !b: foreground, b !a: foreground, c !a: foreground, d !c":    "a c",
		"a !d: foreground, b !a: foreground, c !b !d: foreground, d !c": "a b c",
	} {
		g := newGraph()
		for text := range strings.SplitSeq(objects, ", ") {
			g.observe(parse(text))
		}
		blocked := sets.New[types.UID]()
		for uid := range g.objects {
			if v, _ := g.view(uid); v.blocked {
				blocked.Insert(uid)
			}
		}
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		if got := show(blocked); got != strings.Join(wanted, " ") {
			t.Errorf("%s: %q have to wait, want %q", objects, got, want)
		}
	}
}

func TestDecide(t *testing.T) {
	const deletes, strips = "deletes by ", "strips "
	for _, tc := range []struct {
		owners     string // the standings
		dependents bool
		finalizer  string
		want       string
	}{
		{"", true, "", ""},
		{"present", false, "", ""},
		{"present present", true, "", ""},
		{"absent", false, "", deletes + "Background"},
		{"absent absent", true, "", deletes + "Background"},
		{"absent", true, "orphan", deletes + "Orphan"},
		{"absent", true, "foregroundDeletion", deletes + "Foreground"},
		{"waiting", false, "", deletes + "Background"},
		{"waiting", true, "", deletes + "Foreground"},
		{"waiting absent", true, "", deletes + "Foreground"},
		{"waiting", true, "orphan", deletes + "Foreground"},
		{"present absent", false, "", strips + "1"},
		{"absent present waiting", false, "", strips + "0 2"},
		{"released", false, "", strips + "0"},
		{"released absent", false, "", strips + "0"},
		{"present released absent", false, "", strips + "1"},
	} {
		names := map[string]standing{"present": present, "waiting": waiting, "absent": absent,
			"released": released}
		v := view{object: &object{}, dependents: tc.dependents}
		for i, name := range strings.Fields(tc.owners) {
			v.owners = append(v.owners, metav1.OwnerReference{Name: fmt.Sprint(i)})
			v.standings = append(v.standings, names[name])
		}
		if tc.finalizer != "" {
			v.finalizers = []string{"example.com/other", tc.finalizer}
		}
		d := decide(v)
		got := ""
		if d.remove != "" {
			got = deletes + string(d.remove)
		}
		if len(d.strip) > 0 {
			refs := []string{}
			for _, ref := range d.strip {
				refs = append(refs, ref.Name)
			}
			slices.Sort(refs)
			got += strips + strings.Join(refs, " ")
		}
		if got != tc.want {
			t.Errorf("owners %q, dependents %t, finalizer %q: it %q, want %q", tc.owners,
				tc.dependents, tc.finalizer, got, tc.want)
		}
	}
}

// The graph that is left when everything has gone is empty, whatever came in between.
func TestGraphForgetsEverything(t *testing.T) {
	g := newGraph()
	for text := range strings.SplitSeq("b !a, a c, b a c, c !b, a: foreground, /d c, d", ", ") {
		g.observe(parse(text))
	}
	for _, uid := range []types.UID{"a", "b", "c", "d"} {
		if _, look := g.forget(things.GroupResource().WithVersion("v2"), uid); look != nil {
			t.Errorf("%s is forgotten for another resource", uid)
		}
		g.forget(things, uid)
	}
	if len(g.objects)+len(g.dependents)+len(g.blockers)+len(g.of) > 0 {
		t.Errorf("there is left: %+v", g)
	}
}
