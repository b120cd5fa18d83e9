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

// TestComplete fails if upstream's suite has a function that is neither run nor named with a reason, or if we name one that it does not
// have.
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

// exported lists the suite's exported functions that begin with Run.
func exported(t *testing.T) []string {
	t.Helper()
	pkg, err := build.Import(suite, ".", 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
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
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); ok {
			if pkg, ok := f.X.(*ast.Ident); ok && pkg.Name == "storagetesting" && strings.HasPrefix(f.Sel.Name, "Run") {
				names[f.Sel.Name] = true
			}
		}
		return true
	})
	return names
}
