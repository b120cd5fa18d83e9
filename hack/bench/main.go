// Bench does the same work through storage.Interface to etcd, kine and Rowkeeper, and
// compares what it costs. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/document"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:])
	klog.Flush()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// dispatch runs one of the commands that the bench starts itself, or the bench.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case runner.WorkerCommand:
			return runner.Work(ctx, os.Stdin, os.Stdout)
		case workload.ReplicaCommand:
			return workload.ServeReplica(ctx, os.Stdin, os.Stdout)
		case target.FloorCommand:
			return target.ServeFloor(ctx, args[len(args)-1])
		}
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	return bench(ctx, o)
}

// options are the bench's flags.
type options struct {
	lines, targets     string
	rounds             int
	duration           time.Duration
	scale              float64
	results, dir, out  string
	bin, root, profile string
	mysqld, tidb       string
	against, beside    string
	pairs              int
	object             object.Shape
	fresh, reportOnly  bool
	list               bool
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.lines, "lines", "", "comma-separated names of the lines to run (default all)")
	f.StringVar(&o.targets, "targets", "", "comma-separated names of the targets (default all "+
		"whose programs are installed)")
	f.IntVar(&o.rounds, "rounds", 3, "how often each line is run on each target, but for those "+
		"that are run once")
	f.DurationVar(&o.duration, "duration", 10*time.Second,
		"how long each measured phase lasts that has no size of its own")
	f.Float64Var(&o.scale, "scale", 1, "factor for the sizes of lines, for a quick look")
	f.IntVar(&o.object.Bytes, "bytes", object.Usual.Bytes, "size of the objects as JSON; those of "+
		"more than 4,096 are like the pods of a cluster")
	f.BoolVar(&o.object.Protobuf, "protobuf", false, "store the objects as protobuf, as "+
		"kube-apiserver does, instead of JSON")
	f.BoolVar(&o.object.Compressed, "zstd", false, "compress the values by zstd in the client's "+
		"process")
	f.StringVar(&o.results, "results", "results.jsonl", "file of results; runs that it holds are "+
		"not repeated")
	f.BoolVar(&o.fresh, "fresh", false, "forget the results that the file holds")
	f.StringVar(&o.dir, "dir", "", "directory for the targets' data, on a disk (default a new "+
		"one in the system's directory for temporary files)")
	f.StringVar(&o.out, "out", ".", "directory for RESULTS.md and the plots")
	f.BoolVar(&o.reportOnly, "report", false, "run nothing, write the report of the results that "+
		"the file holds")
	f.BoolVar(&o.list, "list", false, "list the lines and targets")
	f.StringVar(&o.bin, "bin", "../../bin",
		"directory for the programs that are built of the peers")
	f.StringVar(&o.root, "root", "../..", "directory of Rowkeeper's module")
	f.StringVar(&o.profile, "profile", "", "directory for profiles of the clients' processes "+
		"(which cost time: do not use the results)")
	f.StringVar(&o.mysqld, "mysqld", "", "program of a MySQL server (default the one that is "+
		"installed)")
	f.StringVar(&o.tidb, "tidb", "", "program of a TiDB server, which hack/testbed/tidb.sh builds, "+
		"for the target rowkeeper-tidb")
	f.StringVar(&o.against, "against", "", "program of this bench at another commit: compare "+
		"the two by the CPU time of an operation, and fail if this one needs more")
	f.StringVar(&o.beside, "beside", "", "compare the targets with this one, such as etcd, in "+
		"pairs of runs")
	f.IntVar(&o.pairs, "pairs", 15, "how many pairs of runs -against and -beside compare")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.against+o.beside != "" && (o.lines == "" || o.targets == "" || o.pairs < 6) {
		return o, errors.New("-against and -beside need -lines, -targets and at least six -pairs")
	}
	if o.rounds < 1 || o.duration <= 0 || o.scale <= 0 || o.scale > 1 {
		return o, errors.New("-rounds and -duration must be positive, -scale above 0 and at most 1")
	}
	return o, object.Use(o.object)
}

func bench(ctx context.Context, o options) (err error) {
	switch {
	case o.list:
		return list(os.Stdout)
	case o.against != "":
		return compare(ctx, o)
	case o.beside != "":
		return beside(ctx, o)
	}
	if o.fresh {
		if err := os.Remove(o.results); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	results, err := runner.OpenResults(o.results)
	if err != nil {
		return err
	}
	if o.reportOnly {
		return write(o, results)
	}
	plan, err := o.plan()
	if err != nil {
		return err
	}
	if plan.Dir, err = makeDir(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(plan.Dir)) }()
	machine, err := runner.DescribeMachine(plan.Dir)
	if err != nil {
		return err
	}
	run := runner.Run{Commit: runner.Commit(o.root), Duration: o.duration, Scale: o.scale,
		Object:  o.object,
		Command: command(), Date: time.Now().UTC().Truncate(time.Second), Machine: machine}
	if err := results.Begin(run); err != nil {
		return err
	}
	plan.Screen.Line(fmt.Sprintf("Rowkeeper %s on %s, %d cores, %s; fdatasync p50 %.3f ms, p99 "+
		"%.3f ms", run.Commit, machine.CPU, machine.Cores, machine.FileSystem, machine.SyncP50,
		machine.SyncP99))
	if err := build(ctx, o, plan.Screen, &plan.Template.Programs); err != nil {
		return err
	}
	err = logged(o, &plan, func() error { return plan.Execute(ctx, results) })
	return errors.Join(err, write(o, results))
}

// logged runs what starts the plan's processes, and has them log into a file.
func logged(o options, plan *runner.Plan, run func() error) (err error) {
	log, err := os.Create(filepath.Join(o.bin, "bench-peers.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	plan.Log = log
	plan.Screen.Line("the processes' logs are in " + log.Name())
	return run()
}

// slower is the ratio of CPU time per operation from which on a commit is slower than another one,
// if the whole interval of the ratio is above it.
const slower = 1.03

// compare compares this commit with that of another program of the bench.
func compare(ctx context.Context, o options) (err error) {
	plan, err := o.plan()
	if err != nil {
		return err
	}
	if plan.Dir, err = makeDir(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(plan.Dir)) }()
	var all []runner.Pairs
	err = logged(o, &plan, func() (err error) {
		all, err = plan.Compare(ctx, o.against, "cpu", o.pairs)
		return err
	})
	fmt.Printf("CPU time per operation, this commit to the other one, %d pairs: median (95 %% "+
		"interval)\n", o.pairs)
	for _, p := range all {
		fmt.Println(p)
		if _, low, _ := p.Ratio(); low > slower {
			err = errors.Join(err, fmt.Errorf("%s on %s is slower than before", p.Line, p.Target))
		}
	}
	return err
}

// beside compares targets with one of them.
func beside(ctx context.Context, o options) (err error) {
	if _, err := target.Find([]string{o.beside}); err != nil {
		return err
	}
	plan, err := o.plan()
	if err != nil {
		return err
	}
	if plan.Dir, err = makeDir(o.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(plan.Dir)) }()
	if err := build(ctx, o, plan.Screen, &plan.Template.Programs); err != nil {
		return err
	}
	var all []runner.Pairs
	err = logged(o, &plan, func() (err error) {
		all, err = plan.Beside(ctx, o.beside, o.pairs)
		return err
	})
	fmt.Printf("Ratios to %s, %d pairs: median (95 %% interval). cpu is the processor time per "+
		"operation, cpu_server the part of servers and databases, and lag the time from an "+
		"acknowledgement to its event\n", o.beside, o.pairs)
	for _, p := range all {
		fmt.Println(p)
	}
	return err
}

// plan chooses lines and targets. A target that is not named but lacks its server program is left
// out, and that is said.
func (o options) plan() (runner.Plan, error) {
	p := runner.Plan{Lines: workload.Lines(), Rounds: o.rounds, Screen: runner.NewScreen(os.Stderr)}
	programs := target.FindPrograms()
	if o.mysqld != "" {
		programs.MySQL = o.mysqld
	}
	var err error
	if o.tidb != "" {
		if programs.TiDB, err = filepath.Abs(o.tidb); err != nil {
			return p, err
		}
	}
	if o.lines != "" {
		if p.Lines, err = workload.Find(strings.Split(o.lines, ",")); err != nil {
			return p, err
		}
	}
	if o.targets != "" {
		if p.Targets, err = target.Find(strings.Split(o.targets, ",")); err != nil {
			return p, err
		}
	}
	for _, t := range target.All() {
		if o.targets == "" {
			if missing := t.Missing(programs); missing != "" {
				p.Screen.Line(fmt.Sprintf("target %s is left out: %s is not installed",
					t.Name(), missing))
				continue
			}
			p.Targets = append(p.Targets, t)
		}
	}
	for _, t := range p.Targets {
		if missing := t.Missing(programs); missing != "" {
			return p, fmt.Errorf("target %s needs %s, which is not installed", t.Name(), missing)
		}
	}
	p.Template = runner.Job{Programs: programs, Duration: o.duration, Scale: o.scale,
		Object: o.object}
	if o.profile != "" {
		if p.Template.Profiles, err = filepath.Abs(o.profile); err != nil {
			return p, err
		}
	}
	return p, nil
}

// build builds the peers' programs from the modules that pin their versions.
func build(ctx context.Context, o options, screen *runner.Screen, p *target.Programs) error {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	p.Etcd, p.Kine = filepath.Join(bin, "etcd"), filepath.Join(bin, "kine")
	p.Rowkeeper = filepath.Join(bin, "rowkeeper")
	for _, peer := range []struct{ program, module, pkg, workspace string }{
		{p.Etcd, "peers/etcd", "go.etcd.io/etcd/server/v3", "off"},
		{p.Kine, "peers/kine", "github.com/k3s-io/kine", "off"},
		{p.Rowkeeper, o.root, "./cmd/rowkeeper", ""}, // the one of the clone
	} {
		screen.Progress("building " + peer.pkg)
		cmd := exec.CommandContext(ctx, "go", "build", "-C", peer.module, "-o", peer.program,
			peer.pkg)
		cmd.Env = append(os.Environ(), "GOWORK="+peer.workspace)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("build %s: %w: %s", peer.pkg, err, out)
		}
	}
	return nil
}

// makeDir makes the directory for data, which the users that servers run as can enter.
func makeDir(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "rowkeeper-bench-*")
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// command is how to run this again.
func command() string {
	text := "make bench-peers"
	if args := os.Args[1:]; len(args) > 0 {
		text += fmt.Sprintf(" BENCH=%q", strings.Join(args, " "))
	}
	return text
}

// write writes the report.
func write(o options, results *runner.Results) error {
	if len(results.Results) == 0 {
		return nil
	}
	plots := document.Plots(results)
	for _, p := range plots {
		if err := os.WriteFile(filepath.Join(o.out, p.File), []byte(p.Chart.SVG()),
			0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(o.out, "RESULTS.md"),
		[]byte(document.Markdown(results, plots)), 0o644)
}

func list(w io.Writer) error {
	for _, l := range workload.Lines() {
		once := ""
		if l.Once {
			once = " (one round)"
		}
		if _, err := fmt.Fprintf(w, "%-16s %s%s\n", l.Name, l.Work, once); err != nil {
			return err
		}
	}
	for _, t := range append(target.All(), target.TiDB, target.Floor) {
		if _, err := fmt.Fprintln(w, t.Name()); err != nil {
			return err
		}
	}
	return nil
}
