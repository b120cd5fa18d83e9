// Package builtin is for package crds. It serves the part of the core API that makes sense without
// nodes: Namespaces, ConfigMaps, Secrets, ServiceAccounts, Events, Leases, the configurations of
// admission webhooks, ValidatingAdmissionPolicies and MutatingAdmissionPolicies with their bindings
// and, for servers that ask for them, roles and their bindings, FlowSchemas and
// PriorityLevelConfigurations.
//
// The types are those of k8s.io/api, so that every client knows them. Their defaults, validation
// and storage are written here. A policy is accepted if its expressions compile, as the admission
// plugin compiles them. They are not checked against the schemas of the kinds that the policy is
// for.
//
// Roles are read in two ways. Requests are judged by [KnownRoles], from informers, without a look
// into the database, by upstream's authorizer; a change counts a few milliseconds after it was
// acknowledged. Roles only give rights, and a server that starts has none before all informers are
// synced, so that nobody has more rights then than afterwards. Who writes a role or a binding is
// judged by what is stored at that time, so that a binding may follow its role at once. Default
// roles are written at every start by [WriteDefaultRoles]. [RoleAggregator] fills roles that
// aggregate others. Every replica does both: the result is the same, and who is late meets a
// conflict.
//
// Requests wait by upstream's queues, which read FlowSchemas and PriorityLevelConfigurations from
// informers and write whether a schema's priority exists. [WriteDefaultPriorities] maintains the
// default ones, of which upstream publishes the specs.
//
// The types have no form of their own inside: the hub of each group is the version v1 itself,
// except for Events, whose hub is core/v1 in both groups that serve them.
package builtin
