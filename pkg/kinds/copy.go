package kinds

import "reflect"

// DeepCopy returns a copy of an object that shares nothing with it, for a method DeepCopyObject of one line:
//
//	func (b *Bookmark) DeepCopyObject() runtime.Object { return kinds.DeepCopy(b) }
//
// It copies what it finds by looking at the type: by the methods DeepCopyInto or DeepCopy of the types of its parts, where these have them, else field by field.
// What is in unexported fields, in functions, channels and interfaces is shared.
func DeepCopy[T any](obj *T) *T {
	if obj == nil {
		return nil
	}
	c := *obj
	// Not by T's own methods, which may call this function.
	copyParts(reflect.ValueOf(&c).Elem(), reflect.ValueOf(obj).Elem())
	return &c
}

// copyValue makes to, which is a shallow copy of from, a deep one.
func copyValue(to, from reflect.Value) {
	if !copyByMethod(to, from) {
		copyParts(to, from)
	}
}

func copyParts(to, from reflect.Value) {
	switch from.Kind() {
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			to.Elem().Set(from.Elem())
			copyValue(to.Elem(), from.Elem())
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
				value := reflect.New(from.Type().Elem()).Elem()
				value.Set(entries.Value())
				copied := reflect.New(from.Type().Elem()).Elem()
				copied.Set(entries.Value())
				copyValue(copied, value)
				to.SetMapIndex(entries.Key(), copied)
			}
		}
	case reflect.Struct:
		for i := range from.NumField() {
			if from.Type().Field(i).IsExported() {
				copyValue(to.Field(i), from.Field(i))
			}
		}
	}
}

func copyElements(to, from reflect.Value) {
	switch from.Type().Elem().Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		for i := range from.Len() {
			copyValue(to.Index(i), from.Index(i))
		}
	}
}

// copyByMethod uses the methods that copy values of this very type. What is promoted from an embedded field takes values of another one.
func copyByMethod(to, from reflect.Value) bool {
	if !from.CanAddr() || from.Type().Name() == "" {
		return false
	}
	pointer := from.Addr()
	if into := pointer.MethodByName("DeepCopyInto"); into.IsValid() {
		if t := into.Type(); t.NumIn() == 1 && t.NumOut() == 0 && t.In(0) == pointer.Type() {
			into.Call([]reflect.Value{to.Addr()})
			return true
		}
	}
	if deepCopy := pointer.MethodByName("DeepCopy"); deepCopy.IsValid() && deepCopy.Type().NumIn() == 0 && deepCopy.Type().NumOut() == 1 {
		switch deepCopy.Type().Out(0) {
		case from.Type():
			to.Set(deepCopy.Call(nil)[0])
			return true
		case pointer.Type():
			to.Set(deepCopy.Call(nil)[0].Elem())
			return true
		}
	}
	return false
}
