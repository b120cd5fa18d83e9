package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
)

func rbacResource(name string) schema.GroupResource {
	return schema.GroupResource{Group: rbacv1.GroupName, Resource: name}
}

func checkRoleRules(rules []rbacv1.PolicyRule, namespaced bool) (errs field.ErrorList) {
	for i, r := range rules {
		at := field.NewPath("rules").Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(at.Child("verbs"), "a rule needs a verb"))
		}
		if urls := at.Child("nonResourceURLs"); len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(urls, r.NonResourceURLs,
					"the rules of a namespace cannot be for paths"))
			}
			if len(r.APIGroups) > 0 || len(r.Resources) > 0 || len(r.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(urls, r.NonResourceURLs,
					"one rule cannot be for paths and for resources"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs, field.Required(at.Child("apiGroups"),
				"a rule for resources needs a group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs, field.Required(at.Child("resources"),
				"a rule for resources needs a resource"))
		}
	}
	return errs
}

func checkAggregation(r *rbacv1.AggregationRule) (errs field.ErrorList) {
	if r == nil {
		return nil
	}
	selectors := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.ClusterRoleSelectors) == 0 {
		errs = append(errs, field.Required(selectors, "an aggregationRule needs a selector"))
	}
	for i := range r.ClusterRoleSelectors {
		errs = append(errs, metav1validation.ValidateLabelSelector(&r.ClusterRoleSelectors[i],
			metav1validation.LabelSelectorValidationOptions{}, selectors.Index(i))...)
	}
	return errs
}

// checkRoleBinding checks a binding. The kinds are those of roles that it can refer to.
func checkRoleBinding(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool,
	kinds ...string) (errs field.ErrorList) {
	at := field.NewPath("roleRef")
	groups := []string{rbacv1.GroupName}
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), ref.APIGroup, groups))
	}
	if !slices.Contains(kinds, ref.Kind) {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	for _, message := range segmentName(ref.Name, false) {
		if ref.Name != "" {
			errs = append(errs, field.Invalid(at.Child("name"), ref.Name, message))
		}
	}
	for i, s := range subjects {
		at := field.NewPath("subjects").Index(i)
		if s.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		switch s.Kind {
		case rbacv1.UserKind, rbacv1.GroupKind:
			if s.APIGroup != rbacv1.GroupName {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, groups))
			}
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				for _, message := range validation.ValidateServiceAccountName(s.Name, false) {
					errs = append(errs, field.Invalid(at.Child("name"), s.Name, message))
				}
			}
			if s.APIGroup != "" {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup,
					[]string{""}))
			}
			if s.Namespace == "" && !namespaced {
				errs = append(errs, field.Required(at.Child("namespace"), ""))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("kind"), s.Kind, []string{
				rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
	return errs
}

func checkSameRole(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), ref, "cannot change roleRef")}
}

var bindingColumns = []metav1.TableColumnDefinition{{Name: "Role", Type: "string",
	Description: "The role that the subjects have."}}

func bindingCells(ref rbacv1.RoleRef) []any { return []any{ref.Kind + "/" + ref.Name} }

var roles = resource[*rbacv1.Role]{
	resource: rbacResource("roles"), singular: rbacResource("role"),
	new: func() *rbacv1.Role { return &rbacv1.Role{} },
	newList: func() runtime.Object {
		return &rbacv1.RoleList{}
	}, name: segmentName, knownFinalizers: true,
	validate: func(r, _ *rbacv1.Role) field.ErrorList {
		return checkRoleRules(r.Rules, true)
	},
	createOnUpdate: true,
}

var clusterRoles = resource[*rbacv1.ClusterRole]{
	resource: rbacResource("clusterroles"), singular: rbacResource("clusterrole"),
	clusterScoped: true,
	new:           func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
	newList: func() runtime.Object {
		return &rbacv1.ClusterRoleList{}
	}, name: segmentName, knownFinalizers: true,
	validate: func(r, _ *rbacv1.ClusterRole) field.ErrorList {
		return append(checkRoleRules(r.Rules, false), checkAggregation(r.AggregationRule)...)
	},
	createOnUpdate: true,
}

var roleBindings = resource[*rbacv1.RoleBinding]{
	resource: rbacResource("rolebindings"), singular: rbacResource("rolebinding"),
	new: func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
	newList: func() runtime.Object {
		return &rbacv1.RoleBindingList{}
	}, name: segmentName, knownFinalizers: true,
	validate: func(b, _ *rbacv1.RoleBinding) field.ErrorList {
		return checkRoleBinding(b.RoleRef, b.Subjects, true, "Role", "ClusterRole")
	},
	validateUpdate: func(b, old *rbacv1.RoleBinding) field.ErrorList {
		return checkSameRole(b.RoleRef, old.RoleRef)
	},
	columns: bindingColumns,
	cells: func(b *rbacv1.RoleBinding) []any {
		return bindingCells(b.RoleRef)
	},
	createOnUpdate: true,
}

var clusterRoleBindings = resource[*rbacv1.ClusterRoleBinding]{
	resource: rbacResource("clusterrolebindings"), singular: rbacResource("clusterrolebinding"),
	clusterScoped: true,
	new:           func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
	newList: func() runtime.Object {
		return &rbacv1.ClusterRoleBindingList{}
	}, name: segmentName, knownFinalizers: true,
	validate: func(b, _ *rbacv1.ClusterRoleBinding) field.ErrorList {
		return checkRoleBinding(b.RoleRef, b.Subjects, false, "ClusterRole")
	},
	validateUpdate: func(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
		return checkSameRole(b.RoleRef, old.RoleRef)
	},
	columns: bindingColumns,
	cells: func(b *rbacv1.ClusterRoleBinding) []any {
		return bindingCells(b.RoleRef)
	},
	createOnUpdate: true,
}

// storedRoles reads roles from the stores, where what was acknowledged is found. A role and its
// binding can so be created one right after the other.
type storedRoles struct{ roles, clusterRoles, roleBindings, clusterRoleBindings *registry.Store }

func getOne[T runtime.Object](ctx context.Context, s *registry.Store, namespace,
	name string) (T, error) {
	var none T
	// An error names the resource of the request, which may be a binding's.
	of := s.DefaultQualifiedResource
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{APIGroup: of.Group,
		Resource: of.Resource})
	obj, err := s.Get(request.WithNamespace(ctx, namespace), name, &metav1.GetOptions{})
	if err != nil {
		return none, err
	}
	one, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("%s %q is a %T", s.DefaultQualifiedResource, name, obj)
	}
	return one, nil
}

func listAll[T runtime.Object](ctx context.Context, s *registry.Store,
	namespace string) (list T, err error) {
	obj, err := s.List(request.WithNamespace(ctx, namespace), &internalversion.ListOptions{})
	if err != nil {
		return list, err
	}
	list, ok := obj.(T)
	if !ok {
		return list, fmt.Errorf("a list of %s is a %T", s.DefaultQualifiedResource, obj)
	}
	return list, nil
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

func (s *storedRoles) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	return getOne[*rbacv1.Role](ctx, s.roles, namespace, name)
}

func (s *storedRoles) GetClusterRole(ctx context.Context,
	name string) (*rbacv1.ClusterRole, error) {
	return getOne[*rbacv1.ClusterRole](ctx, s.clusterRoles, "", name)
}

func (s *storedRoles) ListRoleBindings(ctx context.Context,
	namespace string) ([]*rbacv1.RoleBinding, error) {
	list, err := listAll[*rbacv1.RoleBindingList](ctx, s.roleBindings, namespace)
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

func (s *storedRoles) ListClusterRoleBindings(
	ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	list, err := listAll[*rbacv1.ClusterRoleBindingList](ctx, s.clusterRoleBindings, "")
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

// newRoles makes the resources of rbac.authorization.k8s.io. Nobody can give rights away, by a role
// or by a binding, that they do not have themselves. Excepted are the members of system:masters,
// who have all, and those whom the authorizer allows to escalate, or to bind the role.
func newRoles(getter generic.RESTOptionsGetter,
	authz authorizer.Authorizer) (map[string]rest.Storage, error) {
	s := &storedRoles{}
	for _, one := range []struct {
		into **registry.Store
		new  func(generic.RESTOptionsGetter) (*registry.Store, error)
	}{
		{&s.roles, roles.store}, {&s.clusterRoles, clusterRoles.store},
		{&s.roleBindings, roleBindings.store}, {&s.clusterRoleBindings, clusterRoleBindings.store},
	} {
		var err error
		if *one.into, err = one.new(getter); err != nil {
			return nil, err
		}
	}
	g := grants{rbacvalidation.NewDefaultRuleResolver(s, s, s, s), authz}
	return map[string]rest.Storage{
		"roles": &granting[*rbacv1.Role]{s.roles,
			func(ctx context.Context, r, _ *rbacv1.Role) error {
				return g.checkRole(ctx, rbacResource("roles"), r.Name, r.Rules, false)
			}},
		"clusterroles": &granting[*rbacv1.ClusterRole]{s.clusterRoles,
			func(ctx context.Context, r, old *rbacv1.ClusterRole) error {
				return g.checkRole(ctx, rbacResource("clusterroles"), r.Name, r.Rules,
					aggregates(r) || aggregates(old))
			}},
		"rolebindings": &granting[*rbacv1.RoleBinding]{s.roleBindings,
			func(ctx context.Context, b, _ *rbacv1.RoleBinding) error {
				return g.checkBinding(ctx, rbacResource("rolebindings"), b.Name, b.RoleRef)
			}},
		"clusterrolebindings": &granting[*rbacv1.ClusterRoleBinding]{s.clusterRoleBindings,
			func(ctx context.Context, b, _ *rbacv1.ClusterRoleBinding) error {
				return g.checkBinding(ctx, rbacResource("clusterrolebindings"), b.Name, b.RoleRef)
			}},
	}, nil
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r != nil && r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

// grants judge what a request gives away.
type grants struct {
	roles      rbacvalidation.AuthorizationRuleResolver
	authorizer authorizer.Authorizer
}

// everything is what cluster-admin may do.
func everything() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
	}
}

// may tells whether the user of a request may do with a role what the verb says.
func (g grants) may(ctx context.Context, u user.Info, verb, resource, namespace,
	name string) bool {
	// An error means that it is not allowed; it is for the authorizer to log it.
	decision, _, _ := g.authorizer.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: verb,
		APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: resource, Namespace: namespace,
		Name: name, ResourceRequest: true})
	return decision == authorizer.DecisionAllow
}

// checkRole refuses a role with rules that its writer does not have. A role that aggregates others
// can come to have every rule.
func (g grants) checkRole(ctx context.Context, resource schema.GroupResource, name string,
	rules []rbacv1.PolicyRule, aggregates bool) error {
	u, privileged, err := writer(ctx)
	if err != nil || privileged {
		return err
	}
	// The name is that of the request. That of an object that is created is not looked at.
	info, ok := request.RequestInfoFrom(ctx)
	if ok && info.IsResourceRequest && info.APIGroup == resource.Group &&
		info.Resource == resource.Resource &&
		g.may(ctx, u, "escalate", info.Resource, info.Namespace, info.Name) {
		return nil
	}
	if aggregates {
		rules = append(everything(), rules...)
	}
	return g.check(ctx, resource, name, rules)
}

// checkBinding refuses a binding to a role with rules that its writer does not have.
func (g grants) checkBinding(ctx context.Context, resource schema.GroupResource, name string,
	ref rbacv1.RoleRef) error {
	u, privileged, err := writer(ctx)
	if err != nil || privileged {
		return err
	}
	namespace := request.NamespaceValue(ctx)
	kinds := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}
	if of, ok := kinds[ref.Kind]; ok && ref.APIGroup == rbacv1.GroupName &&
		g.may(ctx, u, "bind", of, namespace, ref.Name) {
		return nil
	}
	rules, err := g.roles.GetRoleReferenceRules(ctx, ref, namespace)
	if err != nil {
		return err
	}
	return g.check(ctx, resource, name, rules)
}

// check refuses rules that the user of a request does not have.
func (g grants) check(ctx context.Context, resource schema.GroupResource, name string,
	rules []rbacv1.PolicyRule) error {
	if err := rbacvalidation.ConfirmNoEscalation(ctx, g.roles, rules); err != nil {
		return apierrors.NewForbidden(resource, name, err)
	}
	return nil
}

// writer returns the user of a request, and whether they may do everything in any case.
func writer(ctx context.Context) (u user.Info, privileged bool, err error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, false, apierrors.NewInternalError(errors.New("a request has no user"))
	}
	return u, slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup), nil
}

// granting is a resource whose objects give rights to users.
type granting[T registry.Object] struct {
	*registry.Store
	// check refuses what the user of the request must not give away. old is the zero value for an
	// object that is created.
	check func(ctx context.Context, obj, old T) error
}

var _ rest.StandardStorage = &granting[*rbacv1.Role]{}

// Create implements rest.CreaterUpdater, as does Update.
func (r *granting[T]) Create(ctx context.Context, obj runtime.Object,
	validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	var none T
	if err := r.check(ctx, obj.(T), none); err != nil {
		return nil, err
	}
	return r.Store.Create(ctx, obj, validate, o)
}

// Update is called for PUT, PATCH and apply.
func (r *granting[T]) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceAllowCreate bool,
	o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	checked := rest.WrapUpdatedObjectInfo(info,
		func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
			// The garbage collector's part of an object gives nothing away. Its user may have less
			// rights than the object.
			if onlyOwners(obj.(T), old.(T)) {
				return obj, nil
			}
			return obj, r.check(ctx, obj.(T), old.(T))
		})
	return r.Store.Update(ctx, name, checked, create, update, forceAllowCreate, o)
}

// onlyOwners tells whether an object differs from the old one in nothing but finalizers and owners.
func onlyOwners[T registry.Object](obj, old T) bool {
	same := obj.DeepCopyObject().(T)
	same.SetFinalizers(old.GetFinalizers())
	same.SetOwnerReferences(old.GetOwnerReferences())
	same.SetManagedFields(old.GetManagedFields())
	return apiequality.Semantic.DeepEqual(same, old)
}
