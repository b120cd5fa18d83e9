// Package reserved names what servers store besides the objects that they serve. No API serves it.
package reserved

import "k8s.io/apimachinery/pkg/runtime/schema"

// Group is in the keys of all of it. A definition in this group would serve what is stored there,
// so servers refuse such definitions.
const Group = "rowkeeper.dev"

var (
	// Locks are the Leases by which replicas elect one of them.
	Locks = schema.GroupResource{Group: Group, Resource: "locks"}
	// SigningKeys are the keys by which the tokens of service accounts are signed. No definition
	// has a dot in its plural. So no definition serves the keys, not even at a server that takes
	// definitions in the group.
	SigningKeys = schema.GroupResource{Group: Group, Resource: "signing.keys"}
)
