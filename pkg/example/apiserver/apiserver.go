// Package apiserver puts the example API together with the generic API server of k8s.io/apiserver.
// It knows which groups, versions and resources there are, and where each is stored. It does not
// know what it is stored in.
package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	civ1alpha1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/logchunk"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipeline"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipelinepolicy"
	"github.com/rowkeeper/rowkeeper/pkg/example/registry/pipelinerun"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/pkg/registry/scale"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

var (
	// Scheme knows the types of all groups that are served.
	Scheme = runtime.NewScheme()
	// Codecs encode and decode them.
	Codecs = serializer.NewCodecFactory(Scheme)
	// ParameterCodec decodes the parameters of requests.
	ParameterCodec = runtime.NewParameterCodec(Scheme)
)

func init() {
	install.Install(Scheme)

	scale.AddToScheme(Scheme)

	// Every API server answers with these kinds and takes these options, whatever its groups are.
	metav1.AddToGroupVersion(Scheme, schema.GroupVersion{Version: "v1"})
	unversioned := schema.GroupVersion{Group: "", Version: "v1"}
	Scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{},
		&metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}

// Config is what a server is made of.
type Config struct {
	Generic *genericapiserver.RecommendedConfig
	// DisablePolicies leaves the admission plugin PipelinePolicy out, so that policies are stored
	// only.
	DisablePolicies bool
	// Empty leaves the API out: the server has what others add to it.
	Empty bool
}

// NewConfig returns a configuration in which everything is set that follows from the API. The
// caller sets what depends on where and for whom it is served: serving, authentication,
// authorization, storage.
func NewConfig() *Config {
	c := genericapiserver.NewRecommendedConfig(codecs())
	c.EffectiveVersion = version.Effective()
	// A call that goes on until the client has enough is not bounded by the time for a request.
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch"),
		sets.NewString("log", "attach"))
	describe(&c.Config)
	return &Config{Generic: c}
}

// codecs are the codecs that clients can ask for. CBOR is one of them if its feature gate is open.
func codecs() serializer.CodecFactory {
	if !utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		return Codecs
	}
	return serializer.NewCodecFactory(Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
}

// New makes a server that is ready to be prepared and run. It stores where
// config.Generic.RESTOptionsGetter says.
func (c *Config) New() (*genericapiserver.GenericAPIServer, error) {
	if !c.DisablePolicies && !c.Empty {
		if err := admit(&c.Generic.Config); err != nil {
			return nil, err
		}
	}
	options.ServeRewrites(&c.Generic.Config)
	server, err := c.Generic.Complete().New("rowkeeper", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("cannot make the API server: %w", err)
	}
	if c.Empty {
		return server, nil
	}
	group, err := c.group()
	if err != nil {
		return nil, fmt.Errorf("cannot make the resources: %w", err)
	}
	if err := server.InstallAPIGroup(group); err != nil {
		return nil, fmt.Errorf("cannot install the API group: %w", err)
	}
	// A server is not ready before its watch caches are filled.
	if err := server.AddPostStartHook("storage-readiness",
		server.StorageReadinessHook.Hook); err != nil {
		return nil, err
	}
	return server, nil
}

// group makes the resources of the API group.
func (c *Config) group() (*genericapiserver.APIGroupInfo, error) {
	getter := c.Generic.RESTOptionsGetter
	policies, err := pipelinepolicy.NewStorage(Scheme, getter)
	if err != nil {
		return nil, err
	}
	logs, err := logchunk.NewStorage(Scheme, getter)
	if err != nil {
		return nil, err
	}
	types, err := typeConverter(c.Generic.OpenAPIV3Config, civ1.PipelineRun{})
	if err != nil {
		return nil, err
	}
	pipelines, err := pipeline.NewStorage(Scheme, getter)
	if err != nil {
		return nil, err
	}
	runs, err := pipelinerun.NewStorage(Scheme, getter, pipelines.Pipeline.Store, logs.Store,
		c.Generic.ShutdownInitiatedNotify())
	if err != nil {
		return nil, err
	}
	run, err := pipeline.NewRunREST(Scheme, types, pipelines.Pipeline.Store, runs.Run.Store)
	if err != nil {
		return nil, err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(ci.GroupName, Scheme, ParameterCodec, codecs())
	group.VersionedResourcesStorageMap[civ1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"pipelines":           pipelines.Pipeline,
		"pipelines/status":    pipelines.Status,
		"pipelines/scale":     pipelines.Scale,
		"pipelines/run":       run,
		"pipelines/runs":      pipeline.NewRunsREST(pipelines.Pipeline.Store, runs.Run.Store),
		"pipelineruns":        runs.Run,
		"pipelineruns/status": runs.Status,
		"pipelineruns/log":    runs.Log,
		"pipelineruns/attach": runs.Attach,
		"logchunks":           logs,
		"pipelinepolicies":    policies,
	}
	// The same storage in another version: the difference is in the scheme alone.
	group.VersionedResourcesStorageMap[civ1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"pipelines":        pipelines.Pipeline,
		"pipelines/status": pipelines.Status,
		"pipelines/scale":  pipelines.Scale,
	}
	return &group, nil
}
