// Package definitions is for authors of programs that serve CustomResourceDefinitions besides
// groups of their own. It is the joint between servers, which know no definitions, and package
// crds, which serves them and is a module of its own. The program passes the one to the other:
//
//	server.Program{Definitions: crds.Prepare, …}
//	testkit.Options{Definitions: crds.Prepare, …}
//
// So a program that serves no definitions links nothing for them, and its module requires nothing
// for them.
package definitions

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/internal/reserved"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage"
)

// ReservedGroup is the group of what servers store besides the objects that they serve. No
// definition may be in it.
const ReservedGroup = reserved.Group

// Prepare changes a configuration before a server is made from it, and returns what wraps that
// server. Who uses the server, what it is stored in, and where it is served must be in the
// configuration already.
type Prepare func(*genericapiserver.RecommendedConfig, Options) (Extend, error)

// Extend returns a server that serves more than the given one does, and leaves everything else to
// it. The given one was made from the configuration that was prepared, and all its groups are
// installed. The configuration's AdmissionControl may have become a part of a chain meanwhile, but
// must not have been replaced.
type Extend func(*genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error)

// Options say where definitions and objects are stored, and what they are served with.
type Options struct {
	// Storage and Store are what the configuration's storage was made with. Required.
	Storage *options.StorageOptions
	Store   *storage.Store
	// Getters describe stores that are made with a getter other than the configuration's. Prepare
	// replaces them by getters whose stores keep objects out of namespaces that are gone.
	Getters []*generic.RESTOptionsGetter
	// Schemes know the types of the groups that the server is built with.
	Schemes []*runtime.Scheme
	// SingleServer says that no server of another machine serves from the database. Otherwise a
	// creation waits if the definition is younger than 2 s, as in every cluster, so that all
	// servers know the definition by the time when a client knows of the first object. Servers that
	// share a SQLite file do not wait: one that has not heard of the definition yet answers 404.
	SingleServer bool
	// Roles serves rbac.authorization.k8s.io. Roles then give rights besides those that the
	// configuration's authorizer gives, if it has one. Who has rights by that one alone gives them
	// away with the rights to escalate and to bind. The members of system:masters, such as the
	// server itself, may do everything.
	Roles bool
	// Authorizer makes the configuration's authorizer of the one by roles, if it is not what Roles
	// says. It may be nil.
	Authorizer func(byRoles Roles) (authorizer.Authorizer, authorizer.RuleResolver)
	// PriorityAndFairness queues requests as FlowSchemas and PriorityLevelConfigurations say, and
	// serves both, with the defaults of a cluster. The configuration's MaxRequestsInFlight and
	// MaxMutatingRequestsInFlight together are then how many requests may be under way at a time.
	PriorityAndFairness bool
	// Services are those that webhooks may name. Others are called by URL.
	Services Services
	// ServiceAccounts says how their tokens are signed.
	ServiceAccounts ServiceAccounts
}

// Roles say who may do what by the roles that the server serves, with their bindings.
type Roles interface {
	authorizer.UnconditionalAuthorizer
	authorizer.RuleResolver
}
