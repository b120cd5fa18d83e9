// Package core serves the part of the core API that makes sense without nodes: Namespaces, ConfigMaps, Secrets, ServiceAccounts, Events, Leases, and the
// configurations of admission webhooks. The types are those of k8s.io/api, so that every client knows them; how they are defaulted, validated and stored is
// written here, since upstream's code for it belongs to kube-apiserver and cannot be imported.
//
// The types have no form of their own inside: the hub of each group is the version v1 itself, except for Events, whose hub is core/v1 in both groups that serve them.
package core
