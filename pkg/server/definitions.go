package server

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/definitions"
	"github.com/rowkeeper/rowkeeper/pkg/internal/access"
	"github.com/rowkeeper/rowkeeper/storage"
)

// newServer makes the program's server, and adds CustomResourceDefinitions if they are asked for.
func (s *Server) newServer(config *genericapiserver.RecommendedConfig,
	store *storage.Store) (*genericapiserver.GenericAPIServer, error) {
	if !s.Aggregated.Enabled {
		s.describeReviews(&config.Config)
	}
	if !s.enableCRDs {
		return s.newProgramServer(config)
	}
	database, err := s.Storage.Database()
	if err != nil {
		return nil, err
	}
	// Roles say who may do what, and no default rights beside them, so that none is left to users
	// whose administrator takes it from them.
	config.Authorization.Authorizer, config.RuleResolver = nil, nil
	scheme, _, _ := strings.Cut(database.URL, ":")
	with := definitions.Options{
		Storage: s.Storage, Store: store, Schemes: []*runtime.Scheme{s.program.Scheme, access.Scheme},
		// SQLite is for one machine, where others learn of a definition at once.
		SingleServer: scheme == "sqlite" || scheme == "memory",
		Roles:        true,
		// Without a limit nobody has to wait for others.
		PriorityAndFairness: s.Aggregated.PriorityAndFairness &&
			s.requests.maxInFlight+s.requests.maxMutatingInFlight > 0,
		Services:        s.webhookServices,
		ServiceAccounts: s.serviceAccounts,
	}
	if s.authorization != nil {
		with.Authorizer = func(
			byRoles definitions.Roles) (authorizer.Authorizer, authorizer.RuleResolver) {
			return s.authorization.With(byRoles)
		}
	}
	extend, err := s.program.Definitions(config, with)
	if err != nil {
		return nil, err
	}
	server, err := s.newProgramServer(config)
	if err != nil {
		return nil, err
	}
	return extend(server)
}
