package rolestest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Run runs all cases on a server, as its administrator. It leaves roles and a namespace behind.
func Run(t *testing.T, admin *rest.Config) {
	t.Run("decisions", func(t *testing.T) { newFixture(t, admin).decisions() })
	t.Run("grants", func(t *testing.T) { newFixture(t, admin).grants() })
	t.Run("objects", func(t *testing.T) { newFixture(t, admin).objects() })
	t.Run("aggregation", func(t *testing.T) { newFixture(t, admin).aggregation() })
}

// fixture is what a case works with: a namespace, and the administrator's client. Names of its own
// begin with that of the namespace.
type fixture struct {
	*testing.T
	kubernetes.Interface
	admin *rest.Config
	ns    string
}

func newFixture(t *testing.T, admin *rest.Config) *fixture {
	t.Helper()
	admin = rest.CopyConfig(admin)
	admin.QPS = -1
	f := &fixture{T: t, Interface: kubernetes.NewForConfigOrDie(admin), admin: admin,
		ns: "roles-" + strings.ToLower(rand.Text()[:8])}
	_, err := f.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ns}}, metav1.CreateOptions{})
	f.must(err)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// as returns the client of a user, whom the administrator impersonates.
func (f *fixture) as(user string, groups ...string) kubernetes.Interface {
	config := rest.CopyConfig(f.admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: f.ns + "-" + user, Groups: groups}
	return kubernetes.NewForConfigOrDie(config)
}

// named is the metadata of an object in no namespace.
func (f *fixture) named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: f.ns + "-" + name}
}

// local is the metadata of an object in the namespace.
func (f *fixture) local(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: f.ns}
}

// clusterRole creates a role and returns its name.
func (f *fixture) clusterRole(name string, rules ...rbacv1.PolicyRule) string {
	f.Helper()
	r, err := f.RbacV1().ClusterRoles().Create(f.Context(),
		&rbacv1.ClusterRole{ObjectMeta: f.named(name), Rules: rules}, metav1.CreateOptions{})
	f.must(err)
	return r.Name
}

func (f *fixture) role(name string, rules ...rbacv1.PolicyRule) string {
	f.Helper()
	r, err := f.RbacV1().Roles(f.ns).Create(f.Context(),
		&rbacv1.Role{ObjectMeta: f.local(name), Rules: rules}, metav1.CreateOptions{})
	f.must(err)
	return r.Name
}

// everywhere binds a role of the cluster.
func (f *fixture) everywhere(role string, subjects ...rbacv1.Subject) {
	f.Helper()
	_, err := f.RbacV1().ClusterRoleBindings().Create(f.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: f.named(rand.Text()), RoleRef: clusterRef(role), Subjects: subjects,
	}, metav1.CreateOptions{})
	f.must(err)
}

// here binds a role in the namespace.
func (f *fixture) here(ref rbacv1.RoleRef, subjects ...rbacv1.Subject) {
	f.Helper()
	_, err := f.RbacV1().RoleBindings(f.ns).Create(f.Context(), &rbacv1.RoleBinding{
		ObjectMeta: f.local(rand.Text()), RoleRef: ref, Subjects: subjects,
	}, metav1.CreateOptions{})
	f.must(err)
}

// Servers set the groups of references and subjects, which are left out here.
func clusterRef(role string) rbacv1.RoleRef {
	return rbacv1.RoleRef{Kind: "ClusterRole", Name: role}
}

func roleRef(role string) rbacv1.RoleRef {
	return rbacv1.RoleRef{Kind: "Role", Name: role}
}

func (f *fixture) user(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "User", Name: f.ns + "-" + name}
}

// rule splits its parts at spaces. "-" is the group of the core API.
func rule(verbs, groups, resources, names string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: words(verbs), APIGroups: words(groups),
		Resources: words(resources), ResourceNames: words(names)}
}

func paths(verbs, urls string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: words(verbs), NonResourceURLs: words(urls)}
}

func words(text string) []string {
	all := strings.Fields(text)
	for i, w := range all {
		if w == "-" {
			all[i] = ""
		}
	}
	return all
}

// eventually waits until there is no error. Roles that were written a moment ago may not count yet.
func (f *fixture) eventually(what string, do func() error) {
	f.Helper()
	var last error
	err := wait.PollUntilContextTimeout(f.Context(), 20*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			last = do()
			return last == nil, nil
		})
	if err != nil {
		f.Fatalf("%s: %v", what, last)
	}
}

// allowed asks whether the subject of a review may do what it says.
func (f *fixture) allowed(spec authorizationv1.SubjectAccessReviewSpec) bool {
	f.Helper()
	review, err := f.AuthorizationV1().SubjectAccessReviews().Create(f.Context(),
		&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	f.must(err)
	return review.Status.Allowed
}

// known waits until a user may do something in the namespace.
func (f *fixture) known(user, verb, group, resource, name string) {
	f.Helper()
	f.eventually("roles are known", func() error {
		if !f.allowed(authorizationv1.SubjectAccessReviewSpec{User: f.ns + "-" + user,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: verb,
				Group: group, Resource: resource, Name: name}}) {
			return fmt.Errorf("%s may not %s %s yet", user, verb, resource)
		}
		return nil
	})
}
