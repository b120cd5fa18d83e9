package builtin

import (
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/shufflesharding"
	"k8s.io/utils/ptr"
)

func flowcontrolResource(name string) schema.GroupResource {
	return schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: name}
}

var flowSchemas = resource[*flowcontrolv1.FlowSchema]{
	resource: flowcontrolResource("flowschemas"), singular: flowcontrolResource("flowschema"),
	clusterScoped: true,
	new:           func() *flowcontrolv1.FlowSchema { return &flowcontrolv1.FlowSchema{} },
	newList:       func() runtime.Object { return &flowcontrolv1.FlowSchemaList{} },
	name:          validation.NameIsDNSSubdomain, knownFinalizers: true,
	prepare: func(s, old *flowcontrolv1.FlowSchema) {
		s.Generation, s.Status = 1, flowcontrolv1.FlowSchemaStatus{}
		if old != nil {
			s.Generation, s.Status = nextGeneration(old.Generation, s.Spec, old.Spec), old.Status
		}
	},
	validate: func(s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
		return checkFlowSchema(field.NewPath("spec"), s.Name, &s.Spec)
	},
	needsVersion: true,
	columns: []metav1.TableColumnDefinition{
		{Name: "PriorityLevel", Type: "string", Description: "The priority of the requests."},
		{Name: "MatchingPrecedence", Type: "string",
			Description: "Of the schemas that match a request, the one with the least counts."},
		{Name: "DistinguisherMethod", Type: "string",
			Description: "What tells the flows of the schema apart."},
		{Name: "MissingPL", Type: "string", Description: "Whether the priority does not exist."},
	},
	cells: func(s *flowcontrolv1.FlowSchema) []any {
		method, missing := "<none>", "?"
		if s.Spec.DistinguisherMethod != nil {
			method = string(s.Spec.DistinguisherMethod.Type)
		}
		for _, c := range s.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
				missing = string(c.Status)
			}
		}
		return []any{s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence),
			method, missing}
	},
}

var priorityLevels = resource[*flowcontrolv1.PriorityLevelConfiguration]{
	resource:      flowcontrolResource("prioritylevelconfigurations"),
	singular:      flowcontrolResource("prioritylevelconfiguration"),
	clusterScoped: true,
	new: func() *flowcontrolv1.PriorityLevelConfiguration {
		return &flowcontrolv1.PriorityLevelConfiguration{}
	},
	newList: func() runtime.Object { return &flowcontrolv1.PriorityLevelConfigurationList{} },
	name:    validation.NameIsDNSSubdomain, knownFinalizers: true,
	prepare: func(l, old *flowcontrolv1.PriorityLevelConfiguration) {
		l.Generation, l.Status = 1, flowcontrolv1.PriorityLevelConfigurationStatus{}
		if old != nil {
			l.Generation, l.Status = nextGeneration(old.Generation, l.Spec, old.Spec), old.Status
		}
	},
	validate: func(l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
		return checkPriorityLevel(field.NewPath("spec"), l.Name, &l.Spec)
	},
	needsVersion: true,
	columns: []metav1.TableColumnDefinition{
		{Name: "Type", Type: "string", Description: "Whether the requests are limited."},
		{Name: "NominalConcurrencyShares", Type: "string",
			Description: "The share of the server's requests at a time, beside those of others."},
		{Name: "Queues", Type: "string", Description: "How many queues there are."},
		{Name: "HandSize", Type: "string", Description: "How many queues a flow can be in."},
		{Name: "QueueLengthLimit", Type: "string",
			Description: "How many requests can wait in a queue."},
	},
	cells: func(l *flowcontrolv1.PriorityLevelConfiguration) []any {
		var shares, queues, hand, length any = "<none>", "<none>", "<none>", "<none>"
		if limited := l.Spec.Limited; limited != nil {
			shares = int64(ptr.Deref(limited.NominalConcurrencyShares, 0))
			if q := limited.LimitResponse.Queuing; q != nil {
				queues, hand, length = int64(q.Queues), int64(q.HandSize),
					int64(q.QueueLengthLimit)
			}
		}
		return []any{string(l.Spec.Type), shares, queues, hand, length}
	},
}

// newPriorities makes the resources of flowcontrol.apiserver.k8s.io.
func newPriorities(getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	version := flowcontrolv1.SchemeGroupVersion
	all := map[string]rest.Storage{}
	if err := withStatus(all, getter, version, flowSchemas,
		func(s, old *flowcontrolv1.FlowSchema) { s.Spec = old.Spec },
		func(s *flowcontrolv1.FlowSchema) (types []string) {
			for _, c := range s.Status.Conditions {
				types = append(types, string(c.Type))
			}
			return types
		}); err != nil {
		return nil, err
	}
	return all, withStatus(all, getter, version, priorityLevels,
		func(l, old *flowcontrolv1.PriorityLevelConfiguration) { l.Spec = old.Spec },
		func(l *flowcontrolv1.PriorityLevelConfiguration) (types []string) {
			for _, c := range l.Status.Conditions {
				types = append(types, string(c.Type))
			}
			return types
		})
}

// checkFlowSchema checks the spec of the schema with a name.
func checkFlowSchema(path *field.Path, name string,
	s *flowcontrolv1.FlowSchemaSpec) (errs field.ErrorList) {
	precedence := path.Child("matchingPrecedence")
	most := flowcontrolv1.FlowSchemaMaxMatchingPrecedence
	if s.MatchingPrecedence < 1 || s.MatchingPrecedence > most {
		errs = append(errs, field.Invalid(precedence, s.MatchingPrecedence,
			"must be between 1 and 10000"))
	}
	if s.MatchingPrecedence == 1 && name != flowcontrolv1.FlowSchemaNameExempt {
		errs = append(errs, field.Invalid(precedence, s.MatchingPrecedence,
			"only the schema exempt can have the precedence 1"))
	}
	if s.DistinguisherMethod != nil {
		errs = append(errs, oneOf(path.Child("distinguisherMethod", "type"),
			&s.DistinguisherMethod.Type, flowcontrolv1.FlowDistinguisherMethodByNamespaceType,
			flowcontrolv1.FlowDistinguisherMethodByUserType)...)
	}
	level := path.Child("priorityLevelConfiguration", "name")
	if of := s.PriorityLevelConfiguration.Name; of == "" {
		errs = append(errs, field.Required(level, "a schema needs a priority"))
	} else {
		for _, message := range validation.NameIsDNSSubdomain(of, false) {
			errs = append(errs, field.Invalid(level, of, message))
		}
	}
	for i, rules := range s.Rules {
		errs = append(errs, checkFlowRules(path.Child("rules").Index(i), rules)...)
	}
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == name && !unchanged(fixed.Spec, *s) {
			errs = append(errs, field.Invalid(path, *s, "the spec of "+name+" cannot be changed"))
		}
	}
	return errs
}

func checkFlowRules(path *field.Path,
	r flowcontrolv1.PolicyRulesWithSubjects) (errs field.ErrorList) {
	subjects := path.Child("subjects")
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(subjects, "rules need a subject"))
	}
	for i, s := range r.Subjects {
		errs = append(errs, checkFlowSubject(subjects.Index(i), s)...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path,
			"at least one of resourceRules and nonResourceRules must not be empty"))
	}
	for i, rule := range r.ResourceRules {
		at := path.Child("resourceRules").Index(i)
		errs = append(errs, checkFlowVerbs(at.Child("verbs"), rule.Verbs)...)
		errs = append(errs, checkWildcard(at.Child("apiGroups"), rule.APIGroups)...)
		errs = append(errs, checkWildcard(at.Child("resources"), rule.Resources)...)
		namespaces := at.Child("namespaces")
		if len(rule.Namespaces) == 0 {
			if !rule.ClusterScope {
				errs = append(errs, field.Required(namespaces,
					"a rule needs a namespace, or clusterScope"))
			}
			continue
		}
		errs = append(errs, checkWildcard(namespaces, rule.Namespaces)...)
		for j, namespace := range rule.Namespaces {
			if namespace == flowcontrolv1.NamespaceEvery {
				continue
			}
			for _, message := range validation.ValidateNamespaceName(namespace, false) {
				errs = append(errs, field.Invalid(namespaces.Index(j), namespace, message))
			}
		}
	}
	for i, rule := range r.NonResourceRules {
		at := path.Child("nonResourceRules").Index(i)
		errs = append(errs, checkFlowVerbs(at.Child("verbs"), rule.Verbs)...)
		urls := at.Child("nonResourceURLs")
		errs = append(errs, checkWildcard(urls, rule.NonResourceURLs)...)
		for j, url := range rule.NonResourceURLs {
			if url != flowcontrolv1.NonResourceAll {
				errs = append(errs, checkFlowURL(urls.Index(j), url)...)
			}
		}
	}
	return errs
}

// checkWildcard checks a list that has to have a member, and no other beside "*".
func checkWildcard(path *field.Path, all []string) field.ErrorList {
	switch {
	case len(all) == 0:
		return field.ErrorList{field.Required(path, "")}
	case len(all) > 1 && slices.Contains(all, "*"):
		return field.ErrorList{field.Invalid(path, all, "\"*\" cannot have others beside it")}
	}
	return nil
}

// flowVerbs are the verbs of requests, but for "*".
var flowVerbs = []string{"get", "list", "watch", "create", "update", "delete", "deletecollection",
	"patch", "proxy"}

func checkFlowVerbs(path *field.Path, verbs []string) field.ErrorList {
	errs := checkWildcard(path, verbs)
	if !slices.Contains(verbs, flowcontrolv1.VerbAll) && !sets.New(flowVerbs...).HasAll(verbs...) {
		errs = append(errs, field.NotSupported(path, verbs, flowVerbs))
	}
	return errs
}

// checkFlowURL checks a path. It may end with "/*", which stands for all that is below.
func checkFlowURL(path *field.Path, url string) (errs field.ErrorList) {
	const message = "must be a path that begins with / and has * at the end only, after a /"
	stem := strings.TrimSuffix(url, "/*")
	if !strings.HasPrefix(url, "/") || strings.ContainsAny(stem, "* ") ||
		strings.Contains(url, "//") {
		errs = append(errs, field.Invalid(path, url, message))
	}
	return errs
}

// checkFlowSubject checks that a subject has what its kind says, and nothing else.
func checkFlowSubject(path *field.Path, s flowcontrolv1.Subject) (errs field.ErrorList) {
	kinds := []flowcontrolv1.SubjectKind{flowcontrolv1.SubjectKindUser,
		flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount}
	if !slices.Contains(kinds, s.Kind) {
		return field.ErrorList{field.NotSupported(path.Child("kind"), s.Kind, kinds)}
	}
	for _, part := range []struct {
		kind  flowcontrolv1.SubjectKind
		name  string
		there bool
	}{
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil},
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil},
	} {
		at := path.Child(part.name)
		switch {
		case part.there && part.kind != s.Kind:
			errs = append(errs, field.Forbidden(at, "the subject is a "+string(s.Kind)))
		case !part.there && part.kind == s.Kind:
			errs = append(errs, field.Required(at, ""))
		}
	}
	if s.User != nil && s.User.Name == "" {
		errs = append(errs, field.Required(path.Child("user", "name"), ""))
	}
	if s.Group != nil && s.Group.Name == "" {
		errs = append(errs, field.Required(path.Child("group", "name"), ""))
	}
	if a := s.ServiceAccount; a != nil {
		errs = append(errs, checkFlowAccount(path.Child("serviceAccount"), a)...)
	}
	return errs
}

func checkFlowAccount(path *field.Path,
	a *flowcontrolv1.ServiceAccountSubject) (errs field.ErrorList) {
	check := func(path *field.Path, value string, valid validation.ValidateNameFunc) {
		if value == "" {
			errs = append(errs, field.Required(path, ""))
			return
		}
		for _, message := range valid(value, false) {
			errs = append(errs, field.Invalid(path, value, message))
		}
	}
	if a.Name != flowcontrolv1.NameAll {
		check(path.Child("name"), a.Name, validation.ValidateServiceAccountName)
	}
	check(path.Child("namespace"), a.Namespace, validation.ValidateNamespaceName)
	return errs
}

// checkPriorityLevel checks the spec of the priority with a name.
func checkPriorityLevel(path *field.Path, name string,
	s *flowcontrolv1.PriorityLevelConfigurationSpec) (errs field.ErrorList) {
	const exempt = flowcontrolv1.PriorityLevelConfigurationNameExempt
	kind, limited := path.Child("type"), path.Child("limited")
	if (name == exempt) != (s.Type == flowcontrolv1.PriorityLevelEnablementExempt) {
		errs = append(errs, field.Invalid(kind, s.Type,
			"the priority exempt is Exempt, and no other is"))
	}
	switch s.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		if s.Limited != nil {
			errs = append(errs, field.Forbidden(limited, "the type is Exempt"))
		}
		if e := s.Exempt; e != nil {
			at := path.Child("exempt")
			errs = append(errs, atLeast(at.Child("nominalConcurrencyShares"),
				ptr.Deref(e.NominalConcurrencyShares, 0), 0)...)
			errs = append(errs, checkPercent(at.Child("lendablePercent"), e.LendablePercent)...)
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if s.Exempt != nil {
			errs = append(errs, field.Forbidden(path.Child("exempt"), "the type is Limited"))
		}
		if s.Limited == nil {
			errs = append(errs, field.Required(limited, "the type is Limited"))
		} else {
			errs = append(errs, checkLimited(limited, s.Limited)...)
		}
	case "":
		errs = append(errs, field.Required(kind, ""))
	default:
		errs = append(errs, field.NotSupported(kind, s.Type,
			[]flowcontrolv1.PriorityLevelEnablement{flowcontrolv1.PriorityLevelEnablementExempt,
				flowcontrolv1.PriorityLevelEnablementLimited}))
	}
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		is := *s
		if name == exempt {
			is.Exempt = fixed.Spec.Exempt // may have a share that others can borrow
		}
		if fixed.Name == name && !unchanged(fixed.Spec, is) {
			errs = append(errs, field.Invalid(path, *s, "the spec of "+name+" cannot be changed"))
		}
	}
	return errs
}

func checkLimited(path *field.Path,
	l *flowcontrolv1.LimitedPriorityLevelConfiguration) field.ErrorList {
	errs := atLeast(path.Child("nominalConcurrencyShares"),
		ptr.Deref(l.NominalConcurrencyShares, 0), 0)
	errs = append(errs, checkPercent(path.Child("lendablePercent"), l.LendablePercent)...)
	if l.BorrowingLimitPercent != nil {
		errs = append(errs, atLeast(path.Child("borrowingLimitPercent"),
			*l.BorrowingLimitPercent, 0)...)
	}
	at := path.Child("limitResponse")
	queuing, q := at.Child("queuing"), l.LimitResponse.Queuing
	switch l.LimitResponse.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		if q != nil {
			errs = append(errs, field.Forbidden(queuing, "the type is Reject"))
		}
	case flowcontrolv1.LimitResponseTypeQueue:
		if q == nil {
			errs = append(errs, field.Required(queuing, "the type is Queue"))
		} else {
			errs = append(errs, checkQueuing(queuing, q)...)
		}
	case "":
		errs = append(errs, field.Required(at.Child("type"), ""))
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), l.LimitResponse.Type,
			[]flowcontrolv1.LimitResponseType{flowcontrolv1.LimitResponseTypeQueue,
				flowcontrolv1.LimitResponseTypeReject}))
	}
	return errs
}

// maxQueues is how many queues a priority may have, and maxEntropy how many bits of a hash the
// choice of a flow's queues may need.
const (
	maxQueues  = 10_000_000
	maxEntropy = 60
)

func checkQueuing(path *field.Path, q *flowcontrolv1.QueuingConfiguration) field.ErrorList {
	queues, hand := path.Child("queues"), path.Child("handSize")
	errs := atLeast(queues, q.Queues, 1)
	errs = append(errs, atLeast(hand, q.HandSize, 1)...)
	errs = append(errs, atLeast(path.Child("queueLengthLimit"), q.QueueLengthLimit, 1)...)
	if q.Queues > maxQueues {
		errs = append(errs, field.Invalid(queues, q.Queues, "must not be greater than 10000000"))
	}
	switch {
	case q.HandSize < 1:
	case q.HandSize > q.Queues:
		errs = append(errs, field.Invalid(hand, q.HandSize, "must not be greater than queues"))
	case shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)) > maxEntropy:
		errs = append(errs, field.Invalid(hand, q.HandSize, "is too large for so many queues: "+
			"the choice of the queues of a flow would need more than 60 bits"))
	}
	return errs
}

func atLeast(path *field.Path, n, least int32) field.ErrorList {
	switch {
	case n >= least:
		return nil
	case least == 0:
		return field.ErrorList{field.Invalid(path, n, "must not be negative")}
	}
	return field.ErrorList{field.Invalid(path, n, "must be positive")}
}

func checkPercent(path *field.Path, n *int32) field.ErrorList {
	if n == nil || *n >= 0 && *n <= 100 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *n, "must be between 0 and 100")}
}
