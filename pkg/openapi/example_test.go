package openapi_test

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/rowkeeper/rowkeeper/pkg/openapi"
)

// A document names a type, and says of which kinds it is.
func ExampleNamesOf() {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ConfigMap{})
	names := openapi.NamesOf(scheme)
	name, extensions := names(openapi.TypeName(reflect.TypeFor[corev1.ConfigMap]()))
	fmt.Println(name, extensions[openapi.GroupVersionKinds])
	// Output: io.k8s.api.core.v1.ConfigMap [map[group: kind:ConfigMap version:v1]]
}
