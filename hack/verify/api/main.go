// Api lists what the library exports, one declaration in a line, so that a change of it is
// seen and decided on:
//
//	go run ./hack/verify/api            compares the packages with hack/verify/api/api.txt
//	go run ./hack/verify/api -update    accepts additions; removals and changes only with -incompatible
//
// A line that is missing or different breaks programs that use it. That fails, until it is accepted
// by -incompatible; a new line fails until it is accepted by -update, so that nothing is exported
// by accident. Each of the packages has an example, so that a reader of its documentation sees how
// it is used.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is what begins all import paths, and packages are those that the promise of compatibility
// is about.
const module = "github.com/rowkeeper/rowkeeper/"

var packages = []string{
	"pkg/crds",
	"pkg/kinds",
	"pkg/kinds/deepcopy",
	"pkg/options",
	"pkg/registry/delegate",
	"pkg/registry/resource",
	"pkg/registry/scale",
	"pkg/registry/status",
	"pkg/registry/table",
	"pkg/testkit",
	"pkg/testkit/controlplane",
	"pkg/testkit/crds",
	"pkg/testkit/databases",
	"storage",
	"storage/conformance",
	"storage/drivers",
	"storage/mysql",
	"storage/postgres",
	"storage/sqlite",
	"storage/storagetest",
}

// nested are packages that are modules of their own.
var nested = []string{"pkg/testkit/containers", "pkg/testkit/process"}

func main() {
	update := flag.Bool("update", false, "write api.txt, if nothing is missing that it has")
	incompatible := flag.Bool("incompatible", false, "with -update: write it in any case")
	file := flag.String("file", filepath.Join("hack", "verify", "api", "api.txt"), "the list")
	flag.Parse()
	if err := run(*file, *update, *incompatible); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func run(file string, update, incompatible bool) error {
	is, err := list()
	if err != nil {
		return err
	}
	if err := examples(); err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil && !(update && errors.Is(err, os.ErrNotExist)) {
		return err
	}
	was := strings.Split(strings.TrimSpace(string(content)), "\n")
	removed, added := missing(was, is), missing(is, was)
	if len(content) == 0 {
		removed = nil
	}
	for _, line := range removed {
		fmt.Println("-", line)
	}
	for _, line := range added {
		fmt.Println("+", line)
	}
	switch {
	case len(removed) > 0 && !incompatible:
		return errors.New("the library has lost or changed what programs may use: keep it, or " +
			"accept that by go run ./hack/verify/api -update -incompatible")
	case len(removed)+len(added) > 0 && !update:
		return errors.New("the library exports more than it did: accept that by go run " +
			"./hack/verify/api -update")
	case update:
		return os.WriteFile(file, []byte(strings.Join(is, "\n")+"\n"), 0o644)
	}
	return nil
}

// examples finds packages without an example.
func examples() error {
	for _, p := range slices.Concat(packages, nested) {
		tests, err := filepath.Glob(filepath.Join(filepath.FromSlash(p), "*_test.go"))
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(tests, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(source), "\nfunc Example")
		}) {
			return fmt.Errorf("the package %s has no example: write a func Example… in its "+
				"example_test.go", p)
		}
	}
	return nil
}

// missing returns the lines of a that b does not have.
func missing(a, b []string) []string {
	have := map[string]bool{}
	for _, line := range b {
		have[line] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return have[line] })
}

// list compiles the packages and returns their exported declarations.
func list() ([]string, error) {
	lines, err := listModule(".", packages)
	for _, p := range nested {
		if err != nil {
			break
		}
		var more []string
		more, err = listModule(p, []string{p})
		lines = append(lines, more...)
	}
	slices.Sort(lines)
	return lines, err
}

// listModule does that for packages of the module in a directory.
func listModule(dir string, packages []string) ([]string, error) {
	args := []string{"list", "-export", "-deps", "-f",
		"{{if .Export}}{{.ImportPath}}={{.Export}}{{end}}"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot compile the packages: %w", err)
	}
	exports := map[string]string{}
	for _, line := range strings.Fields(string(out)) {
		path, file, _ := strings.Cut(line, "=")
		exports[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc",
		func(path string) (io.ReadCloser, error) {
			file, ok := exports[path]
			if !ok {
				return nil, fmt.Errorf("no package %s", path)
			}
			return os.Open(file)
		})
	var lines []string
	for _, path := range packages {
		p, err := imports.Import(module + path)
		if err != nil {
			return nil, err
		}
		lines = append(lines, declarations(path, p)...)
	}
	return lines, nil
}

// declarations returns those of one package, with the fields of structs and the methods of types in
// lines of their own.
func declarations(path string, p *types.Package) []string {
	qualifier := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return other.Path()
	}
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, path+": "+fmt.Sprintf(format, args...))
	}
	for _, name := range p.Scope().Names() {
		object := p.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		declared, isType := object.(*types.TypeName)
		if !isType {
			add("%s", types.ObjectString(object, qualifier))
			continue
		}
		t := declared.Type()
		structure, isStruct := t.Underlying().(*types.Struct)
		if !isStruct {
			add("%s", types.ObjectString(object, qualifier))
		} else {
			add("type %s struct", name)
			for i := range structure.NumFields() {
				if f := structure.Field(i); f.Exported() {
					add("type %s struct, %s %s", name, f.Name(),
						types.TypeString(f.Type(), qualifier))
				}
			}
		}
		methods := types.NewMethodSet(types.NewPointer(t))
		if i, ok := t.Underlying().(*types.Interface); ok {
			if !i.IsMethodSet() {
				continue // a constraint, whose line says all
			}
			methods = types.NewMethodSet(t)
		}
		for i := range methods.Len() {
			if len(methods.At(i).Index()) > 1 {
				continue // it comes with an embedded field, which is listed
			}
			if m := methods.At(i).Obj(); m.Exported() {
				add("method (%s) %s%s", name, m.Name(),
					strings.TrimPrefix(types.TypeString(m.Type(), qualifier), "func"))
			}
		}
	}
	return lines
}
