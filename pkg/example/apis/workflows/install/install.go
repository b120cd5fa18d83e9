// Package install registers workflows.rowkeeper.dev in a scheme that has ci.rowkeeper.dev already.
package install

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/workflows"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/workflows/v1"
)

// Install registers the group.
func Install(scheme *runtime.Scheme) {
	utilruntime.Must(workflows.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(v1.SchemeGroupVersion))
}
