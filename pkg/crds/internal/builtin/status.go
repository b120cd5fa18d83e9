package builtin

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
)

// withStatus adds the stores of a resource and of its subresource status. keepSpec gives an object
// the spec that it had, since a request for the status cannot change it. conditions returns the
// types of an object's conditions; it may be nil.
func withStatus[T registry.Object](all map[string]rest.Storage, getter generic.RESTOptionsGetter,
	version schema.GroupVersion, r resource[T], keepSpec func(obj, old T),
	conditions func(T) []string) error {
	s, err := r.store(getter)
	if err != nil {
		return err
	}
	ofStatus := r
	ofStatus.prepare = func(obj, old T) {
		keepSpec(obj, old)
		metav1.ResetObjectMetaForStatus(obj, old)
	}
	ofStatus.validate = nil // what is stored of the spec was validated
	if conditions != nil {
		ofStatus.validate = func(obj, _ T) field.ErrorList {
			return checkConditionTypes(conditions(obj))
		}
	}
	store := *s.Store
	s.ResetFieldsStrategy = resetFields{version, []string{"status"}}
	store.ResetFieldsStrategy = resetFields{version, []string{"spec", "metadata"}}
	store.UpdateStrategy = strategy[T]{ObjectTyper: Scheme, resource: ofStatus}
	all[r.resource.Resource] = s
	all[r.resource.Resource+"/status"] = &subresource{&store}
	return nil
}

// checkConditionTypes checks the types of conditions, by which they are found.
func checkConditionTypes(types []string) (errs field.ErrorList) {
	path := field.NewPath("status", "conditions")
	for i, t := range types {
		switch at := path.Index(i).Child("type"); {
		case t == "":
			errs = append(errs, field.Required(at, ""))
		case slices.Contains(types[:i], t):
			errs = append(errs, field.Duplicate(at, t))
		}
	}
	return errs
}

// resetFields are those that a client cannot set, and so does not own.
type resetFields struct {
	version schema.GroupVersion
	fields  []string
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (f resetFields) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return status.Fields([]schema.GroupVersion{f.version}, f.fields...)
}

// subresource is what can be updated of an object on its own, such as its status. What may change
// is for the strategy of the store to say.
type subresource struct{ store *genericregistry.Store }

var (
	_ rest.Patcher = &subresource{}
	_ rest.Storage = &subresource{}
)

func (r *subresource) New() runtime.Object { return r.store.New() }
func (r *subresource) Destroy()            {} // the resource does it

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *subresource) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *subresource) Get(ctx context.Context, name string,
	o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}

func (r *subresource) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool,
	o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, o)
}
