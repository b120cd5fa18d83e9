package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GreetingSpec says whom to greet, and how.
type GreetingSpec struct {
	// Whom is greeted.
	// +kubebuilder:validation:MinLength=1
	Whom string `json:"whom"`
	// Language is English by default, which the schema says.
	// +kubebuilder:default=en
	// +kubebuilder:validation:Enum=en;de;fr
	// +optional
	Language string `json:"language,omitempty"`
	// Times is how often the greeting is repeated. The webhook fills it in: twice for people who
	// are important, else once.
	// +kubebuilder:validation:Maximum=10
	// +optional
	Times int32 `json:"times,omitempty"`
	// Important people are greeted twice.
	// +kubebuilder:validation:XValidation:rule="!oldSelf || self",message="who is important stays important"
	// +optional
	Important bool `json:"important,omitempty"`
}

// GreetingStatus says what has been greeted.
type GreetingStatus struct {
	// ObservedGeneration is that of the spec which the text is of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Text is the greeting.
	Text string `json:"text,omitempty"`
}

// Greeting is written into a ConfigMap of its name.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Whom",type=string,JSONPath=`.spec.whom`
// +kubebuilder:selectablefield:JSONPath=`.spec.language`
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GreetingSpec   `json:"spec"`
	Status GreetingStatus `json:"status,omitempty"`
}

// GreetingList is a list of Greetings.
// +kubebuilder:object:root=true
type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Greeting `json:"items"`
}
