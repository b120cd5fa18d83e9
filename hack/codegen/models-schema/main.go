// Command models-schema prints the schemas of the API's types as an OpenAPI document, of which
// apply configurations are generated.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/rowkeeper/rowkeeper/pkg/example/generated/openapi"
)

func main() {
	refer := func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + common.EscapeJsonPointer(name))
	}
	schemas := spec.Definitions{}
	for name, definition := range openapi.GetOpenAPIDefinitions(refer) {
		schema := definition.Schema
		// What a type is replaced by in version 2 of OpenAPI, if it cannot express the type itself.
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
		fmt.Fprintln(os.Stderr, "models-schema:", err)
		os.Exit(1)
	}
}
