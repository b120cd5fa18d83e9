// Package unserved is for servers that store something besides the objects that they serve: in the
// reserved group, where no API shows it.
package unserved

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	plain "k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage"
)

// Kind is a kind of objects that are stored, as JSON of one version, in no namespace.
type Kind struct {
	// Resource is one of the reserved group.
	Resource schema.GroupResource
	// Version is that of the objects, whose types AddToScheme adds.
	Version     schema.GroupVersion
	AddToScheme func(*runtime.Scheme) error
	// New and NewList return an object, and a list of objects.
	New, NewList func() runtime.Object
	// Plain says that the objects are no secrets, and are never encrypted.
	Plain bool
}

// Key is where an object is, below the prefix of the server.
func (k Kind) Key(name string) string { return "/" + directory(k.Resource) + "/" + name }

func directory(resource schema.GroupResource) string {
	return resource.Group + "/" + resource.Resource
}

// Open returns what stores the objects, without a watch cache, as nobody watches them. The options
// were applied to the configuration. destroy releases what it holds.
func (k Kind) Open(stored *options.StorageOptions, c *genericapiserver.Config,
	db *storage.Store) (s apistorage.Interface, destroy func(), err error) {
	uncached := *stored
	uncached.WatchCache = false
	getter, err := uncached.RESTOptionsGetter(c, db, encodings{k, stored.Prefix})
	if err != nil {
		return nil, nil, err
	}
	o, err := getter.GetRESTOptions(k.Resource, k.New())
	if err != nil {
		return nil, nil, err
	}
	if k.Plain {
		o.StorageConfig.Transformer = plain.NewEncryptCheckTransformer()
	}
	s, destroy, err = o.Decorator(o.StorageConfig, "/"+o.ResourcePrefix, nil, k.New, k.NewList,
		apistorage.DefaultClusterScopedAttr, nil, nil)
	return s, destroy, err
}

// encodings say how the objects of a kind are stored.
type encodings struct {
	Kind
	prefix string
}

var _ storage.Encodings = encodings{}

func (e encodings) NewConfig(resource schema.GroupResource,
	_ runtime.Object) (*storagebackend.ConfigForResource, error) {
	scheme := runtime.NewScheme()
	if err := e.AddToScheme(scheme); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	text, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(),
		runtime.ContentTypeJSON)
	codec := codecs.CodecForVersions(text.Serializer, codecs.UniversalDeserializer(), e.Version,
		e.Version)
	return storagebackend.NewDefaultConfig(e.prefix, codec).ForResource(resource), nil
}

func (e encodings) ResourcePrefix(resource schema.GroupResource) string {
	return directory(resource)
}
