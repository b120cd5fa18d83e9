// Package builtin is for package crds. It serves the part of the core API that makes sense without
// nodes: Namespaces, ConfigMaps, Secrets, ServiceAccounts, ResourceQuotas, Events, Leases, the
// configurations of admission webhooks, ValidatingAdmissionPolicies and MutatingAdmissionPolicies
// with their bindings and, for servers that ask for them, roles and their bindings, FlowSchemas and
// PriorityLevelConfigurations.
//
// The registries are those of k8s.io/kubernetes, as kube-apiserver has them: defaults, validation,
// columns and forms inside. What is stored is the version v1 of each kind. The keys are those that
// package crds gives, so that they stay where they are.
//
// Upstream's types are in a scheme of the process, legacyscheme, and so are the feature gates. Two
// servers in a process share them.
//
// Namespaces are emptied by [NamespaceController], and not by upstream's deleter
// (k8s.io/kubernetes/pkg/controller/namespace/deletion). That one is written for one leader, and
// here every replica works. It deletes collections, and objects by their names, without UIDs. It
// reads the namespace before it begins, and not again between the deletions. So a replica that is
// late would delete the objects of a namespace that was created anew. It ends the namespace when
// discovery names nothing more, and does not look at what is stored. It deletes one resource after
// another without a time limit, so that a webhook that hangs holds up the resources after it.
//
// Roles are read in two ways. Requests are judged by [KnownRoles], from informers, without a look
// into the database, by upstream's authorizer; a change counts a few milliseconds after it was
// acknowledged. Roles only give rights, and a server that starts has none before all informers are
// synced, so that nobody has more rights then than afterwards. Who writes a role or a binding is
// judged by what is stored at that time, so that a binding may follow its role at once. Default
// roles are written at every start by [WriteDefaultRoles]. Upstream's controller fills roles that
// aggregate others. Every replica does both: the result is the same, and who is late meets a
// conflict.
//
// Requests wait by upstream's queues, which read FlowSchemas and PriorityLevelConfigurations from
// informers and write whether a schema's priority exists. Upstream's hook maintains the default
// ones, once a minute.
package builtin
