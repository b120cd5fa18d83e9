package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Pipeline is a recipe: steps that run one after another, each a command in a container image. It
// is the pipeline of the same name in ci.rowkeeper.dev.
type Pipeline struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is what is wanted.
	// +optional
	Spec civ1.PipelineSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`
	// status is what is the case. It is written through the subresource status.
	// +optional
	Status civ1.PipelineStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelineList is a list of pipelines.
type PipelineList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the pipelines.
	Items []Pipeline `json:"items" protobuf:"bytes,2,rep,name=items"`
}
