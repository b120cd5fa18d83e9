// Package authz reads upstream's AuthorizationConfiguration, a file for servers without a cluster.
// The file lists who decides about a request, in any order: roles, or programs that are asked by
// SubjectAccessReviews (webhooks).
//
// Upstream publishes what checks the file and asks the webhooks. This package makes the chain of
// those who decide, and follows the file; see package follow. As in kube-apiserver, the first of
// the chain who allows or denies a request decides. The members of system:masters may do
// everything, and nobody is asked for them.
package authz

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/pkg/internal/follow"
)

// The types of authorizers besides webhooks, as kube-apiserver names them.
const (
	typeRBAC  apiserver.AuthorizerType = "RBAC"
	typeAllow apiserver.AuthorizerType = "AlwaysAllow"
	typeDeny  apiserver.AuthorizerType = "AlwaysDeny"
)

// Decider decides about requests, and tells what a user may do.
type Decider interface {
	Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error)
	authorizer.RuleResolver
}

// File is an AuthorizationConfiguration in a file.
type File struct {
	file     *follow.File
	hasRoles bool
	// roles is set before the first request.
	roles Decider
	chain atomic.Pointer[chain]
}

// chain is what one content of the file says.
type chain struct {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// Open reads the file. An error says what is wrong with it. The file may name roles (RBAC) if the
// server has them.
func Open(name string, hasRoles bool) (*File, error) {
	file, content, err := follow.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the authorization configuration: %w", err)
	}
	f := &File{file: file, hasRoles: hasRoles}
	if err := f.use(context.Background(), content); err != nil {
		return nil, err
	}
	return f, nil
}

// With returns the authorizer, which lets the given one decide where the file names roles. roles is
// nil if the server has none. It is called once.
func (f *File) With(roles Decider) (authorizer.Authorizer, authorizer.RuleResolver) {
	f.roles = roles
	return authorizer.AuthorizerFunc(f.authorize), f
}

// Run follows changes of the file until the context ends.
func (f *File) Run(ctx context.Context) { f.file.Run(ctx, "authorization configuration", f.use) }

// use lets the content of the file take effect.
func (f *File) use(_ context.Context, content []byte) error {
	name := f.file.Name()
	if len(content) == 0 {
		return fmt.Errorf("%s is empty, and must have an AuthorizationConfiguration", name)
	}
	config, err := load.LoadFromData(content)
	if err != nil {
		return fmt.Errorf("%s is not an AuthorizationConfiguration: %w", name, err)
	}
	known := sets.New(string(apiserver.TypeWebhook), string(typeAllow), string(typeDeny))
	if f.hasRoles {
		known.Insert(string(typeRBAC))
	} else if slices.ContainsFunc(config.Authorizers,
		func(a apiserver.AuthorizerConfiguration) bool { return a.Type == typeRBAC }) {
		return fmt.Errorf("%s lets roles decide (RBAC), and the server has none: they come with "+
			"CustomResourceDefinitions, which --enable-crds serves in programs that have it", name)
	}
	compiler := cel.NewDefaultCompiler()
	if errs := validation.ValidateAuthorizationConfiguration(compiler, nil, config, known,
		sets.New(string(apiserver.TypeWebhook))); len(errs) > 0 {
		return fmt.Errorf("%s: %w", name, errs.ToAggregate())
	}
	next, err := f.chainOf(config, compiler)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", name, err)
	}
	f.chain.Store(next)
	return nil
}

// chainOf makes the chain of a valid configuration.
func (f *File) chainOf(config *apiserver.AuthorizationConfiguration,
	compiler cel.Compiler) (*chain, error) {
	all := []union.NamedAuthorizer{{AuthorizerName: user.SystemPrivilegedGroup,
		Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}}
	var resolvers []authorizer.RuleResolver
	for _, c := range config.Authorizers {
		var one interface {
			authorizer.Authorizer
			authorizer.RuleResolver
		}
		switch c.Type {
		case typeRBAC:
			one = &chain{authorizer.AuthorizerFunc(byRoles{f}.Authorize), byRoles{f}}
		case typeAllow:
			one = authorizerfactory.NewAlwaysAllowAuthorizer()
		case typeDeny:
			one = authorizerfactory.NewAlwaysDenyAuthorizer()
		case apiserver.TypeWebhook:
			asked, err := newWebhook(c.Name, c.Webhook, compiler)
			if err != nil {
				return nil, fmt.Errorf("the webhook %s: %w", c.Name, err)
			}
			one = asked
		}
		all = append(all, union.NamedAuthorizer{AuthorizerName: c.Name, Authorizer: one})
		resolvers = append(resolvers, one)
	}
	decide, err := union.New(all...)
	return &chain{decide, union.NewRuleResolvers(resolvers...)}, err
}

// newWebhook makes who asks a webhook. It does not ask yet.
func newWebhook(name string, c *apiserver.WebhookConfiguration,
	compiler cel.Compiler) (*webhook.WebhookAuthorizer, error) {
	var to *rest.Config
	var err error
	switch c.ConnectionInfo.Type {
	case apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile:
		to, err = webhookutil.LoadKubeconfig(*c.ConnectionInfo.KubeConfigFile, nil)
	case apiserver.AuthorizationWebhookConnectionInfoTypeInCluster:
		to, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, err
	}
	// The limits of the server's own requests bound those to the webhook.
	to.Timeout, to.QPS = c.Timeout.Duration, -1
	onError := authorizer.DecisionDeny
	if c.FailurePolicy == apiserver.FailurePolicyNoOpinion {
		onError = authorizer.DecisionNoOpinion
	}
	allowed, refused := c.AuthorizedTTL.Duration, c.UnauthorizedTTL.Duration
	if !c.CacheAuthorizedRequests {
		allowed = 0
	}
	if !c.CacheUnauthorizedRequests {
		refused = 0
	}
	return webhook.New(to, c.SubjectAccessReviewVersion, allowed, refused,
		*webhook.DefaultRetryBackoff(), onError, c.MatchConditions, name,
		struct {
			webhookmetrics.NoopRequestMetrics
			webhookmetrics.WebhookMetrics
			cel.MatcherMetrics
		}{WebhookMetrics: webhookmetrics.NewWebhookMetrics(), MatcherMetrics: cel.NewMatcherMetrics()},
		compiler)
}

// byRoles leaves the decision to roles, which are known later than the file.
type byRoles struct{ *File }

func (r byRoles) Authorize(ctx context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	return r.roles.Authorize(ctx, a)
}

func (r byRoles) RulesFor(ctx context.Context, u user.Info, namespace string) (
	[]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return r.roles.RulesFor(ctx, u, namespace)
}

func (f *File) authorize(ctx context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	return f.chain.Load().Authorize(ctx, a)
}

// RulesFor implements authorizer.RuleResolver. Webhooks decide about requests alone, so where there
// is one, not all rules are known.
func (f *File) RulesFor(ctx context.Context, u user.Info, namespace string) (
	[]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return f.chain.Load().RulesFor(ctx, u, namespace)
}
