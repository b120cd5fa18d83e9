// Robustness lets etcd's robustness framework judge "rowkeeper etcd": its Kubernetes traffic, its
// recording clients, and its validators, on front ends and databases that are killed, frozen and
// cut off. README.md says how, and RESULTS.md what came of it.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "robustness:", err)
		os.Exit(1)
	}
}

type options struct {
	databases, only, reports, results string
	runs, ends                        int
	list                              bool
}

func command(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("robustness", flag.ContinueOnError)
	flags.StringVar(&o.databases, "databases", kinds(programs.Kinds()),
		"the kinds of databases to run on, with commas")
	flags.StringVar(&o.only, "faults", "", "the faults, with commas; all that the database can "+
		"have if empty")
	flags.IntVar(&o.runs, "runs", 0, "how many runs there are on each database; 0: one of each "+
		"fault with each load")
	flags.IntVar(&o.ends, "fronts", 2, "the number of front ends")
	flags.StringVar(&o.reports, "reports", "../../../bin/robustness/reports",
		"where the reports of runs are kept that the judge has refused")
	flags.StringVar(&o.results, "results", "", "a file with the table of the results, such as "+
		"RESULTS.md, to whose rows these runs are added")
	flags.BoolVar(&o.list, "list", false, "list the faults and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	if o.list {
		for _, f := range faults() {
			fmt.Fprintf(out, "%-20s %s\n", f.name, f.about)
		}
		return nil
	}
	return o.all(ctx, out)
}

func kinds(ks []programs.Kind) string {
	var names []string
	for _, k := range ks {
		names = append(names, string(k))
	}
	return strings.Join(names, ",")
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// chosen are the faults of a kind of database that the flag names.
func (o *options) chosen(kind programs.Kind) (list []fault, err error) {
	only := words(o.only)
	for _, name := range only {
		if !slices.ContainsFunc(faults(), func(f fault) bool { return f.name == name }) {
			return nil, fmt.Errorf("there is no fault %q: -list lists them", name)
		}
	}
	for _, f := range faultsFor(kind) {
		if len(only) == 0 || slices.Contains(only, f.name) {
			list = append(list, f)
		}
	}
	return list, nil
}

func (o *options) all(ctx context.Context, out io.Writer) error {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return err
	}
	program, err := server.Build(root)
	if err != nil {
		return err
	}
	wrong := 0
	for _, name := range words(o.databases) {
		kind := programs.Kind(name)
		if !slices.Contains(programs.Kinds(), kind) {
			return fmt.Errorf("there is no kind of database %q: %s are", name, kinds(programs.Kinds()))
		}
		list, err := o.chosen(kind)
		if err != nil {
			return err
		}
		n, err := o.on(ctx, kind, list, program, out)
		wrong += n
		var missing *database.Missing
		if errors.As(err, &missing) {
			fmt.Fprintf(out, "NOT RUN on %s: %v\n", kind, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("the judge refuses %d runs: their reports are in %s", wrong, o.reports)
	}
	return nil
}

// on makes the runs on a database, and returns how many the judge refuses.
func (o *options) on(ctx context.Context, kind programs.Kind, list []fault, program string,
	out io.Writer) (wrong int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "robustness-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var served *database.Served
	if kind != programs.SQLite {
		if served, err = database.NewServed(ctx, kind, o.ends, dbserver.Options{}); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, served.Close()) }()
	}
	runs := o.runs
	if runs == 0 {
		runs = len(list) * len(loads)
	}
	for i := range runs {
		r := &run{program: program, kind: kind, fault: list[i%len(list)], ends: o.ends,
			load: loads[i/len(list)%len(loads)], dir: filepath.Join(dir, fmt.Sprint(i)),
			store: defaultStore}
		if err := os.Mkdir(r.dir, 0o755); err != nil {
			return wrong, err
		}
		if served == nil {
			r.db = database.NewSQLite(r.dir)
		} else {
			// Each run has a store of its own.
			r.db, r.store = served, fmt.Sprint("run-", i)
		}
		v, err := r.do(ctx)
		if err != nil {
			return wrong, fmt.Errorf("run %d, %s: %w", i, r.fault.name, err)
		}
		result := "passes"
		if v.err != nil {
			wrong++
			kept := filepath.Join(o.reports, fmt.Sprintf("%s-%s-%s-%d", kind, r.fault.name,
				r.load.name, time.Now().Unix()))
			if err := os.MkdirAll(o.reports, 0o755); err != nil {
				return wrong, err
			}
			if err := os.CopyFS(kept, os.DirFS(filepath.Join(r.dir, "report"))); err != nil {
				return wrong, err
			}
			result = fmt.Sprintf("REFUSED: %v: see %s", v.err, kept)
		}
		fmt.Fprintf(out, "%s %d/%d %s %s%v: %d operations, %d failed, %d watches, %d events, "+
			"%d told progress, %d compactions, %.1f s, judged in %.1f s: %s\n", r.db.Version(), i+1,
			runs, r.load.name, r.fault.name, r.done, v.operations, v.failed, v.watches, v.events,
			v.progress, v.compactions, v.took.Seconds(), v.judged.Seconds(), result)
		if o.results != "" {
			if err := addResult(o.results, r.db.Version(), r.fault.name, &v); err != nil {
				return wrong, err
			}
		}
		if err := os.RemoveAll(r.dir); err != nil {
			return wrong, err
		}
	}
	return wrong, nil
}
