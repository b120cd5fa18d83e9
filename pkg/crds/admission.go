package crds

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
)

// admit puts the plugins that guard namespaces, call webhooks and enforce policies before the
// plugins that the configuration has, and the one for quotas after them.
func admit(c *genericapiserver.Config, client kubernetes.Interface,
	factory informers.SharedInformerFactory, services definitions.Services,
	quotas admission.Interface) (*plugin, error) {
	dynamicClient, err := dynamic.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	own := c.AdmissionControl
	err = genericoptions.NewAdmissionOptions().ApplyTo(c, factory, client, dynamicClient,
		utilfeature.DefaultFeatureGate, c.EffectiveVersion,
		webhookinit.NewPluginInitializer(withoutCredentials, services))
	if err != nil {
		return nil, fmt.Errorf("cannot set up admission: %w", err)
	}
	ours := &plugin{}
	chain := []admission.Interface{c.AdmissionControl, ours}
	if own != nil {
		chain = append(chain, own)
	}
	chain = append(chain, admissionmetrics.WithControllerMetrics(quotas, resourcequota.PluginName))
	c.AdmissionControl = admission.NewChainHandler(chain...)
	return ours, nil
}

// withoutCredentials calls webhooks without credentials. Upstream's wrapper gives the server's own
// ones, with which everything may be done, to what is named kubernetes.default.svc, and the
// resolver below it gives those of the pod that the server runs in. In a cluster that is the server
// itself.
// Here the name belongs to nobody, or to the cluster around the pod, so that somebody else answers
// for it; and the authority that such a webhook is trusted by comes from whoever defines the
// webhook.
func withoutCredentials(
	resolver webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	bare := func(c *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		return rest.AnonymousClientConfig(c), nil
	}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			return bare(resolver.ClientConfigFor(hostPort))
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			return bare(resolver.ClientConfigForService(name, namespace, port))
		},
	}
}

// plugin is the admission plugin of this package. It refuses definitions in groups that the server
// has without definitions: in a cluster they would be accepted and not be served; here their
// objects would also be stored where those of the server are. And it keeps out of the database what
// only this server shall see of a definition.
type plugin struct {
	own   atomic.Pointer[sets.Set[string]] // the server's groups
	asked atomic.Bool
}

var (
	_ admission.MutationInterface   = &plugin{}
	_ admission.ValidationInterface = &plugin{}
)

// whoIsThere is an operation that no request has.
const whoIsThere admission.Operation = "WHO-IS-THERE"

func (p *plugin) Handles(o admission.Operation) bool {
	if o == whoIsThere {
		p.asked.Store(true)
		return false
	}
	return o == admission.Create || o == admission.Update
}

// isIn tells whether requests that a chain admits come to the plugin. Chains ask each of their
// plugins for what it handles, until one says that it does.
func (p *plugin) isIn(chain admission.Interface) bool {
	p.asked.Store(false)
	if chain != nil {
		chain.Handles(whoIsThere)
	}
	return p.asked.Load()
}

// owns tells whether a group is the server's own.
func (p *plugin) owns(group string) bool {
	own := p.own.Load()
	return own != nil && own.Has(group)
}

func isDefinition(a admission.Attributes, subresource string) bool {
	return a.GetResource().GroupResource() == apiextensions.Resource("customresourcedefinitions") &&
		a.GetSubresource() == subresource
}

// Admit mends what upstream's controllers write into a definition's status, since what they have
// read was changed by shown.
//
// It also says that a definition is Established whose names are accepted, when upstream's finalizer
// says that it begins to delete the objects: of one that is not Established the finalizer would
// delete none, though a server may have created some and ended before it could take them back. See
// [definitionGuard].
func (p *plugin) Admit(_ context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Update || !isDefinition(a, "status") {
		return nil
	}
	definition, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	old, wasOne := a.GetOldObject().(*apiextensions.CustomResourceDefinition)
	if !ok || !wasOne {
		return apierrors.NewInternalError(fmt.Errorf("a definition is a %T, and was a %T",
			a.GetObject(), a.GetOldObject()))
	}
	if p.owns(definition.Spec.Group) {
		for _, c := range notServed(definition.Spec.Group) {
			apiextensions.SetCRDCondition(definition, c)
		}
		// A later server without the group accepts the names anew.
		definition.Status.AcceptedNames = apiextensions.CustomResourceDefinitionNames{}
	}
	if old.DeletionTimestamp != nil &&
		apiextensions.IsCRDConditionTrue(definition, apiextensions.Terminating) &&
		apiextensions.IsCRDConditionTrue(definition, apiextensions.NamesAccepted) {
		apiextensions.SetCRDCondition(definition, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Established, Status: apiextensions.ConditionTrue,
			Reason:  "InitialNamesAccepted",
			Message: "the initial names have been accepted"})
	}
	for i := range definition.Status.Conditions {
		c := &definition.Status.Conditions[i]
		if was := apiextensions.FindCRDCondition(old, c.Type); was != nil &&
			was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *plugin) Validate(_ context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Create || !isDefinition(a, "") {
		return nil
	}
	definition, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("a definition is a %T", a.GetObject()))
	}
	if p.own.Load() == nil || p.owns(definition.Spec.Group) {
		return admission.NewForbidden(a, fmt.Errorf("the group %s belongs to the server itself: "+
			"choose another spec.group", definition.Spec.Group))
	}
	return nil
}
