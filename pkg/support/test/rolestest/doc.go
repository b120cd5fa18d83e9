// Package rolestest has the cases by which servers with roles are compared. A test runs them on a
// server of rbac.authorization.k8s.io and of reviews, ours or kube-apiserver.
package rolestest
