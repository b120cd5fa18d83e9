// Package access is for server programs that run without a cluster. It says who may do what, and
// answers those who ask.
//
// A [Policy] gives rules of RBAC to groups. It is what a server knows without any stored object:
// administrators may do everything, and whoever is known may find out what is served, who they are
// and what they may do. [Allows] is the one place that matches a request with a rule. Servers with
// definitions have roles in place of a policy: see package crds.
//
// Install serves the reviews: the groups authorization.k8s.io and authentication.k8s.io, by which
// clients such as "kubectl auth can-i" ask. A review is answered by the authorizer and the
// authenticator of the server itself, so that an answer is what a request would meet. Reviews are
// never stored.
//
// An aggregated server does not use this package: its cluster knows the users, and answers reviews.
package access
