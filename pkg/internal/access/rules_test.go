package access

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestAuthorize(t *testing.T) {
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup,
		user.AllAuthenticated}}
	other := &user.DefaultInfo{Name: "other", Groups: []string{user.AllAuthenticated}}
	prometheus := &user.DefaultInfo{Name: "prometheus", Groups: []string{user.MonitoringGroup,
		user.AllAuthenticated}}
	for _, tc := range []struct {
		user    user.Info
		verb    string
		path    string // "" is a resource
		allowed bool
	}{
		{admin, "delete", "", true},
		{admin, "get", "/metrics", true},
		{other, "get", "", false},
		{other, "get", "/apis", true},
		{other, "get", "/apis/ci.rowkeeper.dev/v1", true},
		{other, "get", "/apisx", false},
		{other, "get", "/readyz/storage", true},
		{other, "put", "/apis", false},
		{other, "get", "/metrics", false},
		{other, "get", "/debug/pprof", false},
		{prometheus, "get", "/metrics", true},
		{prometheus, "get", "/metrics/slis", true},
		{prometheus, "get", "/debug/pprof", false},
		{prometheus, "get", "", false},
	} {
		decision, _, err := Standalone.Authorize(t.Context(), authorizer.AttributesRecord{User: tc.user,
			Verb: tc.verb, Path: tc.path, ResourceRequest: tc.path == "", Resource: "pipelines"})
		if err != nil || (decision == authorizer.DecisionAllow) != tc.allowed {
			t.Errorf("%s %s %q: decision %v, %v; want allowed %v", tc.user.GetName(), tc.verb,
				tc.path, decision, err, tc.allowed)
		}
	}
}

func TestAllows(t *testing.T) {
	resource := func(verb, group, resource, sub, name string) authorizer.Attributes {
		return authorizer.AttributesRecord{ResourceRequest: true, Verb: verb, APIGroup: group,
			Resource: resource, Subresource: sub, Name: name}
	}
	list := func(all ...string) []string { return all }
	for _, tc := range []struct {
		rule    rbacv1.PolicyRule
		request authorizer.Attributes
		want    bool
	}{
		{rbacv1.PolicyRule{Verbs: list("get"), APIGroups: list("ci"), Resources: list("runs")},
			resource("get", "ci", "runs", "", "x"), true},
		{rbacv1.PolicyRule{Verbs: list("get"), APIGroups: list("ci"), Resources: list("runs")},
			resource("get", "ci", "runs", "log", "x"), false},
		{rbacv1.PolicyRule{Verbs: list("get"), APIGroups: list("ci"), Resources: list("runs/log")},
			resource("get", "ci", "runs", "log", "x"), true},
		{rbacv1.PolicyRule{Verbs: list("*"), APIGroups: list("*"), Resources: list("*/log")},
			resource("get", "ci", "runs", "log", "x"), true},
		{rbacv1.PolicyRule{Verbs: list("*"), APIGroups: list("*"), Resources: list("*/log")},
			resource("get", "ci", "runs", "", "x"), false},
		{rbacv1.PolicyRule{Verbs: list("*"), APIGroups: list("*"), Resources: list("runs/*")},
			resource("get", "ci", "runs", "log", "x"), false},
		{rbacv1.PolicyRule{Verbs: list("*"), APIGroups: list("*"), Resources: list("*")},
			resource("get", "ci", "runs", "log", "x"), true},
		{rbacv1.PolicyRule{Verbs: list("get"), APIGroups: list(""), Resources: list("runs")},
			resource("get", "ci", "runs", "", "x"), false},
		{rbacv1.PolicyRule{Verbs: list("get"), APIGroups: list("ci"), Resources: list("runs"),
			ResourceNames: list("y")}, resource("get", "ci", "runs", "", "x"), false},
		{rbacv1.PolicyRule{Verbs: list("get"), APIGroups: list("ci"), Resources: list("runs"),
			ResourceNames: list("x", "y")}, resource("get", "ci", "runs", "", "x"), true},
		{rbacv1.PolicyRule{Verbs: list("create"), APIGroups: list("ci"), Resources: list("runs"),
			ResourceNames: list("x")}, resource("create", "ci", "runs", "", ""), false},
		{rbacv1.PolicyRule{Verbs: list("*"), NonResourceURLs: list("*")},
			resource("get", "ci", "runs", "", "x"), false},
	} {
		if got := Allows(tc.rule, tc.request); got != tc.want {
			t.Errorf("%+v with %+v: %v", tc.rule, tc.request, got)
		}
	}
}
