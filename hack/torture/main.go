// Torture runs Rowkeeper servers over one database, lets clients and watchers use them while faults
// happen, and checks that nothing is lost, late, doubled or reordered.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/hack/plot"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/front"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/jumpingclock"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/report"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/scenario"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The informers' library logs every fault.
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	// It runs itself, too, as a server whose clock jumps, or that stores by etcd's API.
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		klog.SetOutput(os.Stderr)
		klog.LogToStderr(true)
		serve := jumpingclock.Serve
		if os.Getenv(front.ProgramEnv) != "" {
			serve = front.Serve
		}
		if err := serve(ctx, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

type options struct {
	scenarios, databases, url string
	seed                      uint64
	operations, faults        int
	servers, clients, rate    int
	namespaces                int
	long, list, neighbour     bool
	etcd, etcdClients         bool
	require                   bool
	soak                      time.Duration
	results, plot             string
}

const (
	defaultServers = 3
	// defaultClients are those of each server.
	defaultClients = 4
	// soakNamespaces bounds the objects of a soak.
	soakNamespaces = 12
)

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.StringVar(&o.scenarios, "scenarios", "", "the scenarios to run, with commas; all that "+
		"the databases can have if empty")
	flags.StringVar(&o.databases, "databases", kinds(programs.Kinds()),
		"the kinds of databases to run on, with commas")
	flags.StringVar(&o.url, "url", "", "the URL of a database to use, of the one kind in "+
		"-databases; objects are written below /torture-SEED, and stay")
	flags.Uint64Var(&o.seed, "seed", 0, "what decides all that is random; 0: another one each "+
		"time, which is printed")
	flags.IntVar(&o.operations, "operations", 0, "how many requests have to be answered in each "+
		"run; 0: 4000, or 20000 with -long, or 100000 for random with -long")
	flags.IntVar(&o.faults, "faults", -1, "how many faults there are in each run; -1: as many as "+
		"the scenario has")
	flags.IntVar(&o.servers, "servers", defaultServers, "the number of servers")
	flags.IntVar(&o.clients, "clients", defaultClients, "the number of clients of each server")
	flags.IntVar(&o.rate, "rate", 0, "requests per second of all clients; 0: as many as possible")
	flags.IntVar(&o.namespaces, "namespaces", 0, "how many namespaces there are, for many "+
		"operations on few objects; 0: new ones all the time, or 12 with -soak")
	flags.BoolVar(&o.long, "long", false, "faults last longer than every timeout, and there are "+
		"more of them")
	flags.BoolVar(&o.neighbour, "neighbour", false, "the servers use a second store of the "+
		"database, and somebody else the default one, whose watch must stay open")
	flags.BoolVar(&o.etcd, "etcd", false, "the servers store as kube-apiserver does, each in a "+
		"\"rowkeeper etcd\" of its own")
	flags.BoolVar(&o.etcdClients, "etcd-clients", false, "the servers are \"rowkeeper etcd\", "+
		"without an API server, and the clients use etcd's API")
	flags.BoolVar(&o.require, "require", false, "a database that cannot be had here is an error")
	flags.BoolVar(&o.list, "list", false, "list the scenarios and end")
	flags.DurationVar(&o.soak, "soak", 0, "how long a steady load goes on, without faults, while "+
		"memory, connections and latencies are looked at; runs the scenario steady")
	flags.StringVar(&o.plot, "plot", "", "a file for the plot of a soak, such as soak-postgres.svg")
	flags.StringVar(&o.results, "results", "", "a file with the table of the results, such as "+
		"RESULTS.md, in which the rows of these runs are replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	if o.etcdClients && (o.etcd || o.soak > 0) {
		return errors.New("-etcd-clients has no API server: leave out -etcd and -soak")
	}
	if o.list {
		for _, s := range scenario.Scenarios() {
			fmt.Fprintf(out, "%-22s %s (%s)\n", s.Name, s.About, kinds(s.Kinds))
		}
		return nil
	}
	if o.soak > 0 {
		o.scenarios = "steady"
	}
	return runAll(ctx, o, out)
}

func kinds(ks []programs.Kind) string {
	var names []string
	for _, k := range ks {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func runAll(ctx context.Context, o options, out io.Writer) error {
	var scenarios []*scenario.Scenario
	for _, name := range list(o.scenarios) {
		s := scenario.Find(name)
		if s == nil {
			return fmt.Errorf("there is no scenario %q: -list lists them", name)
		}
		scenarios = append(scenarios, s)
	}
	if len(scenarios) == 0 {
		scenarios = scenario.Scenarios()
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	rowkeeper, err := server.Build(root)
	if err != nil {
		return err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1 << 32)
	}
	violations := 0
	for _, name := range list(o.databases) {
		kind := programs.Kind(name)
		if !slices.Contains(programs.Kinds(), kind) {
			return fmt.Errorf("there is no kind of database %q: %s are", name,
				kinds(programs.Kinds()))
		}
		for _, s := range scenarios {
			if !slices.Contains(s.Kinds, kind) || !s.Fits(o.etcd, o.etcdClients, o.url != "") {
				if o.scenarios != "" {
					fmt.Fprintf(out, "NOT RUN: %s on %s: it is not made for that\n", s.Name, kind)
				}
				continue
			}
			result, err := runOne(ctx, o, rowkeeper, s.For(kind), kind, out)
			var missing *database.Missing
			if errors.As(err, &missing) && !o.require {
				fmt.Fprintf(out, "NOT RUN: %s on %s: %v\n", s.Name, kind, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("%s on %s, seed %d: %w", s.Name, kind, o.seed, err)
			}
			violations += len(result.Report.Violations)
			for _, v := range result.Report.Violations {
				fmt.Fprintf(out, "VIOLATION of %s on %s, seed %d: %s\n", s.Name, kind, o.seed, v)
			}
			if o.soak > 0 {
				if err := soaked(o, result); err != nil {
					return err
				}
			}
			if o.results != "" {
				if err := report.Add(o.results, row(o, result)); err != nil {
					return err
				}
			}
		}
	}
	if violations > 0 {
		return fmt.Errorf("%d violations", violations)
	}
	return nil
}

func runOne(ctx context.Context, o options, rowkeeper string, s *scenario.Scenario,
	kind programs.Kind, out io.Writer) (*scenario.Result, error) {
	c := scenario.Config{Rowkeeper: rowkeeper, Scenario: s, Kind: kind, URL: o.url, Seed: o.seed,
		Operations: o.operations, Faults: o.faults,
		Servers: o.servers, Clients: o.clients, Rate: o.rate, Namespaces: o.namespaces,
		Long: o.long, Soak: o.soak, Neighbour: o.neighbour, Etcd: o.etcd,
		EtcdClients: o.etcdClients || s.EtcdClients, Progress: out}
	if c.Namespaces == 0 && c.Soak > 0 {
		c.Namespaces = soakNamespaces
	}
	if c.Faults < 0 {
		c.Faults = s.FaultCount(o.long)
	}
	if c.Operations == 0 {
		c.Operations = s.OperationCount(o.long)
	}
	return scenario.Run(ctx, c)
}

// soaked notes how flat the figures of a soak are, and draws them.
func soaked(o options, r *scenario.Result) error {
	figures := []struct {
		title, unit string
		of          func(scenario.Sample) float64
	}{
		{"live memory of a server after a garbage collection", "MB",
			func(s scenario.Sample) float64 {
				return s.Live / 1e6
			}},
		{"resident memory of a server (RssAnon)", "MB", func(s scenario.Sample) float64 {
			return s.Resident / 1e6
		}},
		{"goroutines of a server", "", func(s scenario.Sample) float64 { return s.Goroutines }},
		{"connections of all servers to the database", "", func(s scenario.Sample) float64 {
			return s.Connections
		}},
		{"size of the database", "MB", func(s scenario.Sample) float64 { return s.Database / 1e6 }},
		{"requests", "/s", func(s scenario.Sample) float64 { return s.Rate }},
		{"latency of requests, median", "ms", func(s scenario.Sample) float64 {
			return s.Median * 1e3
		}},
		{"latency of requests, p99", "ms", func(s scenario.Sample) float64 { return s.P99 * 1e3 }},
	}
	var panels []plot.Panel
	var growth []string
	for _, f := range figures {
		var l plot.Line
		for _, s := range r.Samples {
			l.Minutes, l.Data = append(l.Minutes, s.At.Minutes()), append(l.Data, f.of(s))
		}
		panels = append(panels, plot.Panel{Title: f.title, Unit: f.unit, Lines: []plot.Line{l}})
		growth = append(growth, fmt.Sprintf("%s ×%.2f", f.title, scenario.Growth(r.Samples, f.of)))
	}
	r.Scenario = "soak"
	r.Notes = append(r.Notes, fmt.Sprintf("%s long; the mean of the last quarter compared with "+
		"that of the second: %s", o.soak, strings.Join(growth, ", ")))
	if o.plot == "" {
		return nil
	}
	return os.WriteFile(o.plot,
		[]byte(plot.Lines(fmt.Sprintf("A soak of %s on %s, %d requests/s wanted", o.soak, r.Version,
			o.rate), panels)), 0o644)
}

// row is a line of the table.
func row(o options, r *scenario.Result) report.Row {
	command := fmt.Sprintf("make torture TORTURE='-scenarios %s -databases %s -seed %d", r.Scenario,
		r.Database, r.Seed)
	if o.soak > 0 {
		command = fmt.Sprintf("make torture TORTURE='-soak %s -rate %d -databases %s -seed %d "+
			"-plot soak-%s.svg", o.soak, o.rate, r.Database, r.Seed, r.Database)
	}
	if o.long {
		command += " -long"
	}
	// Each way to run a scenario has a row of its own.
	name := r.Scenario
	if o.etcd {
		command += " -etcd"
		name += ", by etcd's API"
	}
	if o.etcdClients {
		command += " -etcd-clients"
		name += ", by clients of etcd"
	}
	if o.neighbour {
		command += " -neighbour"
		name += ", with a neighbour"
	}
	if o.namespaces > 0 {
		name += fmt.Sprintf(", in %d namespaces", o.namespaces)
	}
	// The settings that decide how much is asked for are told unless they are the defaults; a
	// soak's rate is told above.
	for _, f := range []struct {
		name         string
		value, usual int
	}{{"operations", o.operations, 0}, {"faults", o.faults, -1}, {"servers", o.servers,
		defaultServers}, {"clients", o.clients, defaultClients}, {"rate", o.rate, 0},
		{"namespaces", o.namespaces, 0}} {
		if f.value != f.usual && !(f.name == "rate" && o.soak > 0) {
			command += fmt.Sprintf(" -%s %d", f.name, f.value)
		}
	}
	return report.Row{
		Scenario: name, Database: r.Version, Operations: r.Report.Ops,
		Events: r.Report.Events + r.Report.Bookmarks, Lists: r.Report.Lists, Faults: r.Faults,
		Violations: len(r.Report.Violations), Recovery: r.Recovery, Unknown: r.Report.Unknown,
		Lost: r.Report.Lost, Notes: r.Notes, Command: command + "'",
	}
}
