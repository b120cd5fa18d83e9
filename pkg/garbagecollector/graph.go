package garbagecollector

import (
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// identity tells objects apart, including objects that are gone.
type identity struct {
	kind            schema.GroupKind
	namespace, name string
	uid             types.UID
}

// object is what the graph knows of an object. It is not changed once it is in the graph.
type object struct {
	identity
	resource   schema.GroupVersionResource
	version    string // its resourceVersion
	owners     []metav1.OwnerReference
	finalizers []string
	deleted    bool // it has a deletionTimestamp
	deletion   time.Time
	// orphans says that it was deleted with the finalizer orphan, which may have been removed
	// since.
	orphans bool
}

func newObject(resource schema.GroupVersionResource, kind schema.GroupKind,
	meta metav1.Object) *object {
	o := &object{
		identity: identity{kind: kind, namespace: meta.GetNamespace(), name: meta.GetName(),
			uid: meta.GetUID()},
		resource: resource, version: meta.GetResourceVersion(),
		owners: meta.GetOwnerReferences(), finalizers: meta.GetFinalizers(),
		deleted: meta.GetDeletionTimestamp() != nil,
	}
	if o.deleted {
		o.deletion = meta.GetDeletionTimestamp().Time
	}
	o.orphans = o.orphaning()
	return o
}

// foreground tells whether the object stays until its dependents are gone.
func (o *object) foreground() bool {
	return o.deleted && slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents)
}

// orphaning tells whether the object stays until no dependent refers to it.
func (o *object) orphaning() bool {
	return o.deleted && slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents)
}

// begins tells whether the object begins to wait for its dependents.
func (o *object) begins(before *object) bool {
	return o.foreground() && (before == nil || !before.foreground()) ||
		o.orphaning() && (before == nil || !before.orphaning())
}

// sameState tells whether an object is the same as before for all that the graph says.
func (o *object) sameState(before *object) bool {
	return o.identity == before.identity && o.resource == before.resource &&
		o.deleted == before.deleted && slices.Equal(o.finalizers, before.finalizers) &&
		apiequality.Semantic.DeepEqual(o.owners, before.owners)
}

// isMeantBy tells whether a reference in a namespace is to this object, and not only to its UID.
func (o *object) isMeantBy(ref *metav1.OwnerReference, namespace string) bool {
	return o.uid == ref.UID && o.name == ref.Name && o.kind == kindOf(ref) &&
		(o.namespace == "" || o.namespace == namespace)
}

func kindOf(ref *metav1.OwnerReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
}

// standing is how an owner stands, as a reference sees it.
type standing int

const (
	unsure   standing = iota // the graph does not tell
	present                  // it exists
	waiting                  // it exists, is deleted, and waits until its dependents are gone
	absent                   // it does not exist
	released                 // it leaves its dependents without an owner
)

// graph has all objects that were observed, and who refers to whom. It is a pure data structure: it
// calls nobody, and does not lock.
type graph struct {
	objects map[types.UID]*object
	// dependents are, by the UID of an owner, which need not be known, the objects that refer to
	// it. blockers are those of them that block its deletion.
	dependents, blockers index
	// of are the objects by resource.
	of map[schema.GroupVersionResource]sets.Set[types.UID]
	// large are the resources that have too many objects: see passes. wanted are those of their
	// objects that are to be looked at, and passing is how many of them are in the graph.
	large   sets.Set[schema.GroupVersionResource]
	wanted  sets.Set[types.UID]
	passing int
}

// passes tells whether an object is in the graph only while a worker has something to do with it.
// Of large kinds, only what waits to be gone stays.
func (g *graph) passes(o *object) bool { return g.large.Has(o.resource) && !o.deleted }

// index are sets of objects, none of which is empty.
type index map[types.UID]sets.Set[types.UID]

func (i index) add(key, value types.UID) {
	if i[key] == nil {
		i[key] = sets.New[types.UID]()
	}
	i[key].Insert(value)
}

func (i index) remove(key, value types.UID) {
	if i[key].Delete(value); len(i[key]) == 0 {
		delete(i, key)
	}
}

func newGraph() *graph {
	return &graph{objects: map[types.UID]*object{}, dependents: index{}, blockers: index{},
		of:    map[schema.GroupVersionResource]sets.Set[types.UID]{},
		large: sets.New[schema.GroupVersionResource](), wanted: sets.New[types.UID]()}
}

// observe takes an object as it is now, and returns what has to be looked at.
func (g *graph) observe(o *object) sets.Set[types.UID] {
	look := sets.New[types.UID]()
	before := g.objects[o.uid]
	if before != nil {
		// Of the same deletion. Another one, or none, means that the past has come back.
		o.orphans = o.orphans || before.orphans && o.deletion.Equal(before.deletion)
		if o.sameState(before) {
			g.objects[o.uid] = o // in a newer version
			return look
		}
		g.unlink(before)
	}
	g.link(o)

	for i := range o.owners {
		if g.standing(o, &o.owners[i]) != present {
			look.Insert(o.uid)
		}
	}
	if o.foreground() || o.orphaning() {
		look.Insert(o.uid)
	}
	dependents := g.dependents[o.uid]
	switch {
	case o.begins(before):
		look = look.Union(dependents)
	case before == nil || before.identity != o.identity:
		// A dependent that was there first may mean another object.
		for d := range dependents {
			if !g.means(g.objects[d], o) {
				look.Insert(d)
			}
		}
	}
	g.freed(before, look)
	g.freed(o, look)
	return look
}

// forget takes away an object that was deleted, if it is known by this resource, and returns what
// has to be looked at.
func (g *graph) forget(resource schema.GroupVersionResource,
	uid types.UID) (gone *object, look sets.Set[types.UID]) {
	o := g.objects[uid]
	if o == nil || o.resource != resource {
		return nil, nil
	}
	g.unlink(o)
	look = sets.New(g.dependents[uid].UnsortedList()...)
	g.freed(o, look)
	return o, look
}

// freed adds the owners that may have waited for an object to change.
func (g *graph) freed(o *object, look sets.Set[types.UID]) {
	if o == nil {
		return
	}
	for i := range o.owners {
		owner := g.objects[o.owners[i].UID]
		if owner != nil && (owner.foreground() || owner.orphaning()) {
			look.Insert(owner.uid)
		}
	}
}

func (g *graph) link(o *object) {
	g.objects[o.uid] = o
	if g.passes(o) {
		g.passing++
	}
	if g.of[o.resource] == nil {
		g.of[o.resource] = sets.New[types.UID]()
	}
	g.of[o.resource].Insert(o.uid)
	for i := range o.owners {
		ref := &o.owners[i]
		g.dependents.add(ref.UID, o.uid)
		if ptr.Deref(ref.BlockOwnerDeletion, false) {
			g.blockers.add(ref.UID, o.uid)
		}
	}
}

func (g *graph) unlink(o *object) {
	delete(g.objects, o.uid)
	if g.passes(o) {
		g.passing--
	}
	if g.of[o.resource].Delete(o.uid); len(g.of[o.resource]) == 0 {
		delete(g.of, o.resource)
	}
	for i := range o.owners {
		g.dependents.remove(o.owners[i].UID, o.uid)
		g.blockers.remove(o.owners[i].UID, o.uid)
	}
}

// standing tells how an owner stands, as far as the graph knows. It never says that one is absent.
func (g *graph) standing(o *object, ref *metav1.OwnerReference) standing {
	owner := g.objects[ref.UID]
	switch {
	case owner == nil:
		return unsure
	case owner.orphans:
		return released
	case !owner.isMeantBy(ref, o.namespace):
		return unsure
	case owner.foreground():
		return waiting
	case g.passes(owner):
		return unsure // it was there once: a watch may have told that it went
	}
	return present
}

// means tells whether any reference of an object is to another one.
func (g *graph) means(o, owner *object) bool {
	return slices.ContainsFunc(o.owners, func(ref metav1.OwnerReference) bool {
		return owner.isMeantBy(&ref, o.namespace)
	})
}

// blocked tells whether an owner that is deleted in the foreground has to wait for any of its
// dependents. One that waits for this owner in turn is none, since both would wait for ever.
func (g *graph) blocked(owner *object) bool {
	for uid := range g.blockers[owner.uid] {
		if g.blocks(g.objects[uid], owner) {
			return true
		}
	}
	return false
}

// blocks tells whether an owner waits for a dependent whose reference blocks its deletion.
func (g *graph) blocks(d, owner *object) bool {
	return g.means(d, owner) && !(d.foreground() && g.waitsFor(d, owner))
}

// waitsFor tells whether an object that is deleted in the foreground waits for another one, over
// whatever others.
func (g *graph) waitsFor(from, to *object) bool {
	seen := sets.New(from.uid)
	for next := []types.UID{from.uid}; len(next) > 0; {
		uid := next[len(next)-1]
		next = next[:len(next)-1]
		if uid == to.uid {
			return true
		}
		for d := range g.blockers[uid] {
			if !seen.Has(d) && g.objects[d].foreground() {
				seen.Insert(d)
				next = append(next, d)
			}
		}
	}
	return false
}

// view is what a worker has to know of an object.
type view struct {
	*object
	standings []standing // of the owners
	// dependents says that there are any, elsewhere that an owner is known whose namespace is not
	// the object's.
	dependents bool
	elsewhere  *object
	// blocked says that a deletion in the foreground has to wait.
	blocked bool
}

// view returns the object as it is, or false if there is none.
func (g *graph) view(uid types.UID) (view, bool) {
	o := g.objects[uid]
	if o == nil {
		return view{}, false
	}
	v := view{object: o, standings: make([]standing, len(o.owners)),
		dependents: len(g.dependents[uid]) > 0}
	for i := range o.owners {
		v.standings[i] = g.standing(o, &o.owners[i])
		owner := g.objects[o.owners[i].UID]
		if owner != nil && owner.namespace != "" && owner.namespace != o.namespace {
			v.elsewhere = owner
		}
	}
	v.blocked = o.foreground() && g.blocked(o)
	return v, true
}

// decision is what is done with an object whose owners are all known. At most one of both is set.
type decision struct {
	// strip are the references that are removed.
	strip []metav1.OwnerReference
	// remove says that the object is deleted, and by which policy.
	remove metav1.DeletionPropagation
}

// decide says what is done with an object that is not deleted yet.
func decide(v view) decision {
	by := map[standing][]metav1.OwnerReference{}
	for i, s := range v.standings {
		by[s] = append(by[s], v.owners[i])
	}
	switch {
	case len(v.owners) == 0:
		return decision{}
	case len(by[released]) > 0:
		// The work for the other owners is seen when these references are gone.
		return decision{strip: by[released]}
	case len(by[present]) > 0:
		return decision{strip: append(by[absent], by[waiting]...)}
	case len(by[waiting]) > 0 && v.dependents:
		// The owner waits for the object, so the object waits for its own dependents.
		return decision{remove: metav1.DeletePropagationForeground}
	case slices.Contains(v.finalizers, metav1.FinalizerOrphanDependents):
		return decision{remove: metav1.DeletePropagationOrphan}
	case slices.Contains(v.finalizers, metav1.FinalizerDeleteDependents):
		return decision{remove: metav1.DeletePropagationForeground}
	}
	return decision{remove: metav1.DeletePropagationBackground}
}
