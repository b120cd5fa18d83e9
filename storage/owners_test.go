package storage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

var podResource = schema.GroupResource{Group: "example.com", Resource: "pods"}

// largePods is a store of pods without a watch cache.
func largePods(t testing.TB, store *Store, o RESTOptions) apistorage.Interface {
	t.Helper()
	o.WatchCacheDisabledFor = []schema.GroupResource{podResource}
	s, destroy := decorate(t, restOptions(t, getter(t, store, o), podResource))
	t.Cleanup(destroy)
	return s
}

// opened is the store that largePods has made.
func opened(s *Store) *objectStore {
	r, _ := s.large.of(podResource)
	return r
}

// TestDependents: the objects that name an owner are found, whichever owners they have had before,
// and those that were written before there was an index.
func TestDependents(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store := openDatabase(t, d, mvcc.Config{})
		s := largePods(t, store, RESTOptions{})
		rng := rand.New(rand.NewPCG(7, 8))
		uid := func(i int) types.UID { return types.UID(fmt.Sprint("owner-", i)) }
		owners := func() (refs []metav1.OwnerReference) {
			n := rng.IntN(4)
			if rng.IntN(10) == 0 {
				n = mostOwners + 1
			}
			for range n {
				ref := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "o",
					UID: uid(rng.IntN(5))}
				if rng.IntN(2) == 0 {
					ref.BlockOwnerDeletion = ptr.To(rng.IntN(2) == 0)
				}
				refs = append(refs, ref)
			}
			return refs
		}
		there := map[string][]metav1.OwnerReference{}
		write := func() {
			name := fmt.Sprint("pod", rng.IntN(30))
			key := "/example.com/pods/ns/" + name
			var err error
			switch _, ok := there[name]; {
			case !ok:
				p := pod(name)
				p.OwnerReferences = owners()
				there[name] = p.OwnerReferences
				err = s.Create(t.Context(), key, p, nil, 0)
			case rng.IntN(4) == 0:
				delete(there, name)
				err = s.Delete(t.Context(), key, &example.Pod{}, nil, apistorage.ValidateAllObjectFunc,
					nil, apistorage.DeleteOptions{})
			default:
				there[name] = owners()
				err = s.GuaranteedUpdate(t.Context(), key, &example.Pod{}, false, nil,
					changing(func(p *example.Pod) error {
						p.OwnerReferences = there[name]
						return nil
					}), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 60 {
			write()
		}
		if ok, err := store.IndexOwners(t.Context(), podResource); !ok || err != nil {
			t.Fatal(ok, err)
		}
		built(t, opened(store))
		for range 100 {
			write()
			owner, blocking := uid(rng.IntN(6)), rng.IntN(2) == 0
			found, next, err := store.Dependents(t.Context(), podResource, owner, blocking, "")
			if err != nil || next != "" {
				t.Fatalf("%q, %v", next, err)
			}
			for name, refs := range there {
				wanted := slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
					return r.UID == owner && (!blocking || ptr.Deref(r.BlockOwnerDeletion, false))
				})
				is := slices.Contains(found, types.NamespacedName{Namespace: "ns", Name: name})
				if wanted && !is || is && !wanted && len(refs) <= mostOwners {
					t.Fatalf("%s, blocking %v: %s with %v is found: %v", owner, blocking, name, refs, is)
				}
			}
		}
	})
}

// TestDependentsByPages: more dependents than a page has are found, each once.
func TestDependentsByPages(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.SQLite), mvcc.Config{})
	s := largePods(t, store, RESTOptions{})
	if ok, err := store.IndexOwners(t.Context(), podResource); !ok || err != nil {
		t.Fatal(ok, err)
	}
	const n = 2*ownersPage + 1
	var creating sync.WaitGroup
	for i := range n {
		creating.Go(func() {
			p := pod(fmt.Sprint("pod", i))
			p.OwnerReferences = []metav1.OwnerReference{{UID: "owner"}}
			if err := s.Create(t.Context(), "/example.com/pods/ns/"+p.Name, p, nil, 0); err != nil {
				t.Error(err)
			}
		})
	}
	creating.Wait()
	built(t, opened(store))
	found := map[types.NamespacedName]bool{}
	pages := 0
	for from, more := "", true; more; more = from != "" {
		names, next, err := store.Dependents(t.Context(), podResource, "owner", false, from)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if found[name] {
				t.Errorf("%s is found again", name)
			}
			found[name] = true
		}
		from = next
		pages++
	}
	if len(found) != n || pages != 3 {
		t.Errorf("%d of %d, in %d pages", len(found), n, pages)
	}
}

// TestIndexOwners: only a resource without a watch cache that can have one more index is indexed by
// owners, and no list is sorted by them.
func TestIndexOwners(t *testing.T) {
	indexed := func(t *testing.T, prepare func(*Store)) (*Store, bool) {
		t.Helper()
		store := openDatabase(t, dbtest.Open(t, dbtest.Memory), mvcc.Config{})
		prepare(store)
		ok, err := store.IndexOwners(t.Context(), podResource)
		if err != nil {
			t.Fatal(err)
		}
		return store, ok
	}
	for name, test := range map[string]struct {
		prepare func(*Store)
		want    bool
	}{
		"large": {func(s *Store) { largePods(t, s, RESTOptions{}) }, true},
		"without any watch cache": {func(s *Store) {
			_, destroy := decorate(t, restOptions(t, getter(t, s, RESTOptions{DisableWatchCache: true}),
				podResource))
			t.Cleanup(destroy)
		}, false},
		"not named": {func(*Store) {}, false},
		"encrypted": {func(s *Store) {
			largePods(t, s, RESTOptions{Transformers: transformers{podResource: xorTransformer{}}})
		}, false},
		"with as many indexes as there may be": {func(s *Store) {
			largePods(t, s, RESTOptions{})
			declare(t, opened(s), "label:a", "label:b", "label:c", "label:d", "label:e",
				"label:f", "label:g", "label:h")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			store, ok := indexed(t, test.prepare)
			if ok != test.want {
				t.Errorf("indexed: %v", ok)
			}
			if _, _, err := store.Dependents(t.Context(), podResource, "owner", false, ""); err == nil &&
				!test.want {
				t.Error("dependents are found without an index")
			}
			if r := opened(store); r != nil {
				err := r.GetList(WithSort(t.Context(), &Sort{By: ownersIndex}), "/example.com/pods",
					selecting(t, "", ""), &example.PodList{})
				if !apierrors.IsBadRequest(err) {
					t.Errorf("a list that is sorted by owners: %v", err)
				}
			}
		})
	}
}

// TestIndexOwnersOfWhatIsNotOpened: nobody takes a large resource for a small one because its store
// is made later.
func TestIndexOwnersOfWhatIsNotOpened(t *testing.T) {
	store := openDatabase(t, dbtest.Open(t, dbtest.Memory), mvcc.Config{})
	getter(t, store, RESTOptions{WatchCacheDisabledFor: []schema.GroupResource{podResource}})
	if _, err := store.IndexOwners(t.Context(), podResource); err == nil {
		t.Error("no error before the store is made")
	}
	largePods(t, store, RESTOptions{})
	if ok, err := store.IndexOwners(t.Context(), podResource); !ok || err != nil {
		t.Error(ok, err)
	}
}
