// Alerts makes the faults of torture under a real Prometheus with the alerts that are shipped, and
// tells which of them each fault fires. It can draw the dashboard, too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/prom"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "alerts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("alerts", flag.ContinueOnError)
	databases := flags.String("databases", "sqlite,postgres", "the kinds of databases, with commas")
	names := flags.String("faults", "", "the faults, with commas; all if empty")
	results := flags.String("results", "", "a file with the table of the results, such as "+
		"ALERTS.md, in which the rows of this run are replaced")
	picture := flags.String("picture", "", "a file for a picture of the dashboard, such as "+
		"dashboard.svg; no fault is made then but those that it shows")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	rules, err := prom.ReadRules(root)
	if err != nil {
		return err
	}
	rowkeeper, err := server.Build(root)
	if err != nil {
		return err
	}
	if *picture != "" {
		return draw(ctx, root, rowkeeper, rules, *picture, out)
	}
	var wrong []string
	for _, name := range list(*databases) {
		kind := programs.Kind(name)
		err := runFaults(ctx, kind, rowkeeper, rules, runs(kind, list(*names)), out,
			func(o outcome) error {
				if text := o.wrong(); text != "" {
					wrong = append(wrong, fmt.Sprintf("%s on %s: %s", o.fault.name, o.kind, text))
				}
				if *results == "" {
					return nil
				}
				return record(*results, o)
			})
		if missing(err) {
			fmt.Fprintf(out, "NOT RUN on %s: %v\n", kind, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("on %s: %w", kind, err)
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
