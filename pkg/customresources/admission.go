package customresources

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// admit puts the plugins that guard namespaces, call webhooks and enforce policies before those that the configuration has.
func admit(c *genericapiserver.Config, client kubernetes.Interface, factory informers.SharedInformerFactory, wrapper webhook.AuthenticationInfoResolverWrapper,
) (*ownGroups, error) {
	dynamicClient, err := dynamic.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	own := c.AdmissionControl
	o := genericoptions.NewAdmissionOptions()
	// Mutating policies would be resources that are not served.
	o.DisablePlugins = []string{mutatingpolicy.PluginName}
	err = o.ApplyTo(c, factory, client, dynamicClient, utilfeature.DefaultFeatureGate, c.EffectiveVersion,
		webhookinit.NewPluginInitializer(wrapper, noServices{}))
	if err != nil {
		return nil, fmt.Errorf("cannot set up admission: %w", err)
	}
	groups := &ownGroups{}
	chain := []admission.Interface{c.AdmissionControl, groups}
	if own != nil {
		chain = append(chain, own)
	}
	c.AdmissionControl = admission.NewChainHandler(chain...)
	return groups, nil
}

// noServices is the resolver of a server whose Services nobody runs: webhooks are called by URL.
type noServices struct{}

func (noServices) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("services"), name)
}

// ownGroups refuses definitions in groups that the server has without definitions. In a cluster they would be accepted and not be served; here their
// objects would also be stored where those of the server are.
type ownGroups struct {
	names atomic.Pointer[sets.Set[string]]
}

var _ admission.ValidationInterface = &ownGroups{}

func (g *ownGroups) Handles(o admission.Operation) bool { return o == admission.Create }

func (g *ownGroups) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != apiextensions.Resource("customresourcedefinitions") || a.GetSubresource() != "" {
		return nil
	}
	definition, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("a definition is a %T", a.GetObject()))
	}
	if names := g.names.Load(); names == nil || names.Has(definition.Spec.Group) {
		return admission.NewForbidden(a, fmt.Errorf("the group %s belongs to the server itself: choose another spec.group", definition.Spec.Group))
	}
	return nil
}
