// Package kubebuilder is a project as kubebuilder lays one out: types, webhooks that default and
// validate, a controller, and tests. controller-gen makes the definition and the methods from the
// types. The project stands for those of other people. Only the start of the server in
// internal/suite is made for Rowkeeper.
package kubebuilder

//go:generate go tool controller-gen object crd webhook paths=./... output:crd:dir=config/crd/bases output:webhook:dir=config/webhook
