package collectortest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hold is a finalizer that keeps an object until the test releases it.
const hold = "example.com/hold"

// object is one that a case begins with.
type object struct {
	id         string
	kind       kind
	elsewhere  bool // in another namespace
	owners     []owner
	finalizers []string
}

// owner is a reference, to an object of the case if it is one.
type owner struct {
	of                             string
	kind                           kind   // of one that is not there
	block                          bool   // blockOwnerDeletion
	otherUID, otherName, otherKind bool   // than that of the object
	version                        string // in place of v1
}

func of(ids ...string) []owner {
	var owners []owner
	for _, id := range ids {
		owners = append(owners, owner{of: id})
	}
	return owners
}

func blocking(ids ...string) []owner {
	owners := of(ids...)
	for i := range owners {
		owners[i].block = true
	}
	return owners
}

// step does something, and says what the objects are after that.
type step struct {
	do   func(*fixture)
	want map[string]string
}

// testCase is a case. The objects are created in their order, except that a reference to one which
// comes later is added when that is there.
type testCase struct {
	name    string
	objects []object
	steps   []step
	// stuck says that objects wait for ever with upstream's collector, and in which states.
	stuck map[string]string
	// reported are the objects about which there is an event, elsewhere says that it is about an
	// owner in another namespace.
	reported  []string
	elsewhere bool
	alone     bool // it changes which kinds there are
}

func remove(policy metav1.DeletionPropagation, ids ...string) func(*fixture) {
	return func(f *fixture) {
		for _, id := range ids {
			f.delete(id, policy)
		}
	}
}

func release(ids ...string) func(*fixture) {
	return func(f *fixture) {
		for _, id := range ids {
			f.release(id)
		}
	}
}

func nothing(*fixture) {}

const (
	background = metav1.DeletePropagationBackground
	foreground = metav1.DeletePropagationForeground
	orphan     = metav1.DeletePropagationOrphan
)

// The states of objects. They are followed by what else is the case.
const (
	gone     = "gone"
	there    = "there"
	deleting = "deleting"
)

var held = []string{hold}

var cases = []testCase{{
	name: "background: all that depends on it goes, over kinds and generations",
	objects: []object{
		{id: "a", kind: gadget}, {id: "b", kind: configMap, owners: of("a")},
		{id: "c", kind: gadget, owners: blocking("a")},
		{id: "d", kind: configMap, owners: of("c")}, {id: "other", kind: gadget},
		{id: "e", kind: configMap, owners: of("other")},
	},
	steps: []step{{remove(background, "a"), map[string]string{"a": gone, "b": gone, "c": gone,
		"d": gone, "other": there, "e": there + " of other"}}},
}, {
	name: "background: dependents stay as long as the owner has finalizers",
	objects: []object{{id: "a", kind: gadget, finalizers: held},
		{id: "b", kind: configMap, owners: blocking("a")}},
	steps: []step{
		{remove(background, "a"), map[string]string{"a": deleting + " [hold]",
			"b": there + " of a"}},
		{release("a"), map[string]string{"a": gone, "b": gone}},
	},
}, {
	name: "background: an object goes when its last owner does",
	objects: []object{{id: "a", kind: gadget}, {id: "b", kind: configMap},
		{id: "c", kind: gadget, owners: of("a", "b")}},
	steps: []step{
		{remove(background, "a"), map[string]string{"a": gone, "b": there, "c": there + " of b"}},
		{remove(background, "b"), map[string]string{"b": gone, "c": gone}},
	},
}, {
	name: "background: the owner is cluster-scoped",
	objects: []object{{id: "a", kind: globe}, {id: "b", kind: configMap, owners: of("a")},
		{id: "c", kind: configMap, elsewhere: true, owners: of("a")},
		{id: "d", kind: globe, owners: of("a")}},
	steps: []step{{remove(background, "a"),
		map[string]string{"a": gone, "b": gone, "c": gone, "d": gone}}},
}, {
	name: "background: a circle",
	objects: []object{{id: "a", kind: gadget, owners: blocking("c")},
		{id: "b", kind: gadget, owners: blocking("a")},
		{id: "c", kind: configMap, owners: blocking("b")}},
	steps: []step{
		{nothing, map[string]string{"a": there + " of c", "b": there + " of a",
			"c": there + " of b"}},
		{remove(background, "b"), map[string]string{"a": gone, "b": gone, "c": gone}},
	},
}, {
	name: "background: a dependent whose finalizer is orphan leaves its own",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: gadget, owners: of("a"), finalizers: []string{"orphan"}},
		{id: "c", kind: configMap, owners: of("b")}},
	steps: []step{{remove(background, "a"),
		map[string]string{"a": gone, "b": gone, "c": there}}},
}, {
	name: "background: a dependent whose finalizer is foregroundDeletion waits for its own",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: gadget, owners: of("a"), finalizers: []string{"foregroundDeletion"}},
		{id: "c", kind: configMap, owners: blocking("b"), finalizers: held}},
	steps: []step{
		{remove(background, "a"), map[string]string{"a": gone,
			"b": deleting + " of a [foregroundDeletion]", "c": deleting + " of b [hold]"}},
		{release("c"), map[string]string{"b": gone, "c": gone}},
	},
}, {
	name: "absent: an owner that never was",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: configMap, owners: []owner{{of: "never", kind: gadget}}},
		{id: "c", kind: configMap, owners: []owner{{of: "never", kind: globe}}},
		{id: "d", kind: globe, owners: []owner{{of: "never", kind: globe}}},
		{id: "e", kind: configMap, owners: []owner{{of: "never", kind: gadget}, {of: "a"}}}},
	steps: []step{{nothing, map[string]string{"a": there, "b": gone, "c": gone, "d": gone,
		"e": there + " of a"}}},
}, {
	name: "absent: another UID, name or kind",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: configMap, owners: []owner{{of: "a", otherUID: true}}},
		{id: "c", kind: configMap, owners: []owner{{of: "a", otherName: true}}},
		{id: "d", kind: configMap, owners: []owner{{of: "a", otherKind: true}}},
		{id: "e", kind: configMap, owners: of("a")}},
	steps: []step{{nothing, map[string]string{"a": there, "b": gone, "c": gone, "d": gone,
		"e": there + " of a"}}},
}, {
	name: "absent: an owner of the same name that came after it",
	objects: []object{{id: "a", kind: gadget}, {id: "b", kind: configMap, owners: of("a"),
		finalizers: held}},
	steps: []step{
		{func(f *fixture) {
			f.delete("a", background)
			f.await(map[string]string{"a": gone})
			f.create(object{id: "a", kind: gadget})
			f.create(object{id: "c", kind: configMap, owners: of("a")})
		}, map[string]string{"a": there, "b": deleting + " of a [hold]", "c": there + " of a"}},
		{release("b"), map[string]string{"a": there, "b": gone, "c": there + " of a"}},
	},
}, {
	name: "another version of the owner's kind is the same kind",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: configMap, owners: []owner{{of: "a", version: "v1beta1"}}}},
	steps: []step{
		{nothing, map[string]string{"a": there, "b": there + " of a"}},
		{remove(background, "a"), map[string]string{"a": gone, "b": gone}},
	},
}, {
	name: "scope: the owner is in another namespace",
	objects: []object{{id: "a", kind: gadget, elsewhere: true},
		{id: "b", kind: configMap, owners: of("a")}, {id: "c", kind: gadget},
		{id: "d", kind: configMap, owners: of("a", "c")}},
	steps: []step{{nothing, map[string]string{"a": there, "b": gone, "c": there,
		"d": there + " of c"}}},
	reported: []string{"b", "d"}, elsewhere: true,
}, {
	name: "scope: the owner has a namespace, the dependent none",
	objects: []object{{id: "a", kind: gadget}, {id: "b", kind: globe, owners: of("a")},
		{id: "c", kind: globe, owners: []owner{{of: "never", kind: gadget}}}},
	steps: []step{
		{nothing, map[string]string{"a": there, "b": there + " of a", "c": there + " of never"}},
		{remove(background, "a"), map[string]string{"a": gone, "b": there + " of a"}},
	},
	reported: []string{"b"},
}, {
	name:    "scope: such a dependent does not keep its owner",
	objects: []object{{id: "a", kind: gadget}, {id: "b", kind: globe, owners: blocking("a")}},
	steps: []step{{remove(foreground, "a"),
		map[string]string{"a": gone, "b": there + " of a"}}},
	stuck: map[string]string{"a": deleting + " [foregroundDeletion]", "b": there + " of a"},
}, {
	name: "foreground: the owner waits for those that block it",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: configMap, owners: blocking("a"), finalizers: held},
		{id: "c", kind: gadget, owners: blocking("a")}},
	steps: []step{
		{remove(foreground, "a"), map[string]string{"a": deleting + " [foregroundDeletion]",
			"b": deleting + " of a [hold]", "c": gone}},
		{release("b"), map[string]string{"a": gone, "b": gone}},
	},
}, {
	name: "foreground: the owner does not wait for others",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: configMap, owners: of("a"), finalizers: held}},
	steps: []step{
		{remove(foreground, "a"), map[string]string{"a": gone, "b": deleting + " of a [hold]"}},
		{release("b"), map[string]string{"b": gone}},
	},
}, {
	name: "foreground: over generations and scopes",
	objects: []object{{id: "a", kind: globe}, {id: "b", kind: gadget, owners: blocking("a")},
		{id: "c", kind: configMap, owners: blocking("b"), finalizers: held}},
	steps: []step{
		{remove(foreground, "a"), map[string]string{"a": deleting + " [foregroundDeletion]",
			"b": deleting + " of a [foregroundDeletion]", "c": deleting + " of b [hold]"}},
		{release("c"), map[string]string{"a": gone, "b": gone, "c": gone}},
	},
}, {
	name: "foreground: a dependent with another owner stays",
	objects: []object{{id: "a", kind: gadget}, {id: "b", kind: gadget},
		{id: "c", kind: configMap, owners: blocking("a", "b")}},
	steps: []step{{remove(foreground, "a"),
		map[string]string{"a": gone, "b": there, "c": there + " of b"}}},
}, {
	name: "foreground: a dependent that stops to block",
	objects: []object{{id: "a", kind: gadget},
		{id: "b", kind: configMap, owners: blocking("a"), finalizers: held}},
	steps: []step{
		{remove(foreground, "a"), map[string]string{"a": deleting + " [foregroundDeletion]",
			"b": deleting + " of a [hold]"}},
		{func(f *fixture) { f.unblock("b") },
			map[string]string{"a": gone, "b": deleting + " of a [hold]"}},
		{release("b"), map[string]string{"b": gone}},
	},
}, {
	name: "foreground: by a finalizer",
	objects: []object{{id: "a", kind: gadget, finalizers: []string{"foregroundDeletion"}},
		{id: "b", kind: configMap, owners: blocking("a"), finalizers: held}},
	steps: []step{
		{remove("", "a"), map[string]string{"a": deleting + " [foregroundDeletion]",
			"b": deleting + " of a [hold]"}},
		{release("b"), map[string]string{"a": gone, "b": gone}},
	},
}, {
	name: "foreground: a circle of two",
	objects: []object{{id: "a", kind: gadget, owners: blocking("b")},
		{id: "b", kind: gadget, owners: blocking("a")}},
	steps: []step{{remove(foreground, "a"), map[string]string{"a": gone, "b": gone}}},
}, {
	name: "foreground: a circle of three",
	objects: []object{{id: "a", kind: gadget, owners: blocking("c")},
		{id: "b", kind: configMap, owners: blocking("a")},
		{id: "c", kind: gadget, owners: blocking("b")}},
	steps: []step{{remove(foreground, "a"),
		map[string]string{"a": gone, "b": gone, "c": gone}}},
}, {
	name:    "foreground: an object that owns itself",
	objects: []object{{id: "a", kind: gadget, owners: blocking("a")}},
	steps:   []step{{remove(foreground, "a"), map[string]string{"a": gone}}},
	stuck:   map[string]string{"a": deleting + " of a [foregroundDeletion]"},
}, {
	name: "orphan: dependents stay, without the owner",
	objects: []object{{id: "a", kind: gadget}, {id: "b", kind: configMap, owners: blocking("a")},
		{id: "c", kind: gadget, owners: of("a")}, {id: "d", kind: configMap, owners: of("c")},
		{id: "e", kind: configMap, owners: of("a", "c")}},
	steps: []step{{remove(orphan, "a"), map[string]string{"a": gone, "b": there, "c": there,
		"d": there + " of c", "e": there + " of c"}}},
}, {
	name: "orphan: by a finalizer, and a dependent that is deleted already",
	objects: []object{{id: "a", kind: globe, finalizers: []string{"orphan"}},
		{id: "b", kind: configMap, owners: of("a")},
		{id: "c", kind: gadget, owners: of("a"), finalizers: held}},
	steps: []step{
		{remove("", "c"), map[string]string{"c": deleting + " of a [hold]"}},
		{remove("", "a"), map[string]string{"a": gone, "b": there, "c": deleting + " [hold]"}},
		{release("c"), map[string]string{"b": there, "c": gone}},
	},
}, {
	name: "orphan: what the deletion asks for comes before the finalizer",
	objects: []object{{id: "a", kind: gadget, finalizers: []string{"orphan"}},
		{id: "b", kind: configMap, owners: of("a")}},
	steps: []step{{remove(background, "a"), map[string]string{"a": gone, "b": gone}}},
}, {
	name: "kinds: one that is not served, then comes, and goes with its definition",
	objects: []object{{id: "a", kind: configMap, owners: []owner{{of: "never", kind: visitor}}},
		{id: "other", kind: gadget},
		{id: "b", kind: configMap, owners: []owner{{of: "never", kind: visitor}, {of: "other"}}}},
	steps: []step{
		{nothing, map[string]string{"a": there + " of never", "b": there + " of never,other"}},
		{func(f *fixture) { f.define(visitor) },
			map[string]string{"a": gone, "b": there + " of other"}},
		{func(f *fixture) {
			f.create(object{id: "v", kind: visitor})
			f.create(object{id: "c", kind: configMap, owners: of("v")})
			f.create(object{id: "d", kind: configMap, owners: of("v", "other")})
			f.seen()
			f.undefine(visitor)
		}, map[string]string{"c": gone, "d": there + " of other"}},
	},
	alone: true,
}}

// kind is one of which the cases have objects.
type kind struct {
	group, version, name, resource string
	cluster                        bool
}

var (
	configMap = kind{corev1.GroupName, "v1", "ConfigMap", "configmaps", false}
	gadget    = kind{"gc.example.com", "v1", "Gadget", "gadgets", false}
	globe     = kind{"gc.example.com", "v1", "Globe", "globes", true}
	visitor   = kind{"visits.example.com", "v1", "Visitor", "visitors", false}
)

// patience is how long a collector may take. Upstream's learns of new kinds every 30 s.
const patience = 2 * time.Minute
