// +k8s:deepcopy-gen=package
// +groupName=ci.rowkeeper.dev

// Package ci holds the API group ci.rowkeeper.dev in its internal form: the hub through which every
// served version is converted, and the only form that registries, validation and admission know.
// Its types are never serialized, so they have no JSON tags.
package ci
