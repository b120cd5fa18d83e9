package scaffold

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/mod/modfile"
)

// Added says what [AddKind] has done.
type Added struct {
	// Resource is that of the kind, and Versions those in which it is served.
	Resource string
	Versions []string
	// Written and Changed are the names of files.
	Written, Changed []string
}

// AddKind adds a kind to the project in a directory. The kind looks alike in all versions of the
// group: it has no past that an older version would have to show.
func AddKind(dir, name string) (*Added, error) {
	file := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	mod, err := os.ReadFile(file("go.mod"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no project: it has no go.mod; rowkeeper init makes one", dir)
	}
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(file(groupFile))
	if errors.Is(err, fs.ErrNotExist) && isByHand(dir) {
		return nil, errors.New("add is for projects of the variant kinds: add the kind to this one " +
			"by hand, as its README.md tells")
	}
	if err != nil {
		return nil, fmt.Errorf("the project has no group: %w", err)
	}
	g, err := parseGroup(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file(groupFile), err)
	}
	if err := checkKind(g.name, name); err != nil {
		return nil, err
	}
	k := newKind(modfile.ModulePath(mod), g.name, name, g.versions[0])
	files := Files{}
	if err := k.addTo(files); err != nil {
		return nil, err
	}
	changed := map[string][]byte{}
	if changed[groupFile], err = g.with("kind" + name); err != nil {
		return nil, fmt.Errorf("%s: %w", file(groupFile), err)
	}
	old, err := os.ReadFile(file("deploy/" + roles))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	rules := resources.ReplaceAll(old, []byte("${1}, "+k.Resource+"]"))
	if !bytes.Equal(rules, old) {
		changed["deploy/"+roles] = rules
	}
	if err := files.Write(dir); err != nil {
		return nil, err
	}
	for name, text := range changed {
		if err := os.WriteFile(file(name), text, 0o644); err != nil {
			return nil, err
		}
	}
	return &Added{Resource: k.Resource, Versions: g.versions,
		Written: slices.Sorted(maps.Keys(files)), Changed: slices.Sorted(maps.Keys(changed))}, nil
}

// resources is a list of resources in the roles for users that has no subresource.
var resources = regexp.MustCompile(`(?m)^(  resources: \[[a-z0-9, ]+)\]$`)

// groupFile has the group, as the variable Group.
const groupFile = "api/api.go"

// isByHand tells whether a project is of another variant.
func isByHand(dir string) bool {
	return slices.ContainsFunc([]string{"apiserver/apiserver.go", "internal/controller"},
		func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name)))
			return err == nil
		})
}

// group is the group of a project, as its source says.
type group struct {
	source   []byte
	name     string
	versions []string
	// end is the offset at which the list of kinds can go on, after its last element if it has any.
	end     int
	isEmpty bool
}

// parseGroup finds the variable Group in a file.
func parseGroup(source []byte) (*group, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, "", source, 0)
	if err != nil {
		return nil, err
	}
	g := &group{source: source}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || spec.Names[0].Name != "Group" || len(spec.Values) != 1 {
			return true
		}
		if literal, ok := spec.Values[0].(*ast.CompositeLit); ok {
			for _, element := range literal.Elts {
				if field, ok := element.(*ast.KeyValueExpr); ok {
					g.field(set, field)
				}
			}
		}
		return false
	})
	if g.name == "" || len(g.versions) == 0 || g.end == 0 {
		return nil, errors.New("there is no variable Group with its Name, Versions and Kinds " +
			"written out, as rowkeeper init writes them: add the kind by hand")
	}
	return g, nil
}

// field takes what a field of the group says.
func (g *group) field(set *token.FileSet, field *ast.KeyValueExpr) {
	key, ok := field.Key.(*ast.Ident)
	if !ok {
		return
	}
	list, isList := field.Value.(*ast.CompositeLit)
	switch {
	case key.Name == "Name":
		g.name = text(field.Value)
	case key.Name == "Versions" && isList:
		for _, version := range list.Elts {
			if v := text(version); versionName.MatchString(v) {
				g.versions = append(g.versions, v)
			}
		}
	case key.Name == "Kinds" && isList:
		g.isEmpty = len(list.Elts) == 0
		end := list.Rbrace
		if !g.isEmpty {
			end = list.Elts[len(list.Elts)-1].End()
		}
		g.end = set.Position(end).Offset
	}
}

// text is the value of a string that is written out, or empty.
func text(e ast.Expr) string {
	if literal, ok := e.(*ast.BasicLit); ok && literal.Kind == token.STRING {
		value, _ := strconv.Unquote(literal.Value) // the parser has read it
		return value
	}
	return ""
}

// with returns the source with one kind more.
func (g *group) with(kind string) ([]byte, error) {
	insert := ",\n" + kind
	if g.isEmpty {
		insert = "\n" + kind + ",\n"
	}
	return format.Source(slices.Concat(g.source[:g.end], []byte(insert), g.source[g.end:]))
}
