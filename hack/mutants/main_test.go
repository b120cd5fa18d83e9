package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlaces looks for the places of the faults: whoever changes the code has to move them.
func TestPlaces(t *testing.T) {
	names := map[string]bool{}
	for _, m := range all() {
		code, err := os.ReadFile(filepath.Join("../..", m.file))
		if err == nil {
			_, err = m.apply(string(code))
		}
		if err != nil {
			t.Errorf("%s: %v", m.what, err)
		}
		if name := m.breaks + " " + m.what; names[name] {
			t.Errorf("two faults are named %q", name)
		} else {
			names[name] = true
		}
	}
}

// TestFaultsCompile checks the types of each package with each of its faults: a variable that only
// the replaced text has used would keep its tests from running.
func TestFaultsCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("it wants the packages to be compiled")
	}
	args := []string{"list", "-export", "-deps", "-f",
		`{{.Dir}}|{{.ImportPath}}|{{.Export}}|{{join .GoFiles "|"}}`}
	faulty := map[string]bool{}
	for _, m := range all() {
		if dir := filepath.Dir(m.file); !faulty[dir] {
			faulty[dir] = true
			args = append(args, "./"+dir)
		}
	}
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Dir, list.Stderr = "../..", os.Stderr
	list.Env = append(os.Environ(), "GOWORK=") // pkg/crds is in the workspace
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	compiled, sources := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		compiled[fields[1]] = fields[2]
		if dir, err := filepath.Rel(root, fields[0]); err == nil && faulty[dir] {
			sources[dir] = fields[3:]
		}
	}

	set := token.NewFileSet()
	parsed := map[string]*ast.File{}
	for dir, names := range sources {
		for _, name := range names {
			file := filepath.Join(dir, name)
			if parsed[file], err = parser.ParseFile(set, filepath.Join(root, file), nil,
				parser.SkipObjectResolution); err != nil {
				t.Fatal(err)
			}
		}
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })}
	for _, m := range all() {
		code, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Fatal(err)
		}
		fault, err := m.apply(string(code))
		if err != nil {
			continue // TestPlaces tells
		}
		file, err := parser.ParseFile(set, m.file, fault, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", m.what, err)
			continue
		}
		files := []*ast.File{file}
		for _, name := range sources[filepath.Dir(m.file)] {
			if other := filepath.Join(filepath.Dir(m.file), name); other != m.file {
				files = append(files, parsed[other])
			}
		}
		if _, err := config.Check(filepath.Dir(m.file), set, files, nil); err != nil {
			t.Errorf("%s: %v", m.what, err)
		}
	}
}
