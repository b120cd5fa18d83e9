// Package pkg is a map of what stands above the storage. There is no code in it.
//
// For authors of API servers, who import the library:
//
//	kinds              a whole API server from Go types, without generated code
//	kinds/deepcopy     copies of objects, for packages of types that clients import, too
//	options            the flags by which a server of your own stores its objects in a SQL database,
//	                   and by which it joins a cluster
//	crds               CustomResourceDefinitions in a server of your own
//	garbagecollector   what follows from owner references, where no cluster does it
//	registry/resource  a resource's store, from what is particular about it
//	registry/delegate  a resource's handler that uses the store of another resource
//	registry/status    the subresource status
//	registry/scale     the subresource scale
//	registry/table     the columns that kubectl prints
//
// For authors of tests:
//
//	testkit            your API server inside go test
//	testkit/crds       a server with CustomResourceDefinitions inside go test, instead of envtest
//	testkit/controlplane
//	                   kube-apiserver with its controllers inside go test; its packages cluster and
//	                   process run them for make cluster and Rowkeeper's own tests
//	testkit/process    a server as a process, for projects with other versions of k8s.io
//	testkit/containers PostgreSQL, MariaDB and MySQL for these servers, in containers
//	testkit/databases  empty databases on servers that run; its packages dbserver and programs start
//	                   them for all tests and tools of Rowkeeper's own
//
// For those who work on Rowkeeper's own server programs, which cmd/rowkeeper and kinds.Main are.
// Programs with registries by hand, as rowkeeper init --variant registry writes them, call server,
// server/commands and openapi, too:
//
//	server             the program around an API: flags, listener, certificates, ways to run
//	internal/builtin   the part of the core API that makes sense without nodes
//	server/commands    the commands of such a program: backup, migrate, stores and others
//	internal/access    who may do what without a cluster, and reviews
//	internal/authz     who decides what users may do, by a file, without a cluster
//	support/test/clustertest
//	                   a cluster, as tests of these programs need it
//	internal/follow    settings in files that change while the server runs
//	openapi            the names of types in OpenAPI documents
//	support/pki        all certificates, and the files that keep them
//	internal/rotation  a serving certificate in a cluster that the server renews by itself
//	internal/signin    users by the tokens of issuers, without a cluster
//	support/standalone the directory of a server without a cluster
//	support/version    the version of the program
//
// For readers who want an API to copy from:
//
//	example            the API of pipelines that cmd/rowkeeper serves: types, registries, admission,
//	                   generated code, clients, a controller
//
// The layers are cmd, then pkg, then storage. A package imports packages of its own layer or of
// those below. Nothing of the library imports the example. Tests, and the
// packages that only help tests, may import anything. docs/contributing.md has the path of a write
// and of an event, and says where each decision is made.
package pkg
