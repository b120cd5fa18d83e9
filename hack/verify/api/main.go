// Api lists what the library exports, one declaration in a line, so that a change of it is
// seen and decided on:
//
//	go run ./hack/verify/api            compares the packages with hack/verify/api/api.txt
//	go run ./hack/verify/api -update    accepts additions; removals and changes only with -incompatible
//
// The library is every package of pkg and storage that programs can import, but pkg/support and
// pkg/example. A line that is missing or different breaks programs that use it. That fails, until
// it is accepted by -incompatible; a new line fails until it is accepted by -update, so that
// nothing is exported by accident. Each of the packages has an example, so that a reader of its
// documentation sees how it is used.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// path is what begins all import paths.
const path = "github.com/rowkeeper/rowkeeper/"

// module is a module of the library: its directory, and those of its packages that are promised.
type module struct {
	dir      string
	packages []string
}

// promised tells whether the promise of compatibility is about a package of pkg or storage. It is
// about each that programs can import. The support says that it promises nothing, and the example
// is there to be copied.
func promised(pkg string) bool {
	for _, folder := range []string{"pkg/support", "pkg/example"} {
		if pkg == folder || strings.HasPrefix(pkg, folder+"/") {
			return false
		}
	}
	return !slices.Contains(strings.Split(pkg, "/"), "internal")
}

// library finds the modules and their packages.
func library() ([]module, error) {
	modules := []module{{dir: "."}}
	for _, folder := range []string{"pkg", "storage"} {
		if err := filepath.WalkDir(folder, func(file string, _ fs.DirEntry, err error) error {
			if err == nil && filepath.Base(file) == "go.mod" &&
				promised(filepath.ToSlash(filepath.Dir(file))) {
				modules = append(modules, module{dir: filepath.Dir(file)})
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	for i := range modules {
		m := &modules[i]
		args := []string{"list", "-f",
			`{{if and (ne .Name "main") .GoFiles}}{{.ImportPath}}{{end}}`, "./..."}
		if m.dir == "." {
			args = slices.Concat(args[:3], []string{"./pkg/...", "./storage/..."})
		}
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Stderr, cmd.Env = m.dir, os.Stderr, alone()
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("cannot list the packages of %s: %w", m.dir, err)
		}
		for _, p := range strings.Fields(string(out)) {
			if p = strings.TrimPrefix(p, path); promised(p) {
				m.packages = append(m.packages, p)
			}
		}
	}
	return modules, nil
}

// alone is the environment in which Go looks at a module as its users do.
func alone() []string { return append(os.Environ(), "GOWORK=off") }

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
	modules, err := library()
	if err != nil {
		return err
	}
	var is []string
	for _, m := range modules {
		lines, err := list(m)
		if err != nil {
			return err
		}
		is = append(is, lines...)
	}
	slices.Sort(is)
	if err := examples(is); err != nil {
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

// examples finds packages that export something and have no example.
func examples(lines []string) error {
	var last string
	for _, line := range lines {
		p, _, _ := strings.Cut(line, ": ")
		if p == last {
			continue
		}
		last = p
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

// list compiles the packages of a module and returns their exported declarations.
func list(m module) ([]string, error) {
	args := []string{"list", "-export", "-deps", "-f",
		"{{if .Export}}{{.ImportPath}}={{.Export}}{{end}}"}
	for _, p := range m.packages {
		args = append(args, path+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr, cmd.Env = m.dir, os.Stderr, alone()
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot compile the packages: %w", err)
	}
	exports := map[string]string{}
	for _, line := range strings.Fields(string(out)) {
		pkg, file, _ := strings.Cut(line, "=")
		exports[pkg] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc",
		func(pkg string) (io.ReadCloser, error) {
			file, ok := exports[pkg]
			if !ok {
				return nil, fmt.Errorf("no package %s", pkg)
			}
			return os.Open(file)
		})
	var lines []string
	for _, name := range m.packages {
		p, err := imports.Import(path + name)
		if err != nil {
			return nil, err
		}
		lines = append(lines, declarations(name, p)...)
	}
	return lines, nil
}

// declarations returns those of one package, with the fields of structs and the methods of types in
// lines of their own.
func declarations(name string, p *types.Package) []string {
	qualifier := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return other.Path()
	}
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, name+": "+fmt.Sprintf(format, args...))
	}
	for _, exported := range p.Scope().Names() {
		object := p.Scope().Lookup(exported)
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
			add("type %s struct", exported)
			for i := range structure.NumFields() {
				if f := structure.Field(i); f.Exported() {
					add("type %s struct, %s %s", exported, f.Name(),
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
				add("method (%s) %s%s", exported, m.Name(),
					strings.TrimPrefix(types.TypeString(m.Type(), qualifier), "func"))
			}
		}
	}
	return lines
}
