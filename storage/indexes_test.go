package storage

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// podAttributes selects pods by the node, too.
func podAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	p := obj.(*example.Pod)
	return p.Labels, fields.Set{"metadata.name": p.Name, "spec.nodeName": p.Spec.NodeName}, nil
}

// indexedPods are pods with the declarations of indexes.
func indexedPods(t testing.TB, store *Store) *objectStore {
	t.Helper()
	c := podConfig()
	c.Attributes = podAttributes
	return open(t, store, c)
}

// declare declares indexes.
func declare(t testing.TB, r *objectStore, names ...string) {
	t.Helper()
	if _, err := r.mvcc.ChangeIndexes(t.Context(), func(x *contract.Indexes) (bool, error) {
		for _, name := range names {
			if err := x.Add(contract.Directory{Path: r.keys.all(), Resource: "pods"}, name); err != nil {
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// built waits until all indexes are ready.
func built(t testing.TB, r *objectStore) {
	t.Helper()
	eventually(t, "the indexes to be built", func() bool {
		x, err := r.mvcc.RefreshIndexes(t.Context())
		return err == nil && !slices.ContainsFunc(x.All,
			func(d contract.Index) bool { return d.State != contract.IndexReady })
	})
}

// selecting is a list of the pods that selectors take.
func selecting(t testing.TB, label, field string) apistorage.ListOptions {
	t.Helper()
	l, err := labels.Parse(label)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fields.ParseSelector(field)
	if err != nil {
		t.Fatal(err)
	}
	return apistorage.ListOptions{Recursive: true, Predicate: apistorage.SelectionPredicate{Label: l,
		Field: f, GetAttrs: podAttributes}}
}

// TestListsByIndex compares lists by an index with what a list of all objects says, at random
// revisions, by random selectors and pages, while two processes write random objects: one that
// knows what objects say, and one by etcd's API, which does not. Meanwhile indexes are declared,
// dropped and built.
func TestListsByIndex(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := indexedPods(t, openDatabase(t, d, mvcc.Config{}))
		other := r
		if d.Kind != dbtest.Memory {
			other = indexedPods(t, openDatabase(t, d, mvcc.Config{}))
		}
		rng := rand.New(rand.NewPCG(5, 6))
		declared := []string{"label:app", "label:tier", "field:spec.nodeName"}
		apps, nodes := []string{"", "a", "b", "c"}, []string{"", "n1", "n2"}
		random := func(p *example.Pod) {
			p.Labels = map[string]string{"other": strconv.Itoa(rng.IntN(3))}
			for _, key := range []string{"app", "tier"} {
				if rng.IntN(3) > 0 {
					p.Labels[key] = apps[rng.IntN(len(apps))]
				}
			}
			p.Spec.NodeName = nodes[rng.IntN(len(nodes))]
		}
		write := func(s *objectStore) { writeRandomly(t, rng, s, 60, random) }
		used := 0
		compare := func(s *objectStore, revisions []string) {
			t.Helper()
			opts := selecting(t, []string{"", "app=a", "app in (a,b),tier=c", "app", "tier=", "!app",
				"app!=a", "other=1,app=b", "app in (a,b,c),app!=b"}[rng.IntN(9)],
				[]string{"", "spec.nodeName=n1", "spec.nodeName=", "spec.nodeName!=n1"}[rng.IntN(4)])
			if rng.IntN(2) == 0 {
				opts.ResourceVersion = revisions[rng.IntN(len(revisions))]
				opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
			}
			if found := s.candidates(&opts.Predicate); len(found) > 0 && !opts.Predicate.Empty() {
				used++
			}
			plain := opts
			plain.Predicate = apistorage.Everything
			if opts.Predicate.Limit = int64(rng.IntN(8)); rng.IntN(3) == 0 {
				opts.Predicate.Limit = 0
			}
			// All of it is at the revision of the first page.
			first := listBy(t, s, opts)
			plain.ResourceVersion = first.ResourceVersion
			plain.ResourceVersionMatch = metav1.ResourceVersionMatchExact
			var want []string
			for _, p := range listBy(t, s, plain).Items {
				if ok, err := opts.Predicate.Matches(&p); err != nil {
					t.Fatal(err)
				} else if ok {
					want = append(want, p.Name+"@"+p.ResourceVersion)
				}
			}
			var got []string
			for page := first; ; page = listBy(t, s, opts) {
				if opts.Predicate.Limit > 0 && len(page.Items) > int(opts.Predicate.Limit) {
					t.Fatalf("a page has %d objects", len(page.Items))
				}
				for _, p := range page.Items {
					got = append(got, p.Name+"@"+p.ResourceVersion)
				}
				if page.Continue == "" {
					break
				}
				opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
				opts.Predicate.Continue = page.Continue
				write(r)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("the list by %s and %s with the limit %d at %q is\n%q, not\n%q",
					opts.Predicate.Label, opts.Predicate.Field, opts.Predicate.Limit,
					plain.ResourceVersion, got, want)
			}
		}
		var revisions []string
		for round := range 8 {
			switch round {
			case 1:
				declare(t, r, declared...)
			case 3:
				if _, err := other.mvcc.ChangeIndexes(t.Context(), func(x *contract.Indexes) (bool, error) {
					x.Drop(r.keys.all(), declared[0])
					return true, x.Add(contract.Directory{Path: r.keys.all()}, declared[0])
				}); err != nil {
					t.Fatal(err)
				}
			case 5:
				if _, err := r.mvcc.ChangeIndexes(t.Context(), func(x *contract.Indexes) (bool, error) {
					return x.BuildAnew(), nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 40 {
				write([]*objectStore{r, other}[i%2])
				if i%5 == 0 {
					revisions = append(revisions, listBy(t, r, selecting(t, "", "")).ResourceVersion)
				}
				compare([]*objectStore{r, other}[rng.IntN(2)], revisions)
			}
			if round%2 == 0 && round > 0 {
				built(t, r)
				built(t, other)
				agree(t, r)
			}
		}
		if used < 50 {
			t.Errorf("an index was used by %d lists only", used)
		}
	})
}

// writeRandomly creates, updates or deletes one of some pods, or writes it as etcd's API does:
// nobody knows what such a value says.
func writeRandomly(t testing.TB, rng *rand.Rand, s *objectStore, pods int, random func(*example.Pod)) {
	t.Helper()
	p := pod(numbered(rng.IntN(pods)))
	switch rng.IntN(6) {
	case 0:
		_ = s.Delete(t.Context(), podKey(p.Name), &example.Pod{}, nil,
			apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{})
	case 1:
		random(p)
		data, err := s.objects.serialize(p)
		if err != nil {
			t.Fatal(err)
		}
		store(t, s, p.Name, data)
	case 2:
		random(p)
		_ = s.Create(t.Context(), podKey(p.Name), p, &example.Pod{}, 0)
	default:
		if err := s.GuaranteedUpdate(t.Context(), podKey(p.Name), &example.Pod{}, true, nil,
			changing(func(changed *example.Pod) error {
				changed.Namespace, changed.Name = p.Namespace, p.Name
				random(changed)
				return nil
			}), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// store writes a value as etcd's API does.
func store(t testing.TB, s *objectStore, name string, value []byte) {
	t.Helper()
	k, err := s.keys.object(podKey(name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.mvcc.Commit(t.Context(), contract.Mutation{Key: k, Value: value,
		Expect: contract.Any}); err != nil {
		t.Fatal(err)
	}
}

// listBy is list with the selectors of the options.
func listBy(t testing.TB, s apistorage.Interface, opts apistorage.ListOptions) *example.PodList {
	t.Helper()
	opts.Recursive = true
	out := &example.PodList{}
	if err := s.GetList(t.Context(), "/pods", opts, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// agree checks that the index says of each object what the object does, or that it does not know
// it.
func agree(t testing.TB, r *objectStore) {
	t.Helper()
	x := r.mvcc.Indexes()
	all := listBy(t, r, apistorage.ListOptions{Predicate: apistorage.Everything})
	for _, d := range x.In(r.keys.all()) {
		entries := map[contract.Entry]bool{contract.UnknownEntry(d.ID): true}
		said := map[string][]contract.Entry{}
		for i := range all.Items {
			found, _ := r.entriesUnder([]*contract.Index{d}, &all.Items[i])
			said[all.Items[i].Name] = found
			for _, e := range found {
				entries[e] = true
			}
		}
		has := map[string][]contract.Entry{}
		for e := range entries {
			res, err := r.mvcc.Range(t.Context(), mvcc.RangeOptions{Start: r.keys.all(),
				End: r.keys.all()[:len(r.keys.all())-1] + "0",
				By:  &mvcc.IndexQuery{Generation: x.Generation, Entries: []contract.Entry{e}}})
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range res.KVs {
				name := string(kv.Key[len(r.keys.all())+len("ns/"):])
				has[name] = append(has[name], e)
			}
		}
		for name, want := range said {
			slices.Sort(has[name])
			slices.Sort(want)
			if !slices.Equal(has[name], want) &&
				!slices.Equal(has[name], []contract.Entry{contract.UnknownEntry(d.ID)}) {
				t.Fatalf("the index %s has %q of %s, which says %q", d.Name, has[name], name, want)
			}
		}
	}
}

// TestEncryptedHasNoIndex: a server drops an index of objects that it encrypts, and writes no value
// of them into it.
func TestEncryptedHasNoIndex(t *testing.T) {
	store := memory(t)
	c := podConfig()
	c.Transformer = xorTransformer{}
	r := open(t, store, c)
	p := pod("a")
	p.Labels = map[string]string{"app": "secret"}
	found, _ := r.entriesUnder([]*contract.Index{{ID: 1, Name: "label:app"}}, p)
	if !slices.Equal(found, []contract.Entry{contract.UnknownEntry(1)}) {
		t.Errorf("an index has %q of an encrypted object", found)
	}
	declare(t, r, "label:app")
	create(t, r, p)
	eventually(t, "the index to be dropped", func() bool {
		x, err := r.mvcc.RefreshIndexes(t.Context())
		return err == nil && len(x.All) == 0
	})
	if got := listBy(t, r, selecting(t, "app=secret", "")); len(got.Items) != 1 {
		t.Errorf("%d objects are listed", len(got.Items))
	}
}

// TestIndexNames is about what can be declared.
func TestIndexNames(t *testing.T) {
	for name, ok := range map[string]bool{"label:app": true, "label:example.com/app": true,
		"field:spec.nodeName": true, "app": false, "label:": false, "field:": false, "label:a b": false} {
		if err := checkIndexName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestIndexesBesideWriters declares and drops an index, while writers of two processes write, each
// of which learns of it at another time. Objects that nobody changes are in every list. In the end
// the index says what the objects do.
func TestIndexesBesideWriters(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		stores := []*objectStore{indexedPods(t, openDatabase(t, d, mvcc.Config{}))}
		if d.Kind != dbtest.Memory {
			stores = append(stores, indexedPods(t, openDatabase(t, d, mvcc.Config{})))
		}
		const stable = 20
		for i := range stable {
			p := pod("stable-" + numbered(i))
			p.Labels = map[string]string{"app": "stable"}
			create(t, stores[0], p)
		}
		g, ctx := errgroup.WithContext(t.Context())
		var writers sync.WaitGroup
		for n := range 4 {
			writers.Add(1)
			g.Go(func() error {
				defer writers.Done()
				s, rng := stores[n%len(stores)], rand.New(rand.NewPCG(uint64(n), 1))
				for range 150 {
					name := numbered(rng.IntN(30))
					err := s.GuaranteedUpdate(ctx, podKey(name), &example.Pod{}, true, nil,
						changing(func(p *example.Pod) error {
							p.Namespace, p.Name = "ns", name
							p.Labels = map[string]string{"app": strconv.Itoa(rng.IntN(3))}
							return nil
						}), nil)
					if rng.IntN(4) == 0 && err == nil {
						err = s.Delete(ctx, podKey(name), &example.Pod{}, nil,
							apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{})
					}
					if err != nil && !apistorage.IsNotFound(err) {
						return err
					}
				}
				return nil
			})
		}
		written := make(chan struct{})
		go func() { writers.Wait(); close(written) }()
		directory := stores[0].keys.all()
		rebuilt := 0
		for done := false; !done; rebuilt++ {
			select {
			case <-written:
				done = true
			default:
			}
			if _, err := stores[rebuilt%len(stores)].mvcc.ChangeIndexes(ctx,
				func(x *contract.Indexes) (bool, error) {
					x.Drop(directory, "label:app")
					return true, x.Add(contract.Directory{Path: directory}, "label:app")
				}); err != nil {
				t.Error(err)
				break
			}
			for range 5 {
				for _, s := range stores {
					if got := listBy(t, s, selecting(t, "app=stable", "")); len(got.Items) != stable {
						t.Fatalf("a list has %d of %d objects", len(got.Items), stable)
					}
				}
			}
			built(t, stores[rebuilt%len(stores)])
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, s := range stores {
			built(t, s)
			agree(t, s)
		}
	})
}

// TestCachedListByIndex: a list of a few objects of many is read by an index, and not from the
// watch cache, and one of many is not.
func TestCachedListByIndex(t *testing.T) {
	store := memory(t)
	g := getter(t, store, RESTOptions{})
	s, destroy := decorate(t, restOptions(t, g, cachedResource))
	t.Cleanup(destroy)
	eventually(t, "the watch cache to be filled", func() bool { return s.ReadinessCheck() == nil })
	below := s.(badRequests).Interface.(*cachedStore)
	for i := range 20 {
		p := pod(numbered(i))
		p.Labels = map[string]string{"app": strconv.Itoa(i / 19)}
		if err := s.Create(t.Context(), cachedPrefix+"/ns/"+p.Name, p, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	listOf := func(label, resourceVersion string) (n int, byIndex bool) {
		t.Helper()
		opts := selecting(t, label, "")
		opts.ResourceVersion = resourceVersion
		out := &example.PodList{}
		done, err := below.listByIndex(t.Context(), cachedPrefix, opts, out)
		if err != nil {
			t.Fatal(err)
		}
		whole := &example.PodList{}
		if err := s.GetList(t.Context(), cachedPrefix, opts, whole); err != nil {
			t.Fatal(err)
		}
		if done && len(out.Items) != len(whole.Items) {
			t.Fatalf("an index has %d objects, and the list %d", len(out.Items), len(whole.Items))
		}
		return len(whole.Items), done
	}
	if n, by := listOf("app=1", ""); n != 1 || by {
		t.Errorf("without an index: %d objects, %t", n, by)
	}
	declare(t, below.log, "label:app")
	built(t, below.log)
	for _, version := range []string{"", "0"} {
		if n, by := listOf("app=1", version); n != 1 || !by {
			t.Errorf("with an index, at %q: %d objects, %t", version, n, by)
		}
	}
	opts := selecting(t, "app=1", "")
	for name, change := range map[string]func(){
		"exact": func() {
			opts.ResourceVersion = "2"
			opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
		},
		"a following page": func() { opts.Predicate.Continue = "token" },
	} {
		opts = selecting(t, "app=1", "")
		change()
		if done, err := below.listByIndex(t.Context(), cachedPrefix, opts, &example.PodList{}); done || err != nil {
			t.Errorf("%s: a list is read by an index, %v", name, err)
		}
	}
	in, err := below.log.listRange(cachedPrefix, selecting(t, "app=0", ""))
	if err != nil {
		t.Fatal(err)
	}
	pred := selecting(t, "app=0", "").Predicate
	if by, err := below.log.byIndex(t.Context(), &in, &pred, 19); by != nil || err != nil {
		t.Errorf("19 objects are read where 19 are too many, %v", err)
	}
	if by, err := below.log.byIndex(t.Context(), &in, &pred, 20); by == nil || err != nil {
		t.Errorf("19 objects are not read by an index, where 20 are too many, %v", err)
	}
}

// TestWithoutFields: a store that does not know by which fields objects are selected writes one
// that has the field, and another store lists it by the index of that.
func TestWithoutFields(t *testing.T) {
	store := memory(t)
	knows, without := indexedPods(t, store), pods(t, store)
	declare(t, knows, "field:spec.nodeName")
	built(t, knows)
	for i, s := range []*objectStore{knows, without} {
		p := pod(numbered(i))
		p.Spec.NodeName = "n1"
		create(t, s, p)
	}
	opts := selecting(t, "", "spec.nodeName=n1")
	if found := knows.candidates(&opts.Predicate); len(found) != 1 {
		t.Fatal("the list does not use the index")
	}
	if got := listBy(t, knows, opts); len(got.Items) != 2 {
		t.Errorf("the list has %d objects", len(got.Items))
	}
}

// TestIndexOfAnotherProgram: a program that may find other fields does not use an index that
// another one has built. It has it built anew, once, and the other one does without it from then
// on.
func TestIndexOfAnotherProgram(t *testing.T) {
	store := memory(t)
	old := indexedPods(t, store)
	declare(t, old, "field:spec.nodeName", "label:app")
	built(t, old)
	written := pod("a")
	written.Spec.NodeName = "n1"
	create(t, old, written)
	uses := func(s *objectStore) bool {
		pred := selecting(t, "", "spec.nodeName=n1").Predicate
		found := s.candidates(&pred)
		return len(found) == 1
	}
	if !uses(old) {
		t.Fatal("the program does not use its own index")
	}
	// The new program shows each node in capitals.
	c := podConfig()
	c.Attributes = func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := podAttributes(obj)
		f["spec.nodeName"] = strings.ToUpper(f["spec.nodeName"])
		return l, f, err
	}
	s, destroy, err := store.newResourceOf(c, func() string { return "another" })
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	eventually(t, "the new program to claim the index", func() bool { return uses(s) })
	built(t, s)
	if uses(old) {
		t.Error("the old program uses the index of the new one")
	}
	if found := s.candidates(&apistorage.SelectionPredicate{Label: selecting(t, "app=a", "").Predicate.Label,
		Field: fields.Everything()}); len(found) != 1 {
		t.Error("an index of a label is another program's")
	}
	written = pod("b")
	written.Spec.NodeName = "n1"
	create(t, old, written)
	opts := selecting(t, "", "spec.nodeName=N1")
	opts.Predicate.GetAttrs = c.Attributes
	if got := listBy(t, s, opts); len(got.Items) != 2 {
		t.Errorf("the new program lists %d objects, not 2", len(got.Items))
	}
	if got := listBy(t, old, selecting(t, "", "spec.nodeName=n1")); len(got.Items) != 2 {
		t.Errorf("the old program lists %d objects, not 2", len(got.Items))
	}
}

// TestOldListsByIndex: a list at a revision of the past reads no object that was changed since, if
// the log has what it said to the index. That is so of an object that was built into the index,
// too. A list without the index has all objects afterwards.
func TestOldListsByIndex(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := indexedPods(t, openDatabase(t, d, mvcc.Config{}))
		const objects = 40
		relabel := func(round int) (resourceVersion string) {
			for i := range objects {
				name := numbered(i)
				if err := r.GuaranteedUpdate(t.Context(), podKey(name), &example.Pod{}, true, nil,
					changing(func(p *example.Pod) error {
						p.Namespace, p.Name = "ns", name
						p.Labels = map[string]string{"app": strconv.Itoa((i + round) % 10)}
						return nil
					}), nil); err != nil {
					t.Fatal(err)
				}
			}
			return listBy(t, r, selecting(t, "", "")).ResourceVersion
		}
		// read is how many rows a list at a revision reads.
		read := func(resourceVersion string) int {
			t.Helper()
			opts := selecting(t, "app=3", "")
			opts.ResourceVersion, opts.ResourceVersionMatch = resourceVersion, metav1.ResourceVersionMatchExact
			in, err := r.listRange("/pods", opts)
			if err != nil {
				t.Fatal(err)
			}
			if in.by, err = r.byIndex(t.Context(), &in, &opts.Predicate, 0); err != nil || in.by == nil {
				t.Fatalf("the list does not use the index, %v", err)
			}
			rows := 0
			for chunk, err := range r.chunks(t.Context(), in) {
				if err != nil {
					t.Fatal(err)
				}
				rows += len(chunk.KVs)
			}
			if got := listBy(t, r, opts); len(got.Items) != objects/10 {
				t.Errorf("the list has %d objects, not %d", len(got.Items), objects/10)
			}
			opts.Predicate = apistorage.Everything
			if got := listBy(t, r, opts); len(got.Items) != objects {
				t.Errorf("the list of all has %d objects, not %d", len(got.Items), objects)
			}
			return rows
		}
		first := relabel(0)
		second := relabel(1)
		declare(t, r, "label:app")
		built(t, r)
		third := relabel(2)
		relabel(3)
		for i, test := range []struct {
			resourceVersion string
			rows            int
		}{
			{first, objects}, // its objects were changed before the index was ready
			{second, objects / 10}, {third, objects / 10},
		} {
			if n := read(test.resourceVersion); n != test.rows {
				t.Errorf("the list of the state %d reads %d rows, not %d", i+1, n, test.rows)
			}
		}
	})
}

// TestIndexesOfThePrograms: a program declares its indexes when it starts. Another one, which does
// not name them, leaves them alone. One that a person has dropped stays so until a program starts.
func TestIndexesOfThePrograms(t *testing.T) {
	store := memory(t)
	g := getter(t, store, RESTOptions{})
	names := func() (names []string) {
		t.Helper()
		x, err := database.Engine(store.db).RefreshIndexes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range x.All {
			if d.State != contract.IndexDropping {
				names = append(names, d.Resource+" "+d.Name+" "+d.State)
			}
		}
		return names
	}
	started := 0
	start := func(want []string, indexes ...string) (stop func()) {
		t.Helper()
		s, destroy := decorate(t, restOptions(t, WithIndexes(g, indexes...), cachedResource))
		eventually(t, "the indexes to be declared", func() bool { return slices.Equal(names(), want) })
		p := pod(numbered(started))
		started++
		if err := s.Create(t.Context(), cachedPrefix+"/ns/"+p.Name, p, nil, 0); err != nil {
			t.Error(err)
		}
		return destroy
	}
	app := cachedResource.Resource + " label:app ready"
	tier := cachedResource.Resource + " label:tier ready"
	start(nil)()
	start([]string{app}, "label:app")()
	declared := database.Engine(store.db).Indexes().Generation
	start([]string{app}, "label:app")()
	if now := database.Engine(store.db).Indexes().Generation; now != declared {
		t.Errorf("what is declared is declared again: the generation %d became %d", declared, now)
	}
	stop := start([]string{app, tier}, "label:tier")
	if _, err := database.Engine(store.db).ChangeIndexes(t.Context(), func(x *contract.Indexes) (bool, error) {
		return x.Drop(x.All[1].Directory, "label:tier"), nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rows of the index to be gone", func() bool {
		x, err := database.Engine(store.db).RefreshIndexes(t.Context())
		return err == nil && len(x.All) == 1
	})
	stop()
	start([]string{app, tier}, "label:tier", "label:app")()
	for _, wrong := range [][]string{{"app"}, {"label:app", "label:app"},
		{"label:1", "label:2", "label:3", "label:4", "label:5", "label:6", "label:7", "label:8", "label:9"}} {
		if _, _, err := store.Resource(ResourceConfig{Codec: podConfig().Codec, ResourcePrefix: "/wrong",
			Indexes: wrong}); err == nil {
			t.Errorf("a resource has the indexes %q", wrong)
		}
	}
	// Objects that are encrypted have none, and the log says so.
	c := podConfig()
	c.Transformer, c.ResourcePrefix = xorTransformer{}, "/secret"
	s := open(t, store, c)
	if err := s.declareIndexes([]string{"label:app"}); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{app, tier}) {
		t.Errorf("the indexes are %q", got)
	}
}
