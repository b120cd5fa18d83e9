// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=github.com/rowkeeper/rowkeeper/pkg/example/apis/ci
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.rowkeeper.ci.v1alpha1
// +groupName=ci.rowkeeper.dev

// Package v1alpha1 is the first version of ci.rowkeeper.dev, which is still served. Its pipelines
// are flat: one image and a list of lines for the shell. The rest of a pipeline, which they cannot
// express, is kept in an annotation, so that nothing is lost when one is read and written back in
// this version.
package v1alpha1
