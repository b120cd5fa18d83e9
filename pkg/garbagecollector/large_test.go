package garbagecollector

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata/fake"
)

// largeThings is a term whose things are a large kind, and the database has some of them. Its
// workers are the test.
func largeThings(t *testing.T, stored ...string) *term {
	t.Helper()
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleMetadataClient(scheme)
	for _, text := range stored {
		o := parse(text)
		m := &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Thing"},
			ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.name, UID: o.uid,
				ResourceVersion: "2", OwnerReferences: o.owners, Finalizers: o.finalizers}}
		if o.deleted {
			now := metav1.Now()
			m.DeletionTimestamp = &now
		}
		if err := client.Tracker().Create(things, m, o.namespace); err != nil {
			t.Fatal(err)
		}
	}
	x := newTerm(&Collector{metadata: client, options: Options{Database: noDependents{}}})
	x.served = &served{mapper: meta.NewDefaultRESTMapper(nil)}
	x.graph.large.Insert(things)
	x.watched[things] = &watched{term: x, resource: things, kind: thing, stop: func() {},
		again: make(chan struct{}, 1)}
	return x
}

// noDependents is a database that finds nothing.
type noDependents struct{}

func (noDependents) IndexOwners(context.Context, schema.GroupResource) (bool, error) {
	return true, nil
}

func (noDependents) Dependents(context.Context, schema.GroupResource, types.UID, bool,
	string) ([]types.NamespacedName, string, error) {
	return nil, "", nil
}

// work looks at what there is to look at, other than the owner f.
func (t *term) work(test *testing.T) {
	test.Helper()
	for t.queue.Len() > 0 {
		uid, _ := t.queue.Get()
		if uid != "f" {
			if done, err := t.look(test.Context(), uid); err != nil || !done {
				test.Fatalf("%s: %v, %v", uid, done, err)
			}
			t.release(uid)
		}
		t.queue.Done(uid)
	}
}

// A page is older than what a watch has told: what it says of an object is not believed.
func TestStalePages(t *testing.T) {
	for name, test := range map[string]struct {
		stored []string
		page   string
		kept   bool
	}{
		"the object is gone":               {nil, "x !f", false},
		"it is gone, and was deleted":      {nil, "x !f: orphan", false},
		"it has no owners any more":        {[]string{"x"}, "x !f", false},
		"it is deleted by now":             {[]string{"x !f: foreground"}, "x !f", true},
		"it had a finalizer, and has none": {[]string{"x"}, "x: foreground", false},
	} {
		t.Run(name, func(t *testing.T) {
			x := largeThings(t, test.stored...)
			x.observe(parse("f: foreground"))
			x.consider(parse(test.page))
			x.work(t)
			x.graph.wanted.Delete("f")
			if _, kept := x.graph.objects["x"]; kept != test.kept {
				t.Errorf("it is in the graph: %v", kept)
			}
			if blocked := x.graph.blocked(x.graph.objects["f"]); blocked != test.kept {
				t.Errorf("it blocks its owner: %v", blocked)
			}
			if n := x.graph.passing + x.unproven.Len() + x.graph.wanted.Len(); n != 0 {
				t.Errorf("%d objects pass, %v in doubt, %v wanted", x.graph.passing, x.unproven,
					x.graph.wanted)
			}
		})
	}
}

// After a gap of a watch, what the graph has of the kind is read again.
func TestDoubt(t *testing.T) {
	x := largeThings(t, "a !f")
	x.observe(parse("f: foreground"))
	x.observe(parse("a !f: foreground"))
	x.observe(parse("b !f: foreground"))
	if !x.graph.blocked(x.graph.objects["f"]) {
		t.Fatal("nothing blocks the owner")
	}
	x.mu.Lock()
	x.doubt(x.watched[things])
	x.mu.Unlock()
	x.work(t)
	if x.graph.objects["b"] != nil {
		t.Error("an object is in the graph that went in the gap")
	}
	if o := x.graph.objects["a"]; o != nil && o.deleted {
		t.Error("an object is deleted in the graph, and was brought back in the gap")
	}
}

// noIndex is a database whose kinds can have no index any more.
type noIndex struct{}

func (noIndex) IndexOwners(context.Context, schema.GroupResource) (bool, error) { return false, nil }

func (noIndex) Dependents(context.Context, schema.GroupResource, types.UID, bool,
	string) ([]types.NamespacedName, string, error) {
	return nil, "", errors.New("there is no index")
}

// A large kind that can have no index any more is watched anew, and no owner is finalized before
// its objects are known.
func TestNoLongerLarge(t *testing.T) {
	x := largeThings(t)
	x.options.Database = noIndex{}
	if _, err := x.hasDependents(t.Context(), "f"); err == nil {
		t.Error("nobody says that the dependents are not known")
	}
	if len(x.watched)+x.graph.large.Len() > 0 || len(x.changed) != 1 {
		t.Error("the kind is not to be watched anew")
	}
	if x.complete() {
		t.Error("the graph is taken to be complete")
	}
}

// oneDependent is a database in which one object refers to each owner.
type oneDependent struct {
	noDependents
	dependent types.NamespacedName
}

func (d oneDependent) Dependents(context.Context, schema.GroupResource, types.UID, bool,
	string) ([]types.NamespacedName, string, error) {
	return []types.NamespacedName{d.dependent}, "", nil
}

// An owner whose dependents are to stay is finalized when no dependent refers to it any more.
// Otherwise a collector that begins after that, and knows nothing of the owner, would delete
// them.
func TestOrphansLoseTheirReferences(t *testing.T) {
	x := largeThings(t, "f: orphan", "x f")
	o := parse("x f")
	x.options.Database = oneDependent{dependent: types.NamespacedName{Namespace: o.namespace,
		Name: o.name}}
	x.observe(parse("f: orphan"))
	if done, err := x.look(t.Context(), "f"); done || err != nil {
		t.Errorf("the owner was finalized, or will be looked at no more: %v, %v", done, err)
	}
	x.options.Database = noDependents{}
	x.release("f")
	if done, err := x.look(t.Context(), "f"); !done || err != nil {
		t.Errorf("the owner has no dependents, and is not finalized: %v, %v", done, err)
	}
}
