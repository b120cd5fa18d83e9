package scaffold

import (
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
)

// group is the group of a project, as its source says.
type group struct {
	variant  Variant
	name     string
	versions []string
	// file has the types of all kinds, in a project of the variant Controller.
	file string
}

// groupFile has the group of a project of the variant Kinds, as the variable Group.
const groupFile = "api/api.go"

// findGroup finds the group of the project in a directory, and what the project is made of.
func findGroup(dir string) (*group, error) {
	is := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name)))
		return err == nil
	}
	switch {
	case is("apiserver/apiserver.go"):
		return groupOfRegistries(dir)
	case !is(groupFile) && is("internal/controller"):
		return groupOfController(dir)
	}
	file, err := parse(dir, groupFile)
	if err != nil {
		return nil, err
	}
	g := &group{variant: Kinds}
	literal, _ := valueOf(file, "Group").(*ast.CompositeLit)
	g.name = text(fieldOf(literal, "Name"))
	if versions, ok := fieldOf(literal, "Versions").(*ast.CompositeLit); ok {
		for _, version := range versions.Elts {
			g.add(text(version))
		}
	}
	return g, g.check(dir, groupFile, "variable Group with its Name, Versions and Kinds")
}

// groupOfRegistries finds what a project of the variant Registry says in two files.
func groupOfRegistries(dir string) (*group, error) {
	const names, server = "api/register.go", "apiserver/apiserver.go"
	file, err := parse(dir, names)
	if err != nil {
		return nil, err
	}
	g := &group{variant: Registry, name: text(valueOf(file, "GroupName"))}
	if file, err = parse(dir, server); err != nil {
		return nil, err
	}
	priority, _ := arguments("SetVersionPriority")(file)
	for _, version := range priority {
		if of, ok := version.(*ast.SelectorExpr); ok {
			if name, ok := of.X.(*ast.Ident); ok {
				g.add(name.Name)
			}
		}
	}
	if g.name == "" {
		return nil, g.check(dir, names, "constant GroupName")
	}
	return g, g.check(dir, server, "call of SetVersionPriority with a package for each version")
}

// groupOfController finds what a project of the variant Controller says in the one directory of its
// types.
func groupOfController(dir string) (*group, error) {
	const pattern = "api/*/groupversion_info.go"
	found, _ := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern))) // a good pattern
	if len(found) != 1 {
		return nil, fmt.Errorf("the project has %d files %s, and not one: add the kind by hand",
			len(found), pattern)
	}
	version := filepath.Base(filepath.Dir(found[0]))
	g := &group{variant: Controller, file: path.Join("api", version, "groupversion_info.go")}
	file, err := parse(dir, g.file)
	if err != nil {
		return nil, err
	}
	literal, _ := valueOf(file, "GroupVersion").(*ast.CompositeLit)
	g.name = text(fieldOf(literal, "Group"))
	g.add(text(fieldOf(literal, "Version")))
	return g, g.check(dir, g.file, "variable GroupVersion with its Group and Version")
}

func (g *group) add(version string) {
	if versionName.MatchString(version) {
		g.versions = append(g.versions, version)
	}
}

// check tells whether the group is whole.
func (g *group) check(dir, name, what string) error {
	if g.name != "" && len(g.versions) > 0 {
		return nil
	}
	return fmt.Errorf("%s: there is no %s written out, as rowkeeper init writes it: add the kind "+
		"by hand", filepath.Join(dir, filepath.FromSlash(name)), what)
}

func parse(dir, name string) (*ast.File, error) {
	name = filepath.Join(dir, filepath.FromSlash(name))
	source, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the project has no group: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return parser.ParseFile(token.NewFileSet(), name, source, 0)
}

// valueOf is the value of a variable or constant of a file, or nil.
func valueOf(file *ast.File, name string) (value ast.Expr) {
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == 1 &&
			spec.Names[0].Name == name && len(spec.Values) == 1 {
			value = spec.Values[0]
		}
		return value == nil
	})
	return value
}

// fieldOf is the value of a field of a literal, or nil.
func fieldOf(literal *ast.CompositeLit, name string) ast.Expr {
	if literal == nil {
		return nil
	}
	for _, element := range literal.Elts {
		if field, ok := element.(*ast.KeyValueExpr); ok {
			if key, ok := field.Key.(*ast.Ident); ok && key.Name == name {
				return field.Value
			}
		}
	}
	return nil
}

// text is the value of a string that is written out, or empty.
func text(e ast.Expr) string {
	if literal, ok := e.(*ast.BasicLit); ok && literal.Kind == token.STRING {
		value, _ := strconv.Unquote(literal.Value) // the parser has read it
		return value
	}
	return ""
}

// A list finds a list of expressions in a file: its elements, and where it ends. Without an end
// there is no such list.
type list func(*ast.File) (elements []ast.Expr, end token.Pos)

// elements are those of the literal that is the value of a variable.
func elements(variable string) list {
	return func(file *ast.File) ([]ast.Expr, token.Pos) {
		return elementsOf(valueOf(file, variable))
	}
}

// elementsOfField are those of the literal that is a field of this value.
func elementsOfField(variable, field string) list {
	return func(file *ast.File) ([]ast.Expr, token.Pos) {
		literal, _ := valueOf(file, variable).(*ast.CompositeLit)
		return elementsOf(fieldOf(literal, field))
	}
}

// ranged are those of the first literal that a loop in a file goes over.
func ranged(file *ast.File) (all []ast.Expr, end token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		if loop, ok := n.(*ast.RangeStmt); ok && !end.IsValid() {
			all, end = elementsOf(loop.X)
		}
		return !end.IsValid()
	})
	return all, end
}

// arguments are those of the first call of a function.
func arguments(function string) list {
	return func(file *ast.File) (all []ast.Expr, end token.Pos) {
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && !end.IsValid() {
				if called, ok := call.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == function {
					all, end = call.Args, call.Rparen
				}
			}
			return !end.IsValid()
		})
		return all, end
	}
}

func elementsOf(e ast.Expr) ([]ast.Expr, token.Pos) {
	if literal, ok := e.(*ast.CompositeLit); ok {
		return literal.Elts, literal.Rbrace
	}
	return nil, token.NoPos
}

// with returns a function that adds an element to the list in a source.
func (l list) with(element string) func([]byte) ([]byte, error) {
	return func(source []byte) ([]byte, error) {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, "", source, 0)
		if err != nil {
			return nil, err
		}
		all, end := l(file)
		if !end.IsValid() {
			return nil, errors.New("there is no list of kinds, as rowkeeper init writes it: add " +
				"the kind by hand")
		}
		insert := "\n" + element + ",\n"
		if n := len(all); n > 0 {
			end, insert = all[n-1].End(), ",\n"+element
		}
		at := set.Position(end).Offset
		return format.Source(slices.Concat(source[:at], []byte(insert), source[at:]))
	}
}
