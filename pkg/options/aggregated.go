package options

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// AggregatedOptions make a server a part of a cluster, behind the cluster's API server: it knows
// the cluster's users by the front proxy's headers, by client certificates and by TokenReviews; it
// asks the cluster what they may do, by SubjectAccessReviews; and it respects the cluster's
// namespaces, webhooks, policies, and priorities of requests.
//
// The cluster's API server may be away when the server starts: the server serves its health, is not
// ready, and becomes ready by itself.
type AggregatedOptions struct {
	// Enabled without a kubeconfig makes the server find the cluster by the service account of the
	// pod that it runs in.
	Enabled bool
	// Authentication and Authorization use the kubeconfig of CoreAPI if they have none.
	CoreAPI        *genericoptions.CoreAPIOptions
	Authentication *genericoptions.DelegatingAuthenticationOptions
	Authorization  *genericoptions.DelegatingAuthorizationOptions
	Admission      *genericoptions.AdmissionOptions
	// PriorityAndFairness queues requests as the cluster's FlowSchemas say.
	PriorityAndFairness bool
}

// NewAggregatedOptions returns the defaults.
func NewAggregatedOptions() *AggregatedOptions {
	return &AggregatedOptions{
		CoreAPI:             genericoptions.NewCoreAPIOptions(),
		Authentication:      genericoptions.NewDelegatingAuthenticationOptions(),
		Authorization:       genericoptions.NewDelegatingAuthorizationOptions(),
		Admission:           genericoptions.NewAdmissionOptions(),
		PriorityAndFairness: true,
	}
}

// AddFlags adds the flags. It leaves out upstream's flags for a failed look-up of the authorities
// at start, since nothing is looked up then. It leaves out --enable-admission-plugins, since all
// plugins are enabled.
func (o *AggregatedOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "aggregated", o.Enabled,
		"Be a part of a cluster, behind its API server. Without --kubeconfig, the cluster is "+
			"that of the pod that the server runs in.")
	fs.BoolVar(&o.PriorityAndFairness, "enable-priority-and-fairness", o.PriorityAndFairness,
		"Queue requests as the cluster's FlowSchemas and PriorityLevelConfigurations say.")
	var upstream pflag.FlagSet
	o.CoreAPI.AddFlags(&upstream)
	o.Authentication.AddFlags(&upstream)
	o.Authorization.AddFlags(&upstream)
	o.Admission.AddFlags(&upstream)
	const secondKubeconfig = " Without it, that of --kubeconfig is used."
	usages := map[string]string{
		"kubeconfig": "File that says where the cluster's API server is, and who the server is " +
			"there. Implies --aggregated.",
		"authentication-kubeconfig": "File that says the same as --kubeconfig, for asking who " +
			"sends a request, by TokenReviews and the config map " +
			authenticationNamespace + "/" + authenticationConfigMap + "." + secondKubeconfig,
		"authorization-kubeconfig": "File that says the same as --kubeconfig, for asking what " +
			"the sender may do, by SubjectAccessReviews." + secondKubeconfig,
		"client-ca-file": "File with the authorities of users' certificates, in place " +
			"of those that the cluster says.",
	}
	upstream.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "authentication-skip-lookup", "authentication-tolerate-lookup-failure",
			"enable-admission-plugins":
			return
		}
		if usage, ok := usages[f.Name]; ok {
			f.Usage = usage
		}
		fs.AddFlag(f)
	})
}

// Complete tells whether the server is to be aggregated: by Enabled, or by one of the kubeconfigs.
// It gives the kubeconfig of CoreAPI to the others.
func (o *AggregatedOptions) Complete() bool {
	core := o.CoreAPI.CoreAPIKubeconfigPath
	for _, kubeconfig := range []*string{&o.Authentication.RemoteKubeConfigFile,
		&o.Authorization.RemoteKubeConfigFile} {
		o.Enabled = o.Enabled || core != "" || *kubeconfig != ""
		if *kubeconfig == "" {
			*kubeconfig = core
		}
	}
	return o.Enabled
}

// Validate returns what is wrong with the options.
func (o *AggregatedOptions) Validate() []error {
	errs := o.CoreAPI.Validate()
	errs = append(errs, o.Authentication.Validate()...)
	errs = append(errs, o.Authorization.Validate()...)
	return append(errs, o.Admission.Validate()...)
}

// ApplyTo changes everything in the configuration that depends on who uses the server.
// SecureServing must have been set before. Plugins are given what the initializers have besides the
// cluster.
func (o *AggregatedOptions) ApplyTo(c *genericapiserver.RecommendedConfig,
	features *genericoptions.FeatureOptions, initializers ...admission.PluginInitializer) error {
	if err := o.CoreAPI.ApplyTo(c); err != nil {
		return o.explain(err)
	}
	client, err := kubernetes.NewForConfig(c.ClientConfig)
	if err != nil {
		return fmt.Errorf("cannot make a client for the cluster: %w", err)
	}
	dynamicClient, err := dynamic.NewForConfig(c.ClientConfig)
	if err != nil {
		return fmt.Errorf("cannot make a client for the cluster: %w", err)
	}
	if err := o.authenticate(&c.Config); err != nil {
		return fmt.Errorf("cannot delegate authentication: %w", o.explain(err))
	}
	if err := o.Authorization.ApplyTo(&c.Authorization); err != nil {
		return fmt.Errorf("cannot delegate authorization: %w", o.explain(err))
	}
	withPriority := *features
	withPriority.EnablePriorityAndFairness = o.PriorityAndFairness
	if err := withPriority.ApplyTo(&c.Config, client, c.SharedInformerFactory); err != nil {
		return fmt.Errorf("cannot use the cluster's priorities of requests: %w", err)
	}
	// Upstream's resolver gives the pod's token to webhooks of the name kubernetes.default.svc.
	// Here that is right: the name and the token belong to the API server of the same cluster.
	err = o.Admission.ApplyTo(&c.Config, c.SharedInformerFactory, client, dynamicClient,
		utilfeature.DefaultFeatureGate, c.EffectiveVersion, initializers...)
	if err != nil {
		return fmt.Errorf("cannot set up admission: %w", err)
	}
	return nil
}

// explain says what to do where there is no cluster.
func (o *AggregatedOptions) explain(err error) error {
	if errors.Is(err, rest.ErrNotInCluster) {
		return errors.New("this is not a pod of a cluster: give --kubeconfig, or leave " +
			"--aggregated out to serve without a cluster")
	}
	return err
}

// Where the cluster's API server says how it proves that it speaks for a user, and who signs the
// users' certificates.
const (
	authenticationNamespace = "kube-system"
	authenticationConfigMap = "extension-apiserver-authentication"
)

// authenticate does what DelegatingAuthenticationOptions.ApplyTo does, with two differences. It
// does not need the cluster's API server at start: the informers that keep the authorities current
// load them whenever it comes. And requests without credentials are refused by 401, except at the
// paths that need no authorization, where probes ask for the server's health.
func (o *AggregatedOptions) authenticate(c *genericapiserver.Config) error {
	client, err := clientFor(o.Authentication.RemoteKubeConfigFile)
	if err != nil {
		return err
	}
	config := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                &apiserver.AnonymousAuthConfig{Enabled: true},
		TokenAccessReviewClient:  client.AuthenticationV1(),
		TokenAccessReviewTimeout: o.Authentication.TokenRequestTimeout,
		WebhookRetryBackoff:      o.Authentication.WebhookRetryBackoff,
		CacheTTL:                 o.Authentication.CacheTTL,
	}
	for _, path := range o.Authorization.AlwaysAllowPaths {
		config.Anonymous.Conditions = append(config.Anonymous.Conditions,
			apiserver.AnonymousAuthCondition{Path: path})
	}
	if config.RequestHeaderConfig, err = o.requestHeaders(client); err != nil {
		return err
	}
	if config.ClientCertificateCAContentProvider, err = o.clientAuthority(client); err != nil {
		return err
	}
	for name, authority := range map[string]dynamiccertificates.CAContentProvider{
		"front-proxy": config.RequestHeaderConfig.CAContentProvider,
		"client":      config.ClientCertificateCAContentProvider,
	} {
		if err := c.Authentication.ApplyClientCert(authority, c.SecureServing); err != nil {
			return err
		}
		c.AddReadyzChecks(healthz.NamedCheck("authority-"+name, func(*http.Request) error {
			if _, ok := authority.VerifyOptions(); !ok {
				return fmt.Errorf("the config map %s/%s has not been read yet: the cluster's API "+
					"server must answer, and allow to read it", authenticationNamespace,
					authenticationConfigMap)
			}
			return nil
		}))
	}
	if err := acceptConnectionsBeforeAuthoritiesAreKnown(c); err != nil {
		return err
	}
	c.Authentication.RequestHeaderConfig = config.RequestHeaderConfig
	authenticator, definitions, err := config.New()
	if err != nil {
		return err
	}
	c.Authentication.Authenticator = authenticator
	if c.OpenAPIConfig != nil {
		c.OpenAPIConfig.SecurityDefinitions = definitions
	}
	return nil
}

// requestHeaders says whom to believe the headers in which the front proxy names the user: it is in
// a file or, as a rule, in the cluster.
func (o *AggregatedOptions) requestHeaders(client kubernetes.Interface) (*authenticatorfactory.RequestHeaderConfig, error) {
	if o.Authentication.RequestHeader.ClientCAFile != "" {
		return o.Authentication.RequestHeader.ToAuthenticationRequestHeaderConfig()
	}
	authority, err := dynamiccertificates.NewDynamicCAFromConfigMapController("front-proxy",
		authenticationNamespace, authenticationConfigMap, "requestheader-client-ca-file", client)
	if err != nil {
		return nil, err
	}
	headers := headerrequest.NewRequestHeaderAuthRequestController(authenticationConfigMap,
		authenticationNamespace, client, "requestheader-username-headers",
		"requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   frontProxy{&genericoptions.DynamicRequestHeaderController{ConfigMapCAController: authority, RequestHeaderAuthRequestController: headers}},
		UsernameHeaders:     headerrequest.StringSliceProviderFunc(headers.UsernameHeaders),
		UIDHeaders:          headerrequest.StringSliceProviderFunc(headers.UIDHeaders),
		GroupHeaders:        headerrequest.StringSliceProviderFunc(headers.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(headers.ExtraHeaderPrefixes),
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(headers.AllowedClientNames),
	}, nil
}

// frontProxy leaves the first reading of the config map to the informers: to wait for it would keep
// the port closed while the cluster's API server is away.
type frontProxy struct {
	*genericoptions.DynamicRequestHeaderController
}

func (frontProxy) RunOnce(context.Context) error { return nil }

// VerifyOptions are there when the names of the front proxy's certificate are, too: without names
// every certificate of the authority would do.
func (p frontProxy) VerifyOptions() (x509.VerifyOptions, bool) {
	if len(p.UsernameHeaders()) == 0 {
		return x509.VerifyOptions{}, false
	}
	return p.DynamicRequestHeaderController.VerifyOptions()
}

// clientAuthority signs the certificates of users: it is in a file or, as a rule, in the cluster.
func (o *AggregatedOptions) clientAuthority(client kubernetes.Interface) (dynamiccertificates.CAContentProvider, error) {
	authority, err := o.Authentication.ClientCert.GetClientCAContentProvider()
	if err != nil || authority != nil {
		return authority, err
	}
	return dynamiccertificates.NewDynamicCAFromConfigMapController("client",
		authenticationNamespace, authenticationConfigMap, "client-ca-file", client)
}

// acceptConnectionsBeforeAuthoritiesAreKnown adds an authority that signs nothing to the ones that
// clients are told of in the handshake. With none at all the server would refuse every connection,
// and nobody could ask it why it is not ready. Whom it believes does not change.
func acceptConnectionsBeforeAuthoritiesAreKnown(c *genericapiserver.Config) error {
	certPEM, _, err := selfSigned("nobody")
	if err != nil {
		return err
	}
	nobody, err := dynamiccertificates.NewStaticCAContent("nobody", certPEM)
	if err != nil {
		return err
	}
	return c.Authentication.ApplyClientCert(nobody, c.SecureServing)
}

// clientFor makes a client for the cluster of a kubeconfig, or without one, of the pod that this
// runs in.
func clientFor(kubeconfig string) (kubernetes.Interface, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
			&clientcmd.ConfigOverrides{}).ClientConfig()
	}
	if err != nil {
		return nil, err
	}
	// Requests wait for the answers; it is the cluster that protects itself, by priority and
	// fairness.
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}
