package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// GroupName is the name of the API group.
const GroupName = "ci.rowkeeper.dev"

// SchemeGroupVersion is this version of the group.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

var (
	localSchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes, addDefaultingFuncs, addFieldLabels)
	// AddToScheme registers the types of this version, their defaults and their conversions.
	AddToScheme = localSchemeBuilder.AddToScheme
)

// Kind returns the group-qualified kind.
func Kind(kind string) schema.GroupKind { return SchemeGroupVersion.WithKind(kind).GroupKind() }

// Resource returns the group-qualified resource.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&Pipeline{},
		&PipelineList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}

func addDefaultingFuncs(scheme *runtime.Scheme) error { return RegisterDefaults(scheme) }

// addFieldLabels names the fields that can be selected by.
func addFieldLabels(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Pipeline"),
		ci.FieldLabelConversion(ci.SelectableFields["Pipeline"]))
}
