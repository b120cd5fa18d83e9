package kinds

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/rowkeeper/rowkeeper/pkg/openapi"
)

// OpenAPI returns the definitions of the group's types and of all that they consist of; see the
// function of this name.
func (a *API) OpenAPI(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
	return OpenAPI(a.Scheme)(ref)
}

// OpenAPI returns the definitions of the types in a scheme and of all that they consist of, made by
// looking at the Go types: names by the tag json, merge keys by the tags patchStrategy and
// patchMergeKey, descriptions by the tag description or, if the type has it, by the method
// SwaggerDoc that Kubernetes' generators write. It is for servers whose registries are written by
// hand, too.
func OpenAPI(scheme *runtime.Scheme) openapicommon.GetOpenAPIDefinitions {
	return func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		b := &schemas{ref: ref, all: map[string]openapicommon.OpenAPIDefinition{}}
		for gvk, t := range scheme.AllKnownTypes() {
			if gvk.Version != runtime.APIVersionInternal {
				b.define(t)
			}
		}
		// These are not kinds, and are still part of what every server is asked and answers.
		b.define(reflect.TypeFor[metav1.Patch]())
		b.define(reflect.TypeFor[version.Info]())
		return b.all
	}
}

// embedded returns the types of the embedded fields of a struct.
func embedded(t reflect.Type) []reflect.Type {
	var types []reflect.Type
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			types = append(types, indirect(f.Type))
		}
	}
	return types
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// schemas collects the definitions of the structs that it comes across.
type schemas struct {
	ref openapicommon.ReferenceCallback
	all map[string]openapicommon.OpenAPIDefinition
}

// Types with a form of their own in JSON say which one it is.
type (
	formatted interface {
		OpenAPISchemaType() []string
		OpenAPISchemaFormat() string
	}
	oneOf      interface{ OpenAPIV3OneOfTypes() []string }
	documented interface{ SwaggerDoc() map[string]string }
)

// define adds the definition of a struct with a name, and returns the name.
func (b *schemas) define(t reflect.Type) string {
	name := openapi.TypeName(t)
	if _, ok := b.all[name]; ok {
		return name
	}
	b.all[name] = openapicommon.OpenAPIDefinition{} // it may be a part of itself
	uses := map[string]bool{}
	definition := openapicommon.OpenAPIDefinition{Schema: b.structure(t, uses)}
	for used := range uses {
		definition.Dependencies = append(definition.Dependencies, used)
	}
	if o, ok := reflect.Zero(t).Interface().(oneOf); ok {
		v2 := definition
		definition.Schema.Type = nil
		definition.Schema.OneOf = openapicommon.GenerateOpenAPIV3OneOfSchema(o.OpenAPIV3OneOfTypes())
		definition = openapicommon.EmbedOpenAPIDefinitionIntoV2Extension(definition, v2)
	}
	b.all[name] = definition
	return name
}

// structure is the schema of a struct.
func (b *schemas) structure(t reflect.Type, uses map[string]bool) spec.Schema {
	var docs map[string]string
	if d, ok := reflect.New(t).Interface().(documented); ok {
		docs = d.SwaggerDoc()
	}
	s := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	if len(embedded(t)) == 0 { // else the text may be the embedded type's
		s.Description = docs[""]
	}
	if special, ok := b.special(t); ok {
		special.Description = s.Description
		return special
	}
	b.fields(t, docs, &s, uses)
	return s
}

// special is the schema of a type that does not look in JSON as it does in Go.
func (b *schemas) special(t reflect.Type) (spec.Schema, bool) {
	pointer := reflect.New(t).Interface()
	of := func(typ, format string) (spec.Schema, bool) {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{typ}, Format: format}}, true
	}
	if f, ok := pointer.(formatted); ok {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: f.OpenAPISchemaType(),
			Format: f.OpenAPISchemaFormat()}}, true
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return of("string", "date-time")
	case reflect.TypeFor[metav1.FieldsV1](), reflect.TypeFor[runtime.RawExtension]():
		return of("object", "")
	}
	if _, ok := pointer.(json.Marshaler); ok {
		return spec.Schema{}, true // anything
	}
	if _, ok := pointer.(encoding.TextMarshaler); ok {
		return of("string", "")
	}
	return spec.Schema{}, false
}

// fields adds those of a struct to its schema, and in their place those of the structs that are
// embedded in it.
func (b *schemas) fields(t reflect.Type, docs map[string]string, s *spec.Schema,
	uses map[string]bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case name == "" && f.Anonymous && indirect(f.Type).Kind() == reflect.Struct:
			inner := docs
			if d, ok := reflect.New(indirect(f.Type)).Interface().(documented); ok {
				inner = d.SwaggerDoc()
			}
			b.fields(indirect(f.Type), inner, s, uses)
			continue
		case name == "":
			name = f.Name
		}
		property := b.schema(f.Type, uses)
		if property.Description = f.Tag.Get("description"); property.Description == "" {
			property.Description = docs[name]
		}
		if property.Description == "" && indirect(f.Type).Kind() == reflect.Interface {
			property.Description = "Any value." // kubectl explain cannot show an empty schema
		}
		if strategy := f.Tag.Get("patchStrategy"); strategy != "" {
			property.AddExtension("x-kubernetes-patch-strategy", strategy)
		}
		if key := f.Tag.Get("patchMergeKey"); key != "" {
			property.AddExtension("x-kubernetes-patch-merge-key", key)
		}
		s.SetProperty(name, property)
		if optional := f.Type.Kind() == reflect.Pointer || strings.Contains(options, "omitempty") ||
			strings.Contains(options, "omitzero"); !optional {
			s.AddRequired(name)
		}
	}
}

// schema is that of a value: a reference for a struct with a name.
func (b *schemas) schema(t reflect.Type, uses map[string]bool) spec.Schema {
	of := func(typ, format string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{typ}, Format: format}}
	}
	if t.Kind() == reflect.Struct && t.Name() != "" {
		name := b.define(t)
		uses[name] = true
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: b.ref(name)}}
	}
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface {
		if special, ok := b.special(t); ok {
			return special
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return b.schema(t.Elem(), uses)
	case reflect.Struct:
		return b.structure(t, uses)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && t.Kind() == reflect.Slice {
			return of("string", "byte")
		}
		items := b.schema(t.Elem(), uses)
		return *spec.ArrayProperty(&items)
	case reflect.Map:
		values := b.schema(t.Elem(), uses)
		return *spec.MapProperty(&values)
	case reflect.String:
		return of("string", "")
	case reflect.Bool:
		return of("boolean", "")
	case reflect.Float32:
		return of("number", "float")
	case reflect.Float64:
		return of("number", "double")
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16:
		return of("integer", "int32")
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64:
		return of("integer", "int64")
	}
	return spec.Schema{} // anything
}
