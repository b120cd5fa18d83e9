// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=github.com/rowkeeper/rowkeeper/pkg/example/apis/ci
// +k8s:defaulter-gen=TypeMeta
// +k8s:validation-gen=TypesWithField=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.rowkeeper.ci.v1
// +groupName=ci.rowkeeper.dev

// Package v1 is the version of ci.rowkeeper.dev in which objects are stored and which clients
// should use.
package v1
