package crds

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"
)

// discover lists the groups of the outer server and of definitions in the inner one's list of
// groups, which is what clients are answered with that do not ask for everything at once.
func (e *extension) discover(inner *genericapiserver.GenericAPIServer,
	definitions *apiextensionsserver.CustomResourceDefinitions, taken sets.Set[string]) error {
	// Only the client's address in it is looked at.
	request, err := http.NewRequest(http.MethodGet, "/apis", nil)
	if err != nil {
		return err
	}
	// These are the server's own even if it does not serve them: what was stored by definitions in
	// their place would be roles and priorities as soon as it does, and what is stored in the
	// reserved group is nobody's business.
	own := sets.New(rbacv1.GroupName, flowcontrolv1.GroupName, reservedGroup)
	for _, server := range []*genericapiserver.GenericAPIServer{inner,
		definitions.GenericAPIServer} {
		groups, err := server.DiscoveryGroupManager.Groups(request.Context(), request)
		if err != nil {
			return fmt.Errorf("cannot list the server's groups: %w", err)
		}
		for _, g := range groups {
			if taken.Has(g.Name) {
				return fmt.Errorf("the group %s would be stored where the core API stores its "+
					"%s: give the group the name of a domain", g.Name, g.Name)
			}
			own.Insert(g.Name)
			g.ServerAddressByClientCIDRs = nil // filled in for each client
			inner.DiscoveryGroupManager.AddGroup(g)
		}
	}
	e.plugin.own.Store(&own)

	listed := &listedGroups{owns: e.plugin.owns, manager: inner.DiscoveryGroupManager,
		definitions: map[string]*apiextensionsv1.CustomResourceDefinition{}}
	_,
		err = definitions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { listed.set(obj.(*apiextensionsv1.CustomResourceDefinition)) },
		UpdateFunc: func(_, obj any) {
			listed.set(obj.(*apiextensionsv1.CustomResourceDefinition))
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if d, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
				listed.remove(d)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("cannot watch the definitions: %w", err)
	}
	return nil
}

// listedGroups keeps a list of groups up to date with the definitions that there are.
type listedGroups struct {
	owns    func(group string) bool // which groups are listed in any case
	manager discovery.GroupManager
	mu      sync.Mutex
	// the ones that are served, by name
	definitions map[string]*apiextensionsv1.CustomResourceDefinition
}

func (l *listedGroups) set(d *apiextensionsv1.CustomResourceDefinition) {
	if l.owns(d.Spec.Group) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
		delete(l.definitions, d.Name)
	} else {
		l.definitions[d.Name] = d
	}
	l.list(d.Spec.Group)
}

func (l *listedGroups) remove(d *apiextensionsv1.CustomResourceDefinition) {
	if l.owns(d.Spec.Group) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.definitions, d.Name)
	l.list(d.Spec.Group)
}

// list lists a group with the versions that any of its definitions serves, the preferred one first.
func (l *listedGroups) list(group string) {
	served := sets.New[string]()
	for _, d := range l.definitions {
		if d.Spec.Group != group {
			continue
		}
		for _, v := range d.Spec.Versions {
			if v.Served {
				served.Insert(v.Name)
			}
		}
	}
	if served.Len() == 0 {
		l.manager.RemoveGroup(group)
		return
	}
	names := served.UnsortedList()
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(-version.CompareKubeAwareVersionStrings(a, b), cmp.Compare(a, b))
	})
	listed := metav1.APIGroup{Name: group}
	for _, name := range names {
		listed.Versions = append(listed.Versions,
			metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + name, Version: name})
	}
	listed.PreferredVersion = listed.Versions[0]
	l.manager.AddGroup(listed)
}
