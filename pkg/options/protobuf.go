package options

import (
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// LeaveOutProtobuf makes a server answer requests for types without generated protobuf code in the
// next media type that the client accepts. Upstream offers protobuf for every type, and answers 406
// if it cannot encode the type. kube-controller-manager accepts
// "application/vnd.kubernetes.protobuf,application/json": with such an answer it deletes no
// namespace of the cluster any more.
//
// A version of a group is left out if one of its types in the schemes cannot be encoded. Types that
// have code of their own for protobuf are encoded in it nevertheless: metadata
// (PartialObjectMetadata), discovery, and the other versions and groups. A client that accepts
// nothing but protobuf gets 406.
//
// [StorageOptions.ApplyTo] does this for the scheme of the options. Call it for other schemes, and
// for servers without these options, before the server is made.
func LeaveOutProtobuf(c *genericapiserver.Config, schemes ...*runtime.Scheme) {
	leftOut := notInProtobuf(schemes)
	if len(leftOut) == 0 {
		return
	}
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info, ok := request.RequestInfoFrom(r.Context())
			if !ok || !info.IsResourceRequest {
				handler.ServeHTTP(w, r)
				return
			}
			version := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
			accepted := r.Header.Get("Accept")
			others := withoutProtobuf(accepted)
			switch {
			case !leftOut[version] || others == accepted:
				handler.ServeHTTP(w, r)
			case others == "":
				err := negotiation.NewNotAcceptableError([]string{runtime.ContentTypeJSON,
					runtime.ContentTypeYAML})
				responsewriters.ErrorNegotiated(err, c.Serializer, version, w, r)
			default:
				r = r.Clone(r.Context())
				r.Header.Set("Accept", others)
				handler.ServeHTTP(w, r)
			}
		}), c)
	}
}

// notInProtobuf returns the versions that have a type which cannot be encoded in protobuf.
func notInProtobuf(schemes []*runtime.Scheme) map[schema.GroupVersion]bool {
	versions := map[schema.GroupVersion]bool{}
	for _, scheme := range schemes {
		encoder := protobuf.NewSerializer(scheme, scheme)
		for kind := range scheme.AllKnownTypes() {
			if kind.Version == runtime.APIVersionInternal {
				continue
			}
			object, err := scheme.New(kind)
			if err == nil && protobuf.IsNotMarshalable(encoder.Encode(object, io.Discard)) {
				versions[kind.GroupVersion()] = true
			}
		}
	}
	return versions
}

// storableInProtobuf is whether the types of the version that each group is stored in can be
// encoded in protobuf.
func storableInProtobuf(scheme *runtime.Scheme) bool {
	if scheme == nil {
		return true
	}
	for version := range notInProtobuf([]*runtime.Scheme{scheme}) {
		if slices.Index(scheme.PrioritizedVersionsForGroup(version.Group), version) == 0 {
			return false
		}
	}
	return true
}

// withoutProtobuf returns the media types of an Accept header in which an object itself can be
// encoded, and the ones that ask for something else in its place, such as its metadata.
func withoutProtobuf(accepted string) string {
	var others []string
	for element := range strings.SplitSeq(accepted, ",") {
		name, parameters, err := mime.ParseMediaType(element)
		_, transformed := parameters["as"]
		if err != nil || name != runtime.ContentTypeProtobuf || transformed {
			others = append(others, element)
		}
	}
	return strings.Join(others, ",")
}
