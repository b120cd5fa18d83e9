package apiserver

import (
	"fmt"
	"maps"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/util/managedfields"
	endpoints "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder3"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"

	generatedopenapi "github.com/rowkeeper/rowkeeper/pkg/example/generated/openapi"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

// describe makes the server publish OpenAPI documents of the types in the scheme.
func describe(c *genericapiserver.Config) {
	openapi.Describe(c, definitions, openapi.NamesOf(Scheme))
	openapi.Title(c, "Rowkeeper", version.Get().Version)
	c.OpenAPIConfig.GetOperationIDAndTags = operation   //nolint:staticcheck // upstream's own default, which it calls, is set in this field
	c.OpenAPIV3Config.GetOperationIDAndTags = operation //nolint:staticcheck // as above
}

// definitions are those of this API's types, and upstream's of the types that every API uses:
// metadata, options, errors, scales. The documents leave out what no route uses.
func definitions(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
	all := apiextensionsopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, generatedopenapi.GetOpenAPIDefinitions(ref))
	return all
}

// typeConverter knows the structure of an object's type as the OpenAPI document describes it, for
// managed fields.
func typeConverter(c *openapicommon.OpenAPIV3Config, obj any) (managedfields.TypeConverter, error) {
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(c,
		openapiutil.GetCanonicalTypeName(obj))
	if err != nil {
		return nil, fmt.Errorf("cannot describe %T: %w", obj, err)
	}
	return managedfields.NewTypeConverter(schemas, false)
}

// operation names a route. Upstream names those of a subresource after the resource's kind and the
// subresource, which makes the creation of a PipelineRun of both "create a PipelineRun" and "create
// the run of a Pipeline".
func operation(route *restful.Route) (string, []string, error) {
	if strings.HasSuffix(route.Path, "/pipelines/{name}/run") {
		renamed := *route
		renamed.Operation += "Request"
		route = &renamed
	}
	return endpoints.GetOperationIDAndTags(route)
}
