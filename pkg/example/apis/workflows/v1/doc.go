// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=github.com/rowkeeper/rowkeeper/pkg/example/apis/ci
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.rowkeeper.workflows.v1
// +groupName=workflows.rowkeeper.dev

// Package v1 is the only version of workflows.rowkeeper.dev. Its pipelines are like those of
// ci.rowkeeper.dev/v1.
package v1
