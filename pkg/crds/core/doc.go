// Package core is for package crds. It serves the part of the core API that makes sense without
// nodes: Namespaces, ConfigMaps, Secrets, ServiceAccounts, Events, Leases, the configurations of
// admission webhooks, and ValidatingAdmissionPolicies with their bindings.
//
// The types are those of k8s.io/api, so that every client knows them. Their defaults, validation
// and storage are written here: upstream's code for it belongs to kube-apiserver and cannot be
// imported. A policy is accepted if its expressions compile, as the admission plugin compiles them.
// They are not checked against the schemas of the kinds that the policy is for.
//
// The types have no form of their own inside: the hub of each group is the version v1 itself,
// except for Events, whose hub is core/v1 in both groups that serve them.
package core
