// Package kubebuilder is a project as kubebuilder lays one out: types, of which controller-gen makes the definition and the methods, webhooks that default and
// validate, a controller, and tests. It stands for the projects of others: there is nothing in it that is made for Rowkeeper but the start of the server in
// internal/suite.
package kubebuilder

//go:generate go tool controller-gen object crd webhook paths=./... output:crd:dir=config/crd/bases output:webhook:dir=config/webhook
