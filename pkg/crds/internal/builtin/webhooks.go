package builtin

import (
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/util/webhook"
)

func admissionResource(name string) schema.GroupResource {
	return admissionv1.SchemeGroupVersion.WithResource(name).GroupResource()
}

var webhookColumns = []metav1.TableColumnDefinition{{Name: "Webhooks", Type: "integer",
	Description: "How many webhooks there are."}}

var mutatingWebhooks = resource[*admissionv1.MutatingWebhookConfiguration]{
	resource:      admissionResource("mutatingwebhookconfigurations"),
	singular:      admissionResource("mutatingwebhookconfiguration"),
	clusterScoped: true,
	new: func() *admissionv1.MutatingWebhookConfiguration {
		return &admissionv1.MutatingWebhookConfiguration{}
	},
	newList: func() runtime.Object { return &admissionv1.MutatingWebhookConfigurationList{} },
	name:    validation.NameIsDNSSubdomain,
	prepare: func(c, old *admissionv1.MutatingWebhookConfiguration) {
		c.Generation = 1
		if old != nil {
			c.Generation = nextGeneration(old.Generation, c.Webhooks, old.Webhooks)
		}
	},
	needsVersion: true,
	validate: func(c, old *admissionv1.MutatingWebhookConfiguration) (errs field.ErrorList) {
		stored := sets.New[string]()
		if old != nil {
			for _, h := range old.Webhooks {
				noteConditions(stored, h.MatchConditions)
			}
		}
		names := sets.New[string]()
		for i, h := range c.Webhooks {
			path := field.NewPath("webhooks").Index(i)
			errs = append(errs, checkHook(path, names, h.Name, h.ClientConfig, h.Rules,
				h.SideEffects, h.AdmissionReviewVersions, h.FailurePolicy, h.MatchPolicy,
				h.NamespaceSelector, h.ObjectSelector, h.TimeoutSeconds)...)
			errs = append(errs, checkHookConditions(path.Child("matchConditions"),
				h.MatchConditions, stored)...)
			if p := h.ReinvocationPolicy; p != nil && *p != admissionv1.NeverReinvocationPolicy &&
				*p != admissionv1.IfNeededReinvocationPolicy {
				errs = append(errs, field.NotSupported(path.Child("reinvocationPolicy"), *p,
					[]admissionv1.ReinvocationPolicyType{admissionv1.IfNeededReinvocationPolicy,
						admissionv1.NeverReinvocationPolicy}))
			}
		}
		return errs
	},
	columns: webhookColumns,
	cells: func(c *admissionv1.MutatingWebhookConfiguration) []any {
		return []any{int64(len(c.Webhooks))}
	},
}

var validatingWebhooks = resource[*admissionv1.ValidatingWebhookConfiguration]{
	resource:      admissionResource("validatingwebhookconfigurations"),
	singular:      admissionResource("validatingwebhookconfiguration"),
	clusterScoped: true,
	new: func() *admissionv1.ValidatingWebhookConfiguration {
		return &admissionv1.ValidatingWebhookConfiguration{}
	},
	newList: func() runtime.Object { return &admissionv1.ValidatingWebhookConfigurationList{} },
	name:    validation.NameIsDNSSubdomain,
	prepare: func(c, old *admissionv1.ValidatingWebhookConfiguration) {
		c.Generation = 1
		if old != nil {
			c.Generation = nextGeneration(old.Generation, c.Webhooks, old.Webhooks)
		}
	},
	needsVersion: true,
	validate: func(c, old *admissionv1.ValidatingWebhookConfiguration) (errs field.ErrorList) {
		stored := sets.New[string]()
		if old != nil {
			for _, h := range old.Webhooks {
				noteConditions(stored, h.MatchConditions)
			}
		}
		names := sets.New[string]()
		for i, h := range c.Webhooks {
			path := field.NewPath("webhooks").Index(i)
			errs = append(errs, checkHook(path, names, h.Name, h.ClientConfig, h.Rules,
				h.SideEffects, h.AdmissionReviewVersions, h.FailurePolicy, h.MatchPolicy,
				h.NamespaceSelector, h.ObjectSelector, h.TimeoutSeconds)...)
			errs = append(errs, checkHookConditions(path.Child("matchConditions"),
				h.MatchConditions, stored)...)
		}
		return errs
	},
	columns: webhookColumns,
	cells: func(c *admissionv1.ValidatingWebhookConfiguration) []any {
		return []any{int64(len(c.Webhooks))}
	},
}

func nextGeneration(generation int64, wanted, old any) int64 {
	if unchanged(wanted, old) {
		return generation
	}
	return generation + 1
}

// checkHook checks what both kinds of webhooks have.
func checkHook(path *field.Path, names sets.Set[string], name string,
	client admissionv1.WebhookClientConfig, rules []admissionv1.RuleWithOperations,
	sideEffects *admissionv1.SideEffectClass, reviews []string,
	failure *admissionv1.FailurePolicyType, match *admissionv1.MatchPolicyType,
	namespaces, objects *metav1.LabelSelector, timeout *int32,
) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(path.Child("name"), name)
	if names.Has(name) {
		errs = append(errs, field.Duplicate(path.Child("name"), name))
	}
	names.Insert(name)

	switch at := path.Child("clientConfig"); {
	case (client.URL == nil) == (client.Service == nil):
		errs = append(errs, field.Required(at, "exactly one of url or service is required"))
	case client.URL != nil:
		errs = append(errs, webhook.ValidateWebhookURL(at.Child("url"), *client.URL, true)...)
	default:
		port := int32(443)
		if client.Service.Port != nil {
			port = *client.Service.Port
		}
		errs = append(errs, webhook.ValidateWebhookService(at.Child("service"), client.Service.Name,
			client.Service.Namespace, client.Service.Path, port)...)
	}
	for i, r := range rules {
		errs = append(errs, checkRule(path.Child("rules").Index(i), r)...)
	}
	if sideEffects == nil {
		errs = append(errs, field.Required(path.Child("sideEffects"),
			"must specify one of None, NoneOnDryRun"))
	}
	errs = append(errs, oneOf(path.Child("sideEffects"), sideEffects,
		admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun)...)
	errs = append(errs, oneOf(path.Child("failurePolicy"), failure, admissionv1.Fail,
		admissionv1.Ignore)...)
	errs = append(errs, oneOf(path.Child("matchPolicy"), match, admissionv1.Equivalent,
		admissionv1.Exact)...)

	at := path.Child("admissionReviewVersions")
	if len(reviews) == 0 {
		errs = append(errs, field.Required(at, "must specify one of v1, v1beta1"))
	} else if !sets.New(reviews...).HasAny("v1", "v1beta1") {
		errs = append(errs, field.Invalid(at, reviews, "must include at least one of v1, v1beta1"))
	}
	errs = append(errs, checkSelector(path.Child("namespaceSelector"), namespaces)...)
	errs = append(errs, checkSelector(path.Child("objectSelector"), objects)...)
	if timeout != nil && (*timeout < 1 || *timeout > 30) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *timeout,
			"the timeout value must be between 1 and 30 seconds"))
	}
	return errs
}

func noteConditions(expressions sets.Set[string], conditions []admissionv1.MatchCondition) {
	for _, c := range conditions {
		expressions.Insert(c.Expression)
	}
}

// checkHookConditions checks the conditions under which a webhook is called. What they may cost is
// bounded when they are evaluated. Expressions that were stored before are not compiled again, so
// that a configuration stays writable if a later compiler is stricter.
func checkHookConditions(path *field.Path, conditions []admissionv1.MatchCondition,
	stored sets.Set[string]) field.ErrorList {
	return checkConditions(path, conditions,
		func(at *field.Path, c *matchconditions.MatchCondition) field.ErrorList {
			if stored.Has(c.Expression) {
				return nil
			}
			return compile(at, hookCompiler(), c,
				plugincel.OptionalVariableDeclarations{HasAuthorizer: true})
		})
}

// hookCompiler is the one that the plugins which call webhooks have.
var hookCompiler = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(baseEnvironment())
})

// checkRule checks one of the rules by which webhooks and policies say what they are for.
func checkRule(path *field.Path, r admissionv1.RuleWithOperations) (errs field.ErrorList) {
	errs = append(errs, checkAll(path.Child("operations"), r.Operations)...)
	for i, o := range r.Operations {
		known := []admissionv1.OperationType{admissionv1.OperationAll, admissionv1.Connect,
			admissionv1.Create, admissionv1.Delete, admissionv1.Update}
		errs = append(errs, oneOf(path.Child("operations").Index(i), &o, known...)...)
	}
	errs = append(errs, checkAll(path.Child("apiGroups"), r.APIGroups)...)
	errs = append(errs, checkAll(path.Child("apiVersions"), r.APIVersions)...)
	for i, v := range r.APIVersions {
		if v == "" {
			errs = append(errs, field.Required(path.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, checkResources(path.Child("resources"), r.Resources)...)
	return append(errs, oneOf(path.Child("scope"), r.Scope, admissionv1.AllScopes,
		admissionv1.ClusterScope, admissionv1.NamespacedScope)...)
}

// checkAll wants values, and none besides the one that means all.
func checkAll[T ~string](path *field.Path, values []T) field.ErrorList {
	if len(values) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(values) > 1 && slices.Contains(values, "*") {
		return field.ErrorList{field.Invalid(path, values, "'*' means all: name nothing else")}
	}
	return nil
}

// checkResources wants resources and subresources, and none besides what means it, too.
func checkResources(path *field.Path, resources []string) (errs field.ErrorList) {
	if len(resources) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	all := sets.New[string]() // what was named before with a '*' for one half
	plain := false
	for i, name := range resources {
		resource, sub, hasSub := strings.Cut(name, "/")
		switch {
		case name == "":
			errs = append(errs, field.Required(path.Index(i), ""))
		case !hasSub:
			plain = plain || name != "*"
		case all.Has(resource + "/*"), all.Has("*/" + sub):
			errs = append(errs, field.Invalid(path.Index(i), name, "another one means it, too"))
		}
		if hasSub && (resource == "*" || sub == "*") {
			all.Insert(name)
		}
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(path, resources, "'*/*' means all: name nothing else"))
	}
	if plain && slices.Contains(resources, "*") {
		errs = append(errs, field.Invalid(path, resources,
			"'*' means all resources: name only subresources besides"))
	}
	return errs
}

// oneOf refuses a value that is set and not known.
func oneOf[T ~string](path *field.Path, value *T, known ...T) field.ErrorList {
	if value == nil || sets.New(known...).Has(*value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *value, known)}
}
