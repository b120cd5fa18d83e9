// Protoc replaces the C++ protoc for go-to-protobuf, since no Go module can pin that
// program. It compiles proto files and runs the plugin protoc-gen-gogo on them.
//
//	protoc -I directory … --gogo_out=directory file.proto …
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "protoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var roots, files []string
	out := ""
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "-I" && len(args) > 0:
			roots = append(roots, args[0])
			args = args[1:]
		case strings.HasPrefix(arg, "--gogo_out="):
			out = strings.TrimPrefix(arg, "--gogo_out=")
		case strings.HasPrefix(arg, "-"):
			return fmt.Errorf("unknown flag %s", arg)
		default:
			files = append(files, arg)
		}
	}
	for i, file := range files {
		name, err := relative(file, roots)
		if err != nil {
			return err
		}
		files[i] = name
	}
	request, err := compile(roots, files)
	if err != nil {
		return err
	}
	response, err := generate(request)
	if err != nil {
		return err
	}
	for _, f := range response.File {
		name := filepath.Join(out, f.GetName())
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// relative returns the name by which other files import a file: its path below the root that
// contains it most closely.
func relative(file string, roots []string) (string, error) {
	best := ""
	for _, root := range roots {
		name, err := filepath.Rel(root, file)
		if err != nil || !filepath.IsLocal(name) {
			continue
		}
		if best == "" || len(name) < len(best) {
			best = name
		}
	}
	if best == "" {
		return "", fmt.Errorf("%s is below none of %s", file, strings.Join(roots, ", "))
	}
	return filepath.ToSlash(best), nil
}

// compile makes the plugin's input: the files with all that they import, importees first.
func compile(roots, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: roots}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range compiled {
		add(f)
	}
	return request, nil
}

func generate(request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	input, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	plugin := exec.Command("protoc-gen-gogo")
	plugin.Stdin = bytes.NewReader(input)
	plugin.Stderr = os.Stderr
	output, err := plugin.Output()
	if err != nil {
		return nil, fmt.Errorf("protoc-gen-gogo: %w", err)
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(output, response); err != nil {
		return nil, fmt.Errorf("protoc-gen-gogo: %w", err)
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response, nil
}
