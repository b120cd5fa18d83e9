// Package workflows is a second API group in which pipelines are served: workflows.rowkeeper.dev,
// for clients from before they were moved to ci.rowkeeper.dev. There is one set of objects, in one
// place in the database. Inside they are those of the package ci, so that this one has no types of
// its own.
package workflows

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// GroupName is the name of the API group.
const GroupName = "workflows.rowkeeper.dev"

// SchemeGroupVersion is the group's internal version.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: runtime.APIVersionInternal}

var (
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme registers the internal types of ci under this group, too. They have to be
	// registered under their own group before.
	AddToScheme = schemeBuilder.AddToScheme
)

// Resource returns the group-qualified resource.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &ci.Pipeline{}, &ci.PipelineList{})
	return nil
}
