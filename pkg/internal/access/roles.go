package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Source reads stored roles and bindings. Nobody changes what it returns. A role that does not
// exist is a NotFound error of the API.
type Source interface {
	Role(ctx context.Context, namespace, name string) (*rbacv1.Role, error)
	ClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error)
	RoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error)
	ClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error)
}

// Roles give users the rules of the roles that are bound to them: those of ClusterRoleBindings
// everywhere, and those of the RoleBindings of a namespace in that namespace. They allow what one
// of these rules allows, and have no opinion on the rest. A binding whose role is missing gives
// nothing, and hides nothing that other bindings give.
type Roles struct{ Source Source }

var _ authorizer.RuleResolver = Roles{}

// binding gives a role to a user. It has no namespace if it holds everywhere.
type binding struct {
	kind, namespace, name string
	role                  rbacv1.RoleRef
}

func (b binding) String() string {
	return fmt.Sprintf("the %s %q, which gives the %s %q", b.kind, b.name, b.role.Kind, b.role.Name)
}

// bindingsOf returns the bindings of a user that hold in a namespace.
func (r Roles) bindingsOf(ctx context.Context, u user.Info,
	namespace string) (all []binding, err error) {
	add := func(b binding, subjects []rbacv1.Subject) {
		if slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return is(u, s, b.namespace)
		}) {
			all = append(all, b)
		}
	}
	everywhere, err := r.Source.ClusterRoleBindings(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range everywhere {
		add(binding{"ClusterRoleBinding", "", b.Name, b.RoleRef}, b.Subjects)
	}
	if namespace == "" {
		return all, nil
	}
	here, err := r.Source.RoleBindings(ctx, namespace)
	if err != nil {
		return nil, err
	}
	for _, b := range here {
		add(binding{"RoleBinding", namespace, b.Name, b.RoleRef}, b.Subjects)
	}
	return all, nil
}

// visit calls a function with the rules of each binding of a user until it returns false. missing
// are the roles that are bound and do not exist.
func (r Roles) visit(ctx context.Context, u user.Info, namespace string,
	each func(binding, []rbacv1.PolicyRule) bool) (missing []error, err error) {
	bindings, err := r.bindingsOf(ctx, u, namespace)
	if err != nil {
		return nil, err
	}
	for _, b := range bindings {
		rules, err := r.RulesOf(ctx, b.role, b.namespace)
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, err)
		case err != nil:
			return nil, err
		case !each(b, rules):
			return missing, nil
		}
	}
	return missing, nil
}

// is tells whether a user is the subject of a binding in a namespace, which is empty for a binding
// that holds everywhere.
func is(u user.Info, s rbacv1.Subject, namespace string) bool {
	switch s.Kind {
	case rbacv1.UserKind:
		return u.GetName() == s.Name
	case rbacv1.GroupKind:
		return slices.Contains(u.GetGroups(), s.Name)
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return namespace != "" && serviceaccount.MatchesUsername(namespace, s.Name, u.GetName())
	}
	return false
}

// RulesOf returns the rules of the role that a binding in a namespace refers to.
func (r Roles) RulesOf(ctx context.Context, ref rbacv1.RoleRef,
	namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "Role":
		role, err := r.Source.Role(ctx, namespace, ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	case "ClusterRole":
		role, err := r.Source.ClusterRole(ctx, ref.Name)
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	return nil, apierrors.NewBadRequest(fmt.Sprintf("roleRef.kind must be Role or ClusterRole, "+
		"and is %q", ref.Kind))
}

// Authorize is an authorizer.AuthorizerFunc. What cannot be read allows nothing, and is an error.
func (r Roles) Authorize(ctx context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	by := ""
	missing, err := r.visit(ctx, a.GetUser(), a.GetNamespace(),
		func(b binding, rules []rbacv1.PolicyRule) bool {
			if slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return Allows(r, a) }) {
				by = b.String()
			}
			return by == ""
		})
	switch {
	case err != nil:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("cannot read the user's roles: %w", err)
	case by != "":
		return authorizer.DecisionAllow, "RBAC: allowed by " + by, nil
	case missing != nil:
		return authorizer.DecisionNoOpinion, "no role of the user allows it, and roles are " +
			"missing: " + errors.Join(missing...).Error(), nil
	}
	return authorizer.DecisionNoOpinion, "no role of the user allows it", nil
}

// rulesFor returns the rules of a user, and which of their roles are missing.
func (r Roles) rulesFor(ctx context.Context, u user.Info,
	namespace string) (all []rbacv1.PolicyRule, missing []error, err error) {
	missing, err = r.visit(ctx, u, namespace, func(_ binding, rules []rbacv1.PolicyRule) bool {
		all = append(all, rules...)
		return true
	})
	return all, missing, err
}

// RulesFor implements authorizer.RuleResolver.
func (r Roles) RulesFor(ctx context.Context, u user.Info,
	namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rules, missing, err := r.rulesFor(ctx, u, namespace)
	resources, paths := Infos(rules)
	return resources, paths, err != nil, errors.Join(append(missing, err)...)
}

// mostRules is how many rules a refusal names.
const mostRules = 10

// CheckGrant refuses that a user gives rules away in a namespace that they do not have there. What
// cannot be read is an error, too.
func (r Roles) CheckGrant(ctx context.Context, resource schema.GroupResource, name string,
	u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	own, roles, err := r.rulesFor(ctx, u, namespace)
	if err != nil {
		return err
	}
	covered, missing := validation.Covers(own, rules)
	if covered {
		return nil
	}
	var named []string
	for _, rule := range missing[:min(mostRules, len(missing))] {
		text, err := json.Marshal(rule)
		if err != nil {
			return err
		}
		named = append(named, string(text))
	}
	message := fmt.Sprintf("the user %q (groups %q) must not grant what they may not do: %s",
		u.GetName(), u.GetGroups(), strings.Join(named, ", "))
	if more := len(missing) - mostRules; more > 0 {
		message += fmt.Sprintf(", and %d more", more)
	}
	if roles != nil {
		message += "; roles of the user are missing: " + errors.Join(roles...).Error()
	}
	return apierrors.NewForbidden(resource, name, errors.New(message))
}
