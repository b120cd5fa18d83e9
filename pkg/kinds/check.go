package kinds

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkFields tells whether JSON can hold all that values of a type do. What it cannot hold would be lost on the way to the database and to clients.
func checkFields(t reflect.Type) error {
	return checkType(t, t.String(), map[reflect.Type]bool{})
}

func checkStruct(t reflect.Type, seen map[reflect.Type]bool) error {
	if seen[t] || t == reflect.TypeFor[metav1.ObjectMeta]() {
		return nil
	}
	seen[t] = true
	names := map[string]string{}
	for i := range t.NumField() {
		f := t.Field(i)
		where := fmt.Sprintf("the field %s of %s", f.Name, t)
		tag := f.Tag.Get("json")
		switch {
		case tag == "-" || f.Name == "_":
			continue
		case !f.IsExported() && !f.Anonymous:
			return fmt.Errorf("%s is not exported, so that it would not be stored: export it, or give %s the methods MarshalJSON and UnmarshalJSON", where, t)
		case !f.IsExported() && f.Type.Kind() != reflect.Struct:
			return fmt.Errorf("%s is embedded and not exported, so that JSON cannot be decoded into it: export its type, or embed a struct instead", where)
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
	}
	return nil
}

// checkType does this for the type of something that an error calls where.
func checkType(t reflect.Type, where string, seen map[reflect.Type]bool) error {
	if encodesItself(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		return checkStruct(t, seen)
	case reflect.Map:
		text := reflect.PointerTo(t.Key()).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) && t.Key().Implements(reflect.TypeFor[encoding.TextMarshaler]())
		if simple := []reflect.Kind{reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
			reflect.Uint32, reflect.Uint64}; !text && !slices.Contains(simple, t.Key().Kind()) {
			return fmt.Errorf("%s has keys of type %s, which JSON cannot hold: use strings", where, t.Key())
		}
		return checkType(t.Elem(), where, seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return checkType(t.Elem(), where, seen)
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("%s is of the interface type %s, into which JSON cannot be decoded: use a struct, any or runtime.RawExtension", where, t)
		}
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer, reflect.Uintptr:
		return fmt.Errorf("%s is of type %s, which JSON cannot hold: leave it out, or give it the tag `json:\"-\"`", where, t)
	}
	return nil
}

// comparableFields tells whether equality.Semantic can compare all values of a type. It panics at unexported fields of types that it does not know.
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
			if !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct) || !comparableFields(f.Type, seen) {
				return false
			}
		}
	}
	return true
}

// sameJSON tells whether two values look alike where they are stored. What cannot be encoded is different.
func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && string(x) == string(y)
}
