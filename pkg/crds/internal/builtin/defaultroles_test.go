package builtin

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Default roles are written that are missing, or that lack rules, also if another replica writes
// them meanwhile. Others are left alone, and none is asked for that was listed.
func TestWriteDefaultRoles(t *testing.T) {
	own := func(name, update string) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: update}}}
	}
	client := fake.NewClientset(own("edit", "false"), own("system:auth-delegator", "true"))
	conflicts, asked, written := 1, []string{}, 0
	client.PrependReactor("*", "*",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			switch a := a.(type) {
			case clienttesting.GetActionImpl:
				asked = append(asked, a.Name)
			case clienttesting.UpdateActionImpl:
				if conflicts > 0 {
					conflicts--
					return true, nil, apierrors.NewConflict(rbacv1.Resource("clusterroles"), "", nil)
				}
				written++
			case clienttesting.CreateActionImpl:
				written++
			}
			return false, nil, nil
		})
	if err := WriteDefaultRoles(t.Context(), client.RbacV1()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(asked, []string{"system:auth-delegator"}) {
		t.Errorf("asked for %v", asked)
	}
	roles := client.RbacV1().ClusterRoles()
	for name, has := range map[string]bool{"edit": false, "system:auth-delegator": true,
		"cluster-admin": true} {
		if r, err := roles.Get(t.Context(), name, metav1.GetOptions{}); err != nil ||
			(len(r.Rules) > 0) != has {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	written = 0
	if err := WriteDefaultRoles(t.Context(), client.RbacV1()); err != nil || written != 0 {
		t.Errorf("the second time, %d were written: %v", written, err)
	}
}
