package kinds

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// strategy is the kind's, as the registry asks for it.
type strategy[T any, P Object[T]] struct {
	runtime.ObjectTyper
	names.NameGenerator
	scheme *runtime.Scheme
	kind   *completed[T, P]
}

func (s strategy[T, P]) NamespaceScoped() bool {
	return !s.kind.ClusterScoped
}
func (s strategy[T, P]) AllowCreateOnUpdate(context.Context) bool      { return false }
func (s strategy[T, P]) AllowUnconditionalUpdate(context.Context) bool { return true }
func (s strategy[T, P]) Canonicalize(runtime.Object)                   {}

// PrepareForCreate drops the status: whoever creates an object cannot say how it is doing.
func (s strategy[T, P]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	p := obj.(P)
	if i := s.kind.status; i >= 0 {
		reflect.ValueOf(p).Elem().Field(i).SetZero()
	}
	p.SetGeneration(1)
	if f := s.kind.Strategy.PrepareForCreate; f != nil {
		f(ctx, p)
	}
}

// PrepareForUpdate keeps the status, and counts the changes of everything else but the metadata.
func (s strategy[T, P]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	p, was := obj.(P), old.(P)
	if i := s.kind.status; i >= 0 {
		reflect.ValueOf(p).Elem().Field(i).Set(reflect.ValueOf(was).Elem().Field(i))
	}
	if f := s.kind.Strategy.PrepareForUpdate; f != nil {
		f(ctx, p, was)
	}
	p.SetGeneration(was.GetGeneration())
	same := sameJSON
	if s.kind.comparable {
		same = equality.Semantic.DeepEqual
	}
	if !same(s.wanted(p), s.wanted(was)) {
		p.SetGeneration(was.GetGeneration() + 1)
	}
}

// wanted is the object without what is not its author's will.
func (s strategy[T, P]) wanted(obj P) *T {
	c := *obj
	v := reflect.ValueOf(&c).Elem()
	v.Field(s.kind.typeMeta).SetZero()
	v.Field(s.kind.objectMeta).SetZero()
	if s.kind.status >= 0 {
		v.Field(s.kind.status).SetZero()
	}
	return &c
}

func (s strategy[T, P]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	p := obj.(P)
	validate := s.kind.Strategy.ValidateName
	if validate == nil {
		validate = apivalidation.NameIsDNSSubdomain
	}
	var errs field.ErrorList
	if p.GetGenerateName() != "" {
		for _, wrong := range validate(p.GetGenerateName(), true) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "generateName"),
				p.GetGenerateName(), wrong))
		}
	}
	for _, wrong := range validate(p.GetName(), false) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), p.GetName(), wrong))
	}
	return append(errs, s.validate(ctx, p)...)
}

func (s strategy[T, P]) validate(ctx context.Context, p P) field.ErrorList {
	s.selectable(p)
	if f := s.kind.Strategy.Validate; f != nil {
		return f(ctx, p)
	}
	return nil
}

// selectable tries the functions of the fields. One that panicked for an object in the store would
// end the server, where the watch cache calls it, and again after each start. Here it ends the
// request.
func (s strategy[T, P]) selectable(p P) {
	for _, value := range s.kind.Fields {
		value(p)
	}
}

func (s strategy[T, P]) ValidateUpdate(ctx context.Context, obj,
	old runtime.Object) field.ErrorList {
	errs := s.validate(ctx, obj.(P))
	if f := s.kind.Strategy.ValidateUpdate; f != nil {
		errs = append(errs, f(ctx, obj.(P), old.(P))...)
	}
	return errs
}

func (s strategy[T, P]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if f := s.kind.Strategy.Warnings; f != nil {
		return f(ctx, obj.(P))
	}
	return nil
}

func (s strategy[T, P]) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}

// GetResetFields keeps server-side apply from giving somebody the fields that PrepareForUpdate
// takes away.
func (s strategy[T, P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.kind.status < 0 {
		return nil
	}
	return s.kind.main
}

// statusStrategy is the strategy of the subresource status.
type statusStrategy[T any, P Object[T]] struct{ strategy[T, P] }

// PrepareForUpdate keeps everything but the status, and the metadata that nobody may change by way
// of the status.
func (s statusStrategy[T, P]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(P), old.(P)
	changed := *p
	*p = *was
	v, c := reflect.ValueOf(p).Elem(), reflect.ValueOf(&changed).Elem()
	for _, i := range []int{s.kind.typeMeta, s.kind.objectMeta, s.kind.status} {
		v.Field(i).Set(c.Field(i))
	}
	p.SetGeneration(was.GetGeneration())
	p.SetLabels(was.GetLabels())
	p.SetAnnotations(was.GetAnnotations())
	p.SetOwnerReferences(was.GetOwnerReferences())
	p.SetFinalizers(was.GetFinalizers())
}

func (s statusStrategy[T, P]) ValidateUpdate(ctx context.Context, obj,
	old runtime.Object) field.ErrorList {
	s.selectable(obj.(P))
	if f := s.kind.Strategy.ValidateStatus; f != nil {
		return f(ctx, obj.(P), old.(P))
	}
	return nil
}

func (s statusStrategy[T, P]) WarningsOnUpdate(context.Context, runtime.Object,
	runtime.Object) []string {
	return nil
}

func (s statusStrategy[T, P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.kind.statusOnly
}
