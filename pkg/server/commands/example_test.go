package commands_test

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/server/commands"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// A program has the command serve, and commands that work on its database. It runs the one that the
// command line names. A real program has NewConfig and New, too.
func ExampleRun() {
	scheme := runtime.NewScheme()
	program := server.Program{
		Name:    "bookmarks",
		Scheme:  scheme,
		Codecs:  serializer.NewCodecFactory(scheme),
		Drivers: []storage.Driver{sqlite.Driver},
	}
	root := commands.New(program, server.New(program).Command())
	code := commands.Run(context.Background(), root, []string{"backup"}, os.Stdout, os.Stdout)
	if code != commands.ExitUsage {
		os.Exit(code)
	}
	// Output:
	// bookmarks: a file has to be named, or - for a standard stream (see bookmarks backup --help)
}
