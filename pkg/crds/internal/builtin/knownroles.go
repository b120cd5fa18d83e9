package builtin

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// KnownRoles decide by the roles that informers have seen, as upstream does. Before the informers
// are synced, nobody knows which roles there are: that is an error.
type KnownRoles struct {
	roles  *rbac.RBACAuthorizer
	synced []cache.InformerSynced
}

// NewKnownRoles makes informers, which the caller starts.
func NewKnownRoles(informers rbacinformers.Interface) *KnownRoles {
	roles, clusterRoles := informers.Roles(), informers.ClusterRoles()
	bindings, clusterBindings := informers.RoleBindings(), informers.ClusterRoleBindings()
	return &KnownRoles{rbac.New(&rbac.RoleGetter{Lister: roles.Lister()},
		&rbac.RoleBindingLister{Lister: bindings.Lister()},
		&rbac.ClusterRoleGetter{Lister: clusterRoles.Lister()},
		&rbac.ClusterRoleBindingLister{Lister: clusterBindings.Lister()},
	), []cache.InformerSynced{roles.Informer().HasSynced, clusterRoles.Informer().HasSynced,
		bindings.Informer().HasSynced, clusterBindings.Informer().HasSynced}}
}

func (k *KnownRoles) check() error {
	for _, synced := range k.synced {
		if !synced() {
			return errors.New("the server has just started, and has not read the roles yet: " +
				"try again")
		}
	}
	return nil
}

// Authorize is an authorizer.AuthorizerFunc.
func (k *KnownRoles) Authorize(ctx context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := k.check(); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return k.roles.Authorize(ctx, a)
}

// RulesFor implements authorizer.RuleResolver.
func (k *KnownRoles) RulesFor(ctx context.Context, u user.Info, namespace string) (
	[]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if err := k.check(); err != nil {
		return nil, nil, true, err
	}
	return k.roles.RulesFor(ctx, u, namespace)
}
