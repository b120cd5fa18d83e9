package access

import (
	"context"
	"errors"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// source has roles by "name" or "namespace/name", and bindings by namespace, which is empty for
// those that hold everywhere.
type source struct {
	roles    map[string][]rbacv1.PolicyRule
	bindings map[string][]bound
	err      error
}

type bound struct {
	kind, role string
	subjects   []rbacv1.Subject
}

func (s source) rules(resource, name string) ([]rbacv1.PolicyRule, error) {
	rules, ok := s.roles[name]
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource(resource), name)
	}
	return rules, s.err
}

func (s source) Role(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	rules, err := s.rules("roles", namespace+"/"+name)
	return &rbacv1.Role{Rules: rules}, err
}

func (s source) ClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	rules, err := s.rules("clusterroles", name)
	return &rbacv1.ClusterRole{Rules: rules}, err
}

func (s source) RoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	var all []*rbacv1.RoleBinding
	for _, b := range s.bindings[namespace] {
		all = append(all, &rbacv1.RoleBinding{Subjects: b.subjects,
			RoleRef: rbacv1.RoleRef{Kind: b.kind, Name: b.role}})
	}
	return all, s.err
}

func (s source) ClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	var all []*rbacv1.ClusterRoleBinding
	for _, b := range s.bindings[""] {
		all = append(all, &rbacv1.ClusterRoleBinding{Subjects: b.subjects,
			RoleRef: rbacv1.RoleRef{Kind: b.kind, Name: b.role}})
	}
	return all, s.err
}

// words splits a text at spaces, so that tables stay readable. "-" stands for the group of the core
// API.
func words(text string) []string {
	all := strings.Fields(text)
	for i, w := range all {
		if w == "-" {
			all[i] = ""
		}
	}
	return all
}

func rule(verbs, groups, resources, names string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: words(verbs), APIGroups: words(groups),
		Resources: words(resources), ResourceNames: words(names)}
}

func urls(verbs, paths string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: words(verbs), NonResourceURLs: words(paths)}
}

func subject(kind, namespace, name string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: kind, Namespace: namespace, Name: name}}
}

var jane = &user.DefaultInfo{Name: "jane", Groups: []string{"dev"}}

func TestRoles(t *testing.T) {
	roles := Roles{source{
		roles: map[string][]rbacv1.PolicyRule{
			"read":    {rule("get list", "-", "configmaps", ""), urls("get", "/metrics /logs/*")},
			"write":   {rule("update", "-", "configmaps", "")},
			"all":     {rule("*", "*", "*", ""), urls("*", "*")},
			"a/write": {rule("delete", "-", "configmaps", "one two")},
			"scale":   {rule("patch", "apps", "*/scale widgets/status", "")},
		},
		bindings: map[string][]bound{
			"": {
				{"ClusterRole", "missing", subject("User", "", "jane")},
				{"ClusterRole", "read", subject("User", "", "jane")},
				{"ClusterRole", "all", subject("Group", "", "ops")},
				{"ClusterRole", "write", subject("ServiceAccount", "a", "robot")},
				{"ClusterRole", "all", subject("ServiceAccount", "", "nowhere")},
			},
			"a": {
				{"Role", "write", subject("Group", "", "dev")},
				{"ClusterRole", "scale", subject("User", "", "jane")},
				{"ClusterRole", "all", subject("ServiceAccount", "", "local")},
				{"Role", "missing", subject("User", "", "joe")},
			},
			"b": {{"Role", "write", subject("User", "", "jane")}},
		},
	}}
	account := func(name string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:a:" + name}
	}
	ops := &user.DefaultInfo{Name: "olga", Groups: []string{"dev", "ops"}}
	on := func(verb, namespace, group, resource, name string) authorizer.AttributesRecord {
		resource, sub, _ := strings.Cut(resource, "/")
		return authorizer.AttributesRecord{ResourceRequest: true, Verb: verb, Namespace: namespace,
			APIGroup: group, Resource: resource, Subresource: sub, Name: name}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	for _, c := range []struct {
		user    user.Info
		request authorizer.AttributesRecord
		want    bool
	}{
		// What holds everywhere, beside a role that is missing.
		{jane, on("list", "", "", "configmaps", ""), true},
		{jane, on("get", "c", "", "configmaps", "x"), true},
		{jane, on("get", "c", "", "configmaps/status", "x"), false},
		{jane, on("watch", "c", "", "configmaps", ""), false},
		{jane, on("get", "c", "apps", "configmaps", "x"), false},
		{jane, path("get", "/metrics"), true},
		{jane, path("get", "/metrics/slis"), false},
		{jane, path("get", "/logs/"), true},
		{jane, path("get", "/logs"), false},
		{jane, path("post", "/metrics"), false},
		// What holds in one namespace, by a role of it and by one of the cluster.
		{jane, on("delete", "a", "", "configmaps", "two"), true},
		{jane, on("delete", "a", "", "configmaps", "three"), false},
		{jane, on("deletecollection", "a", "", "configmaps", ""), false},
		{jane, on("delete", "", "", "configmaps", "two"), false},
		{jane, on("delete", "b", "", "configmaps", "two"), false}, // there is no such role in b
		{jane, on("patch", "a", "apps", "deployments/scale", "x"), true},
		{jane, on("patch", "a", "apps", "widgets/status", "x"), true},
		{jane, on("patch", "a", "apps", "deployments", "x"), false},
		{jane, on("patch", "b", "apps", "deployments/scale", "x"), false},
		// Groups and service accounts.
		{ops, on("escalate", "", rbacv1.GroupName, "clusterroles", "x"), true},
		{ops, path("delete", "/"), true},
		{account("robot"), on("update", "b", "", "configmaps", "x"), true},
		{account("robot"), on("delete", "a", "", "configmaps", "one"), false},
		{account("local"), on("delete", "a", "", "secrets", "x"), true},
		{account("local"), on("delete", "b", "", "secrets", "x"), false},
		{account("local"), path("get", "/metrics"), false},
		{account("nowhere"), on("delete", "a", "", "secrets", "x"), false},
		{&user.DefaultInfo{Name: "dev"}, on("delete", "a", "", "configmaps", "one"), false},
		{&user.DefaultInfo{Name: "joe"}, on("get", "a", "", "configmaps", "one"), false},
		{&user.DefaultInfo{}, on("get", "a", "", "configmaps", "one"), false},
	} {
		c.request.User = c.user
		decision, reason, err := roles.Authorize(t.Context(), c.request)
		want := authorizer.DecisionNoOpinion
		if c.want {
			want = authorizer.DecisionAllow
		}
		if err != nil || decision != want {
			t.Errorf("%s, %+v: %v (%s), %v", c.user.GetName(), c.request, decision, reason, err)
		}
		if missing := c.user.GetName() == "joe"; strings.Contains(reason,
			`"a/missing" not found`) != missing {
			t.Errorf("%s is told: %s", c.user.GetName(), reason)
		}
	}

	rules, paths, incomplete, err := roles.RulesFor(t.Context(), jane, "a")
	if len(rules) != 3 || len(paths) != 1 || incomplete || !apierrors.IsNotFound(err) {
		t.Errorf("jane's rules: %v %v %t %v", rules, paths, incomplete, err)
	}
}

// Who could not be found to have a role because the roles cannot be read is not told that they have
// none.
func TestRolesThatCannotBeRead(t *testing.T) {
	away := errors.New("the database is away")
	bindings := map[string][]bound{"": {{"ClusterRole", "all", subject("User", "", "jane")}}}
	roles := Roles{source{bindings: bindings, err: away,
		roles: map[string][]rbacv1.PolicyRule{"all": {rule("*", "*", "*", "")}}}}
	decision, _, err := roles.Authorize(t.Context(), authorizer.AttributesRecord{User: jane,
		Verb: "get", ResourceRequest: true})
	if decision != authorizer.DecisionNoOpinion || !errors.Is(err, away) {
		t.Errorf("got %v, %v", decision, err)
	}
	if err := roles.CheckGrant(t.Context(), schema.GroupResource{}, "x", jane, "",
		nil); !errors.Is(err, away) {
		t.Errorf("a grant: %v", err)
	}
	if _, _, incomplete, err := roles.RulesFor(t.Context(), jane, ""); !incomplete ||
		!errors.Is(err, away) {
		t.Errorf("the rules: %t, %v", incomplete, err)
	}
}

func TestCheckGrant(t *testing.T) {
	roles := Roles{source{
		roles: map[string][]rbacv1.PolicyRule{
			"jane": {rule("get list", "- apps", "configmaps */scale", ""),
				rule("update", "-", "secrets", "one two"), urls("get", "/logs/*")},
			"a/jane": {rule("*", "-", "pods", "")},
		},
		bindings: map[string][]bound{"": {{"ClusterRole", "jane", subject("User", "", "jane")}},
			"a": {{"Role", "jane", subject("User", "", "jane")}}},
	}}
	for _, c := range []struct {
		namespace string
		rule      rbacv1.PolicyRule
		want      bool
	}{
		{"", rule("list", "apps", "configmaps", ""), true},
		{"b", rule("get list", "- apps", "configmaps x/scale", "some"), true},
		{"", rule("*", "apps", "configmaps", ""), false},
		{"", rule("list", "*", "configmaps", ""), false},
		{"", rule("list", "apps", "*", ""), false},
		{"", rule("list", "apps", "configmaps/status", ""), false},
		{"", rule("update", "-", "secrets", "two"), true},
		{"", rule("update", "-", "secrets", "two three"), false},
		{"", rule("update", "-", "secrets", ""), false},
		{"a", rule("delete bind *", "-", "pods", ""), true},
		{"", rule("delete", "-", "pods", ""), false},
		{"b", rule("delete", "-", "pods", ""), false},
		{"", urls("get", "/logs/ /logs/x /logs/*"), true},
		{"", urls("get", "/logs"), false},
		{"", urls("*", "/logs/x"), false},
		{"", urls("get", "*"), false},
	} {
		err := roles.CheckGrant(t.Context(), rbacv1.Resource("roles"), "x", jane, c.namespace,
			[]rbacv1.PolicyRule{c.rule})
		if c.want != (err == nil) || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%+v in %q: %v", c.rule, c.namespace, err)
		}
	}
	// A message does not grow with the role.
	err := roles.CheckGrant(t.Context(), rbacv1.Resource("roles"), "x", jane, "",
		[]rbacv1.PolicyRule{rule("1 2 3 4 5 6", "-", "pods secrets", "")})
	if err == nil || !strings.HasSuffix(err.Error(), `, and 2 more`) ||
		!strings.Contains(err.Error(), `{"verbs":["1"],"apiGroups":[""],"resources":["pods"]}`) {
		t.Error(err)
	}
}
