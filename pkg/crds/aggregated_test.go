package crds

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	rbacv1listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

// applied keeps what was applied.
type applied struct {
	rbacv1client.ClusterRolesGetter
	rbacv1client.ClusterRoleInterface
	last *rbacv1ac.ClusterRoleApplyConfiguration
}

func (a *applied) ClusterRoles() rbacv1client.ClusterRoleInterface { return a }

func (a *applied) Apply(_ context.Context, rules *rbacv1ac.ClusterRoleApplyConfiguration,
	_ metav1.ApplyOptions) (*rbacv1.ClusterRole, error) {
	a.last = rules
	return &rbacv1.ClusterRole{}, nil
}

// TestAggregated: rules are applied to the role that is known, and to no other one.
func TestAggregated(t *testing.T) {
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, role := range []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "all", UID: "u", ResourceVersion: "7"},
			AggregationRule: &rbacv1.AggregationRule{}},
		{ObjectMeta: metav1.ObjectMeta{Name: "none"}},
	} {
		if err := known.Add(role); err != nil {
			t.Fatal(err)
		}
	}
	to := &applied{}
	roles := aggregated{to, rbacv1listers.NewClusterRoleLister(known)}.ClusterRoles()
	apply := func(name string) error {
		_, err := roles.Apply(t.Context(), rbacv1ac.ClusterRole(name), metav1.ApplyOptions{})
		return err
	}
	if err := apply("gone"); !apierrors.IsNotFound(err) || to.last != nil {
		t.Errorf("to a role that is gone: %v", err)
	}
	if err := apply("none"); !apierrors.IsConflict(err) || to.last != nil {
		t.Errorf("to a role that aggregates no more: %v", err)
	}
	if err := apply("all"); err != nil || to.last == nil || *to.last.UID != "u" ||
		*to.last.ResourceVersion != "7" {
		t.Errorf("to a role that aggregates: %v, %+v", err, to.last)
	}
}
