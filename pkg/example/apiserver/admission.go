package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"

	policyadmission "github.com/rowkeeper/rowkeeper/pkg/example/admission/pipelinepolicy"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned"
	informers "github.com/rowkeeper/rowkeeper/pkg/example/generated/informers/externalversions"
)

// admit puts the plugin for policies before the plugins that the configuration has, such as the
// webhooks of a cluster, which then see what will be stored. The plugin learns the policies from
// the server itself, by the loopback connection.
func admit(c *genericapiserver.Config) error {
	client, err := versioned.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("cannot make a client for the server itself: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	plugins := admission.NewPlugins()
	policyadmission.Register(plugins)
	plugin, err := plugins.InitPlugin(policyadmission.Name, nil,
		policyadmission.Initializer{Informers: factory})
	if err != nil {
		return fmt.Errorf("cannot set up admission: %w", err)
	}
	plugin = admissionmetrics.WithControllerMetrics(plugin, policyadmission.Name)
	if c.AdmissionControl != nil {
		plugin = admission.NewChainHandler(plugin, c.AdmissionControl)
	}
	c.AdmissionControl = plugin

	synced := factory.Ci().V1().PipelinePolicies().Informer().HasSynced
	c.AddReadyzChecks(healthz.NamedCheck("policies", func(*http.Request) error {
		if !synced() {
			return errors.New("the policies for pipelines have not been read yet")
		}
		return nil
	}))
	return c.AddPostStartHook("start-ci-informers",
		func(hook genericapiserver.PostStartHookContext) error {
			factory.StartWithContext(hook)
			return nil
		})
}
