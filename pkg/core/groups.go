package core

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Install makes a server serve the core API, stored where the getter says.
func Install(server *genericapiserver.GenericAPIServer, getter generic.RESTOptionsGetter) error {
	core, err := newNamespaces(getter)
	if err != nil {
		return fmt.Errorf("cannot make the namespaces: %w", err)
	}
	admission, err := newPolicies(getter)
	if err != nil {
		return fmt.Errorf("cannot make the validatingadmissionpolicies: %w", err)
	}
	coordination := map[string]rest.Storage{}
	for _, r := range []struct {
		into map[string]rest.Storage
		name string
		new  func(generic.RESTOptionsGetter) (*store, error)
	}{
		{core, "configmaps", configMaps.store},
		{core, "secrets", secrets.store},
		{core, "serviceaccounts", serviceAccounts.store},
		{core, "events", events.store},
		{coordination, "leases", leases.store},
		{admission, "mutatingwebhookconfigurations", mutatingWebhooks.store},
		{admission, "validatingwebhookconfigurations", validatingWebhooks.store},
		{admission, "validatingadmissionpolicybindings", policyBindings.store},
	} {
		if r.into[r.name], err = r.new(getter); err != nil {
			return fmt.Errorf("cannot make the %s: %w", r.name, err)
		}
	}
	legacy := group(corev1.SchemeGroupVersion, core)
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, legacy); err != nil {
		return fmt.Errorf("cannot install the core API: %w", err)
	}
	// Events are the same in both groups: there is one store, with one watch cache.
	both := map[string]rest.Storage{"events": core["events"]}
	err = server.InstallAPIGroups(group(admissionv1.SchemeGroupVersion, admission), group(coordinationv1.SchemeGroupVersion, coordination),
		group(eventsv1.SchemeGroupVersion, both))
	if err != nil {
		return fmt.Errorf("cannot install the groups of the core API: %w", err)
	}
	return nil
}

func group(version schema.GroupVersion, resources map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(version.Group, Scheme, ParameterCodec, Codecs)
	info.VersionedResourcesStorageMap[version.Version] = resources
	return &info
}
