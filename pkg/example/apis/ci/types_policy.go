package ci

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelinePolicy rules what pipelines may be like, in all namespaces.
type PipelinePolicy struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec PipelinePolicySpec
}

// PipelinePolicySpec is the rule. In patterns, * stands for any text.
type PipelinePolicySpec struct {
	// BannedNames are patterns for names that pipelines must not have.
	BannedNames []string
	// BannedImages are patterns for images that steps must not run in. An image without tag and
	// digest also counts as one with the tag latest.
	BannedImages []string
	// Mirrors replace the beginnings of images. They come before the ban.
	Mirrors []ImageMirror
	// Message says why, or what to do instead. It is shown to whoever is refused.
	Message string
}

// ImageMirror replaces the beginning of an image.
type ImageMirror struct {
	// Prefix is what an image begins with.
	Prefix string
	// Replacement is what it begins with instead.
	Replacement string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// PipelinePolicyList is a list of policies.
type PipelinePolicyList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []PipelinePolicy
}
