package crds

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	rbacv1listers "k8s.io/client-go/listers/rbac/v1"
)

// aggregated is the client of the controller that fills the roles which aggregate others. The
// controller applies rules by force, and to a name only. So it would bring back a role that was
// deleted meanwhile, and with it what its bindings grant, and it would replace the rules of one
// that aggregates no more. This client applies them to the role that is known, or to none: then the
// controller looks again.
type aggregated struct {
	rbacv1client.ClusterRolesGetter
	known rbacv1listers.ClusterRoleLister
}

func (a aggregated) ClusterRoles() rbacv1client.ClusterRoleInterface {
	return knownRoles{a.ClusterRolesGetter.ClusterRoles(), a.known}
}

type knownRoles struct {
	rbacv1client.ClusterRoleInterface
	known rbacv1listers.ClusterRoleLister
}

func (r knownRoles) Apply(ctx context.Context, rules *rbacv1ac.ClusterRoleApplyConfiguration,
	opts metav1.ApplyOptions) (*rbacv1.ClusterRole, error) {
	is, err := r.known.Get(*rules.Name)
	if err != nil {
		return nil, err
	}
	if is.AggregationRule == nil {
		return nil, apierrors.NewConflict(rbacv1.Resource("clusterroles"), is.Name,
			errors.New("it aggregates no more"))
	}
	role, err := r.ClusterRoleInterface.Apply(ctx,
		rules.WithUID(is.UID).WithResourceVersion(is.ResourceVersion), opts)
	if apierrors.IsConflict(err) {
		// The role is newer than what is known. The controller looks again when that is known, too.
		return is, nil
	}
	return role, err
}
