package kinds

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	registry "github.com/rowkeeper/rowkeeper/pkg/registry/resource"
	"github.com/rowkeeper/rowkeeper/pkg/registry/status"
	"github.com/rowkeeper/rowkeeper/pkg/registry/table"
)

// kind is a completed [Kind], whatever its Go type is.
type kind interface {
	// names returns the kind's, and how the resource can be called.
	names() (kind, resource string, others []string)
	addTo(*runtime.Scheme) error
	// storage makes the resources of each version.
	storage(*runtime.Scheme, generic.RESTOptionsGetter) (map[string]map[string]rest.Storage, error)
}

// completed is a kind that is known to be right.
type completed[T any, P Object[T]] struct {
	Kind[T]
	group    string
	versions []string // of the group
	other    map[string]Version[T]
	singular string

	scale                *places // nil without one
	typeMeta, objectMeta int
	status               int  // the field's index, or -1
	comparable           bool // by equality.Semantic
	// main and statusOnly are what an update of the resource, and one of its status, do not change.
	main, statusOnly map[fieldpath.APIVersion]*fieldpath.Set
}

func (k *completed[T, P]) names() (string, string, []string) {
	others := slices.Clone(k.ShortNames)
	if k.singular != k.Resource && !slices.Contains(others, k.singular) {
		others = append(others, k.singular)
	}
	return k.Name, k.Resource, others
}

// inspect finds the parts of T.
func (k *completed[T, P]) inspect() error {
	k.typeMeta, k.objectMeta, k.status = -1, -1, -1
	t := reflect.TypeFor[T]()
	if t.Kind() != reflect.Struct {
		return fmt.Errorf("the kind %s of group %s is of type %s, which is not a struct", k.Name,
			k.group, t)
	}
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Type == reflect.TypeFor[metav1.TypeMeta]() && f.Anonymous:
			k.typeMeta = i
		case f.Type == reflect.TypeFor[metav1.ObjectMeta]() && f.Anonymous:
			k.objectMeta = i
		case f.Name == "Status" && jsonName(f) == "status":
			k.status = i
		case f.Name == "Status" || jsonName(f) == "status":
			return fmt.Errorf("the kind %s of group %s cannot be %s: its field %s has to be named Status, with the tag `json:\"status,omitempty\"`", k.Name, k.group, t, f.Name)
		}
	}
	k.comparable = comparableFields(t, map[reflect.Type]bool{})
	k.main, k.statusOnly = map[fieldpath.APIVersion]*fieldpath.Set{},
		map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, version := range k.versions {
		typ := k.typeIn(version)
		if err := checkMetadata(typ); err != nil {
			return fmt.Errorf("the kind %s of group %s cannot be %s: %w", k.Name, k.group, typ, err)
		}
		if err := checkFields(typ); err != nil {
			return fmt.Errorf("the kind %s of group %s cannot be %s: %w", k.Name, k.group, typ, err)
		}
		statusField, rest := fieldpath.NewSet(), fieldpath.NewSet()
		for i := range typ.NumField() {
			switch name := jsonName(typ.Field(i)); name {
			case "", "kind", "apiVersion":
			case "status":
				statusField.Insert(fieldpath.MakePathOrDie(name))
			default:
				rest.Insert(fieldpath.MakePathOrDie(name))
			}
		}
		gv := fieldpath.APIVersion(schema.GroupVersion{Group: k.group, Version: version}.String())
		k.main[gv], k.statusOnly[gv] = statusField, rest
	}
	return k.places()
}

// typeIn is the Go type of a version.
func (k *completed[T, P]) typeIn(version string) reflect.Type {
	if v, ok := k.other[version]; ok {
		return v.typ
	}
	return reflect.TypeFor[T]()
}

// hub is the first version in which the kind is T as it is.
func (k *completed[T, P]) hub() schema.GroupVersion {
	i := slices.IndexFunc(k.versions, func(version string) bool {
		_, converted := k.other[version]
		return !converted
	})
	return schema.GroupVersion{Group: k.group, Version: k.versions[i]} // complete has seen to it
}

// checkMetadata tells whether clients will find what every object has where they look for it.
func checkMetadata(t reflect.Type) error {
	object, ok := t.FieldByName("ObjectMeta")
	if !ok || len(object.Index) > 1 || object.Type != reflect.TypeFor[metav1.ObjectMeta]() ||
		jsonName(object) != "metadata" {
		return errors.New("it has to embed metav1.ObjectMeta itself, with the tag `json:\"metadata,omitempty\"`")
	}
	typ, ok := t.FieldByName("TypeMeta")
	if !ok || len(typ.Index) > 1 || typ.Type != reflect.TypeFor[metav1.TypeMeta]() ||
		jsonName(typ) != "" {
		return errors.New("it has to embed metav1.TypeMeta itself, with the tag `json:\",inline\"`")
	}
	return nil
}

// jsonName is the name of a field in JSON; it is empty for one that is not there, or whose fields
// are in its place.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported() || name == "-":
		return ""
	case name == "" && !f.Anonymous:
		return f.Name
	}
	return name
}

func (k *completed[T, P]) addTo(scheme *runtime.Scheme) error {
	internal := schema.GroupVersion{Group: k.group, Version: runtime.APIVersionInternal}
	// Conversions and defaults are known by the types.
	if known, _, err := scheme.ObjectKinds(P(new(T))); err == nil {
		return fmt.Errorf("the kind %s of group %s has the same type %s as %s: give each a type "+
			"of its own", k.Name, k.group, reflect.TypeFor[T](), named(known[0]))
	}
	var objects, lists runtime.Object = P(new(T)), &List[T]{}
	if err := addKind(scheme, internal, k.Name, objects, lists); err != nil {
		return err
	}
	for _, version := range k.versions {
		gv := schema.GroupVersion{Group: k.group, Version: version}
		object, list := objects, lists
		if v, ok := k.other[version]; ok {
			object, list = v.object(), v.list()
			if err := v.convert(scheme, k.fill); err != nil {
				return fmt.Errorf("the kind %s of group %s: %w", k.Name, k.group, err)
			}
			if known, _, err := scheme.ObjectKinds(object); err == nil {
				return fmt.Errorf("the kind %s of group %s has in version %s the same type %s as "+
					"%s: give each a type of its own", k.Name, k.group, version, v.typ,
					named(known[0]))
			}
		}
		if err := addKind(scheme, gv, k.Name, object, list); err != nil {
			return err
		}
		if err := scheme.AddFieldLabelConversionFunc(gv.WithKind(k.Name),
			k.fieldLabel); err != nil {
			return err
		}
	}
	if k.scale != nil {
		addScale(scheme)
	}
	if k.Strategy.Default != nil {
		scheme.AddTypeDefaultingFunc(P(new(T)), func(obj any) { k.fill(obj.(*T)) })
	}
	// In a version without a type of its own, webhooks and policies are shown the type that is kept
	// in memory. Admission converts even so if the object does not say that it is of this version:
	// after a patch it says none, and from the store the one in which it is stored. Upstream
	// registers this for types with a method DeepCopyInto.
	return scheme.AddConversionFunc((*T)(nil), (*T)(nil),
		func(in, out any, _ conversion.Scope) error {
			*out.(*T) = *any(P(in.(*T)).DeepCopyObject()).(*T)
			P(out.(*T)).GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			return nil
		})
}

// addKind adds a kind and its list to a scheme, which panics if one of them is there already.
func addKind(scheme *runtime.Scheme, gv schema.GroupVersion, kind string, object,
	list runtime.Object) error {
	for _, name := range []string{kind, kind + "List"} {
		if scheme.Recognizes(gv.WithKind(name)) {
			return fmt.Errorf("the kind %s of group %s needs the kind %s, which is there "+
				"already: give another Kind.Name", kind, gv.Group, name)
		}
	}
	scheme.AddKnownTypeWithName(gv.WithKind(kind), object)
	scheme.AddKnownTypeWithName(gv.WithKind(kind+"List"), list)
	return nil
}

// named says for a reader what a kind is.
func named(gvk schema.GroupVersionKind) string {
	if gvk.Version == runtime.APIVersionInternal {
		return fmt.Sprintf("the kind %s of group %s", gvk.Kind, gvk.Group)
	}
	return fmt.Sprintf("the kind %s of group %s in version %s", gvk.Kind, gvk.Group, gvk.Version)
}

// fill sets the defaults.
func (k *completed[T, P]) fill(obj *T) {
	if k.Strategy.Default != nil {
		k.Strategy.Default(obj)
	}
}

// fieldLabel accepts the fields by which objects can be selected.
func (k *completed[T, P]) fieldLabel(label, value string) (string, string, error) {
	_, ok := k.Fields[label]
	if !ok && label != "metadata.name" && (label != "metadata.namespace" || k.ClusterScoped) {
		return "", "", fmt.Errorf("%s cannot be selected by %q", k.Resource, label)
	}
	return label, value, nil
}

// selectable adds the fields that the author names.
func (k *completed[T, P]) selectable(obj P, set fields.Set) {
	for path, value := range k.Fields {
		set[path] = value(obj)
	}
}

func (k *completed[T, P]) storage(scheme *runtime.Scheme,
	getter generic.RESTOptionsGetter) (map[string]map[string]rest.Storage, error) {
	s := strategy[T, P]{scheme, names.SimpleNameGenerator, scheme, k}
	of := &registry.Resource[P]{
		Name:       schema.GroupResource{Group: k.group, Resource: k.Resource},
		Singular:   schema.GroupResource{Group: k.group, Resource: k.singular},
		ShortNames: k.ShortNames,
		Categories: k.Categories,
		New:        func() P { return new(T) },
		NewList:    func() runtime.Object { return &List[T]{} },
		Strategy:   s,
		Table:      k.table(),
		Selectable: k.selectable,
		Indexes:    k.Indexes,
		Change:     k.Store,
	}
	if k.Strategy.TimeToLive != nil {
		of.TTL = func(obj P) uint64 { return seconds(k.Strategy.TimeToLive(obj)) }
	}
	store, err := of.Store(getter)
	if err != nil {
		return nil, err
	}
	resources := map[string]rest.Storage{k.Resource: &resource{store}}
	if k.status >= 0 {
		resources[k.Resource+"/status"] = &statusResource{status.New(store.Store,
			statusStrategy[T, P]{s}), store.Store}
	}
	if k.scale != nil {
		resources[k.Resource+"/scale"] = &scaleResource[P]{newScale[T, P](store.Store, k.scale),
			store.Store}
	}
	for name, of := range k.Subresources {
		subresource := of(store.Store)
		if subresource == nil {
			return nil, fmt.Errorf("the kind %s of group %s has no subresource %s: its function in "+
				"Kind.Subresources has returned none", k.Name, k.group, name)
		}
		resources[k.Resource+"/"+name] = subresource
	}
	versions := map[string]map[string]rest.Storage{}
	for _, version := range k.versions {
		versions[version] = resources
	}
	return versions, nil
}

// seconds are never fewer than the time is long. A time that is over already is the shortest one,
// as 0 would be for ever.
func seconds(d time.Duration) uint64 {
	if d < 0 {
		return 1
	}
	return uint64(math.Ceil(d.Seconds()))
}

// table shows the name, the columns, and the age in front of the columns that are wide.
func (k *completed[T, P]) table() rest.TableConvertor {
	age := slices.IndexFunc(k.Columns, func(c Column[T]) bool { return c.Wide })
	if age < 0 {
		age = len(k.Columns)
	}
	columns := slices.Insert(slices.Clone(k.Columns), age, Column[T]{
		Name: "Age", Description: "The time since the object was created.",
		Value: func(obj *T) any {
			return table.Age(P(obj).GetCreationTimestamp(), clock.RealClock{})
		},
	})
	definitions := []metav1.TableColumnDefinition{table.Name()}
	for _, column := range columns {
		definition := metav1.TableColumnDefinition{Name: column.Name,
			Description: column.Description, Type: cmp.Or(column.Type, "string")}
		if column.Wide {
			definition.Priority = 1
		}
		definitions = append(definitions, definition)
	}
	return table.Convertor[P]{Columns: definitions, Cells: func(obj P) []any {
		cells := []any{obj.GetName()}
		for _, column := range columns {
			cells = append(cells, cell(column.Value(obj)))
		}
		return cells
	}}
}

// cell makes a value, or what it points to, one of the types that a table may have.
func cell(value any) any {
	switch v := reflect.ValueOf(value); {
	case !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil():
		return nil
	case v.Kind() == reflect.Pointer && v.Elem().CanInterface():
		return cell(v.Elem().Interface())
	case v.CanInt():
		return v.Int()
	case v.CanFloat():
		return v.Float()
	case v.Kind() == reflect.Bool:
		return v.Bool()
	case v.Kind() == reflect.String:
		return v.String()
	}
	return fmt.Sprint(value)
}
