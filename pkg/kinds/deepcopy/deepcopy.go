// Package deepcopy is for authors of types. It copies objects by looking at their types, so that no
// code has to be generated, and needs nothing else of this module. Programs that import the types,
// such as clients, stay small.
package deepcopy

import (
	"encoding"
	"encoding/json"
	"reflect"
	"sync"
	"time"
)

// Of returns a copy of an object that shares nothing with it, for a method DeepCopyObject of one
// line:
//
//	func (b *Bookmark) DeepCopyObject() runtime.Object { return deepcopy.Of(b) }
//
// It copies what it finds by looking at the type: by the methods DeepCopyInto or DeepCopy of the
// types of its parts, where these have them, else field by field, and what is in interfaces by the
// type that it has there. Values with unexported fields are decoded from their own JSON or text, if
// these fields refer to something. Functions, channels, the keys of maps, and what is in unexported
// fields of types without such methods, which kinds.New refuses, are shared.
func Of[T any](obj *T) *T {
	if obj == nil {
		return nil
	}
	c := *obj
	to, from := reflect.ValueOf(&c).Elem(), reflect.ValueOf(obj).Elem()
	if w := wayOf(from.Type()); w == byInto || w == byValue || w == byPointer {
		copyParts(to, from) // as T's own methods may call this function
	} else {
		copyValue(to, from)
	}
	return &c
}

// A way is how values of a type are copied.
type way int

const (
	byAssignment way = iota // they refer to nothing that could be changed
	byInto                  // by the method DeepCopyInto
	byValue                 // by a method DeepCopy that returns a value
	byPointer               // by one that returns a pointer
	byEncoding
	byParts
)

// ways remembers the way of each type.
var ways sync.Map

func wayOf(t reflect.Type) way {
	if known, ok := ways.Load(t); ok {
		return known.(way)
	}
	w := findWay(t)
	ways.Store(t, w)
	return w
}

func findWay(t reflect.Type) way {
	if !refers(t) {
		return byAssignment
	}
	if t.Name() != "" && t.Kind() != reflect.Interface {
		pointer := reflect.PointerTo(t)
		// A method that is promoted from an embedded field takes or returns values of another type.
		if m, ok := pointer.MethodByName("DeepCopyInto"); ok && m.Type.NumIn() == 2 &&
			m.Type.NumOut() == 0 && m.Type.In(1) == pointer {
			return byInto
		}
		if m, ok := pointer.MethodByName("DeepCopy"); ok && m.Type.NumIn() == 1 &&
			m.Type.NumOut() == 1 {
			switch m.Type.Out(0) {
			case t:
				return byValue
			case pointer:
				return byPointer
			}
		}
	}
	if t.Kind() == reflect.Struct && encodesItself(t) {
		for i := range t.NumField() {
			if f := t.Field(i); !f.IsExported() && refers(f.Type) {
				return byEncoding
			}
		}
	}
	return byParts
}

// refers tells whether values of a type lead to something that a copy by assignment would share,
// and that can be changed.
func refers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return true
	case reflect.Array:
		return refers(t.Elem())
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() { // refers to its time zone, which nobody changes
			return false
		}
		for i := range t.NumField() {
			if refers(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// EncodesJSON tells whether a type says itself how it looks in JSON, in both directions.
func EncodesJSON(t reflect.Type) bool {
	pointer := reflect.PointerTo(t)
	return pointer.Implements(reflect.TypeFor[json.Marshaler]()) &&
		pointer.Implements(reflect.TypeFor[json.Unmarshaler]())
}

// encodesItself tells the same of JSON or text, either of which JSON can hold.
func encodesItself(t reflect.Type) bool {
	pointer := reflect.PointerTo(t)
	return EncodesJSON(t) || pointer.Implements(reflect.TypeFor[encoding.TextMarshaler]()) &&
		pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// copyValue makes to, which is a shallow copy of from, a deep one.
func copyValue(to, from reflect.Value) {
	switch wayOf(from.Type()) {
	case byInto:
		from.Addr().MethodByName("DeepCopyInto").Call([]reflect.Value{to.Addr()})
	case byValue:
		to.Set(from.Addr().MethodByName("DeepCopy").Call(nil)[0])
	case byPointer:
		to.Set(from.Addr().MethodByName("DeepCopy").Call(nil)[0].Elem())
	case byEncoding:
		decoded := reflect.New(from.Type())
		// A value that cannot be encoded can neither be stored nor served: nobody gets a copy of
		// it.
		if encoded, err := json.Marshal(from.Addr().Interface()); err == nil &&
			json.Unmarshal(encoded, decoded.Interface()) == nil {
			to.Set(decoded.Elem())
		}
	case byParts:
		copyParts(to, from)
	}
}

// copyParts does this for a value whose type has no way of its own. Both values can be addressed.
func copyParts(to, from reflect.Value) {
	switch from.Kind() {
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			to.Elem().Set(from.Elem())
			copyValue(to.Elem(), from.Elem())
		}
	case reflect.Interface:
		if !from.IsNil() && refers(from.Elem().Type()) {
			to.Set(copied(from.Elem()))
		}
	case reflect.Slice:
		if !from.IsNil() {
			to.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
			reflect.Copy(to, from)
			copyElements(to, from)
		}
	case reflect.Array:
		copyElements(to, from)
	case reflect.Map:
		if !from.IsNil() {
			to.Set(reflect.MakeMapWithSize(from.Type(), from.Len()))
			for entries := from.MapRange(); entries.Next(); {
				to.SetMapIndex(entries.Key(), copied(entries.Value()))
			}
		}
	case reflect.Struct:
		for i := range from.NumField() {
			switch f := from.Type().Field(i); {
			case f.IsExported():
				copyValue(to.Field(i), from.Field(i))
			case f.Anonymous && f.Type.Kind() == reflect.Struct:
				// Its exported fields are the struct's own. Methods of it cannot be called.
				copyParts(to.Field(i), from.Field(i))
			}
		}
	}
}

// copied returns a deep copy of a value that cannot be addressed.
func copied(v reflect.Value) reflect.Value {
	from, to := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	from.Set(v)
	to.Set(v)
	copyValue(to, from)
	return to
}

func copyElements(to, from reflect.Value) {
	if wayOf(from.Type().Elem()) != byAssignment {
		for i := range from.Len() {
			copyValue(to.Index(i), from.Index(i))
		}
	}
}
