package builtin

import (
	"regexp"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
)

var policies = resource[*admissionv1.ValidatingAdmissionPolicy]{
	resource:      admissionResource("validatingadmissionpolicies"),
	singular:      admissionResource("validatingadmissionpolicy"),
	clusterScoped: true,
	new: func() *admissionv1.ValidatingAdmissionPolicy {
		return &admissionv1.ValidatingAdmissionPolicy{}
	},
	newList: func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyList{} },
	name:    validation.NameIsDNSSubdomain,
	prepare: func(p, old *admissionv1.ValidatingAdmissionPolicy) {
		p.Generation, p.Status = 1, admissionv1.ValidatingAdmissionPolicyStatus{}
		if old != nil {
			p.Generation, p.Status = nextGeneration(old.Generation, p.Spec, old.Spec), old.Status
		}
	},
	needsVersion: true,
	validate: func(p, _ *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
		return checkPolicy(field.NewPath("spec"), &p.Spec)
	},
	columns: []metav1.TableColumnDefinition{
		{Name: "Validations", Type: "integer", Description: "How many validations there are."},
		{Name: "ParamKind", Type: "string", Description: "What kind of object has the parameters."},
	},
	cells: func(p *admissionv1.ValidatingAdmissionPolicy) []any {
		return []any{int64(len(p.Spec.Validations)), paramKind(p.Spec.ParamKind)}
	},
}

func paramKind(k *admissionv1.ParamKind) string {
	if k == nil {
		return "<unset>"
	}
	return k.APIVersion + "/" + k.Kind
}

func paramRef(r *admissionv1.ParamRef) string {
	switch {
	case r == nil:
		return "<unset>"
	case r.Selector != nil:
		return metav1.FormatLabelSelector(r.Selector)
	case r.Namespace != "":
		return r.Namespace + "/" + r.Name
	}
	return r.Name
}

// newPolicies makes the resource validatingadmissionpolicies and its subresource.
func newPolicies(getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	all := map[string]rest.Storage{}
	return all, withStatus(all, getter, admissionv1.SchemeGroupVersion, policies,
		func(p, old *admissionv1.ValidatingAdmissionPolicy) { p.Spec = old.Spec }, nil)
}

var policyBindings = resource[*admissionv1.ValidatingAdmissionPolicyBinding]{
	resource:      admissionResource("validatingadmissionpolicybindings"),
	singular:      admissionResource("validatingadmissionpolicybinding"),
	clusterScoped: true,
	new: func() *admissionv1.ValidatingAdmissionPolicyBinding {
		return &admissionv1.ValidatingAdmissionPolicyBinding{}
	},
	newList: func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBindingList{} },
	name:    validation.NameIsDNSSubdomain,
	prepare: func(b, old *admissionv1.ValidatingAdmissionPolicyBinding) {
		b.Generation = 1
		if old != nil {
			b.Generation = nextGeneration(old.Generation, b.Spec, old.Spec)
		}
	},
	needsVersion: true,
	validate: func(b, _ *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
		return checkBinding(field.NewPath("spec"), &b.Spec)
	},
	columns: policyBindingColumns,
	cells: func(b *admissionv1.ValidatingAdmissionPolicyBinding) []any {
		return []any{b.Spec.PolicyName, paramRef(b.Spec.ParamRef)}
	},
}

var policyBindingColumns = []metav1.TableColumnDefinition{
	{Name: "PolicyName", Type: "string", Description: "The policy that is bound."},
	{Name: "ParamRef", Type: "string", Description: "The object or objects that have the " +
		"parameters."},
}

// maxMatchConditions is how many conditions a policy or a webhook may have.
const maxMatchConditions = 64

// celIdentifier is what the name of a variable must look like, and celReserved are the words among
// these that CEL keeps for itself.
var (
	celIdentifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	celReserved   = sets.New("as", "break", "const", "continue", "else", "false", "for", "function",
		"if", "import", "in", "let", "loop", "namespace", "null", "package", "return", "true", "var",
		"void", "while")
)

// scope is what policies of both kinds say alike: for which requests they are, and with what.
type scope struct {
	failure    *admissionv1.FailurePolicyType
	params     *admissionv1.ParamKind
	match      *admissionv1.MatchResources
	variables  []admissionv1.Variable
	conditions []admissionv1.MatchCondition
}

// check returns the compiler, too, which knows the variables then.
func (s scope) check(path *field.Path) (*expressions, field.ErrorList) {
	errs := oneOf(path.Child("failurePolicy"), s.failure, admissionv1.Fail, admissionv1.Ignore)
	if k := s.params; k != nil {
		at := path.Child("paramKind")
		version, err := schema.ParseGroupVersion(k.APIVersion)
		if err != nil || version.Version == "" {
			errs = append(errs, field.Invalid(at.Child("apiVersion"), k.APIVersion,
				"must be a version, or a group and a version such as apps/v1"))
		}
		if k.Kind == "" {
			errs = append(errs, field.Required(at.Child("kind"), ""))
		}
	}
	if at := path.Child("matchConstraints"); s.match == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		if len(s.match.ResourceRules) == 0 {
			errs = append(errs, field.Required(at.Child("resourceRules"), ""))
		}
		errs = append(errs, checkMatch(at, s.match)...)
	}
	e, err := newExpressions(s.params != nil)
	if err != nil {
		return nil, append(errs, field.InternalError(path, err))
	}
	for i, v := range s.variables {
		at := path.Child("variables").Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if !celIdentifier.MatchString(v.Name) || celReserved.Has(v.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), v.Name,
				"must be an identifier of CEL"))
		}
		errs = append(errs, e.variable(at.Child("expression"),
			&validatingpolicy.Variable{Name: v.Name, Expression: v.Expression})...)
	}
	return e, append(errs, checkConditions(path.Child("matchConditions"), s.conditions,
		func(at *field.Path, c *matchconditions.MatchCondition) field.ErrorList {
			return e.check(at, c, true)
		})...)
}

// checkPolicy checks a policy, and that its expressions compile in the environment in which the
// admission plugin evaluates them. Whether they fit the schemas of the objects is seen when they
// are evaluated.
func checkPolicy(path *field.Path, s *admissionv1.ValidatingAdmissionPolicySpec) field.ErrorList {
	e, errs := scope{s.FailurePolicy, s.ParamKind, s.MatchConstraints, s.Variables,
		s.MatchConditions}.check(path)
	if e == nil {
		return errs
	}
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		const message = "validations or auditAnnotations must be present"
		errs = append(errs, field.Required(path.Child("validations"), message),
			field.Required(path.Child("auditAnnotations"), message))
	}
	for i, v := range s.Validations {
		at := path.Child("validations").Index(i)
		errs = append(errs, e.check(at.Child("expression"),
			&validatingpolicy.ValidationCondition{Expression: v.Expression}, true)...)
		switch text := strings.TrimSpace(v.Message); {
		case text == "" && v.Message != "":
			errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must say something"))
		case strings.ContainsAny(text, "\r\n"):
			errs = append(errs, field.Invalid(at.Child("message"), v.Message, "must be one line"))
		}
		if v.MessageExpression != "" {
			expression := &validatingpolicy.MessageExpressionCondition{MessageExpression: v.MessageExpression}
			errs = append(errs, e.check(at.Child("messageExpression"), expression, false)...)
		}
		errs = append(errs, oneOf(at.Child("reason"), v.Reason, metav1.StatusReasonForbidden,
			metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
	}
	names := sets.New[string]()
	for i, a := range s.AuditAnnotations {
		at := path.Child("auditAnnotations").Index(i)
		errs = append(errs, checkQualified(at.Child("key"), a.Key)...)
		errs = append(errs, unique(at.Child("key"), names, a.Key)...)
		expression := &validatingpolicy.AuditAnnotationCondition{Key: a.Key,
			ValueExpression: a.ValueExpression}
		errs = append(errs, e.check(at.Child("valueExpression"), expression, true)...)
	}
	return errs
}

// checkBound checks what bindings of both kinds say alike.
func checkBound(path *field.Path, policy string, r *admissionv1.ParamRef,
	match *admissionv1.MatchResources) (errs field.ErrorList) {
	if at := path.Child("policyName"); policy == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		for _, message := range validation.NameIsDNSSubdomain(policy, false) {
			errs = append(errs, field.Invalid(at, policy, message))
		}
	}
	if r != nil {
		at := path.Child("paramRef")
		if (r.Name == "") == (r.Selector == nil) {
			errs = append(errs, field.Required(at, "exactly one of name or selector is required"))
		}
		errs = append(errs, checkSelector(at.Child("selector"), r.Selector)...)
		if r.ParameterNotFoundAction == nil {
			errs = append(errs, field.Required(at.Child("parameterNotFoundAction"), ""))
		}
		errs = append(errs, oneOf(at.Child("parameterNotFoundAction"), r.ParameterNotFoundAction,
			admissionv1.AllowAction, admissionv1.DenyAction)...)
	}
	if match != nil {
		errs = append(errs, checkMatch(path.Child("matchResources"), match)...)
	}
	return errs
}

func checkBinding(path *field.Path,
	s *admissionv1.ValidatingAdmissionPolicyBindingSpec) field.ErrorList {
	errs := checkBound(path, s.PolicyName, s.ParamRef, s.MatchResources)
	actions, at := sets.New[admissionv1.ValidationAction](), path.Child("validationActions")
	if len(s.ValidationActions) == 0 {
		errs = append(errs, field.Required(at, "at least one of Audit, Deny, Warn"))
	}
	for i, a := range s.ValidationActions {
		errs = append(errs, oneOf(at.Index(i), &a, admissionv1.Audit, admissionv1.Deny,
			admissionv1.Warn)...)
		errs = append(errs, unique(at.Index(i), actions, a)...)
	}
	if actions.HasAll(admissionv1.Deny, admissionv1.Warn) {
		errs = append(errs, field.Invalid(at, s.ValidationActions,
			"must not have both Deny and Warn: what is denied is told once"))
	}
	return errs
}

// checkConditions checks the conditions under which a policy or a webhook applies, the expressions
// by means of the given function.
func checkConditions(path *field.Path, conditions []admissionv1.MatchCondition,
	check func(*field.Path,
		*matchconditions.MatchCondition) field.ErrorList) (errs field.ErrorList) {
	if n := len(conditions); n > maxMatchConditions {
		errs = append(errs, field.TooMany(path, n, maxMatchConditions))
	}
	names := sets.New[string]()
	for i := range conditions {
		at, c := path.Index(i), &conditions[i]
		if c.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, checkQualified(at.Child("name"), c.Name)...)
			errs = append(errs, unique(at.Child("name"), names, c.Name)...)
		}
		errs = append(errs, check(at.Child("expression"), (*matchconditions.MatchCondition)(c))...)
	}
	return errs
}

// checkMatch checks what objects a policy or a binding is for.
func checkMatch(path *field.Path, m *admissionv1.MatchResources) field.ErrorList {
	errs := checkSelector(path.Child("namespaceSelector"), m.NamespaceSelector)
	errs = append(errs, checkSelector(path.Child("objectSelector"), m.ObjectSelector)...)
	errs = append(errs, oneOf(path.Child("matchPolicy"), m.MatchPolicy, admissionv1.Equivalent,
		admissionv1.Exact)...)
	for _, rules := range []struct {
		name  string
		rules []admissionv1.NamedRuleWithOperations
	}{{"resourceRules", m.ResourceRules}, {"excludeResourceRules", m.ExcludeResourceRules}} {
		for i, r := range rules.rules {
			at := path.Child(rules.name).Index(i)
			errs = append(errs, checkRule(at, r.RuleWithOperations)...)
			names := sets.New[string]()
			for j, name := range r.ResourceNames {
				errs = append(errs, unique(at.Child("resourceNames").Index(j), names, name)...)
			}
		}
	}
	return errs
}

func checkSelector(path *field.Path, s *metav1.LabelSelector) field.ErrorList {
	if s == nil {
		return nil
	}
	return metav1validation.ValidateLabelSelector(s,
		metav1validation.LabelSelectorValidationOptions{}, path)
}

func checkQualified(path *field.Path, name string) (errs field.ErrorList) {
	for _, message := range utilvalidation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

// unique refuses a value that was seen, and notes it.
func unique[T comparable](path *field.Path, seen sets.Set[T], value T) field.ErrorList {
	if seen.Has(value) {
		return field.ErrorList{field.Duplicate(path, value)}
	}
	seen.Insert(value)
	return nil
}

// expressions compiles the expressions of one policy, which can use the policy's variables.
type expressions struct {
	compiler  *plugincel.CompositedCompiler
	hasParams bool
}

// baseEnvironment is the same that the admission plugin has; it is costly to make.
var baseEnvironment = sync.OnceValue(func() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
})

func newExpressions(hasParams bool) (*expressions, error) {
	compiler, err := plugincel.NewCompositedCompiler(baseEnvironment())
	return &expressions{compiler, hasParams}, err
}

// variable checks the expression of a variable, which later expressions can use.
func (e *expressions) variable(path *field.Path, v *validatingpolicy.Variable) field.ErrorList {
	if strings.TrimSpace(v.Expression) == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	options := plugincel.OptionalVariableDeclarations{HasParams: e.hasParams, HasAuthorizer: true}
	return failure(path, v.Expression, e.compiler.CompileAndStoreVariable(v, options,
		environment.NewExpressions))
}

func (e *expressions) check(path *field.Path, x plugincel.ExpressionAccessor,
	hasAuthorizer bool) field.ErrorList {
	return compile(path, e.compiler, x,
		plugincel.OptionalVariableDeclarations{HasParams: e.hasParams,
			HasAuthorizer: hasAuthorizer})
}

func compile(path *field.Path, compiler plugincel.Compiler, x plugincel.ExpressionAccessor,
	variables plugincel.OptionalVariableDeclarations) field.ErrorList {
	if strings.TrimSpace(x.GetExpression()) == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return failure(path, x.GetExpression(), compiler.CompileCELExpression(x, variables,
		environment.NewExpressions))
}

func failure(path *field.Path, expression string, r plugincel.CompilationResult) field.ErrorList {
	if r.Error == nil {
		return nil
	}
	return field.ErrorList{field.Invalid(path, expression, r.Error.Detail)}
}
