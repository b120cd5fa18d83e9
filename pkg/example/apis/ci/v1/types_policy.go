package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelinePolicy rules what pipelines may be like, in all namespaces.
type PipelinePolicy struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the rule.
	// +optional
	Spec PipelinePolicySpec `json:"spec,omitempty"`
}

// PipelinePolicySpec is what a policy rules. In patterns, * stands for any text.
type PipelinePolicySpec struct {
	// bannedNames are patterns for names that pipelines must not have.
	// +optional
	// +listType=set
	// +k8s:optional
	// +k8s:listType=set
	// +k8s:maxItems=256
	// +k8s:eachVal=+k8s:maxBytes=512
	// +k8s:eachVal=+k8s:minLength=1
	BannedNames []string `json:"bannedNames,omitempty"`
	// bannedImages are patterns for images that steps must not run in. An image without tag and
	// digest also counts as one with the tag latest.
	// +optional
	// +listType=set
	// +k8s:optional
	// +k8s:listType=set
	// +k8s:maxItems=256
	// +k8s:eachVal=+k8s:maxBytes=512
	// +k8s:eachVal=+k8s:minLength=1
	BannedImages []string `json:"bannedImages,omitempty"`
	// mirrors replace the beginnings of images, before it is decided whether they are banned.
	// +optional
	// +listType=map
	// +listMapKey=prefix
	// +patchStrategy=merge
	// +patchMergeKey=prefix
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=prefix
	// +k8s:maxItems=64
	Mirrors []ImageMirror `json:"mirrors,omitempty" patchStrategy:"merge" patchMergeKey:"prefix"`
	// message says why, or what to do instead. It is shown to whoever is refused.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Message string `json:"message,omitempty"`
}

// ImageMirror replaces the beginning of an image.
type ImageMirror struct {
	// prefix is what an image begins with, such as docker.io/.
	// +k8s:required
	// +k8s:maxBytes=512
	Prefix string `json:"prefix"`
	// replacement is what it begins with instead, such as mirror.example.com/.
	// +k8s:required
	// +k8s:maxBytes=512
	Replacement string `json:"replacement"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelinePolicyList is a list of policies.
type PipelinePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the policies.
	Items []PipelinePolicy `json:"items"`
}
