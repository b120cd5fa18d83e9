// Command openapi-subset removes unwanted types from the output of openapi-gen. It keeps the types
// that its arguments name, and the types that they refer to, or all types if none is named. The
// packages of k8s.io/api describe hundreds of types; the core API that we serve has a few of them.
// Types that the other generated file describes are left out: the server adds those definitions
// when it runs.
//
// usage: openapi-subset FILE OTHER-FILE [PACKAGE.TYPE…] where PACKAGE is the name by which the file
// imports the type's package
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fail("usage: openapi-subset FILE OTHER-FILE [PACKAGE.TYPE…]")
	}
	if err := subset(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fail(err)
	}
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, "openapi-subset:", reason)
	os.Exit(1)
}

func subset(name, other string, wanted []string) error {
	elsewhere, err := parser.ParseFile(token.NewFileSet(), other, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	source, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, name, source, parser.ParseComments)
	if err != nil {
		return err
	}
	text := func(n ast.Node) string {
		return string(source[positions.Position(n.Pos()).Offset:positions.Position(n.End()).Offset])
	}

	leftOut := map[string]bool{} // functions, which have the same names in both files
	for _, d := range elsewhere.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			leftOut[f.Name.Name] = true
		}
	}
	functions := map[string]*ast.FuncDecl{}
	var index *ast.CompositeLit // the map that the first function returns
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		functions[f.Name.Name] = f
		if f.Name.Name == "GetOpenAPIDefinitions" {
			index = f.Body.List[0].(*ast.ReturnStmt).Results[0].(*ast.CompositeLit)
		}
	}
	if index == nil {
		return fmt.Errorf("%s has no GetOpenAPIDefinitions", name)
	}
	describedBy := map[string]string{} // the functions, by type
	var all []string                   // the types
	for _, e := range index.Elts {
		entry := e.(*ast.KeyValueExpr)
		model := modelOf(entry.Key, text)
		describedBy[model] = text(entry.Value.(*ast.CallExpr).Fun)
		all = append(all, model)
	}
	if len(wanted) == 0 {
		wanted = all
	}

	needed := map[string]bool{}
	for len(wanted) > 0 {
		one := wanted[0]
		wanted = wanted[1:]
		function, ok := describedBy[one]
		if !ok {
			return fmt.Errorf("%s does not describe %s", name, one)
		}
		if needed[one] || leftOut[function] {
			continue
		}
		needed[one] = true
		ast.Inspect(functions[function], func(n ast.Node) bool {
			if model := modelOf(n, text); describedBy[model] != "" {
				wanted = append(wanted, model)
			}
			return true
		})
	}

	fmt.Print(string(source[:positions.Position(functions["GetOpenAPIDefinitions"].Pos()).Offset]))
	fmt.Println("func GetOpenAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {\n\treturn map[string]common.OpenAPIDefinition{")
	for _, e := range index.Elts {
		if needed[modelOf(e.(*ast.KeyValueExpr).Key, text)] {
			fmt.Printf("\t\t%s,\n", text(e))
		}
	}
	fmt.Println("\t}\n}")
	for _, e := range index.Elts {
		if model := modelOf(e.(*ast.KeyValueExpr).Key, text); needed[model] {
			fmt.Printf("\n%s\n", text(functions[describedBy[model]]))
		}
	}
	return nil
}

// modelOf returns the type of an expression such as corev1.Secret{}.OpenAPIModelName(), or "".
func modelOf(n ast.Node, text func(ast.Node) string) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || method.Sel.Name != "OpenAPIModelName" {
		return ""
	}
	literal, ok := method.X.(*ast.CompositeLit)
	if !ok {
		return ""
	}
	return text(literal.Type)
}
