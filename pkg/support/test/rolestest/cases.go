package rolestest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	rbacapply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes/scheme"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
)

// decisions asks the server what users, groups and service accounts may do.
func (f *fixture) decisions() {
	read := f.clusterRole("read", rule("get list", "-", "configmaps", ""),
		rule("patch", "apps", "*/scale widgets/status", ""), paths("get", "/metrics /logs/*"))
	everything := f.clusterRole("everything", rule("*", "*", "*", ""))
	f.role("delete", rule("delete", "-", "configmaps", "one two"))
	f.everywhere(read, f.user("jane"))
	f.here(roleRef("delete"), rbacv1.Subject{Kind: "Group", Name: f.ns + "-dev"})
	f.here(roleRef("not-there"), f.user("jane"))
	f.here(clusterRef(everything), rbacv1.Subject{Kind: "ServiceAccount", Name: "robot",
		Namespace: f.ns})
	f.here(clusterRef(everything), f.user("last"))
	f.known("jane", "get", "", "configmaps", "")
	f.known("last", "get", "", "configmaps", "")

	robot := "system:serviceaccount:" + f.ns + ":robot"
	jane := f.ns + "-jane"
	for _, c := range []struct {
		user, group, verb, namespace, apiGroup, resource, name string
		want                                                   bool
	}{
		{jane, "", "list", "", "", "configmaps", "", true},
		{jane, "", "get", "other", "", "configmaps", "x", true},
		{jane, "", "get", "other", "", "configmaps/status", "x", false},
		{jane, "", "get", "other", "apps", "configmaps", "x", false},
		{jane, "", "watch", "", "", "configmaps", "", false},
		{jane, "", "patch", f.ns, "apps", "deployments/scale", "x", true},
		{jane, "", "patch", f.ns, "apps", "widgets/status", "x", true},
		{jane, "", "patch", f.ns, "apps", "widgets", "x", false},
		{jane, "", "patch", f.ns, "", "widgets/scale", "x", false},
		{jane, "", "get", "", "", "/logs/x", "", true},
		{jane, "", "get", "", "", "/logs", "", false},
		{jane, "", "get", "", "", "/metrics", "", true},
		{jane, "", "post", "", "", "/metrics", "", false},
		{jane, "", "delete", f.ns, "", "configmaps", "one", false},
		{jane, f.ns + "-dev", "delete", f.ns, "", "configmaps", "one", true},
		{jane, f.ns + "-dev", "delete", f.ns, "", "configmaps", "three", false},
		{jane, f.ns + "-dev", "deletecollection", f.ns, "", "configmaps", "", false},
		{jane, f.ns + "-dev", "delete", "other", "", "configmaps", "one", false},
		{jane, f.ns + "-dev", "delete", "", "", "configmaps", "one", false},
		{robot, "", "bind", f.ns, rbacv1.GroupName, "roles", "x", true},
		{robot, "", "get", "other", "", "secrets", "x", false},
		{robot, "", "get", "", "", "secrets", "", false},
		{robot, "", "get", "", "", "/metrics", "", false},
		// Default roles.
		{jane, "system:authenticated", "get", "", "", "/apis/apps/v1", "", true},
		{jane, "system:authenticated", "get", "", "", "/readyz", "", true},
		{jane, "", "get", "", "", "/readyz", "", false},
		{jane, "system:authenticated", "get", "", "", "/readyz/ping", "", false},
		{jane, "system:authenticated", "create", "", "authorization.k8s.io",
			"selfsubjectaccessreviews", "", true},
		{jane, "system:authenticated", "create", "", "authorization.k8s.io",
			"subjectaccessreviews", "", false},
		{jane, "system:unauthenticated", "get", "", "", "/version", "", true},
		{jane, "system:unauthenticated", "get", "", "", "/apis", "", false},
		{jane, "system:monitoring", "get", "", "", "/metrics/slis", "", true},
		{jane, "system:masters", "anything", "other", "any", "thing/sub", "x", true},
		{jane, "system:masters", "delete", "", "", "/any", "", true},
	} {
		spec := authorizationv1.SubjectAccessReviewSpec{User: c.user}
		if c.group != "" {
			spec.Groups = []string{c.group}
		}
		if strings.HasPrefix(c.resource, "/") {
			spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: c.resource,
				Verb: c.verb}
		} else {
			resource, sub, _ := strings.Cut(c.resource, "/")
			spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: c.namespace,
				Verb: c.verb, Group: c.apiGroup, Resource: resource, Subresource: sub,
				Name: c.name}
		}
		if got := f.allowed(spec); got != c.want {
			f.Errorf("%+v: the server says %t", c, got)
		}
	}

	own, err := f.as("jane").AuthorizationV1().SelfSubjectAccessReviews().Create(f.Context(),
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list",
				Resource: "configmaps"}}}, metav1.CreateOptions{})
	f.must(err)
	if !own.Status.Allowed {
		f.Errorf("jane's own review: %+v", own.Status)
	}
	list, err := f.as("jane").AuthorizationV1().SelfSubjectRulesReviews().Create(f.Context(),
		&authorizationv1.SelfSubjectRulesReview{
			Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: f.ns}},
		metav1.CreateOptions{})
	f.must(err)
	if !slices.ContainsFunc(list.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool {
		return slices.Equal(r.Resources, []string{"*/scale", "widgets/status"}) &&
			slices.Equal(r.APIGroups, []string{"apps"}) && slices.Equal(r.Verbs, []string{"patch"})
	}) || !slices.ContainsFunc(list.Status.NonResourceRules,
		func(r authorizationv1.NonResourceRule) bool {
			return slices.Contains(r.NonResourceURLs, "/logs/*")
		}) {
		f.Errorf("jane's rules: %+v", list.Status)
	}
}

// Everything is tried, and nothing stored.
var (
	tryCreate = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	tryUpdate = metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}
	tryPatch  = metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	tryApply  = metav1.ApplyOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "test",
		Force: true}
)

// attempt is something that a user tries. It succeeds if there is no reason against it.
type attempt struct {
	what string
	do   func(context.Context, rbacclient.RbacV1Interface) error
	want metav1.StatusReason
}

// try makes the attempts of a user.
func (f *fixture) try(user string, attempts []attempt) {
	f.Helper()
	client := f.as(user).RbacV1()
	for _, a := range attempts {
		err := a.do(f.Context(), client)
		if got := apierrors.ReasonForError(err); got != a.want || err != nil && a.want == "" {
			f.Errorf("%s, %s: %v, want %q", user, a.what, err, a.want)
		}
	}
}

func (f *fixture) createRole(rules ...rbacv1.PolicyRule,
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		_, err := c.Roles(f.ns).Create(ctx, &rbacv1.Role{ObjectMeta: f.local("new"), Rules: rules},
			tryCreate)
		return err
	}
}

func (f *fixture) createClusterRole(aggregate bool, rules ...rbacv1.PolicyRule,
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		r := &rbacv1.ClusterRole{ObjectMeta: f.named("new"), Rules: rules}
		if aggregate {
			r.AggregationRule = aggregating("any")
		}
		_, err := c.ClusterRoles().Create(ctx, r, tryCreate)
		return err
	}
}

func aggregating(of ...string) *rbacv1.AggregationRule {
	r := &rbacv1.AggregationRule{}
	for _, label := range of {
		r.ClusterRoleSelectors = append(r.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}})
	}
	return r
}

func (f *fixture) bindHere(ref rbacv1.RoleRef,
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		_, err := c.RoleBindings(f.ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: f.local("new"),
			RoleRef: ref, Subjects: []rbacv1.Subject{f.user("friend")}}, tryCreate)
		return err
	}
}

func (f *fixture) bindEverywhere(ref rbacv1.RoleRef,
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		_, err := c.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: f.named("new"), RoleRef: ref,
			Subjects: []rbacv1.Subject{f.user("friend")}}, tryCreate)
		return err
	}
}

// changeRole changes a stored role as the administrator sees it, so that nobody needs the right to
// read it.
func (f *fixture) changeRole(name string, change func(*rbacv1.Role),
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		r, err := f.RbacV1().Roles(f.ns).Get(ctx, name, metav1.GetOptions{})
		f.must(err)
		change(r)
		_, err = c.Roles(f.ns).Update(ctx, r, tryUpdate)
		return err
	}
}

func (f *fixture) changeClusterRole(name string, change func(*rbacv1.ClusterRole),
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		r, err := f.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		f.must(err)
		change(r)
		_, err = c.ClusterRoles().Update(ctx, r, tryUpdate)
		return err
	}
}

func (f *fixture) changeBinding(name string, change func(*rbacv1.RoleBinding),
) func(context.Context, rbacclient.RbacV1Interface) error {
	return func(ctx context.Context, c rbacclient.RbacV1Interface) error {
		b, err := f.RbacV1().RoleBindings(f.ns).Get(ctx, name, metav1.GetOptions{})
		f.must(err)
		change(b)
		_, err = c.RoleBindings(f.ns).Update(ctx, b, tryUpdate)
		return err
	}
}

const no = metav1.StatusReasonForbidden

// grants lets users give rights away that they have, and that they do not have.
func (f *fixture) grants() {
	var (
		configMaps = rule("get list", "-", "configmaps", "")
		one        = rule("update", "-", "secrets", "one")
		all        = []rbacv1.PolicyRule{rule("*", "*", "*", ""), paths("*", "*")}
	)
	f.writers(configMaps, one)
	small, big := f.clusterRole("small", configMaps), f.clusterRole("big", all...)
	secrets := f.clusterRole("secrets", one)
	f.role("small", configMaps, one)
	f.role("big", rule("*", "-", "secrets", ""))
	for name, ref := range map[string]rbacv1.RoleRef{"small": clusterRef(small),
		"big": clusterRef(big)} {
		_, err := f.RbacV1().RoleBindings(f.ns).Create(f.Context(), &rbacv1.RoleBinding{
			ObjectMeta: f.local(name), RoleRef: ref}, metav1.CreateOptions{})
		f.must(err)
	}
	aggregate, err := f.RbacV1().ClusterRoles().Create(f.Context(), &rbacv1.ClusterRole{
		ObjectMeta: f.named("aggregate"), AggregationRule: aggregating(f.ns)},
		metav1.CreateOptions{})
	f.must(err)

	label := func(o metav1.Object) { o.SetLabels(map[string]string{"changed": "yes"}) }
	f.try("writer", []attempt{
		{"a role with own rights", f.createRole(configMaps, one), ""},
		{"a role without rules", f.createRole(), ""},
		{"a role for all names", f.createRole(rule("update", "-", "secrets", "")), no},
		{"a role for other names", f.createRole(rule("update", "-", "secrets", "one two")), no},
		{"a role with another verb", f.createRole(configMaps, rule("watch", "-", "configmaps", "")),
			no},
		{"a role with all verbs", f.createRole(rule("*", "-", "configmaps", "")), no},
		{"a role with all groups", f.createRole(rule("get", "*", "configmaps", "")), no},
		{"a role with a subresource", f.createRole(rule("get", "-", "configmaps/status", "")), no},
		{"a cluster role with own rights", f.createClusterRole(false, configMaps), ""},
		{"a cluster role with the rights of a namespace", f.createClusterRole(false, one), no},
		{"a cluster role with own paths", f.createClusterRole(false, paths("get", "/logs/x")), ""},
		{"a cluster role with more paths", f.createClusterRole(false, paths("get", "/logs*")), no},
		{"a cluster role that aggregates", f.createClusterRole(true), no},
		{"an aggregating one, changed", f.changeClusterRole(aggregate.Name,
			func(r *rbacv1.ClusterRole) { label(r) }), no},
		{"an aggregating one that becomes a plain one", f.changeClusterRole(aggregate.Name,
			func(r *rbacv1.ClusterRole) { r.AggregationRule = nil }), no},
		{"a plain one that becomes aggregating", f.changeClusterRole(small,
			func(r *rbacv1.ClusterRole) { r.AggregationRule = aggregating("any") }), no},
		{"a role, by a PUT that changes it", f.changeRole("small", func(r *rbacv1.Role) {
			r.Rules = append(r.Rules, rule("get", "-", "secrets", ""))
		}), no},
		{"less in a role", f.changeRole("small", func(r *rbacv1.Role) {
			r.Rules = r.Rules[:1]
		}), ""},
		{"a role, by a PUT that creates it", func(ctx context.Context,
			c rbacclient.RbacV1Interface) error {
			return c.RESTClient().Put().Namespace(f.ns).Resource("roles").Name("new").
				VersionedParams(&tryUpdate, scheme.ParameterCodec).Body(&rbacv1.Role{
				TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"},
				ObjectMeta: f.local("new"), Rules: all[:1]}).Do(ctx).Error()
		}, no},
		{"a role, by a patch", func(ctx context.Context, c rbacclient.RbacV1Interface) error {
			patch, err := json.Marshal(map[string]any{"rules": all[:1]})
			f.must(err)
			_, err = c.Roles(f.ns).Patch(ctx, "small", types.MergePatchType, patch, tryPatch)
			return err
		}, no},
		{"a role, by an apply", func(ctx context.Context, c rbacclient.RbacV1Interface) error {
			_, err := c.Roles(f.ns).Apply(ctx, rbacapply.Role("small", f.ns).WithRules(
				rbacapply.PolicyRule().WithVerbs("*").WithAPIGroups("*").WithResources("*")),
				tryApply)
			return err
		}, no},
		{"a role, by an apply that creates it", func(ctx context.Context,
			c rbacclient.RbacV1Interface) error {
			_, err := c.Roles(f.ns).Apply(ctx, rbacapply.Role("new", f.ns).WithRules(
				rbacapply.PolicyRule().WithVerbs("*").WithAPIGroups("*").WithResources("*")),
				tryApply)
			return err
		}, no},
		{"the label of a role with more rights", f.changeRole("big", func(r *rbacv1.Role) {
			label(r)
		}), no},
		{"the owners of a role with more rights", f.changeRole("big", func(r *rbacv1.Role) {
			r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap",
				Name: "x", UID: "x"}}
			r.Finalizers = []string{"example.com/hold"}
		}), ""},

		{"a binding", f.bindHere(clusterRef(small)), ""},
		{"a binding of a role of the namespace", f.bindHere(roleRef("small")), ""},
		{"a binding with the rights of the namespace", f.bindHere(clusterRef(secrets)), ""},
		{"a binding everywhere", f.bindEverywhere(clusterRef(small)), ""},
		{"a binding everywhere with the rights of a namespace",
			f.bindEverywhere(clusterRef(secrets)), no},
		{"a binding to more rights", f.bindHere(clusterRef(big)), no},
		{"a binding to more rights in the namespace", f.bindHere(roleRef("big")), no},
		{"a binding everywhere to more rights", f.bindEverywhere(clusterRef(big)), no},
		{"a binding to a role that is missing", f.bindHere(roleRef("not-there")),
			metav1.StatusReasonNotFound},
		{"another subject of a binding", f.changeBinding("small", func(b *rbacv1.RoleBinding) {
			b.Subjects = append(b.Subjects, f.user("friend"))
		}), ""},
		{"another subject of a binding to more rights", f.changeBinding("big",
			func(b *rbacv1.RoleBinding) { b.Subjects = append(b.Subjects, f.user("friend")) }), no},
		{"the owners of a binding to more rights", f.changeBinding("big",
			func(b *rbacv1.RoleBinding) { b.Finalizers = []string{"example.com/hold"} }), ""},
		{"another role of a binding", f.changeBinding("big", func(b *rbacv1.RoleBinding) {
			b.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "small"}
		}), metav1.StatusReasonInvalid},
	})
	f.try("escalator", []attempt{
		{"a cluster role with all rights", f.createClusterRole(false, all...), ""},
		{"a cluster role that aggregates", f.createClusterRole(true), ""},
		{"a role, for which the right is by name", f.createRole(all[:1]...), no},
		{"a role by its name", f.changeRole("small", func(r *rbacv1.Role) { r.Rules = all[:1] }),
			""},
		{"a role by another name", f.changeRole("big", func(r *rbacv1.Role) { label(r) }), no},
		{"a binding", f.bindHere(clusterRef(small)), no},
	})
	f.try("binder", []attempt{
		{"a binding to what may be bound here", f.bindHere(clusterRef(big)), ""},
		{"a binding to something else", f.bindHere(clusterRef(secrets)), no},
		{"a binding of a role of the namespace", f.bindHere(roleRef("big")), no},
		{"a binding to the same everywhere", f.bindEverywhere(clusterRef(big)), no},
		{"a role with these rights", f.createRole(all[:1]...), no},
	})
	f.try("boss", []attempt{
		{"a role with all rights", f.createRole(all[:1]...), ""},
		{"a cluster role that aggregates", f.createClusterRole(true, all...), ""},
		{"a binding to all rights", f.bindEverywhere(clusterRef("cluster-admin")), ""},
		{"a binding to a role that is missing", f.bindEverywhere(clusterRef(f.ns + "-not-there")),
			""},
	})
}

// writers are users who may write roles and bindings.
func (f *fixture) writers(configMaps, one rbacv1.PolicyRule) {
	write := rule("create update patch", rbacv1.GroupName,
		"roles clusterroles rolebindings clusterrolebindings", "")
	f.everywhere(f.clusterRole("writer", configMaps, paths("get", "/logs/*"), write),
		f.user("writer"))
	f.role("one", one)
	f.here(roleRef("one"), f.user("writer"))
	f.everywhere(f.clusterRole("escalator", write,
		rule("escalate", rbacv1.GroupName, "clusterroles", ""),
		rule("escalate", rbacv1.GroupName, "roles", "small")), f.user("escalator"))
	f.everywhere(f.clusterRole("binder", write), f.user("binder"))
	f.role("binder", rule("bind", rbacv1.GroupName, "clusterroles", f.ns+"-big"))
	f.here(roleRef("binder"), f.user("binder"))
	f.everywhere("cluster-admin", f.user("boss"))

	f.known("writer", "create", rbacv1.GroupName, "roles", "")
	f.known("writer", "update", "", "secrets", "one")
	f.known("escalator", "escalate", rbacv1.GroupName, "clusterroles", "")
	f.known("binder", "create", rbacv1.GroupName, "roles", "")
	f.known("binder", "bind", rbacv1.GroupName, "clusterroles", f.ns+"-big")
	f.known("boss", "create", "any", "thing", "")
}

// objects writes roles and bindings that are refused, whoever writes them, and looks at the groups
// that the server sets.
func (f *fixture) objects() {
	roles := func(rules ...rbacv1.PolicyRule) func() error {
		return func() error {
			return f.createRole(rules...)(f.Context(), f.RbacV1())
		}
	}
	clusterRole := func(change func(*rbacv1.ClusterRole)) func() error {
		return func() error {
			r := &rbacv1.ClusterRole{ObjectMeta: f.named("new")}
			change(r)
			_, err := f.RbacV1().ClusterRoles().Create(f.Context(), r, tryCreate)
			return err
		}
	}
	here := func(ref rbacv1.RoleRef, subjects ...rbacv1.Subject) func() error {
		return func() error {
			_, err := f.RbacV1().RoleBindings(f.ns).Create(f.Context(), &rbacv1.RoleBinding{
				ObjectMeta: f.local("new"), RoleRef: ref, Subjects: subjects}, tryCreate)
			return err
		}
	}
	everywhere := func(ref rbacv1.RoleRef, subjects ...rbacv1.Subject) func() error {
		return func() error {
			_, err := f.RbacV1().ClusterRoleBindings().Create(f.Context(),
				&rbacv1.ClusterRoleBinding{ObjectMeta: f.named("new"), RoleRef: ref,
					Subjects: subjects}, tryCreate)
			return err
		}
	}
	subject := func(kind, group, namespace, name string) func() error {
		return here(roleRef("x"), rbacv1.Subject{Kind: kind, APIGroup: group, Namespace: namespace,
			Name: name})
	}
	for what, c := range map[string]struct {
		do   func() error
		want string // the fields that are refused
	}{
		"no verb":        {roles(rule("", "-", "pods", "")), "rules[0].verbs"},
		"no group":       {roles(rule("get", "", "pods", "")), "rules[0].apiGroups"},
		"no resource":    {roles(rule("get", "-", "", "")), "rules[0].resources"},
		"path in a role": {roles(paths("get", "/x")), "rules[0].nonResourceURLs"},
		"the second rule": {roles(rule("get", "-", "pods", ""), rule("", "", "", "")),
			"rules[1].apiGroups rules[1].resources rules[1].verbs"},
		"path and resource": {clusterRole(func(r *rbacv1.ClusterRole) {
			r.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""},
				NonResourceURLs: []string{"/x"}}}
		}), "rules[0].nonResourceURLs"},
		"no selector": {clusterRole(func(r *rbacv1.ClusterRole) {
			r.AggregationRule = &rbacv1.AggregationRule{}
		}), "aggregationRule.clusterRoleSelectors"},
		"name with a slash": {clusterRole(func(r *rbacv1.ClusterRole) { r.Name = "a/b" }),
			"metadata.name"},
		"name with colons and capitals": {clusterRole(func(r *rbacv1.ClusterRole) {
			r.Name = f.ns + ":A:b"
		}), ""},
		"role of a namespace everywhere": {everywhere(roleRef("x")), "roleRef.kind"},
		"kind of a role":                 {here(rbacv1.RoleRef{Kind: "Pod", Name: "x"}), "roleRef.kind"},
		"no name of a role":              {here(rbacv1.RoleRef{Kind: "Role"}), "roleRef.name"},
		"name of a role":                 {here(roleRef("a/b")), "roleRef.name"},
		"group of a role": {here(rbacv1.RoleRef{Kind: "Role", Name: "x", APIGroup: "apps"}),
			"roleRef.apiGroup"},
		"no subject":         {here(roleRef("x")), ""},
		"a user":             {subject("User", "", "", "jane"), ""},
		"no name of a user":  {subject("User", "", "", ""), "subjects[0].name"},
		"group of a user":    {subject("User", "apps", "", "jane"), "subjects[0].apiGroup"},
		"kind of a subject":  {subject("Pod", "", "", "jane"), "subjects[0].kind"},
		"group of a group":   {subject("Group", "apps", "", "dev"), "subjects[0].apiGroup"},
		"an account":         {subject("ServiceAccount", "", "", "robot"), ""},
		"name of an account": {subject("ServiceAccount", "", "x", "A"), "subjects[0].name"},
		"group of an account": {subject("ServiceAccount", rbacv1.GroupName, "x", "a"),
			"subjects[0].apiGroup"},
		"account without a namespace everywhere": {everywhere(clusterRef("x"),
			rbacv1.Subject{Kind: "ServiceAccount", Name: "robot"}), "subjects[0].namespace"},
	} {
		if got := refusedFields(c.do()); got != c.want {
			f.Errorf("%s: the server refuses %q, want %q", what, got, c.want)
		}
	}

	b, err := f.RbacV1().RoleBindings(f.ns).Create(f.Context(), &rbacv1.RoleBinding{
		ObjectMeta: f.local("defaults"), RoleRef: roleRef("x"), Subjects: []rbacv1.Subject{
			{Kind: "User", Name: "jane"}, {Kind: "Group", Name: "dev"},
			{Kind: "ServiceAccount", Name: "robot"}}}, metav1.CreateOptions{})
	f.must(err)
	if b.RoleRef.APIGroup != rbacv1.GroupName || b.Subjects[0].APIGroup != rbacv1.GroupName ||
		b.Subjects[1].APIGroup != rbacv1.GroupName || b.Subjects[2].APIGroup != "" ||
		b.Subjects[2].Namespace != "" {
		f.Errorf("the server sets %+v", b)
	}
	err = f.changeBinding(b.Name, func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "y" })(
		f.Context(), f.RbacV1())
	if got := refusedFields(err); got != "roleRef" {
		f.Errorf("the role of a binding can change: %v", err)
	}
}

// refusedFields are the fields that are not valid, in order, or the error if it is another one.
func refusedFields(err error) string {
	if err == nil {
		return ""
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		return err.Error()
	}
	var fields []string
	for _, c := range status.Status().Details.Causes {
		fields = append(fields, c.Field)
	}
	slices.Sort(fields)
	return strings.Join(slices.Compact(fields), " ")
}

// aggregation lets roles be filled, and emptied, by others.
func (f *fixture) aggregation() {
	roles := f.RbacV1().ClusterRoles()
	aggregate := func(name string, labels map[string]string, of ...string) {
		r := &rbacv1.ClusterRole{ObjectMeta: f.named(name), AggregationRule: aggregating(of...)}
		r.Labels = labels
		_, err := roles.Create(f.Context(), r, metav1.CreateOptions{})
		f.must(err)
	}
	part := func(name, of string, rules ...rbacv1.PolicyRule) {
		r := &rbacv1.ClusterRole{ObjectMeta: f.named(name), Rules: rules}
		r.Labels = map[string]string{of: "true"}
		_, err := roles.Create(f.Context(), r, metav1.CreateOptions{})
		f.must(err)
	}
	filled := func(name string, want ...rbacv1.PolicyRule) {
		f.Helper()
		f.eventually("rules of "+name, func() error {
			r, err := roles.Get(f.Context(), name, metav1.GetOptions{})
			if err != nil || apiequality.Semantic.DeepEqual(r.Rules, want) {
				return err
			}
			return fmt.Errorf("the rules are %v", r.Rules)
		})
	}
	get, list := rule("get", "-", "pods", ""), rule("list", "-", "pods", "")
	url := paths("get", "/x")
	part("b", f.ns+"-inner", list, get)
	aggregate("outer", nil, f.ns+"-outer")
	aggregate("inner", map[string]string{f.ns + "-outer": "true"}, f.ns+"-inner")
	part("a", f.ns+"-inner", get, url)
	filled(f.ns+"-inner", get, url, list) // by the names of the roles, each rule once
	filled(f.ns+"-outer", get, url, list)
	part("c", f.ns+"-first", url)
	aggregate("both", nil, f.ns+"-first", f.ns+"-inner")
	filled(f.ns+"-both", url, get, list) // by the selectors, before the names

	// Rules that are written into such a role do not stay.
	r, err := roles.Get(f.Context(), f.ns+"-outer", metav1.GetOptions{})
	f.must(err)
	r.Rules = []rbacv1.PolicyRule{rule("*", "*", "*", "")}
	if _, err = roles.Update(f.Context(), r, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		f.must(err)
	}
	filled(f.ns+"-outer", get, url, list)
	f.must(roles.Delete(f.Context(), f.ns+"-a", metav1.DeleteOptions{}))
	filled(f.ns+"-outer", list, get)
	f.must(roles.Delete(f.Context(), f.ns+"-b", metav1.DeleteOptions{}))
	filled(f.ns + "-outer")

	// A kind's author makes it a part of the default roles.
	f.here(clusterRef("edit"), f.user("editor"))
	part("mine", "rbac.authorization.k8s.io/aggregate-to-view",
		rule("frobnicate", "-", f.ns, ""))
	f.known("editor", "frobnicate", "", f.ns, "")
	f.known("editor", "create", "", "configmaps", "")
	f.must(roles.Delete(f.Context(), f.ns+"-mine", metav1.DeleteOptions{}))
}
