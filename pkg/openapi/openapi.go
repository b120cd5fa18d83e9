// Package openapi is for server programs and the test kit. It names the types of schemes in the
// OpenAPI documents that a server publishes, and says which kinds they are. Clients find a kind's
// schema by this name. The server uses it for server-side apply.
//
// Upstream's namer asks a scheme for the names. It is not enough where a type is written by hand: a
// Go type that embeds metav1.ObjectMeta has the method that names a type in documents from there.
package openapi

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// GroupVersionKinds is the extension that lists the kinds of a definition.
const GroupVersionKinds = "x-kubernetes-group-version-kind"

// Names gives a type its name in a document, and the extensions of its definition.
type Names = func(typeName string) (string, spec.Extensions)

// NamesOf returns the names for the types of schemes. Types that are in none of them have a name,
// and no kinds. Types that a server never serves have no kinds either.
func NamesOf(schemes ...*runtime.Scheme) Names {
	kinds := map[string][]schema.GroupVersionKind{}
	for _, scheme := range schemes {
		for gvk, t := range scheme.AllKnownTypes() {
			name := FriendlyName(TypeName(t))
			if gvk.Version != runtime.APIVersionInternal && !slices.Contains(kinds[name], gvk) {
				kinds[name] = append(kinds[name], gvk)
			}
		}
	}
	extensions := map[string][]any{}
	for name, of := range kinds {
		slices.SortFunc(of, func(a, b schema.GroupVersionKind) int {
			return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version),
				strings.Compare(a.Kind, b.Kind))
		})
		for _, gvk := range of {
			extensions[name] = append(extensions[name],
				map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind})
		}
	}
	return func(name string) (string, spec.Extensions) {
		name = FriendlyName(name)
		if of, ok := extensions[name]; ok {
			return name, spec.Extensions{GroupVersionKinds: of}
		}
		return name, nil
	}
}

// Joined gives the server's own types the names and kinds that its author gives them, who may know
// types by other names. The kinds that follow from the schemes are added, for types that only the
// schemes know, and for types that are in every group.
func Joined(own, schemes Names) Names {
	if own == nil {
		return schemes
	}
	type result struct {
		name       string
		extensions spec.Extensions
	}
	var known sync.Map // a document asks for the same names again and again
	return func(name string) (string, spec.Extensions) {
		if r, ok := known.Load(name); ok {
			return r.(result).name, r.(result).extensions
		}
		joined, extensions := join(name, own, schemes)
		known.Store(name, result{joined, extensions})
		return joined, extensions
	}
}

func join(name string, own, schemes Names) (string, spec.Extensions) {
	name, extensions := own(name)
	_, more := schemes(name)
	kinds, ok := extensions[GroupVersionKinds].([]any)
	if !ok {
		return name, more
	}
	others, _ := more[GroupVersionKinds].([]any)
	for _, kind := range others {
		same := func(k any) bool { return reflect.DeepEqual(k, kind) }
		if !slices.ContainsFunc(kinds, same) {
			kinds = append(slices.Clip(kinds), kind)
		}
	}
	extensions = maps.Clone(extensions)
	extensions[GroupVersionKinds] = kinds
	return name, extensions
}

// TypeName is the name by which the builders of the documents ask for a type.
func TypeName(t reflect.Type) string {
	name := util.GetCanonicalTypeName(reflect.New(t).Interface())
	if t.Kind() != reflect.Struct {
		return name
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.Anonymous {
			continue
		}
		embedded := f.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		if name == util.GetCanonicalTypeName(reflect.New(embedded).Interface()) {
			return t.PkgPath() + "." + t.Name() // the method that names it is the embedded type's
		}
	}
	return name
}

// FriendlyName makes a name that has no slashes, which references would have to escape.
func FriendlyName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}

// Describe makes a server publish documents of definitions, under names. All else that the
// configuration says of documents stays, such as their titles.
func Describe(c *genericapiserver.Config, definitions common.GetOpenAPIDefinitions, names Names) {
	if c.OpenAPIConfig == nil {
		c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions,
			new(openapi.DefinitionNamer))
	}
	if c.OpenAPIV3Config == nil {
		c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions,
			new(openapi.DefinitionNamer))
	}
	c.OpenAPIConfig.GetDefinitions, c.OpenAPIV3Config.GetDefinitions = definitions, definitions
	c.OpenAPIConfig.GetDefinitionName, c.OpenAPIV3Config.GetDefinitionName = names, names
	// The definitions that are there were made with other names, or without names at all.
	c.OpenAPIConfig.Definitions = nil
	c.OpenAPIV3Config.Definitions = definitions(func(name string) spec.Ref {
		name, _ = names(name)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
	})
}

// Title sets the title and the version of both documents.
func Title(c *genericapiserver.Config, title, version string) {
	c.OpenAPIConfig.Info.Title, c.OpenAPIConfig.Info.Version = title, version
	c.OpenAPIV3Config.Info.Title, c.OpenAPIV3Config.Info.Version = title, version
}
