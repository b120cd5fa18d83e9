package kinds

import (
	"context"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/util"

	"github.com/rowkeeper/rowkeeper/pkg/kinds/deepcopy"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
)

// Object is a pointer to a type T that embeds metav1.TypeMeta and metav1.ObjectMeta, and has a
// method DeepCopyObject, for which [DeepCopy] does the work. JSON has to hold all that is in it:
// [New] refuses fields that are not exported, unless they are of a type that has methods of its own
// to write and read JSON, as resource.Quantity and metav1.Time do.
type Object[T any] interface {
	*T
	runtime.Object
	metav1.Object
	metav1.ObjectMetaAccessor
}

// Kind is a kind of objects. The zero value of each field means its default.
type Kind[T any] struct {
	// Name is the kind's name. Default: the name of the type T.
	Name string
	// Resource is the plural in lower case, as it is in paths. Default: the plural of the name, by
	// the rules of English.
	Resource string
	// ShortNames are what kubectl takes for the resource, and Categories the names under which it
	// is listed with others.
	ShortNames, Categories []string
	// ClusterScoped objects are in no namespace.
	ClusterScoped bool
	// Versions are those of the group's versions in which the kind has another Go type, made by
	// [Converted]. In the others it is T as it is.
	Versions []Version[T]
	// Strategy says what happens to an object on its way into the store.
	Strategy Strategy[T]
	// Columns are what kubectl get shows between the name and the age.
	Columns []Column[T]
	// Fields are those by which objects can be selected, by path, such as "spec.phase", besides
	// metadata.name and metadata.namespace.
	Fields map[string]func(*T) string
	// Indexes are what the database finds objects by without looking at all of them: of labels,
	// such as label:team, and of Fields, such as field:spec.phase. A server declares those that the
	// database lacks when it starts; see [github.com/rowkeeper/rowkeeper/storage.WithIndexes].
	Indexes []string
	// Store changes the registry of the kind before it is completed.
	Store func(*genericregistry.Store)
	// Scale says which fields are the kind's scale. With nil it has none.
	Scale *Scale
	// Subresources are the kind's own, besides status and scale, by their names. Each function is
	// given the completed registry. Its result has the interfaces of package rest that say what can
	// be done, such as [rest.NamedCreater], [rest.Getter] or [rest.Connecter]. Objects that these
	// take and return belong to the program's groups.
	Subresources map[string]func(*genericregistry.Store) rest.Storage
}

// Strategy says what happens to an object of type T on its way into the store. All functions are
// optional.
type Strategy[T any] struct {
	// Default fills in what a client has left out. Objects that are read from the store are given
	// the defaults, too.
	Default func(*T)
	// PrepareForCreate and PrepareForUpdate change an object before it is validated. By then the
	// status is empty, and as it was.
	PrepareForCreate func(ctx context.Context, obj *T)
	PrepareForUpdate func(ctx context.Context, obj, old *T)
	// ValidateName returns what is wrong with a name, or with the beginning of one that is
	// generated. Default: it has to be a DNS subdomain.
	ValidateName func(name string, prefix bool) []string
	// Validate returns what is wrong with a new or a changed object; ValidateUpdate, besides, what
	// is wrong with the change; and ValidateStatus what is wrong with a change of the status.
	Validate       func(ctx context.Context, obj *T) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old *T) field.ErrorList
	ValidateStatus func(ctx context.Context, obj, old *T) field.ErrorList
	// Warnings are sent to a client that has created or changed an object.
	Warnings func(ctx context.Context, obj *T) []string
	// TimeToLive is the time after which an object is deleted that is written now. 0 keeps it for
	// ever, and with less, as the time is over already, it is deleted after a second: refuse such
	// objects in Validate if nobody should write them. The database's clock measures the time, in
	// seconds, rounded up.
	TimeToLive func(*T) time.Duration
}

// Column is a column of what kubectl get shows.
type Column[T any] struct {
	Name        string
	Description string
	// Type is that of the cells, as OpenAPI calls it. Default: string.
	Type string
	// Wide columns are shown by kubectl get -o wide only.
	Wide bool
	// Value returns an object's cell: a string, a bool, an integer or a floating-point number, or a
	// pointer to one, which is empty if it is nil.
	Value func(*T) any
}

// Version is a version of a group in which objects look otherwise than T.
type Version[T any] struct {
	name    string
	typ     reflect.Type
	object  func() runtime.Object
	list    func() runtime.Object
	convert func(scheme *runtime.Scheme, fill func(*T)) error
}

// Converted is a version with a Go type V of its own. An object's metadata is taken over before the
// functions are called, which set everything else of their second argument, and leave their first
// one, which others read, as it is. Data that one of them loses is lost when a client of this
// version updates an object, so that V should have a place for all of T.
func Converted[T, V any, P Object[T], PV Object[V]](version string, from func(*V, *T) error,
	to func(*T, *V) error) Version[T] {
	return Version[T]{
		name:   version,
		typ:    reflect.TypeFor[V](),
		object: func() runtime.Object { return PV(new(V)) },
		list:   func() runtime.Object { return &List[V]{} },
		convert: func(scheme *runtime.Scheme, fill func(*T)) error {
			if from == nil || to == nil {
				return fmt.Errorf("version %s needs functions to convert objects from it and to it",
					version)
			}
			fromV := func(in *V, out *T) (err error) {
				defer explainConversion(version, &err)
				takeMetadata(PV(in), P(out))
				if err := from(in, out); err != nil {
					return err
				}
				fill(out)
				return nil
			}
			toV := func(in *T, out *V) (err error) {
				defer explainConversion(version, &err)
				takeMetadata(P(in), PV(out))
				return to(in, out)
			}
			return register(scheme, fromV, toV)
		},
	}
}

// explainConversion is deferred by conversions. They are called where nobody else would recover
// from a panic, too, such as in the watch cache.
func explainConversion(version string, err *error) {
	if panicked := recover(); panicked != nil {
		klog.ErrorS(nil, "A conversion has panicked", "version", version, "panic", panicked,
			"stack", string(debug.Stack()))
		*err = fmt.Errorf("the conversion from or to version %s has panicked, where is in the "+
			"server's log: %v", version, panicked)
	}
}

// register makes a scheme convert objects and lists of them, in both directions.
func register[T, V any](scheme *runtime.Scheme, from func(*V, *T) error,
	to func(*T, *V) error) error {
	for _, c := range []struct {
		from, to any
		convert  conversion.ConversionFunc
	}{
		{(*V)(nil), (*T)(nil), func(in, out any, _ conversion.Scope) error {
			return from(in.(*V), out.(*T))
		}},
		{(*T)(nil), (*V)(nil), func(in, out any, _ conversion.Scope) error {
			return to(in.(*T), out.(*V))
		}},
		{(*List[V])(nil), (*List[T])(nil), func(in, out any, _ conversion.Scope) error {
			return convertList(in.(*List[V]), out.(*List[T]), from)
		}},
		{(*List[T])(nil), (*List[V])(nil), func(in, out any, _ conversion.Scope) error {
			return convertList(in.(*List[T]), out.(*List[V]), to)
		}},
	} {
		if err := scheme.AddConversionFunc(c.from, c.to, c.convert); err != nil {
			return err
		}
	}
	return nil
}

func convertList[A, B any](in *List[A], out *List[B], convert func(*A, *B) error) error {
	out.ListMeta = in.ListMeta
	out.Items = make([]B, len(in.Items))
	for i := range in.Items {
		if err := convert(&in.Items[i], &out.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// takeMetadata copies the metadata of an object to one of another version.
func takeMetadata(in, out metav1.ObjectMetaAccessor) {
	*out.GetObjectMeta().(*metav1.ObjectMeta) = *in.GetObjectMeta().(*metav1.ObjectMeta)
}

// DeepCopy is [deepcopy.Of], for types whose package imports this one anyway.
func DeepCopy[T any](obj *T) *T { return deepcopy.Of(obj) }

// List is the list of objects of type T, for those who read it with a client of their own: the
// kind's list needs no type of its own.
type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []T `json:"items"`
}

// DeepCopyObject returns a copy that shares nothing with the list.
func (l *List[T]) DeepCopyObject() runtime.Object {
	c := &List[T]{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	if l.Items != nil {
		c.Items = make([]T, len(l.Items))
		for i := range l.Items {
			c.Items[i] = *any(any(&l.Items[i]).(runtime.Object).DeepCopyObject()).(*T)
		}
	}
	return c
}

// OpenAPIModelName is the name of the list in OpenAPI documents.
func (List[T]) OpenAPIModelName() string {
	return openapi.FriendlyName(util.GetCanonicalTypeName(new(T))) + "List"
}

// Definition is a kind for [Group.Kinds]; [Define] makes it.
type Definition struct {
	complete func(group string, versions []string) (kind, error)
}

// Define makes a kind of Go type T.
func Define[T any, P Object[T]](k Kind[T]) Definition {
	return Definition{func(group string, versions []string) (kind, error) {
		return complete[T, P](k, group, versions)
	}}
}

// complete fills in the defaults, and checks the kind.
func complete[T any, P Object[T]](k Kind[T], group string, versions []string) (kind, error) {
	if k.Name == "" {
		k.Name = reflect.TypeFor[T]().Name()
	}
	if k.Name == "" {
		return nil, fmt.Errorf("a kind of group %s has no name: its type needs one, or Kind.Name",
			group)
	}
	if wrong := validation.IsDNS1035Label(strings.ToLower(k.Name)); len(wrong) > 0 {
		return nil, fmt.Errorf("a kind of group %s cannot be named %q, give another Kind.Name: "+
			"in lower case, %s", group, k.Name, wrong[0])
	}
	plural, singular := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: group,
		Version: versions[0], Kind: k.Name})
	if k.Resource == "" {
		k.Resource = plural.Resource
	}
	if err := checkKind(k); err != nil {
		return nil, fmt.Errorf("the kind %s of group %s %w", k.Name, group, err)
	}
	other := map[string]Version[T]{}
	for _, v := range k.Versions {
		if v.convert == nil {
			return nil,
				fmt.Errorf("the kind %s of group %s has a Version that Converted has not made",
					k.Name, group)
		}
		if _, ok := other[v.name]; ok {
			return nil, fmt.Errorf("the kind %s of group %s has the version %s twice", k.Name,
				group, v.name)
		}
		other[v.name] = v
	}
	hub := false
	for _, version := range versions {
		_, converted := other[version]
		hub = hub || !converted
	}
	switch unknown := without(other, versions); {
	case len(unknown) > 0:
		return nil, fmt.Errorf("the kind %s of group %s has the versions %s, which "+
			"Group.Versions does not name", k.Name, group, strings.Join(unknown, ", "))
	case !hub:
		return nil, fmt.Errorf("the kind %s of group %s is converted in all versions: one of "+
			"them has to be the type that it is kept in memory as", k.Name, group)
	}
	c := &completed[T, P]{Kind: k, group: group, versions: versions, other: other,
		singular: singular.Resource}
	if err := c.inspect(); err != nil {
		return nil, err
	}
	return c, nil
}

// without returns those keys that are not in a list.
func without[V any](m map[string]V, list []string) []string {
	var rest []string
	for key := range m {
		found := false
		for _, l := range list {
			found = found || l == key
		}
		if !found {
			rest = append(rest, key)
		}
	}
	return rest
}
