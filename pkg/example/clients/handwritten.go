package clients

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// PolicyClient is a client as it is written where none is generated: a scheme with the types, a
// REST client for the group, and the requests that are needed.
type PolicyClient struct {
	rest   rest.Interface
	params runtime.ParameterCodec
}

// NewPolicyClient returns a client for the server that the config names.
func NewPolicyClient(config *rest.Config) (*PolicyClient, error) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	ours := rest.CopyConfig(config)
	ours.APIPath = "/apis"
	ours.GroupVersion = &v1.SchemeGroupVersion
	ours.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(ours)
	if err != nil {
		return nil, err
	}
	return &PolicyClient{rest: client, params: runtime.NewParameterCodec(scheme)}, nil
}

// Create creates a policy.
func (c *PolicyClient) Create(ctx context.Context,
	policy *v1.PipelinePolicy) (*v1.PipelinePolicy, error) {
	created := &v1.PipelinePolicy{}
	err := c.rest.Post().Resource("pipelinepolicies").Body(policy).Do(ctx).Into(created)
	return created, err
}

// Delete deletes a policy.
func (c *PolicyClient) Delete(ctx context.Context, name string) error {
	return c.rest.Delete().Resource("pipelinepolicies").Name(name).Do(ctx).Error()
}

// List lists the policies.
func (c *PolicyClient) List(ctx context.Context,
	options metav1.ListOptions) (*v1.PipelinePolicyList, error) {
	list := &v1.PipelinePolicyList{}
	err := c.rest.Get().Resource("pipelinepolicies").VersionedParams(&options,
		c.params).Do(ctx).Into(list)
	return list, err
}

// Follow tells of each policy that is there, that comes, and that goes, until ctx ends.
func (c *PolicyClient) Follow(ctx context.Context, came, went func(name string)) {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(c.rest, "pipelinepolicies", metav1.NamespaceAll,
			fields.Everything()),
		ObjectType: &v1.PipelinePolicy{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { came(obj.(*v1.PipelinePolicy).Name) },
			DeleteFunc: func(obj any) {
				// The informer may have missed the deletion, and know the object as it was before.
				if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = unknown.Obj
				}
				went(obj.(*v1.PipelinePolicy).Name)
			},
		},
	})
	informer.RunWithContext(ctx)
}
