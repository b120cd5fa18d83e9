// Package pkg is a map of what stands above the storage. There is no code in it.
//
// For authors of API servers, who import the library:
//
//	kinds              a whole API server from Go types, without generated code
//	kinds/deepcopy     copies of objects, for packages of types that clients import, too
//	options            the flags by which a server of your own stores its objects in a SQL database,
//	                   and by which it joins a cluster
//	definitions        the joint between servers and what serves CustomResourceDefinitions in them
//	crds               CustomResourceDefinitions in a server of your own; a module of its own
//	garbagecollector   what follows from owner references, where no cluster does it
//	history            what the log still has of an object, as a subresource of every resource
//	history/v1alpha1   its answers, for clients
//	openapi            the names of types in OpenAPI documents
//	registry/resource  a resource's store, from what is particular about it
//	registry/delegate  a resource's handler that uses the store of another resource
//	registry/status    the subresource status
//	registry/scale     the subresource scale
//	registry/table     the columns that kubectl prints
//	server             the program around an API: flags, listener, certificates, ways to run
//	server/commands    the commands of such a program: backup, migrate, stores and others
//
// For authors of tests:
//
//	testkit            your API server inside go test
//	crds/crdstest      a server with CustomResourceDefinitions inside go test, instead of envtest
//	testkit/controlplane
//	                   kube-apiserver with its controllers inside go test
//	testkit/process    a server as a process, for projects with other versions of k8s.io
//	testkit/containers PostgreSQL, MariaDB and MySQL for these servers, in containers
//	testkit/databases  empty databases on servers that run
//
// For readers who want an API to copy from:
//
//	example            the API of pipelines that cmd/rowkeeper serves: types, registries, admission,
//	                   generated code, clients, a controller
//
// For those who work on Rowkeeper. Programs cannot import what is internal, and support promises
// nothing:
//
//	internal/access    who may do what without a cluster, and reviews
//	internal/authz     who decides what users may do, by a file, without a cluster
//	internal/follow    settings in files that change while the server runs
//	internal/readiness waits until a server is ready
//	internal/reserved  the names of what servers store besides the objects that they serve
//	internal/rotation  a serving certificate in a cluster that the server renews by itself
//	internal/signin    users by the tokens of issuers, without a cluster
//	internal/signingkeys
//	                   the keys that sign the tokens of service accounts
//	internal/unserved  stores what no API serves, such as these keys
//	support/...        what cmd, hack and the tests of storage share with pkg
//
// The layers are cmd, then pkg, then storage. A package imports packages of its own layer or of
// those below. Of the library, the module crds uses only what programs can import. Within pkg, the
// folders of the library stand on each other without a circle, and on packages of internal:
//
//	kinds              on server, definitions, options, openapi, registry
//	server             on definitions, garbagecollector, history, options, openapi, support
//	crds               on definitions, openapi, testkit
//	definitions        on options, support
//	garbagecollector   on options
//	options            on support
//
// The test kit and the example stand on them. Nothing of the library imports the example. Tests may
// import anything. docs/contributing.md has the path of a write and of an event, and says where
// each decision is made.
package pkg
