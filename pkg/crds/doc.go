// Package crds is for authors of API servers. It makes a server serve CustomResourceDefinitions,
// and the objects of what they define, besides the groups that the server is built with. Clients
// see one server with one discovery and one OpenAPI document.
//
// Definitions are served by k8s.io/apiextensions-apiserver, so that everything about them is as in
// a cluster: structural schemas, defaults, pruning, validation with CEL, versions and conversion
// webhooks, subresources, columns, selectable fields. Objects are stored by package storage.
//
// Where objects have namespaces, clients expect Namespaces. So the part of the core API that makes
// sense without nodes is served, too: Namespaces, ConfigMaps, Secrets, ServiceAccounts,
// ResourceQuotas, Events, Leases, the configurations of admission webhooks, and admission policies
// with their bindings. The registries are those of kube-apiserver. A controller deletes what is in
// a namespace that is deleted. An object cannot be created in a namespace that does not exist. An
// object that is created while its namespace is deleted is deleted, too: see guard.go. Quotas bound
// how many objects of a kind a namespace has. The admission webhooks that clients register are
// called, and the admission policies that they bind are in force, validating and mutating ones. If
// [definitions.Options] ask for it, roles say who may do what, and FlowSchemas whose requests come
// first.
//
// The server that an author builds is wrapped:
//
//	extend, err := crds.Prepare(config, definitions.Options{…}) // after the storage was applied
//	server, err := …                                            // built from config
//	server, err = extend(server)
//
// Programs of packages server and kinds, and the test kit, are given [Prepare].
//
// Admission plugins of the author's own are in config before, or come after the ones that Prepare
// has put there:
//
//	config.AdmissionControl = admission.NewChainHandler(config.AdmissionControl, mine)
//
// A definition cannot use the name of a group of Go types: it is refused. One that is older than
// the group is not served any more, as its status says.
//
// A program that does not import this package links nothing of it.
package crds
