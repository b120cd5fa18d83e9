// Package builtin is for package crds. It serves the part of the core API that makes sense without
// nodes: Namespaces, ConfigMaps, Secrets, ServiceAccounts, Events, Leases, the configurations of
// admission webhooks, ValidatingAdmissionPolicies and MutatingAdmissionPolicies with their bindings
// and, for servers that ask for them, roles and their bindings, FlowSchemas and
// PriorityLevelConfigurations.
//
// The registries are those of k8s.io/kubernetes, as kube-apiserver has them: defaults, validation,
// columns and forms inside. What is stored is the version v1 of each kind. The keys are those that
// package crds gives, so that they stay where they are.
//
// Upstream's types are in a scheme of the process, legacyscheme, and so are the feature gates. Two
// servers in a process share them.
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
