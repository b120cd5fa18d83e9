package crds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/routes"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"

	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/accounts"
	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
)

// extension is a server's second half.
type extension struct {
	options   definitions.Options
	config    *genericapiserver.RecommendedConfig
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	plugin    *plugin
	guard     *namespaceGuard
	quotas    *builtin.Quotas
	keys      definitions.SigningKeys
	tokens    *accounts.Tokens
	// known is what the server knows of a definition, which may be old.
	known func(name string) (*apiextensionsv1.CustomResourceDefinition, error)
}

var _ definitions.Prepare = Prepare

// Prepare changes a configuration before a server is made from it. Who uses the server, what it is
// stored in, and where it is served must be in the configuration already. What it returns makes a
// server that serves definitions, their objects and the core API itself, and leaves everything else
// to the server that it is given.
func Prepare(c *genericapiserver.RecommendedConfig,
	o definitions.Options) (definitions.Extend, error) {
	if o.Storage == nil || o.Store == nil {
		return nil, errors.New("custom resources need a storage: set Options.Storage and " +
			"Options.Store")
	}
	if err := errors.Join(o.Services.Validate()...); err != nil {
		return nil, err
	}
	if c.LoopbackClientConfig == nil || c.OpenAPIConfig == nil || c.OpenAPIV3Config == nil {
		return nil, errors.New("custom resources need LoopbackClientConfig, OpenAPIConfig and " +
			"OpenAPIV3Config in the server's configuration")
	}
	client, err := kubernetes.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	e := &extension{
		options: o, config: c, client: client, informers: informers.NewSharedInformerFactory(client,
			0),
	}
	if o.PriorityAndFairness {
		limit := c.MaxRequestsInFlight + c.MaxMutatingRequestsInFlight
		if limit <= 0 {
			return nil, errors.New("priority and fairness needs a limit: set " +
				"MaxRequestsInFlight or MaxMutatingRequestsInFlight in the server's configuration")
		}
		c.FlowControl = utilflowcontrol.New(e.informers, client.FlowcontrolV1(), limit)
	}
	if e.quotas, err = newQuotas(&c.Config, e.informers); err != nil {
		return nil, err
	}
	e.guard = &namespaceGuard{quotas: e.quotas}
	if c.RESTOptionsGetter != nil {
		c.RESTOptionsGetter = guardedGetter{c.RESTOptionsGetter, e.guard, nil}
	}
	for _, getter := range o.Getters {
		*getter = guardedGetter{*getter, e.guard, nil}
	}
	if o.Roles {
		// Before admission, whose policies may ask the authorizer.
		if err := e.addAuthorizer(&c.Config); err != nil {
			return nil, err
		}
	}
	if e.plugin, err = admit(&c.Config, client, e.informers, o.Services,
		e.quotas.Admission()); err != nil {
		return nil, err
	}
	if err := e.addTokens(&c.Config); err != nil {
		return nil, err
	}
	describe(&c.Config, o.Schemes)
	namespaces := e.informers.Core().V1().Namespaces()
	synced := namespaces.Informer().HasSynced
	c.AddReadyzChecks(healthz.NamedCheck("namespaces", func(*http.Request) error {
		if !synced() {
			return errors.New("the namespaces have not been read yet")
		}
		for _, name := range builtin.SystemNamespaces {
			if _, err := namespaces.Lister().Get(name); err != nil {
				return fmt.Errorf("the namespace %s is not there yet", name)
			}
		}
		return nil
	}), healthz.NewInformerSyncHealthz(e.informers),
		healthz.NamedCheck("service-account-keys", e.tokens.Check))
	return e.extend, nil
}

// addTokens lets service accounts sign in, besides those whom the configuration knows.
func (e *extension) addTokens(c *genericapiserver.Config) (err error) {
	if err := e.options.ServiceAccounts.Validate(); err != nil {
		return err
	}
	if e.keys, err = e.options.SigningKeys(c); err != nil {
		return err
	}
	issuers := e.options.ServiceAccounts.WithDefaults().Issuers
	if len(c.Authentication.APIAudiences) == 0 {
		c.Authentication.APIAudiences = issuers
	}
	e.tokens = accounts.New(e.keys, issuers, c.Authentication.APIAudiences,
		e.client.AdmissionregistrationV1())
	if file := e.options.ServiceAccounts.SigningKeyFile; file != "" {
		// Whatever is wrong with it is said now, and not when somebody asks for a token.
		if err := e.tokens.CheckSigner(context.Background()); err != nil {
			return fmt.Errorf("cannot sign with the key in %s: %w", file, err)
		}
	}
	c.Authentication.Authenticator = e.tokens.Beside(c.Authentication.Authenticator)
	return nil
}

// addAuthorizer lets roles decide what the configuration's own authorizer leaves open.
func (e *extension) addAuthorizer(c *genericapiserver.Config) (err error) {
	known := builtin.NewKnownRoles(e.informers.Rbac().V1())
	if e.options.Authorizer != nil {
		c.Authorization.Authorizer, c.RuleResolver = e.options.Authorizer(known)
		return nil
	}
	chain := []union.NamedAuthorizer{{AuthorizerName: "masters",
		Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}}
	if own := c.Authorization.Authorizer; own != nil {
		chain = append(chain, union.NamedAuthorizer{AuthorizerName: "own", Authorizer: own})
	}
	c.Authorization.Authorizer, err = union.New(append(chain, union.NamedAuthorizer{
		AuthorizerName: "RBAC", Authorizer: authorizer.AuthorizerFunc(known.Authorize)})...)
	if err != nil {
		return fmt.Errorf("cannot let roles decide: %w", err)
	}
	if own := c.RuleResolver; own != nil {
		c.RuleResolver = union.NewRuleResolvers(own, known)
	} else {
		c.RuleResolver = known
	}
	return nil
}

// describe adds the definitions of the types that are served besides the server's own.
func describe(c *genericapiserver.Config, schemes []*runtime.Scheme) {
	// One server publishes one document, of both halves.
	c.SkipOpenAPIInstallation = true
	own := c.OpenAPIV3Config.GetDefinitions
	definitions := func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		all := definitionsOf(ref)
		maps.Copy(all, own(ref))
		return all
	}
	names := openapi.NamesOf(append(slices.Clone(schemes), builtin.Scheme,
		apiextensionsserver.Scheme)...)
	openapi.Describe(c, definitions, openapi.Joined(c.OpenAPIV3Config.GetDefinitionName, names))
}

// extend is the [definitions.Extend] of a configuration.
func (e *extension) extend(
	server *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error) {
	if !e.plugin.isIn(e.config.AdmissionControl) {
		return nil, errors.New("the configuration's AdmissionControl was replaced after it had " +
			"been prepared for custom resources, so that neither namespaces nor webhooks would " +
			"be looked at: set your own before, or put it into a chain after the one that is " +
			"there: admission.NewChainHandler(config.AdmissionControl, yours)")
	}
	outer := &genericapiserver.RecommendedConfig{Config: e.config.Config}
	c := &outer.Config
	// The hooks and checks of the inner server are called by the outer one. The slices are appended
	// to by both.
	c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	c.HealthzChecks, c.LivezChecks, c.ReadyzChecks = slices.Clone(c.HealthzChecks),
		slices.Clone(c.LivezChecks), slices.Clone(c.ReadyzChecks)
	c.AggregatedDiscoveryGroupManager = server.AggregatedDiscoveryGroupManager
	c.MergedResourceConfig = apiextensionsserver.DefaultAPIResourceConfigSource()
	getter, err := e.options.Storage.RESTOptionsGetter(c, e.options.Store,
		newBuiltinEncodings(e.options.Storage.Prefix, e.options.Storage.MediaType))
	if err != nil {
		return nil, err
	}
	c.RESTOptionsGetter = guardedGetter{getter, e.guard, nil}
	objects, err := e.options.Storage.RESTOptionsGetter(c, e.options.Store,
		objectEncodings{e.options.Storage.Prefix})
	if err != nil {
		return nil, err
	}
	guard := &definitionGuard{}
	definitions, err := (&apiextensionsserver.Config{
		GenericConfig: outer,
		ExtraConfig: apiextensionsserver.ExtraConfig{
			CRDRESTOptionsGetter: objectGetter{guardedGetter{objects, e.guard, guard}, guard},
			// With more than one, a definition would be established after 5 s only. Servers learn
			// of it within milliseconds.
			MasterCount:         1,
			ServiceResolver:     e.options.Services,
			AuthResolverWrapper: withoutCredentials,
		},
	}).Complete().New(server)
	if err != nil {
		return nil, fmt.Errorf("cannot make the server of CustomResourceDefinitions: %w", err)
	}
	if err := e.watchOver(guard, definitions); err != nil {
		return nil, err
	}
	extended := definitions.GenericAPIServer
	installed, err := builtin.Install(extended, c.RESTOptionsGetter, builtin.Options{
		Authorizer: c.Authorization.Authorizer, Discovery: e.client.Discovery(),
		Roles: e.options.Roles, Priorities: e.options.PriorityAndFairness,
		Tokens: e.tokens, Audiences: c.Authentication.APIAudiences,
		Webhooks: e.client.AdmissionregistrationV1()})
	if err != nil {
		return nil, err
	}
	e.tokens.Serve(installed.Accounts, installed.Secrets)
	e.tokens.Publish(extended)
	extended.RegisterDestroyFunc(e.keys.Close)
	e.guard.namespaces.Store(&installed.Namespaces)
	if err := e.discover(server, definitions, installed.Directories); err != nil {
		return nil, err
	}
	e.publish(server, extended)
	if err := definitions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().SetTransform(e.shown); err != nil {
		return nil, fmt.Errorf("cannot watch the definitions: %w", err)
	}
	if err := e.reportUnserved(definitions); err != nil {
		return nil, err
	}
	if err := stopWhileStarting(definitions); err != nil {
		return nil, fmt.Errorf("cannot prepare the server's end: %w", err)
	}
	return extended, e.addHooks(extended, installed.Directories)
}

// watchOver lets a guard know the definitions. Nothing is served yet.
func (e *extension) watchOver(guard *definitionGuard,
	definitions *apiextensionsserver.CustomResourceDefinitions) error {
	client, err := clientset.NewForConfig(e.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	e.known = definitions.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister().Get
	guard.known = e.known
	directory := e.options.Storage.Prefix + "/" +
		prefixOf(apiextensions.Resource("customresourcedefinitions")) + "/"
	guard.revision = func(ctx context.Context, name string) (int64, error) {
		return e.options.Store.KeyRevision(ctx, directory+name)
	}
	guard.read = func(ctx context.Context,
		name string) (*apiextensionsv1.CustomResourceDefinition, error) {
		return client.CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
	}
	return nil
}

// publish makes the document of all groups, to which the groups of definitions are added while the
// server runs.
func (e *extension) publish(inner, outer *genericapiserver.GenericAPIServer) {
	all := restful.NewContainer()
	seen := sets.New[string]()
	for _, container := range []*restful.Container{outer.Handler.GoRestfulContainer,
		inner.Handler.GoRestfulContainer} {
		for _, service := range container.RegisteredWebServices() {
			if !seen.Has(service.RootPath()) {
				seen.Insert(service.RootPath())
				all.Add(service)
			}
		}
	}
	document := routes.OpenAPI{Config: e.config.OpenAPIConfig, V3Config: e.config.OpenAPIV3Config}
	outer.OpenAPIVersionedService, outer.StaticOpenAPISpec = document.InstallV2(all,
		outer.Handler.NonGoRestfulMux)
	outer.OpenAPIV3VersionedService = document.InstallV3(all, outer.Handler.NonGoRestfulMux)
}

// addHooks starts what goes on in the background.
func (e *extension) addHooks(server *genericapiserver.GenericAPIServer,
	directories sets.Set[string]) error {
	metadataClient, err := metadata.NewForConfig(e.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	settle := builtin.SettleTime
	if e.options.SingleServer {
		settle = 0
	}
	stored := storedIn{db: e.options.Store, prefix: e.options.Storage.Prefix, core: directories}
	controller, err := builtin.NewNamespaceController(e.client, metadataClient,
		e.informers.Core().V1().Namespaces(), stored.resources,
		func(group string) bool { return group != "" && !e.plugin.owns(group) }, settle)
	if err != nil {
		return fmt.Errorf("cannot watch the namespaces: %w", err)
	}
	e.quotas.Start(stored.count)
	if err := server.AddPostStartHook("core-storage-readiness",
		server.StorageReadinessHook.Hook); err != nil {
		return err
	}
	if err := e.addAccounts(server); err != nil {
		return err
	}
	if e.options.Roles {
		if err := e.addRoles(server); err != nil {
			return err
		}
	}
	if e.options.PriorityAndFairness {
		if err := e.addPriorities(server); err != nil {
			return err
		}
	}
	return server.AddPostStartHook("namespaces",
		func(hook genericapiserver.PostStartHookContext) error {
			e.informers.StartWithContext(hook)
			go controller.Run(hook)
			go e.quotas.Run(hook)
			err := wait.PollUntilContextCancel(hook, 100*time.Millisecond, true,
				func(ctx context.Context) (bool, error) {
					err := builtin.CreateSystemNamespaces(ctx, e.client)
					if err != nil && ctx.Err() == nil {
						klog.FromContext(ctx).Info("The server is not ready", "reason", err)
					}
					return err == nil, nil
				})
			if hook.Err() != nil {
				return nil
			}
			return err
		})
}

// addAccounts makes the default accounts, and looks after the keys of tokens. Those of the
// namespaces that are always there are there when the server is ready. A webhook may refuse them:
// then the server is ready without.
func (e *extension) addAccounts(server *genericapiserver.GenericAPIServer) error {
	serviceAccounts, namespaces := e.informers.Core().V1().ServiceAccounts(),
		e.informers.Core().V1().Namespaces()
	controller, err := serviceaccount.NewServiceAccountsController(klog.Background(),
		serviceAccounts, namespaces, e.client,
		serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return fmt.Errorf("cannot watch the service accounts: %w", err)
	}
	return server.AddPostStartHook("service-accounts",
		func(hook genericapiserver.PostStartHookContext) error {
			go controller.Run(hook, 1)
			go e.tokens.Run(hook)
			within, cancel := context.WithTimeout(hook, othersWithin)
			defer cancel()
			_ = wait.PollUntilContextCancel(within, 5*time.Millisecond, true,
				func(context.Context) (bool, error) {
					return !slices.ContainsFunc(builtin.SystemNamespaces, func(name string) bool {
						_, err := serviceAccounts.Lister().ServiceAccounts(name).Get("default")
						return err != nil
					}), nil
				}) // it is over when it is
			return nil
		})
}

// reservedGroup has another name where definitions are something else.
const reservedGroup = definitions.ReservedGroup

// othersWithin is how long a server waits with being ready until the default roles, or the default
// accounts, are written.
const othersWithin = 10 * time.Second

// addRoles writes the default roles, and fills those that aggregate others. Writing may be refused,
// as by a webhook that calls back: then the server is ready without, and goes on trying.
func (e *extension) addRoles(server *genericapiserver.GenericAPIServer) error {
	roles := e.informers.Rbac().V1().ClusterRoles()
	aggregator := clusterroleaggregation.NewClusterRoleAggregation(roles,
		aggregated{e.client.RbacV1(), roles.Lister()})
	return server.AddPostStartHook("roles", func(hook genericapiserver.PostStartHookContext) error {
		written := make(chan struct{})
		go func() {
			defer close(written)
			untilDone(hook, "write the default roles", func() error {
				return builtin.WriteDefaultRoles(hook, e.client.RbacV1())
			})
		}()
		select {
		case <-written:
		case <-time.After(othersWithin):
		case <-hook.Done():
		}
		go aggregator.Run(hook, 1) // not before, or it would fill them again and again
		return nil
	})
}

// addPriorities maintains the default objects by which requests have priorities, as often as
// kube-apiserver does. The server does not wait for them: it always knows the mandatory ones.
func (e *extension) addPriorities(server *genericapiserver.GenericAPIServer) error {
	_, write, err := flowcontrolrest.RESTStorageProvider{InformerFactory: e.informers}.PostStartHook()
	if err != nil {
		return err
	}
	return server.AddPostStartHook("priorities",
		func(hook genericapiserver.PostStartHookContext) error {
			go untilDone(hook, "write the default priorities of requests", func() error {
				return write(hook)
			})
			return nil
		})
}

// untilDone does something again and again, more and more rarely, until it succeeds or the context
// ends.
func untilDone(ctx context.Context, what string, do func() error) {
	retry := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 10, Cap: time.Minute}
	// It ends without an error, or with the context.
	_ = retry.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		err := do()
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Trying again to "+what, "reason", err)
		}
		return err == nil, nil
	})
}
