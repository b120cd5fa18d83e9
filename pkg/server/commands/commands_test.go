package commands

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// bookmarks is a program without kinds.
func bookmarks() *cobra.Command {
	scheme := runtime.NewScheme()
	p := server.Program{Name: "bookmarks", Scheme: scheme,
		Codecs: serializer.NewCodecFactory(scheme), Drivers: []storage.Driver{sqlite.Driver}}
	return New(p, server.New(p).Command())
}

// TestNames: what the commands say of themselves names the program, and no other one.
func TestNames(t *testing.T) {
	var check func(*cobra.Command)
	check = func(c *cobra.Command) {
		text := strings.ReplaceAll(c.Short+c.Long+c.Example, "github.com/rowkeeper/rowkeeper", "")
		text = strings.ReplaceAll(text, "/var/lib/rowkeeper", "")
		if strings.Contains(text, "rowkeeper ") ||
			c.Example != "" && !strings.HasPrefix(c.Example, "  "+c.CommandPath()) {
			t.Errorf("%s says\n%s", c.CommandPath(), text)
		}
		for _, below := range c.Commands() {
			check(below)
		}
	}
	check(bookmarks())
}

// TestRun: each error is a line on stderr, and the exit code says whose fault it is.
func TestRun(t *testing.T) {
	two := utilerrors.NewAggregate([]error{errors.New("one"), errors.New("two")})
	for _, tc := range []struct {
		args string
		err  error
		code int
		want string
	}{
		{"do", nil, ExitOK, ""},
		{"do", errors.New("it is away"), ExitFailure, "bookmarks: it is away\n"},
		{"do", two, ExitFailure, "bookmarks: one\nbookmarks: two\n"},
		{"do", server.UsageError{Err: two}, ExitUsage,
			"bookmarks: one\nbookmarks: two (see bookmarks do --help)\n"},
		{"do --what", nil, ExitUsage,
			"bookmarks: unknown flag: --what (see bookmarks do --help)\n"},
		{"dont", nil, ExitUsage, "bookmarks: unknown command \"dont\" (see bookmarks --help)\n"},
		{"", nil, ExitOK, ""},
	} {
		root := bookmarks()
		root.AddCommand(&cobra.Command{Use: "do", Args: server.NoArgs,
			RunE: func(*cobra.Command, []string) error { return tc.err }})
		var out, errs bytes.Buffer
		code := Run(context.Background(), root, strings.Fields(tc.args), &out, &errs)
		if code != tc.code || errs.String() != tc.want {
			t.Errorf("%q with %v: exit code %d, %q, want %d, %q", tc.args, tc.err, code,
				errs.String(), tc.code, tc.want)
		}
	}
}
