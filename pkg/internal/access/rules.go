package access

import (
	"context"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Grant gives rules to the members of a group.
type Grant struct {
	Group string
	Rules []rbacv1.PolicyRule
}

// Policy gives rules to groups. It allows what a rule of a group of the user allows, and has no
// opinion on the rest.
type Policy []Grant

var _ authorizer.RuleResolver = Policy{}

// Standalone is the policy of a server without roles.
var Standalone = Policy{
	{user.SystemPrivilegedGroup, []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
	}},
	{user.MonitoringGroup, []rbacv1.PolicyRule{
		{Verbs: []string{"get", "head"}, NonResourceURLs: []string{"/metrics", "/metrics/slis"}},
	}},
	{user.AllAuthenticated, []rbacv1.PolicyRule{
		{Verbs: []string{"get", "head"}, NonResourceURLs: []string{
			"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version",
			"/version/*", "/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*",
		}},
		{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"},
			Resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}},
		{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"},
			Resources: []string{"selfsubjectreviews"}},
	}},
	{user.AllUnauthenticated, []rbacv1.PolicyRule{
		{Verbs: []string{"get", "head"}, NonResourceURLs: []string{
			"/version", "/version/", "/healthz", "/livez", "/readyz"}},
	}},
}

// rulesOf returns the rules of a user.
func (p Policy) rulesOf(u user.Info) (rules []rbacv1.PolicyRule) {
	for _, g := range p {
		if slices.Contains(u.GetGroups(), g.Group) {
			rules = append(rules, g.Rules...)
		}
	}
	return rules
}

// Authorize is an authorizer.AuthorizerFunc.
func (p Policy) Authorize(_ context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, r := range p.rulesOf(a.GetUser()) {
		if Allows(r, a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "a standalone server gives rights to the group " +
		user.SystemPrivilegedGroup + ", and metrics to " + user.MonitoringGroup, nil
}

// RulesFor implements authorizer.RuleResolver. The rules hold in every namespace.
func (p Policy) RulesFor(_ context.Context, u user.Info,
	_ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	resources, paths := Infos(p.rulesOf(u))
	return resources, paths, false, nil
}

// Infos tells rules in the terms of a RuleResolver.
func Infos(rules []rbacv1.PolicyRule) (resources []authorizer.ResourceRuleInfo,
	paths []authorizer.NonResourceRuleInfo) {
	for _, r := range rules {
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{Verbs: r.Verbs,
				APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames})
		}
		if len(r.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs,
				NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, paths
}

// Allows tells whether a rule of RBAC allows a request.
func Allows(r rbacv1.PolicyRule, a authorizer.Attributes) bool {
	if !has(r.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(r.NonResourceURLs, func(url string) bool {
			return url == a.GetPath() || strings.HasSuffix(url, "*") &&
				strings.HasPrefix(a.GetPath(), strings.TrimRight(url, "*"))
		})
	}
	resource := a.GetResource()
	if sub := a.GetSubresource(); sub != "" {
		resource += "/" + sub
	}
	return has(r.APIGroups, a.GetAPIGroup()) &&
		(has(r.Resources, resource) ||
			a.GetSubresource() != "" && slices.Contains(r.Resources, "*/"+a.GetSubresource())) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.GetName()))
}

// has tells whether a list has a value, or all values.
func has(list []string, value string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, value)
}
