package kinds

import (
	"context"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// DeclarativeValidationConfig is upstream's default.
func (s strategy[T, P]) DeclarativeValidationConfig(context.Context, runtime.Object,
	runtime.Object) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{}
}

// ValidateDeclaratively adds to the errors what the generated functions of [Group.Generated] say.
// They are asked about the whole object, in whatever subresource it is written: it is stored whole.
func (s strategy[T, P]) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object,
	errs field.ErrorList, of operation.Type, config rest.DeclarativeValidationConfig,
) field.ErrorList {
	request := genericapirequest.RequestInfo{}
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		request = *info
	}
	request.Subresource = ""
	if v, ok := s.kind.other[request.APIVersion]; !ok || !s.scheme.HasValidationFunc(v.object()) {
		if !s.scheme.HasValidationFunc(P(new(T))) {
			return errs
		}
		hub := s.kind.hub()
		request.APIGroup, request.APIVersion = hub.Group, hub.Version
	}
	return rest.ValidateDeclarativelyWithMigrationChecks(
		genericapirequest.WithRequestInfo(ctx, &request), s.scheme, obj, old, errs, of, config)
}
