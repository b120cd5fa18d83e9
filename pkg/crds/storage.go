package crds

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"

	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
	"github.com/rowkeeper/rowkeeper/storage"
)

// builtinEncodings encode the definitions and the core API, each in the version of its group that
// has the highest priority.
type builtinEncodings struct {
	core, definitions *serverstorage.DefaultStorageFactory
}

var _ storage.Encodings = builtinEncodings{}

func newBuiltinEncodings(prefix, mediaType string) builtinEncodings {
	return builtinEncodings{core: newFactory(prefix, mediaType, builtin.Scheme, builtin.Codecs),
		definitions: newFactory(prefix, mediaType, apiextensionsserver.Scheme,
			apiextensionsserver.Codecs)}
}

func newFactory(prefix, mediaType string, scheme *runtime.Scheme,
	codecs runtime.StorageSerializer) *serverstorage.DefaultStorageFactory {
	known := func(i runtime.SerializerInfo) bool { return i.MediaType == mediaType }
	if !slices.ContainsFunc(codecs.SupportedMediaTypes(), known) {
		mediaType = runtime.ContentTypeJSON // which every group has
	}
	return serverstorage.NewDefaultStorageFactory(storagebackend.Config{Prefix: prefix}, mediaType,
		codecs, serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(scheme, nil),
		serverstorage.NewResourceConfig(), nil)
}

func (e builtinEncodings) NewConfig(resource schema.GroupResource,
	example runtime.Object) (*storagebackend.ConfigForResource, error) {
	if resource.Group != apiextensions.GroupName {
		return e.core.NewConfig(resource, example)
	}
	config, err := e.definitions.NewConfig(resource, example)
	if err != nil {
		return nil, err
	}
	config.Codec = definitionCodec{config.Codec}
	return config, nil
}

// definitionCodec has the watch cache hold what a definition defines once. It remembers the writes
// of some minutes, and each definition is written three times or four until it is established. A
// large one has megabytes when it is decoded, and only its status changes.
type definitionCodec struct{ runtime.Codec }

// Share implements feed.Sharer.
func (definitionCodec) Share(previous, next runtime.Object) {
	old, ok := previous.(*apiextensions.CustomResourceDefinition)
	definition, both := next.(*apiextensions.CustomResourceDefinition)
	if !ok || !both {
		return
	}
	if reflect.DeepEqual(old.Spec, definition.Spec) {
		definition.Spec = old.Spec
	}
	// kubectl keeps the whole definition once more in an annotation.
	if maps.Equal(old.Annotations, definition.Annotations) {
		definition.Annotations = old.Annotations
	}
}

// Decode shows a definition that has no conditions yet with an empty list of them. Upstream shows
// null, which makes kubectl fail that waits for a condition: "<nil> is of the type <nil>".
func (c definitionCodec) Decode(data []byte, defaults *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if d, ok := obj.(*apiextensions.CustomResourceDefinition); ok && d.Status.Conditions == nil {
		d.Status.Conditions = []apiextensions.CustomResourceDefinitionCondition{}
	}
	return obj, kind, err
}

func (e builtinEncodings) ResourcePrefix(resource schema.GroupResource) string {
	return prefixOf(resource)
}

// prefixOf puts the resources of a group below the group's name. Those of the core API, which has
// no name, cannot be mistaken for a group: the name of a definition's has a dot, and that of a
// server's own is compared with theirs.
func prefixOf(resource schema.GroupResource) string {
	if resource.Group == "" {
		return resource.Resource
	}
	return resource.Group + "/" + resource.Resource
}

// objectEncodings encode the objects that definitions define. The codec knows no types; the handler
// puts its own, which converts and defaults, around it.
type objectEncodings struct{ prefix string }

func (e objectEncodings) NewConfig(resource schema.GroupResource,
	_ runtime.Object) (*storagebackend.ConfigForResource, error) {
	binary := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(),
		unstructuredscheme.NewUnstructuredObjectTyper())
	var encoder runtime.Encoder = unstructured.UnstructuredJSONScheme
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		encoder = binary
	}
	// Objects that were stored while the gate was open can be read after it was closed.
	codec := runtime.NewCodec(encoder,
		recognizer.NewDecoder(binary, unstructured.UnstructuredJSONScheme))
	return storagebackend.NewDefaultConfig(e.prefix, codec).ForResource(resource), nil
}

func (e objectEncodings) ResourcePrefix(resource schema.GroupResource) string {
	return prefixOf(resource)
}

// objectGetter says how the objects of definitions are stored. When the version changes in which
// they are stored, there are for a moment the store that serves what was asked for before, and the
// new one, which encodes otherwise. Either reads what the other writes.
type objectGetter struct {
	generic.RESTOptionsGetter
	definitions *definitionGuard
}

func (g objectGetter) GetRESTOptions(resource schema.GroupResource,
	example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return o, err
	}
	decorate := o.Decorator
	o.Decorator = func(config *storagebackend.ConfigForResource, prefix string,
		key func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attributes apistorage.AttrFunc, triggers apistorage.IndexerFuncs, indexers *cache.Indexers,
	) (apistorage.Interface, factory.DestroyFunc, error) {
		versioned := *config
		versioned.Codec = anyVersion{config.Codec, g.definitions.converts(resource)}
		return decorate(&versioned, prefix, key, newFunc, newListFunc, attributes,
			triggers, indexers)
	}
	return o, nil
}

// anyVersion is a codec by which stores are not told apart that encode in different versions.
type anyVersion struct {
	runtime.Codec
	// converts tells that a webhook converts the objects, or that this is not known.
	converts bool
}

// Unindexed tells package storage why the objects cannot have an index.
func (c anyVersion) Unindexed() string {
	if c.converts {
		return "a webhook converts its objects, and may give them other labels in each version"
	}
	return ""
}

// UnindexedFields tells package storage why the objects cannot have an index of a field.
func (anyVersion) UnindexedFields() string {
	return "the schema of a definition says what its fields are when they are read, and may change"
}

func (anyVersion) Identifier() runtime.Identifier { return "custom resources" }
