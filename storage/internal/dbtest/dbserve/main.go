// Dbserve runs a database server for the tests of other modules, which cannot import package
// dbserver:
//
//	dbserve postgres [setting=value…]
//
// It keeps what it has committed over a crash. When it answers, dbserve prints a line of JSON with
// its version, where it came from, and the URL of an empty database. Then it reads commands, a line
// each (start, stop, kill, pause, resume, and "exec STATEMENT", as the administrator), and prints a
// line of JSON after each: an object, with the member "error" if the command failed. The server is
// removed when standard input ends, or dbserve does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest/dbserver"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dbserve:", err)
		os.Exit(1)
	}
}

type answer struct {
	Version string `json:"version,omitempty"`
	Source  string `json:"source,omitempty"`
	URL     string `json:"url,omitempty"`
	Error   string `json:"error,omitempty"`
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) (err error) {
	if len(args) == 0 || !slices.Contains(dbserver.Kinds(), dbserver.Kind(args[0])) {
		return errors.New("usage: dbserve KIND [setting=value…], where KIND is postgres, mariadb or mysql")
	}
	opts := dbserver.Options{Own: true, Durable: true, Settings: map[string]string{}}
	for _, setting := range args[1:] {
		name, value, found := strings.Cut(setting, "=")
		if !found {
			return fmt.Errorf("%q is not of the form setting=value", setting)
		}
		opts.Settings[name] = value
	}
	server, err := dbserver.Start(ctx, dbserver.Kind(args[0]), opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(ctx)) }()
	url, err := server.CreateDatabase(ctx, "rowkeeper")
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	if err := answers.Encode(answer{Version: server.Version, Source: server.Source,
		URL: url}); err != nil {
		return err
	}
	commands := map[string]func(context.Context) error{
		"start": server.Start, "stop": server.Stop, "kill": server.Kill, "pause": server.Pause,
		"resume": server.Resume,
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		name, argument, _ := strings.Cut(lines.Text(), " ")
		command := commands[name]
		if name == "exec" {
			command = func(ctx context.Context) error { return server.Exec(ctx, argument) }
		}
		var a answer
		if command == nil {
			a.Error = fmt.Sprintf("there is no command %q", name)
		} else if err := command(ctx); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return nil
}
