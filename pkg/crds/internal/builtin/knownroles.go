package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
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

// RoleAggregator gives cluster roles that aggregate others the rules of these. A change of any
// cluster role makes it look at all that aggregate: they are few, and one may be a part of another.
type RoleAggregator struct {
	client rbacclient.RbacV1Interface
	lister rbaclisters.ClusterRoleLister
	synced cache.InformerSynced
	queue  workqueue.TypedRateLimitingInterface[string]
}

// NewRoleAggregator makes an aggregator that works when it is run.
func NewRoleAggregator(client rbacclient.RbacV1Interface,
	informers rbacinformers.Interface) (*RoleAggregator, error) {
	informer := informers.ClusterRoles()
	a := &RoleAggregator{client: client, lister: informer.Lister(),
		synced: informer.Informer().HasSynced,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { a.look() },
		UpdateFunc: func(_, _ any) { a.look() },
		DeleteFunc: func(any) { a.look() },
	})
	return a, err
}

func (a *RoleAggregator) look() {
	all, err := a.lister.List(labels.Everything())
	if err != nil {
		return // a lister over memory has none
	}
	for _, r := range all {
		if r.AggregationRule != nil {
			a.queue.Add(r.Name)
		}
	}
}

// Run works until the context ends.
func (a *RoleAggregator) Run(ctx context.Context) {
	context.AfterFunc(ctx, a.queue.ShutDown)
	if !cache.WaitForCacheSync(ctx.Done(), a.synced) {
		return
	}
	for {
		name, end := a.queue.Get()
		if end {
			return
		}
		if err := a.fill(ctx, name); err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("A role is filled later", "role", name,
					"reason", err)
			}
			a.queue.AddRateLimited(name)
		} else {
			a.queue.Forget(name)
		}
		a.queue.Done(name)
	}
}

// fill writes the rules of a role, if they are not what the others have. The version that was seen
// must still be stored, so that nothing is lost which was written meanwhile.
func (a *RoleAggregator) fill(ctx context.Context, name string) error {
	all, err := a.lister.List(labels.Everything())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(r *rbacv1.ClusterRole) bool { return r.Name == name })
	if i < 0 || all[i].AggregationRule == nil {
		return nil
	}
	rules, err := aggregated(all[i], all)
	if err != nil || apiequality.Semantic.DeepEqual(rules, all[i].Rules) {
		return err
	}
	filled := all[i].DeepCopy()
	filled.Rules = rules
	_, err = a.client.ClusterRoles().Update(ctx, filled, metav1.UpdateOptions{})
	return err
}

// aggregated returns the rules of the roles that a role selects, each once, in the order of its
// selectors and of the roles' names.
func aggregated(role *rbacv1.ClusterRole,
	all []*rbacv1.ClusterRole) (rules []rbacv1.PolicyRule, err error) {
	parts := slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int {
		return strings.Compare(a.Name, b.Name)
	})
	for i := range role.AggregationRule.ClusterRoleSelectors {
		s, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("the role %s has a selector that cannot be read: %w", role.Name,
				err)
		}
		for _, part := range parts {
			if part.Name == role.Name || !s.Matches(labels.Set(part.Labels)) {
				continue
			}
			for _, rule := range part.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
					return apiequality.Semantic.DeepEqual(r, rule)
				}) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
