// Command models-schema prints the schemas of the API's types, and of the types that they consist
// of, as an OpenAPI document, of which apply configurations are generated.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/rowkeeper/rowkeeper/pkg/example/generated/openapi"
)

func main() {
	refer := func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + common.EscapeJsonPointer(name))
	}
	schemas := spec.Definitions{}
	own := openapi.GetOpenAPIDefinitions(refer)
	all := apiextensionsopenapi.GetOpenAPIDefinitions(refer)
	maps.Copy(all, own)
	wanted := slices.Collect(maps.Keys(own))
	for len(wanted) > 0 {
		name := wanted[0]
		wanted = wanted[1:]
		if _, ok := schemas[name]; ok {
			continue
		}
		definition, ok := all[name]
		if !ok {
			fail(fmt.Errorf("there is no definition of %s", name))
		}
		wanted = append(wanted, definition.Dependencies...)
		schema := definition.Schema
		// The replacement of a type in version 2 of OpenAPI, if it cannot express the type itself.
		if replaced, ok := schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			schema = replaced
		}
		schemas[name] = schema
	}
	document := spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger: "2.0",
		Info: &spec.Info{InfoProps: spec.InfoProps{Title: "Rowkeeper",
			Version: "unversioned"}},
		Paths:       &spec.Paths{},
		Definitions: schemas,
	}}
	if err := json.NewEncoder(os.Stdout).Encode(document); err != nil {
		fail(err)
	}
}

func fail(reason error) {
	fmt.Fprintln(os.Stderr, "models-schema:", reason)
	os.Exit(1)
}
