package builtin

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// WriteDefaultRoles creates the default cluster roles and their bindings that are missing, and
// gives those that are there the rules and subjects that they lack. It takes nothing away, and
// leaves alone what has the annotation rbac.authorization.kubernetes.io/autoupdate: "false". It
// writes what it can, and returns all that it could not.
//
// The roles are a cluster's, except for those of kube-controller-manager, which does not run here.
// Upstream's hook would wait for a second, ask for each role, and end the process if one cannot be
// written.
func WriteDefaultRoles(ctx context.Context, client rbacclient.RbacV1Interface) error {
	roles, err := client.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cannot list the cluster roles: %w", err)
	}
	bindings, err := client.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cannot list the bindings of cluster roles: %w", err)
	}
	listedRoles := listed[rbacv1.ClusterRole]{}
	for i, r := range roles.Items {
		listedRoles[r.Name] = &roles.Items[i]
	}
	listedBindings := listed[rbacv1.ClusterRoleBinding]{}
	for i, b := range bindings.Items {
		listedBindings[b.Name] = &bindings.Items[i]
	}
	var errs []error
	write := func(kind, name string, run func() error) {
		// Another replica may write it, too.
		if err := retry.RetryOnConflict(retry.DefaultBackoff, run); err != nil {
			errs = append(errs, fmt.Errorf("cannot write the default %s %s: %w", kind, name, err))
		}
	}
	for _, role := range bootstrappolicy.ClusterRoles() {
		write("ClusterRole", role.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{
				Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: role.DeepCopy()},
				Client: reconciliation.ClusterRoleModifier{
					Client: roleClient{client.ClusterRoles(), listedRoles}},
				Confirm: true,
			}).Run()
			return err
		})
	}
	for _, binding := range bootstrappolicy.ClusterRoleBindings() {
		write("ClusterRoleBinding", binding.Name, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{
				RoleBinding: reconciliation.ClusterRoleBindingAdapter{
					ClusterRoleBinding: binding.DeepCopy()},
				Client: reconciliation.ClusterRoleBindingClientAdapter{
					Client: bindingClient{client.ClusterRoleBindings(), listedBindings}},
				Confirm: true,
			}).Run()
			return err
		})
	}
	return errors.Join(errs...)
}

// listed are the objects that a list had, by their names. The first who asks for one gets it from
// here; whoever asks again has found that it is another one meanwhile.
type listed[T any] map[string]*T

// take returns what the list had, nil if it had none. It is not ok for the second time.
func (l listed[T]) take(name string) (obj *T, ok bool) {
	obj, there := l[name]
	l[name] = nil
	return obj, !there || obj != nil
}

type roleClient struct {
	rbacclient.ClusterRoleInterface
	listed listed[rbacv1.ClusterRole]
}

func (c roleClient) Get(ctx context.Context, name string,
	o metav1.GetOptions) (*rbacv1.ClusterRole, error) {
	switch role, ok := c.listed.take(name); {
	case !ok:
		return c.ClusterRoleInterface.Get(ctx, name, o)
	case role == nil:
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterroles"), name)
	default:
		return role, nil
	}
}

type bindingClient struct {
	rbacclient.ClusterRoleBindingInterface
	listed listed[rbacv1.ClusterRoleBinding]
}

func (c bindingClient) Get(ctx context.Context, name string,
	o metav1.GetOptions) (*rbacv1.ClusterRoleBinding, error) {
	switch binding, ok := c.listed.take(name); {
	case !ok:
		return c.ClusterRoleBindingInterface.Get(ctx, name, o)
	case binding == nil:
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrolebindings"), name)
	default:
		return binding, nil
	}
}
