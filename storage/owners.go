package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Objects by their owners. A garbage collector keeps a graph of owners and dependents in memory,
// which has no room for the objects of a resource without a watch cache
// ([RESTOptions.WatchCacheDisabledFor]). It asks the database for them: an index of the resource
// has the UIDs of the owners that its objects name. The index is one of those of indexes.go, but no
// list uses it, and only [Store.IndexOwners] declares it.

// ownersIndex is the name of the index.
const ownersIndex = "owners"

// mostOwners is how many owners of an object are in the index. One that has more is found by each
// owner, as if it were unknown.
const mostOwners = 16

// ownerEntries are what the index has of an object.
func ownerEntries(id uint32, owners []metav1.OwnerReference) (found []contract.Entry) {
	if len(owners) > mostOwners {
		return []contract.Entry{contract.UnknownEntry(id)}
	}
	for i := range owners {
		found = append(found, ownerEntry(id, owners[i].UID, false))
		if block := owners[i].BlockOwnerDeletion; block != nil && *block {
			found = append(found, ownerEntry(id, owners[i].UID, true))
		}
	}
	return found
}

// ownerEntry says that an object has an owner, or that it also blocks the deletion of that.
func ownerEntry(id uint32, owner types.UID, blocks bool) contract.Entry {
	if blocks {
		return contract.ValueEntry(id, "blocks/"+string(owner))
	}
	return contract.ValueEntry(id, string(owner))
}

// largeResources are the resources that are too large for a watch cache, each with the stores that
// were made of it. A server may make one only when somebody asks for the resource.
type largeResources struct {
	mu     sync.Mutex
	stores map[schema.GroupResource][]*objectStore
}

// name adds resources.
func (l *largeResources) name(resources []schema.GroupResource) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stores == nil {
		l.stores = map[schema.GroupResource][]*objectStore{}
	}
	for _, r := range resources {
		if _, named := l.stores[r]; !named {
			l.stores[r] = nil
		}
	}
}

// add adds a store, and returns what takes it away.
func (l *largeResources) add(r *objectStore) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stores[r.name] = append(l.stores[r.name], r)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stores[r.name] = slices.DeleteFunc(l.stores[r.name],
			func(o *objectStore) bool { return o == r })
	}
}

// of returns a store of the resource, nil if there is none, and whether that is a large one.
func (l *largeResources) of(resource schema.GroupResource) (r *objectStore, large bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stores, large := l.stores[resource]
	if len(stores) > 0 {
		r = stores[0] // those of other versions are the same objects
	}
	return r, large
}

// IndexOwners tells whether the objects of a resource are to be found by their owners: whether it
// is served without a watch cache, and can have an index; see [AddIndex]. If the database has no
// such index yet, it is declared. Servers build it while they go on. It is an error that nothing in
// this process has opened the resource yet, as servers of custom resources do when they are asked
// for one.
func (s *Store) IndexOwners(ctx context.Context, resource schema.GroupResource) (bool, error) {
	r, large := s.large.of(resource)
	switch {
	case !large:
		return false, nil
	case r == nil:
		return false, fmt.Errorf("%s was not opened yet: ask the server for it first", resource)
	case r.why(&contract.Index{Name: ownersIndex}) != "":
		return false, nil
	}
	if r.owners(r.mvcc.Indexes()) != nil {
		return true, nil
	}
	d := contract.Directory{Path: r.keys.all(), Group: r.name.Group, Resource: r.name.Resource}
	var refused error
	_, err := r.mvcc.ChangeIndexes(ctx, func(x *contract.Indexes) (bool, error) {
		if refused = nil; r.owners(x) != nil {
			return false, nil
		}
		refused = x.Add(d, ownersIndex)
		return refused == nil, nil
	})
	if err == nil && refused != nil {
		s.log.Error("the objects of a resource are not found by their owners", "resource",
			resourceName(resource), "reason", refused)
	}
	return err == nil && refused == nil, err
}

// owners is the index of the owners, nil if there is none.
func (r *objectStore) owners(x *contract.Indexes) *contract.Index {
	for _, d := range x.In(r.keys.all()) {
		if d.Name == ownersIndex {
			return d
		}
	}
	return nil
}

// ownersPage is how many dependents are read at a time.
const ownersPage = 500

// Dependents returns objects of a resource that may name the owner in their metadata, of those that
// have blockOwnerDeletion for it if blocking: none is missing. They are in the order of their keys.
// next is from where the call for more of them goes on, "" if there are no more. It is an error
// that the index, which [Store.IndexOwners] declares, is still being built.
func (s *Store) Dependents(ctx context.Context, resource schema.GroupResource, owner types.UID,
	blocking bool, from string) (found []types.NamespacedName, next string, err error) {
	r, _ := s.large.of(resource)
	if r == nil {
		return nil, "", fmt.Errorf("%s has a watch cache, or is not served", resource)
	}
	directory := r.keys.all()
	for {
		x := r.mvcc.Indexes()
		d := r.owners(x)
		if d == nil || d.State != contract.IndexReady { // this server may hear of it late
			if x, err = r.mvcc.RefreshIndexes(ctx); err != nil {
				return nil, "", err
			}
			d = r.owners(x)
		}
		switch {
		case d == nil:
			return nil, "", fmt.Errorf("the index of the owners of %s was dropped", resource)
		case d.State != contract.IndexReady:
			return nil, "", fmt.Errorf("the index of the owners of %s is being built", resource)
		}
		entries := []contract.Entry{ownerEntry(d.ID, owner, blocking), contract.UnknownEntry(d.ID)}
		slices.Sort(entries)
		page, err := r.mvcc.Range(ctx, mvcc.RangeOptions{Start: directory,
			End: contract.PrefixEnd(directory), From: contract.Key(from), Limit: ownersPage,
			KeysOnly: true, By: &mvcc.IndexQuery{Generation: x.Generation, Entries: entries,
				Since: d.Since}})
		if errors.Is(err, contract.ErrOtherIndexes) {
			if _, err = r.mvcc.RefreshIndexes(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, "", err
		}
		for i := range page.KVs {
			namespace, name := r.keys.named(page.KVs[i].Key)
			found = append(found, types.NamespacedName{Namespace: namespace, Name: name})
		}
		if n := len(page.KVs); page.More && n > 0 {
			next = string(database.After(page.KVs[n-1].Key))
		}
		return found, next, nil
	}
}
