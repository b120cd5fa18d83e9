package builtin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/discovery"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	// These add their groups to the scheme.
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	admissionrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	configmaps "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	events "k8s.io/kubernetes/pkg/registry/core/event/storage"
	namespaces "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
	quotas "k8s.io/kubernetes/pkg/registry/core/resourcequota/storage"
	secrets "k8s.io/kubernetes/pkg/registry/core/secret/storage"
	serviceaccounts "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
)

var (
	// Scheme knows the types that are served.
	Scheme = legacyscheme.Scheme
	// Codecs encode and decode them.
	Codecs = legacyscheme.Codecs
)

// Serves tells whether a kind may be among those that [Install] serves.
func Serves(kind schema.GroupVersionKind) bool {
	switch kind.GroupVersion() {
	case corev1.SchemeGroupVersion:
		name := strings.TrimSuffix(kind.Kind, "List")
		return name == "Namespace" || name == "ConfigMap" || name == "Secret" || name == "Event" ||
			name == "ServiceAccount" || name == "ResourceQuota"
	case authenticationv1.SchemeGroupVersion:
		return kind.Kind == "TokenRequest"
	case admissionv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion,
		eventsv1.SchemeGroupVersion, flowcontrolv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion:
		return true
	}
	return false
}

// Options say what is served, and by whom it is judged.
type Options struct {
	// Authorizer is the server's, which may be nil. It is asked whether the author of a policy may
	// read the policy's parameters, and who may give rights away that they do not have.
	Authorizer authorizer.Authorizer
	// Discovery finds the resources of parameters. It is not asked before a policy is written.
	Discovery discovery.DiscoveryInterface
	// Roles and Priorities serve roles, and FlowSchemas with PriorityLevelConfigurations.
	Roles, Priorities bool
	// Tokens makes tokens for service accounts, for Audiences if requests name none. Webhooks has
	// the configurations of webhooks, which tokens may be bound to.
	Tokens    serviceaccount.TokenGenerator
	Audiences []string
	Webhooks  admissionclient.AdmissionregistrationV1Interface
}

// Installed is what [Install] has made.
type Installed struct {
	// Namespaces, Accounts and Secrets read from the database.
	Namespaces, Accounts, Secrets rest.Getter
	// Directories are where the objects of the group without a name are stored, below the server's
	// prefix: the names of the group's resources.
	Directories sets.Set[string]
}

// eventTTL is for how long an event is kept: as in a cluster.
const eventTTL = time.Hour

// Install makes a server serve the core API, stored where the getter says.
func Install(server *genericapiserver.GenericAPIServer, getter generic.RESTOptionsGetter,
	o Options) (*Installed, error) {
	core, err := newCore(getter, o)
	if err != nil {
		return nil, err
	}
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix,
		group(corev1.GroupName, core)); err != nil {
		return nil, fmt.Errorf("cannot install the core API: %w", err)
	}
	// Events are the same in both groups: there is one store, with one watch cache.
	groups := []*genericapiserver.APIGroupInfo{group(eventsv1.GroupName,
		map[string]rest.Storage{"events": core["events"]})}
	served := serverstorage.NewResourceConfig()
	served.EnableVersions(admissionv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion,
		flowcontrolv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion)
	providers := []interface {
		NewRESTStorage(serverstorage.APIResourceConfigSource,
			generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
	}{
		admissionrest.RESTStorageProvider{Authorizer: o.Authorizer, DiscoveryClient: o.Discovery},
		coordinationrest.RESTStorageProvider{},
	}
	if o.Roles {
		providers = append(providers, rbacrest.RESTStorageProvider{Authorizer: o.Authorizer})
	}
	if o.Priorities {
		providers = append(providers, flowcontrolrest.RESTStorageProvider{})
	}
	for _, p := range providers {
		info, err := p.NewRESTStorage(served, getter)
		if err != nil {
			return nil, fmt.Errorf("cannot make the groups of the core API: %w", err)
		}
		groups = append(groups, &info)
	}
	for _, info := range groups { // of the others, whose resources are not served, it would warn
		info.PrioritizedVersions = slices.DeleteFunc(info.PrioritizedVersions,
			func(v schema.GroupVersion) bool { return v.Version != "v1" })
	}
	if err := server.InstallAPIGroups(groups...); err != nil {
		return nil, fmt.Errorf("cannot install the groups of the core API: %w", err)
	}
	read := func(name string) rest.Getter { return core[name].(rest.Getter) }
	installed := &Installed{Namespaces: read("namespaces"), Accounts: read("serviceaccounts"),
		Secrets: read("secrets"), Directories: sets.New[string]()}
	for name := range core {
		resource, _, _ := strings.Cut(name, "/")
		installed.Directories.Insert(resource)
	}
	return installed, nil
}

// newCore makes the resources of the group without a name. Upstream's provider of them links what
// serves Pods and Nodes.
func newCore(getter generic.RESTOptionsGetter, o Options) (map[string]rest.Storage, error) {
	core := map[string]rest.Storage{}
	var err error
	add := func(name string, make func() (rest.Storage, error)) {
		if err == nil {
			core[name], err = make()
		}
	}
	add("configmaps", func() (rest.Storage, error) { return configmaps.NewREST(getter) })
	add("secrets", func() (rest.Storage, error) { return secrets.NewREST(getter) })
	add("events", func() (rest.Storage, error) {
		return events.NewREST(getter, uint64(eventTTL.Seconds()))
	})
	add("serviceaccounts", func() (rest.Storage, error) {
		secrets, ok := core["secrets"].(rest.Getter)
		if !ok {
			return nil, fmt.Errorf("secrets are a %T", core["secrets"])
		}
		s, err := serviceaccounts.NewREST(getter, o.Tokens, o.Audiences, o.Authorizer,
			definitions.TokenLifetime, absent("pods"), secrets, absent("nodes"),
			o.Webhooks.ValidatingWebhookConfigurations(), o.Webhooks.MutatingWebhookConfigurations(),
			false, 0)
		if err != nil {
			return nil, err
		}
		core["serviceaccounts/token"] = s.Token
		return s, nil
	})
	add("resourcequotas", func() (rest.Storage, error) {
		q, status, err := quotas.NewREST(getter)
		core["resourcequotas/status"] = status
		return q, err
	})
	add("namespaces", func() (rest.Storage, error) {
		n, status, finalize, err := namespaces.NewREST(getter)
		core["namespaces/status"], core["namespaces/finalize"] = status, finalize
		return n, err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the core API: %w", err)
	}
	return core, nil
}

// absent is a resource that is not served.
type absent string

func (a absent) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(corev1.Resource(string(a)), name)
}

// group makes a group that is served as v1.
func group(name string, resources map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(name, Scheme, legacyscheme.ParameterCodec,
		Codecs)
	info.VersionedResourcesStorageMap["v1"] = resources
	return &info
}
