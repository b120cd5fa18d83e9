package conformance

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// suite is upstream's suite.
const suite = "k8s.io/apiserver/pkg/storage/testing"

// TestComplete fails if upstream's suite has a function that is neither run nor named with a
// reason, or if we name one that it does not have.
func TestComplete(t *testing.T) {
	upstream := exported(t)
	if len(upstream) < 60 {
		t.Fatalf("only %d functions were found in %s", len(upstream), suite)
	}
	for _, half := range []struct {
		file    string
		without map[string]string
	}{
		{"raw.go", NotRaw},
		{"cached.go", NotCached},
	} {
		t.Run(half.file, func(t *testing.T) {
			run := called(t, half.file)
			for _, name := range upstream {
				switch reason, left := half.without[name]; {
				case run[name] && left:
					t.Errorf("%s is run, but named as one that is not: %s", name, reason)
				case !run[name] && !left:
					t.Errorf("%s is neither run nor named", name)
				case left && reason == "":
					t.Errorf("%s is left out without a reason", name)
				}
			}
			for name := range half.without {
				if !slices.Contains(upstream, name) {
					t.Errorf("%s is named, but upstream has no such function", name)
				}
			}
			t.Logf("%d functions run, %d left out", len(run), len(half.without))
		})
	}
}

// TestAlone fails if a test runs beside others that sets a feature gate, or whose function of
// upstream's has parallel parts or a timeout; or if one runs alone for nothing.
func TestAlone(t *testing.T) {
	reasons := map[string]bool{"setGate": true, "eachSnapshotGate": true}
	for _, file := range upstreamFiles(t) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			used := names(f)
			if used["SetFeatureGateDuringTest"] || used["Parallel"] || used["WithTimeout"] {
				reasons[f.Name.Name] = true
			}
		}
	}
	want := map[string]bool{}
	for _, name := range []string{"raw.go", "cached.go"} {
		ast.Inspect(parseFile(t, name), func(n ast.Node) bool {
			// A test is a literal of a name and a function.
			if l, ok := n.(*ast.CompositeLit); ok && len(l.Elts) == 2 {
				name, ok := l.Elts[0].(*ast.BasicLit)
				run, isFunc := l.Elts[1].(*ast.FuncLit)
				if ok && isFunc {
					for used := range names(run) {
						if reasons[used] {
							want[strings.Trim(name.Value, `"`)] = true
						}
					}
				}
			}
			return true
		})
	}
	if len(want) == 0 || !maps.Equal(want, alone) {
		t.Errorf("alone names %q, but the tests that have a reason are %q",
			slices.Sorted(maps.Keys(alone)), slices.Sorted(maps.Keys(want)))
	}
}

// names returns the identifiers in a piece of code.
func names(n ast.Node) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			all[id.Name] = true
		}
		return true
	})
	return all
}

// upstreamFiles returns the files of upstream's suite.
func upstreamFiles(t *testing.T) (files []*ast.File) {
	t.Helper()
	pkg, err := build.Import(suite, ".", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range pkg.GoFiles {
		files = append(files, parseFile(t, filepath.Join(pkg.Dir, name)))
	}
	return files
}

func parseFile(t *testing.T, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// exported lists the suite's exported functions that begin with Run.
func exported(t *testing.T) []string {
	t.Helper()
	names := map[string]bool{}
	for _, file := range upstreamFiles(t) {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Run") {
				names[f.Name.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// called lists the suite's functions that a file of this package calls.
func called(t *testing.T, name string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	ast.Inspect(parseFile(t, name), func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); ok {
			if pkg, ok := f.X.(*ast.Ident); ok && pkg.Name == "storagetesting" &&
				strings.HasPrefix(f.Sel.Name, "Run") {
				names[f.Sel.Name] = true
			}
		}
		return true
	})
	return names
}
