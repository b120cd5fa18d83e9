package kinds

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/rowkeeper/rowkeeper/pkg/kinds/deepcopy"
)

// checkFields tells whether JSON can hold all that values of a type do, and whether the API
// machinery can merge them. Anything that JSON cannot hold would be lost on the way to the database
// and to clients.
func checkFields(t reflect.Type) error {
	return checkType(t, t.String(), map[reflect.Type]bool{})
}

func checkStruct(t reflect.Type, seen map[reflect.Type]bool) error {
	if seen[t] || t == reflect.TypeFor[metav1.ObjectMeta]() {
		return nil
	}
	seen[t] = true
	if embedsItself(t, nil) {
		return fmt.Errorf("%s embeds itself, so that its fields in JSON have no end: give the "+
			"field a name", t)
	}
	names := map[string]string{}
	for i := range t.NumField() {
		f := t.Field(i)
		where := fmt.Sprintf("the field %s of %s", f.Name, t)
		tag := f.Tag.Get("json")
		switch {
		case f.IsExported() && tag == "-":
			continue
		// whatever its tag is: the API machinery panics where it merges objects
		case !f.IsExported() && !f.Anonymous:
			return fmt.Errorf("%s is not exported, so that it would not be stored: export it, or "+
				"give %s the methods MarshalJSON and UnmarshalJSON", where, t)
		case !f.IsExported() && f.Type.Kind() != reflect.Struct:
			return fmt.Errorf("%s is embedded and not exported, so that JSON cannot be decoded "+
				"into it: export its type, or embed a struct instead", where)
		}
		if name := jsonName(f); name != "" {
			if other, ok := names[name]; ok {
				return fmt.Errorf("%s is %q in JSON, as the field %s is: give each a name of its own", where, name, other)
			}
			names[name] = f.Name
		}
		if err := checkType(f.Type, where, seen); err != nil {
			return err
		}
		if err := checkMerge(f); err != nil {
			return fmt.Errorf("%s %w", where, err)
		}
	}
	return nil
}

// embedsItself tells whether the structs that are embedded in one, or in these, lead back to it or
// to one of the structs that led to it.
func embedsItself(t reflect.Type, from []reflect.Type) bool {
	if slices.Contains(from, t) {
		return true
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && indirect(f.Type).Kind() == reflect.Struct &&
			embedsItself(indirect(f.Type), append(slices.Clip(from), t)) {
			return true
		}
	}
	return false
}

// checkMerge tells whether a field can be merged as its tags say. Else nobody could apply an
// object.
func checkMerge(f reflect.StructField) error {
	strategies, tagged := f.Tag.Lookup("patchStrategy")
	for _, strategy := range strings.Split(strategies, ",") {
		if tagged && !slices.Contains([]string{"merge", "replace", "retainKeys"}, strategy) {
			return fmt.Errorf("has the patchStrategy %q: it is one of merge, replace and retainKeys", strategies)
		}
	}
	list, key := indirect(f.Type), f.Tag.Get("patchMergeKey")
	if list.Kind() != reflect.Slice || !slices.Contains(strings.Split(strategies, ","), "merge") {
		if key != "" {
			return errors.New("has a patchMergeKey, which is for lists with patchStrategy:\"merge\"")
		}
		return nil
	}
	switch element := indirect(list.Elem()); {
	case scalar(element):
		if key != "" {
			return fmt.Errorf("has a patchMergeKey, and its elements, of type %s, have no "+
				"fields: leave it out", element)
		}
	case element.Kind() != reflect.Struct:
		return fmt.Errorf("cannot be merged, as its elements are of type %s: leave patchStrategy out", element)
	case key == "":
		return errors.New("is merged, and has no patchMergeKey: name the field by which its " +
			"elements are told apart")
	default:
		for _, of := range reflect.VisibleFields(element) {
			if jsonName(of) == key && scalar(indirect(of.Type)) {
				return nil
			}
		}
		return fmt.Errorf("is merged by %q, which is not a string, a number or a bool in %s",
			key, element)
	}
	return nil
}

// scalar tells whether values of a type have no parts in JSON.
func scalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Array:
		return deepcopy.EncodesJSON(t)
	case reflect.Map, reflect.Slice, reflect.Pointer, reflect.Interface:
		return false
	}
	return true
}

// checkType does this for the type of something that an error calls where.
func checkType(t reflect.Type, where string, seen map[reflect.Type]bool) error {
	if deepcopy.EncodesJSON(t) {
		return nil
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return fmt.Errorf("%s is of type %s, which writes itself as text, and server-side apply "+
			"cannot read that: use a string, or a type with the methods MarshalJSON and "+
			"UnmarshalJSON", where, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return checkStruct(t, seen)
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			return fmt.Errorf("%s has keys of type %s, and JSON and server-side apply know "+
				"strings only", where, t.Key())
		}
		return checkType(t.Elem(), where, seen)
	case reflect.Array:
		return fmt.Errorf("%s is of the array type %s, which server-side apply cannot read: use "+
			"a slice", where, t)
	case reflect.Pointer, reflect.Slice:
		return checkType(t.Elem(), where, seen)
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("%s is of the interface type %s, into which JSON cannot be "+
				"decoded: use a struct, any or runtime.RawExtension", where, t)
		}
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer,
		reflect.Uintptr:
		return fmt.Errorf("%s is of type %s, which JSON cannot hold: leave it out, or give it the tag `json:\"-\"`", where, t)
	}
	return nil
}

// checkKind tells whether clients can be given the names, columns and fields of a kind.
func checkKind[T any](k Kind[T]) error {
	if wrong := validation.IsDNS1035Label(k.Resource); len(wrong) > 0 {
		return fmt.Errorf("cannot be the resource %q: %s", k.Resource, wrong[0])
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"short name", k.ShortNames}, {"category", k.Categories}} {
		for i, name := range list.names {
			if wrong := validation.IsDNS1035Label(name); len(wrong) > 0 {
				return fmt.Errorf("cannot have the %s %q: %s", list.what, name, wrong[0])
			}
			if slices.Contains(list.names[:i], name) {
				return fmt.Errorf("has the %s %s twice", list.what, name)
			}
			if name == k.Resource && list.what == "short name" {
				return fmt.Errorf("has the short name %s, which is its resource: leave it out",
					name)
			}
		}
	}
	columns := map[string]bool{"name": true, "age": true}
	for _, c := range k.Columns {
		lower := strings.ToLower(c.Name)
		switch {
		case c.Name == "":
			return errors.New("has a column without a name: give Column.Name")
		case lower == "name" || lower == "age":
			return fmt.Errorf("has the column %s by itself: leave it out", c.Name)
		case columns[lower]:
			return fmt.Errorf("has the column %s twice", c.Name)
		case c.Value == nil:
			return fmt.Errorf("has the column %s without a function for its cells: give "+
				"Column.Value", c.Name)
		case c.Type != "" && !slices.Contains([]string{"string", "integer", "number", "boolean",
			"date"}, c.Type):
			return fmt.Errorf("has the column %s of type %q: it is one of string, integer, "+
				"number, boolean and date", c.Name, c.Type)
		}
		columns[lower] = true
	}
	for path, value := range k.Fields {
		switch {
		case path == "metadata.name" || path == "metadata.namespace":
			return fmt.Errorf("needs no function for %s, which is of the metadata: leave it out "+
				"of Kind.Fields", path)
		case !fieldPath.MatchString(path):
			return fmt.Errorf("cannot be selected by %q: a path is made of names with dots "+
				"between them, such as spec.phase", path)
		case value == nil:
			return fmt.Errorf("has no function for the field %s: give one in Kind.Fields", path)
		}
	}
	for _, name := range k.Indexes {
		path, field := strings.CutPrefix(name, "field:")
		if field && k.Fields[path] == nil {
			return fmt.Errorf("cannot have the index %s: give Kind.Fields a function for it", name)
		}
	}
	for name, of := range k.Subresources {
		wrong := validation.IsDNS1035Label(name)
		switch {
		case len(wrong) > 0:
			return fmt.Errorf("cannot have the subresource %q: %s", name, wrong[0])
		case name == "status":
			return errors.New("cannot have a subresource status of its own: give its type a field " +
				"Status")
		case name == "scale" && k.Scale != nil:
			return errors.New("has a subresource scale of its own and a Scale: leave one of them out")
		case of == nil:
			return fmt.Errorf("has no function for the subresource %s: give one in "+
				"Kind.Subresources", name)
		}
	}
	return nil
}

// fieldPath has nothing that means something else in a selector.
var fieldPath = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// comparableFields tells whether equality.Semantic can compare all values of a type. It panics at
// unexported fields of types that it does not know.
func comparableFields(t reflect.Type, seen map[reflect.Type]bool) bool {
	if _, known := equality.Semantic.Equalities[t]; known || seen[t] {
		return true
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return false // what is in it is not known
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return comparableFields(t.Elem(), seen)
	case reflect.Map:
		return comparableFields(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct) ||
				!comparableFields(f.Type, seen) {
				return false
			}
		}
	}
	return true
}

// sameJSON tells whether two values look alike where they are stored. Values that cannot be encoded
// are different.
func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && string(x) == string(y)
}
