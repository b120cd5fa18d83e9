package kinds

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
	"github.com/rowkeeper/rowkeeper/pkg/options"
)

// Group is an API group.
type Group struct {
	// Name is that of a domain, such as example.com.
	Name string
	// Versions are the versions that are served, such as v1 and v1beta1, the preferred one first.
	// Objects are stored in the first, so that a version can only come to its place after every
	// server that works on the database knows it. An object changes to it when it is next written:
	// a version that is left out while objects are stored in it makes these unreadable until it is
	// back.
	Versions []string
	// Kinds are the group's, each made by [Define].
	Kinds []Definition
	// Generated are functions that Kubernetes' generators have written for the types of the kinds,
	// such as v1.RegisterValidations, which validation-gen makes of markers. The functions for the
	// type of a version are asked about requests of this version, before all that [Strategy] says.
	// The functions for the type T of a [Kind] are also asked about requests of versions for whose
	// types nothing is generated.
	Generated runtime.SchemeBuilder
}

// API is what an API server with these groups is made of.
type API struct {
	// Scheme and Codecs know the types of all groups.
	Scheme *runtime.Scheme
	Codecs serializer.CodecFactory
	// Definitions lets the program of [API.Command] serve CustomResourceDefinitions, too, where the
	// flag --enable-crds asks for it: crds.Prepare does. It is nil unless the caller sets it.
	Definitions definitions.Prepare

	groups []completedGroup
}

type completedGroup struct {
	Group
	kinds []kind
}

// New checks the groups and makes the API. Its error says what is wrong with the first group that
// cannot be served.
func New(groups ...Group) (*API, error) {
	scheme := runtime.NewScheme()
	a := &API{Scheme: scheme, Codecs: serializer.NewCodecFactory(scheme)}
	if len(groups) == 0 {
		return nil, errors.New("an API needs a group")
	}
	// Every API server answers with these kinds and takes these options, whatever its groups are.
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	for _, g := range groups {
		if err := a.add(g); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *API) add(g Group) error {
	switch wrong := validation.IsDNS1123Subdomain(g.Name); {
	case g.Name == "":
		return errors.New("a group has no name: give Group.Name, such as example.com")
	case len(wrong) > 0:
		return fmt.Errorf("the group cannot be named %q: %s", g.Name, wrong[0])
	case slices.ContainsFunc(a.groups, func(other completedGroup) bool {
		return other.Name == g.Name
	}):
		return fmt.Errorf("the group %s is there twice", g.Name)
	case len(g.Versions) == 0:
		return fmt.Errorf("the group %s has no versions: give Group.Versions, such as v1", g.Name)
	case len(g.Kinds) == 0:
		return fmt.Errorf("the group %s has no kinds: give Group.Kinds", g.Name)
	}
	for i, version := range g.Versions {
		if wrong := validation.IsDNS1035Label(version); len(wrong) > 0 {
			return fmt.Errorf("the group %s cannot have a version %q: %s", g.Name,
				version, wrong[0])
		}
		if slices.Contains(g.Versions[:i], version) {
			return fmt.Errorf("the group %s has the version %s twice", g.Name, version)
		}
	}
	done := completedGroup{Group: g}
	versions := groupVersions(g.Name, g.Versions)
	for _, gv := range versions {
		metav1.AddToGroupVersion(a.Scheme, gv)
	}
	if err := g.Generated.AddToScheme(a.Scheme); err != nil {
		return fmt.Errorf("a function of Group.Generated of the group %s fails: %w", g.Name, err)
	}
	resources := map[string]string{} // by all that they are called
	for _, d := range g.Kinds {
		if d.complete == nil {
			return fmt.Errorf("the group %s has a Definition that Define has not made", g.Name)
		}
		k, err := d.complete(g.Name, g.Versions)
		if err != nil {
			return err
		}
		name, resource, others := k.names()
		if slices.ContainsFunc(done.kinds, func(other kind) bool {
			n, _, _ := other.names()
			return n == name
		}) {
			return fmt.Errorf("group %s has two kinds %s", g.Name, name)
		}
		if other, ok := resources[resource]; ok {
			return fmt.Errorf("the kinds %s and %s of group %s are both the resource %s: give "+
				"one of them Kind.Resource", other, name, g.Name, resource)
		}
		if err := k.addTo(a.Scheme); err != nil {
			return err
		}
		for _, called := range append(others, resource) {
			if other, ok := resources[called]; ok {
				return fmt.Errorf("the resources of the kinds %s and %s of group %s can both be "+
					"called %s: change the name of one of them", other, name, g.Name, called)
			}
			resources[called] = name
		}
		done.kinds = append(done.kinds, k)
	}
	if err := a.Scheme.SetVersionPriority(versions...); err != nil {
		return err
	}
	a.groups = append(a.groups, done)
	return nil
}

// NewConfig returns a configuration in which everything is set that follows from the groups. Where
// and for whom it is served, and where it is stored, is for the caller to set.
func (a *API) NewConfig() *genericapiserver.RecommendedConfig {
	c := genericapiserver.NewRecommendedConfig(a.Codecs)
	c.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	openapi.Describe(&c.Config, a.OpenAPI, openapi.NamesOf(a.Scheme))
	openapi.Title(&c.Config, a.groups[0].Name, a.groups[0].Versions[0])
	return c
}

// New makes a server with all groups, that stores where c.RESTOptionsGetter says. It is not ready
// before its watch caches are filled.
func (a *API) New(
	c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
	getter := c.RESTOptionsGetter
	if getter == nil {
		return nil, errors.New("the server has no storage: call StorageOptions.ApplyTo, or set " +
			"RESTOptionsGetter")
	}
	options.ServeRewrites(&c.Config)
	server, err := c.Complete().New(a.groups[0].Name, genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("cannot make the API server: %w", err)
	}
	groups, err := a.GroupInfos(getter)
	if err != nil {
		return nil, err
	}
	if err := server.InstallAPIGroups(groups...); err != nil {
		return nil, fmt.Errorf("cannot install the API groups: %w", err)
	}
	if discovery := server.AggregatedDiscoveryGroupManager; discovery != nil {
		// Otherwise clients would prefer v2 to v1, in whatever order the group names them.
		for _, g := range a.groups {
			for i, version := range g.Versions {
				discovery.SetGroupVersionPriority(metav1.GroupVersion{Group: g.Name,
					Version: version}, 0, len(g.Versions)-i)
			}
		}
	}
	if err := server.AddPostStartHook("storage-readiness",
		server.StorageReadinessHook.Hook); err != nil {
		return nil, err
	}
	return server, nil
}

// GroupInfos makes the groups' resources, stored as the getter says, for a server that has others
// besides. There the version that sounds newest is preferred by clients, until the server's
// AggregatedDiscoveryGroupManager is told otherwise.
func (a *API) GroupInfos(
	getter generic.RESTOptionsGetter) ([]*genericapiserver.APIGroupInfo, error) {
	var infos []*genericapiserver.APIGroupInfo
	for _, g := range a.groups {
		info := genericapiserver.NewDefaultAPIGroupInfo(g.Name, a.Scheme,
			runtime.NewParameterCodec(a.Scheme), a.Codecs)
		info.NegotiatedSerializer = withoutProtobuf{info.NegotiatedSerializer}
		for _, version := range g.Versions {
			info.VersionedResourcesStorageMap[version] = map[string]rest.Storage{}
		}
		for _, k := range g.kinds {
			versions, err := k.storage(a.Scheme, getter)
			if err != nil {
				return nil, err
			}
			for version, resources := range versions {
				for name, storage := range resources {
					info.VersionedResourcesStorageMap[version][name] = storage
				}
			}
		}
		infos = append(infos, &info)
	}
	return infos, nil
}

// withoutProtobuf does not offer protobuf, in which a [List] cannot be encoded. Clients that prefer
// it, such as kube-controller-manager, are then answered in what they accept besides.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	types := slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes())
	return slices.DeleteFunc(types, func(t runtime.SerializerInfo) bool {
		return t.MediaType == runtime.ContentTypeProtobuf
	})
}

// groupVersions returns those of a group.
func groupVersions(group string, versions []string) []schema.GroupVersion {
	gvs := make([]schema.GroupVersion, len(versions))
	for i, v := range versions {
		gvs[i] = schema.GroupVersion{Group: group, Version: v}
	}
	return gvs
}
