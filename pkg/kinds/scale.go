package kinds

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/rowkeeper/rowkeeper/pkg/registry/scale"
)

// Scale says which fields of a kind are its scale, by which kubectl scale and autoscalers change
// the number of replicas. The paths are those of the Go type T in JSON, and are named as in a
// CustomResourceDefinition. A pointer that is nil means no replicas: give it a default.
//
// Server-side apply knows who manages the replicas by way of the scale in all versions that have
// them in this place, too.
type Scale struct {
	// SpecReplicasPath is the number of replicas that are wanted, such as .spec.replicas, and
	// StatusReplicasPath the number that exists, such as .status.replicas. The fields are of type
	// int32 or *int32.
	SpecReplicasPath, StatusReplicasPath string
	// LabelSelectorPath is the selector of the pods, such as .status.selector. The field is a
	// string. Autoscalers need it, and kubectl scale does not.
	LabelSelectorPath string
}

// scalePath is a path as CustomResourceDefinitions have it.
var scalePath = regexp.MustCompile(`^\.(spec|status)(\.[A-Za-z0-9_-]+)+$`)

// places are the fields of a type T by which objects have a scale.
type places struct {
	wanted, there, selector []int // the latter is nil if there is none
	// paths are those of the replicas that are wanted, for each version of the group.
	paths   managedfields.ResourcePathMappings
	version schema.GroupVersion // one that has T
}

// find finds the fields. Its error says of the kind what is wrong.
func (s *Scale) find(t reflect.Type) (*places, error) {
	p := &places{}
	for _, field := range []struct {
		option, path, below string
		kind                reflect.Kind
		index               *[]int
	}{
		{"SpecReplicasPath", s.SpecReplicasPath, ".spec.", reflect.Int32, &p.wanted},
		{"StatusReplicasPath", s.StatusReplicasPath, ".status.", reflect.Int32, &p.there},
		{"LabelSelectorPath", s.LabelSelectorPath, ".", reflect.String, &p.selector},
	} {
		if field.path == "" && field.kind == reflect.String {
			continue
		}
		if !scalePath.MatchString(field.path) || !strings.HasPrefix(field.path, field.below) {
			example := map[string]string{".": ".status.selector"}[field.below]
			if example == "" {
				example = field.below + "replicas"
			}
			return nil, fmt.Errorf("has a Scale with the %s %q: give one such as %s", field.option,
				field.path, example)
		}
		index, of, ok := fieldAt(t, field.path)
		if !ok {
			return nil, fmt.Errorf("has a Scale with the %s %s, which %s does not have",
				field.option, field.path, t)
		}
		if indirect(of).Kind() != field.kind {
			return nil, fmt.Errorf("has a Scale with the %s %s, which is of type %s: it has to be "+
				"of type %s", field.option, field.path, of, field.kind)
		}
		*field.index = index
	}
	return p, nil
}

// fieldAt finds the field at a path of names in JSON.
func fieldAt(t reflect.Type, path string) (index []int, of reflect.Type, ok bool) {
	for _, name := range strings.Split(path[1:], ".") {
		if t = indirect(t); t.Kind() != reflect.Struct {
			return nil, nil, false
		}
		fields := reflect.VisibleFields(t)
		i := slices.IndexFunc(fields, func(f reflect.StructField) bool {
			return jsonName(f) == name
		})
		if i < 0 {
			return nil, nil, false
		}
		index, t = append(index, fields[i].Index...), fields[i].Type
	}
	return index, t, true
}

// at returns the field of a struct, or a value that is not valid if a pointer on the way is nil.
func at(v reflect.Value, index []int) reflect.Value {
	for _, i := range index {
		if v = reflect.Indirect(v); !v.IsValid() {
			return v
		}
		v = v.Field(i)
	}
	return reflect.Indirect(v)
}

// made is at, and makes what pointers on the way lack.
func made(v reflect.Value, index []int) reflect.Value {
	for _, i := range index {
		v = filled(v).Field(i)
	}
	return filled(v)
}

func filled(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer {
		return v
	}
	if v.IsNil() {
		v.Set(reflect.New(v.Type().Elem()))
	}
	return v.Elem()
}

// newScale is the subresource scale of a resource.
func newScale[T any, P Object[T]](store *genericregistry.Store, p *places) *scale.REST[P] {
	replicas := func(obj P, index []int) int32 {
		if v := at(reflect.ValueOf(obj), index); v.IsValid() {
			return int32(v.Int()) // of which type it is
		}
		return 0
	}
	return scale.New(store, scale.Fields[P]{
		Get: func(obj P) (spec autoscalingv1.ScaleSpec, status autoscalingv1.ScaleStatus) {
			spec.Replicas, status.Replicas = replicas(obj, p.wanted), replicas(obj, p.there)
			if p.selector != nil {
				if v := at(reflect.ValueOf(obj), p.selector); v.IsValid() {
					status.Selector = v.String()
				}
			}
			return spec, status
		},
		Set: func(obj P, replicas int32) {
			made(reflect.ValueOf(obj), p.wanted).SetInt(int64(replicas))
		},
		Paths:   p.paths,
		Version: p.version,
	})
}

// places finds the fields of the kind's scale, and in which versions they are in the same place.
func (k *completed[T, P]) places() error {
	if k.Scale == nil {
		return nil
	}
	p, err := k.Scale.find(reflect.TypeFor[T]())
	if err != nil {
		return fmt.Errorf("the kind %s of group %s %w", k.Name, k.group, err)
	}
	p.paths, p.version = managedfields.ResourcePathMappings{}, k.hub()
	names := strings.Split(k.Scale.SpecReplicasPath[1:], ".")
	path := make([]any, len(names))
	for i, name := range names {
		path[i] = name
	}
	for _, gv := range groupVersions(k.group, k.versions) {
		p.paths[gv.String()] = nil
		_, of, ok := fieldAt(k.typeIn(gv.Version), k.Scale.SpecReplicasPath)
		if ok && indirect(of).Kind() == reflect.Int32 {
			p.paths[gv.String()] = fieldpath.MakePathOrDie(path...)
		}
	}
	k.scale = p
	return nil
}

// addScale registers the kind of scales once for all kinds.
func addScale(scheme *runtime.Scheme) {
	if !scheme.Recognizes(autoscalingv1.SchemeGroupVersion.WithKind("Scale")) {
		scale.AddToScheme(scheme)
	}
}
