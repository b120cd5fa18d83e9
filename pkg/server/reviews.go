package server

import (
	"maps"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/rowkeeper/rowkeeper/pkg/internal/access"
	accessopenapi "github.com/rowkeeper/rowkeeper/pkg/internal/access/openapi"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
)

// newProgramServer makes the program's server. One that stands alone answers reviews itself.
func (s *Server) newProgramServer(
	c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
	server, err := s.program.New(c)
	if err != nil || s.Aggregated.Enabled {
		return server, err
	}
	return server, access.Install(server, &c.Config)
}

// describeReviews adds the definitions of reviews, and of the types of apimachinery that they use,
// to the program's own.
func (s *Server) describeReviews(c *genericapiserver.Config) {
	own := c.OpenAPIV3Config.GetDefinitions
	definitions := func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := apiextensionsopenapi.GetOpenAPIDefinitions(ref)
		maps.Copy(all, accessopenapi.GetOpenAPIDefinitions(ref))
		maps.Copy(all, own(ref))
		return all
	}
	openapi.Describe(c, definitions, openapi.Joined(c.OpenAPIV3Config.GetDefinitionName,
		openapi.NamesOf(s.program.Scheme, access.Scheme)))
}
