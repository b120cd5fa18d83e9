package builtin

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
)

// Installed is what [Install] has made.
type Installed struct {
	// Namespaces reads namespaces from the database.
	Namespaces rest.Getter
	// Directories are where the objects of the group without a name are stored, below the server's
	// prefix: the names of the group's resources.
	Directories sets.Set[string]
}

// Install makes a server serve the core API, stored where the getter says. It serves roles if there
// is an authorizer for them, which is asked who may give rights away that they do not have. It
// serves FlowSchemas and PriorityLevelConfigurations if requests have priorities.
func Install(server *genericapiserver.GenericAPIServer, getter generic.RESTOptionsGetter,
	forRoles authorizer.Authorizer, priorities bool) (*Installed, error) {
	core, err := newNamespaces(getter)
	if err != nil {
		return nil, err
	}
	admission, err := newPolicies(getter)
	if err != nil {
		return nil, err
	}
	coordination := map[string]rest.Storage{}
	for _, r := range []struct {
		into map[string]rest.Storage
		name string
		new  func(generic.RESTOptionsGetter) (*registry.Store, error)
	}{
		{core, "configmaps", configMaps.store},
		{core, "secrets", secrets.store},
		{core, "serviceaccounts", serviceAccounts.store},
		{core, "events", events.store},
		{coordination, "leases", leases.store},
		{admission, "mutatingwebhookconfigurations", mutatingWebhooks.store},
		{admission, "validatingwebhookconfigurations", validatingWebhooks.store},
		{admission, "validatingadmissionpolicybindings", policyBindings.store},
		{admission, "mutatingadmissionpolicies", mutatingPolicies.store},
		{admission, "mutatingadmissionpolicybindings", mutatingPolicyBindings.store},
	} {
		if r.into[r.name], err = r.new(getter); err != nil {
			return nil, err
		}
	}
	legacy := group(corev1.SchemeGroupVersion, core)
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix,
		legacy); err != nil {
		return nil, fmt.Errorf("cannot install the core API: %w", err)
	}
	// Events are the same in both groups: there is one store, with one watch cache.
	both := map[string]rest.Storage{"events": core["events"]}
	groups := []*genericapiserver.APIGroupInfo{group(admissionv1.SchemeGroupVersion, admission),
		group(coordinationv1.SchemeGroupVersion, coordination),
		group(eventsv1.SchemeGroupVersion, both)}
	if forRoles != nil {
		rbac, err := newRoles(getter, forRoles)
		if err != nil {
			return nil, err
		}
		groups = append(groups, group(rbacv1.SchemeGroupVersion, rbac))
	}
	if priorities {
		flowcontrol, err := newPriorities(getter)
		if err != nil {
			return nil, err
		}
		groups = append(groups, group(flowcontrolv1.SchemeGroupVersion, flowcontrol))
	}
	if err := server.InstallAPIGroups(groups...); err != nil {
		return nil, fmt.Errorf("cannot install the groups of the core API: %w", err)
	}
	installed := &Installed{Namespaces: core["namespaces"].(rest.Getter),
		Directories: sets.New[string]()}
	for name := range core {
		resource, _, _ := strings.Cut(name, "/")
		installed.Directories.Insert(resource)
	}
	return installed, nil
}

func group(version schema.GroupVersion,
	resources map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(version.Group, Scheme, ParameterCodec, Codecs)
	info.VersionedResourcesStorageMap[version.Version] = resources
	return &info
}
