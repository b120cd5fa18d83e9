package crds_test

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"github.com/rowkeeper/rowkeeper/pkg/crds"
	"github.com/rowkeeper/rowkeeper/pkg/example/exampletest"
	"github.com/rowkeeper/rowkeeper/pkg/server/access"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

type extend = func(*genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error)

// Roles give rights besides those that an author's authorizer gives.
func TestRolesBesideOwnRights(t *testing.T) {
	read := rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{""},
		Resources: []string{"configmaps"}}
	write := rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{rbacv1.GroupName},
		Resources: []string{"clusterroles"}}
	var resolver authorizer.RuleResolver
	s := exampletest.Start(t, testkit.Options{Extension: func(c *genericapiserver.RecommendedConfig,
		e testkit.Extended) (extend, error) {
		c.RuleResolver = access.Policy{{Group: "own", Rules: []rbacv1.PolicyRule{read}}}
		x, err := crds.Prepare(c, crds.Options{Storage: e.Storage, Database: e.Database,
			Schemes: e.Schemes, Getters: e.Getters, SingleServer: true, Roles: true})
		if err != nil {
			return nil, err
		}
		resolver = c.RuleResolver
		return x.Extend, nil
	}})
	client := func(name string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
		return kubernetes.NewForConfigOrDie(s.ConfigFor(testkit.User{Name: name, Rules: rules}))
	}
	list := func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	}
	jane, joe := client("jane", read, write), client("joe")
	if err := list(t.Context(), jane); err != nil {
		t.Errorf("jane, who has the right from the author: %v", err)
	}
	if err := list(t.Context(), joe); !apierrors.IsForbidden(err) {
		t.Errorf("joe, who has no right: %v", err)
	}

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{read}}
	if _, err := jane.RbacV1().ClusterRoles().Create(t.Context(), role,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("jane gives away what no role gives her: %v", err)
	}
	admin := kubernetes.NewForConfigOrDie(s.Config).RbacV1()
	if _, err := admin.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "joe"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "joe has the right by his role", func(ctx context.Context) (bool, error) {
		return list(ctx, joe) == nil, nil
	})
	rules, _, incomplete, err := resolver.RulesFor(t.Context(), &user.DefaultInfo{Name: "joe",
		Groups: []string{"own"}}, "default")
	if len(rules) != 2 || incomplete || err != nil {
		t.Errorf("joe is told %v, %t, %v", rules, incomplete, err)
	}
}
