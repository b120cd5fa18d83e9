package builtin

import (
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// aggregateTo is the label by which a role becomes a part of admin, edit or view.
const aggregateTo = "rbac.authorization.k8s.io/aggregate-to-"

// defaultRoles are those of a cluster that make sense for what is served here, with the names and
// the rules that they have there.
func defaultRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	write := []string{"create", "delete", "deletecollection", "patch", "update"}
	both := append(append([]string{}, read...), write...)
	rule := func(verbs []string, group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
	}
	paths := func(all ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: all}
	}
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	part := func(of string, r rbacv1.ClusterRole) rbacv1.ClusterRole {
		r.Labels = map[string]string{aggregateTo + of: "true"}
		return r
	}
	whole := func(name string) rbacv1.ClusterRole {
		r := role(name)
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{aggregateTo + name: "true"}}}}
		return r
	}
	create := []string{"create"}
	events := func(verbs []string) rbacv1.PolicyRule {
		r := rule(verbs, corev1.GroupName, "events")
		r.APIGroups = append(r.APIGroups, eventsv1.GroupName)
		return r
	}
	return []rbacv1.ClusterRole{
		role("cluster-admin", everything()...),
		role("system:discovery", paths("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez",
			"/openapi", "/openapi/*", "/readyz", "/version", "/version/")),
		role("system:public-info-viewer",
			paths("/healthz", "/livez", "/readyz", "/version", "/version/")),
		role("system:monitoring", paths("/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics",
			"/metrics/slis", "/readyz", "/readyz/*")),
		role("system:basic-user",
			rule(create, authorizationv1.GroupName, "selfsubjectaccessreviews",
				"selfsubjectrulesreviews"),
			rule(create, authenticationv1.GroupName, "selfsubjectreviews")),
		role("system:auth-delegator",
			rule(create, authenticationv1.GroupName, "tokenreviews"),
			rule(create, authorizationv1.GroupName, "subjectaccessreviews")),
		whole("admin"), part("admin", whole("edit")), part("edit", whole("view")),
		part("admin", role("system:aggregate-to-admin",
			rule(create, authorizationv1.GroupName, "localsubjectaccessreviews"),
			rule(both, rbacv1.GroupName, "roles", "rolebindings"))),
		part("edit", role("system:aggregate-to-edit",
			rule(read, corev1.GroupName, "secrets"),
			rule([]string{"impersonate"}, corev1.GroupName, "serviceaccounts"),
			rule(write, corev1.GroupName, "configmaps", "secrets", "serviceaccounts"),
			events(write),
			rule(both, coordinationv1.GroupName, "leases"))),
		part("view", role("system:aggregate-to-view",
			rule(read, corev1.GroupName, "configmaps", "namespaces", "namespaces/status",
				"serviceaccounts"),
			events(read))),
	}
}

// defaultBindings say which groups have default roles.
func defaultBindings() []rbacv1.ClusterRoleBinding {
	binding := func(role string, groups ...string) rbacv1.ClusterRoleBinding {
		b := rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
		for _, g := range groups {
			b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName,
				Kind: rbacv1.GroupKind, Name: g})
		}
		return b
	}
	return []rbacv1.ClusterRoleBinding{
		binding("cluster-admin", user.SystemPrivilegedGroup),
		binding("system:monitoring", user.MonitoringGroup),
		binding("system:discovery", user.AllAuthenticated),
		binding("system:basic-user", user.AllAuthenticated),
		binding("system:public-info-viewer", user.AllAuthenticated, user.AllUnauthenticated),
	}
}

// markDefault marks what is written at every start, unless a user sets the annotation to false.
func markDefault(m *metav1.ObjectMeta) {
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels["kubernetes.io/bootstrapping"] = "rbac-defaults"
	m.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}
}

// WriteDefaultRoles creates the default roles and bindings that are missing, and gives those that
// are there the rules and subjects that they lack. It takes nothing away, and leaves alone what has
// the annotation rbac.authorization.kubernetes.io/autoupdate: "false". It writes what it can, and
// returns all that it could not.
func WriteDefaultRoles(client rbacclient.RbacV1Interface) error {
	var errs []error
	write := func(kind, name string, run func() error) {
		// Another replica may write it, too.
		if err := retry.RetryOnConflict(retry.DefaultBackoff, run); err != nil {
			errs = append(errs, fmt.Errorf("cannot write the default %s %s: %w", kind, name, err))
		}
	}
	for _, role := range defaultRoles() {
		markDefault(&role.ObjectMeta)
		write("ClusterRole", role.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{
				Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: role.DeepCopy()},
				Client:  reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()},
				Confirm: true,
			}).Run()
			return err
		})
	}
	for _, binding := range defaultBindings() {
		markDefault(&binding.ObjectMeta)
		write("ClusterRoleBinding", binding.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{
				RoleBinding: reconciliation.ClusterRoleBindingAdapter{
					ClusterRoleBinding: binding.DeepCopy()},
				Client: reconciliation.ClusterRoleBindingClientAdapter{
					Client: client.ClusterRoleBindings()},
				Confirm: true,
			}).Run()
			return err
		})
	}
	return errors.Join(errs...)
}

// everything is what cluster-admin may do.
func everything() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
	}
}
