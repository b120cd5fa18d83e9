package etcdtests

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/compat/etcdtests/member"
	"github.com/rowkeeper/rowkeeper/hack/compat/internal/patched"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// kindsEnv names the databases, such as sqlite,postgres. Without it no test of etcd runs.
const kindsEnv = "ROWKEEPER_TEST_ETCD"

const (
	upstream = "go.etcd.io/etcd/tests/v3"
	ours     = "github.com/rowkeeper/rowkeeper"
)

// suites are the packages of etcd's tests that start their servers by the framework that is changed
// here, by their names in unfit.txt.
var suites = []string{
	"common",
	"integration",
	"integration/clientv3",
	"integration/clientv3/concurrency",
	"integration/clientv3/connectivity",
	"integration/clientv3/examples",
	"integration/clientv3/experimental/recipes",
	"integration/clientv3/lease",
	"integration/clientv3/naming",
	"integration/clientv3/watch",
	"integration/proxy/grpcproxy",
}

// patience is how long a test may take. Some wait for a minute, also on a machine that has nothing
// else to do.
const patience = 3 * time.Minute

// changes are what is replaced in the framework's file, so that it starts our server. What keeps
// etcd's members together goes on beside it, since tests ask it who leads.
var changes = []struct{ from, to string }{
	{"\t\"go.etcd.io/raft/v3\"\n", "\t\"go.etcd.io/raft/v3\"\n\n\t\"" + ours +
		"/hack/compat/etcdtests/member\"\n"},
	{"\t\tgo m.GRPCServer.Serve(m.GRPCListener)\n", `
		config := &member.Config{Cluster: m.InitialPeerURLsMap.String(), Name: m.Name,
			URL: m.GRPCURL, MaxTxnOps: m.MaxTxnOps, MaxRequestBytes: m.MaxRequestBytes,
			ProgressInterval: m.WatchProgressNotifyInterval}
		if info := m.ClientTLSInfo; info != nil {
			config.CertFile, config.KeyFile, config.TrustedCAFile = info.CertFile, info.KeyFile,
				info.TrustedCAFile
		}
		stop, err := member.Serve(m.GRPCListener, config)
		if err != nil {
			return err
		}
		m.ServerClosers = append(m.ServerClosers, stop)
`},
	// The list of members is that of "rowkeeper etcd".
	{"func (c *Cluster) WaitMembersMatch(t testutil.TB, membs []*pb.Member) {\n",
		"func (c *Cluster) WaitMembersMatch(t testutil.TB, membs []*pb.Member) {\n\treturn\n"},
}

// TestEtcd runs etcd's tests, each in a process of its own, on the databases that the environment
// names. A test that fails is run once more. Then it must be in unfit.txt; and what is there must
// fail.
func TestEtcd(t *testing.T) {
	kinds := os.Getenv(kindsEnv)
	if kinds == "" {
		t.Skipf("they take some minutes: %s names the databases to run them on", kindsEnv)
	}
	list := readUnfit(t)
	r := &runner{module: copied(t), binaries: t.TempDir(), list: list}
	r.build(t)
	for kind := range strings.SplitSeq(kinds, ",") {
		t.Run(kind, func(t *testing.T) { r.kind(t, programs.Kind(kind)) })
	}
}

// runner has what the tests of all databases share.
type runner struct {
	module, binaries, program string
	list                      []unfit
	// tests are the names of each suite's tests.
	tests map[string][]string
}

// unfit is a line of unfit.txt.
type unfit struct {
	reason, suite, test string
	// sometimes: it passes now and then.
	sometimes bool
}

// covers tells whether the line speaks of a test, or of the test that it is a part of.
func (u *unfit) covers(suite, test string) bool {
	return u.suite == suite && (u.test == test || strings.HasPrefix(test, u.test+"/"))
}

// readUnfit reads the list: a reason in a line, and below it, indented, its tests.
func readUnfit(t *testing.T) (list []unfit) {
	t.Helper()
	content, err := os.ReadFile("unfit.txt")
	if err != nil {
		t.Fatal(err)
	}
	reason := ""
	for line := range strings.Lines(string(content)) {
		switch fields := strings.Fields(line); {
		case len(fields) == 0 || fields[0] == "#":
		case line == strings.TrimLeft(line, " \t"):
			reason = strings.TrimSpace(line)
		case len(fields) == 3 && fields[0] == "~":
			list = append(list, unfit{reason, fields[1], fields[2], true})
		case len(fields) == 2:
			list = append(list, unfit{reason, fields[0], fields[1], false})
		default:
			t.Fatalf("unfit.txt: %q is neither SUITE TEST nor ~ SUITE TEST", line)
		}
	}
	return list
}

// build compiles the tests and the program, and asks the tests for their names.
func (r *runner) build(t *testing.T) {
	t.Helper()
	r.program = filepath.Join(r.binaries, "rowkeeper")
	if program := os.Getenv(member.ProgramEnv); program != "" {
		r.program = program
	} else {
		// The program is in the workspace. This module is not.
		patched.Run(t, "env", "GOWORK=", "go", "build", "-C", "../../..", "-o", r.program,
			"./cmd/rowkeeper")
	}
	args := []string{"go", "test", "-c", "-vet=off", "-ldflags=-w", "-tags=integration", "-mod=mod",
		"-modfile=" + patched.Modfile(t, upstream, r.module), "-o", r.binaries + "/"}
	for _, suite := range suites {
		args = append(args, upstream+"/"+suite)
	}
	patched.Run(t, args...)
	r.tests = map[string][]string{}
	for _, suite := range suites {
		cmd := exec.Command(r.binary(suite), "-test.list=.")
		cmd.Dir = filepath.Join(r.module, suite)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", suite, err)
		}
		for _, name := range strings.Fields(string(out)) {
			if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") {
				r.tests[suite] = append(r.tests[suite], name)
			}
		}
	}
	for _, u := range r.list {
		top, _, _ := strings.Cut(u.test, "/")
		if !slices.Contains(r.tests[u.suite], top) {
			t.Errorf("unfit.txt names %s %s, which etcd does not have", u.suite, u.test)
		}
	}
}

func (r *runner) binary(suite string) string {
	return filepath.Join(r.binaries, path.Base(suite)+".test")
}

// tally counts how the tests of a suite ended.
type tally struct {
	passed, skipped, alone, part, failed int
}

// kind runs all tests on a database of a kind, and logs how many ended how.
func (r *runner) kind(t *testing.T, kind programs.Kind) {
	server := &database{kind: kind}
	if kind != programs.SQLite {
		var err error
		if server.server, err = dbserver.Start(t.Context(), kind, dbserver.Options{}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := server.server.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}()
	}
	var mu sync.Mutex
	counts, causes := map[string]*tally{}, map[string]int{}
	t.Run("tests", func(t *testing.T) {
		for _, suite := range suites {
			counts[suite] = &tally{}
			for _, name := range r.tests[suite] {
				t.Run(suite+"/"+name, func(t *testing.T) {
					t.Parallel() // they wait most of the time
					o := r.judge(t, server, suite, name)
					mu.Lock()
					defer mu.Unlock()
					o.count(counts[suite])
					for _, reason := range o.reasons {
						causes[reason]++
					}
				})
			}
		}
	})
	report := &strings.Builder{}
	for _, suite := range suites {
		c := counts[suite]
		fmt.Fprintf(report, "%s: passed %d, passed without a server %d, skipped %d, failed in part %d, "+
			"failed %d\n", suite, c.passed, c.alone, c.skipped, c.part, c.failed)
	}
	for _, u := range r.list {
		if n := causes[u.reason]; n > 0 {
			fmt.Fprintf(report, "%d: %s\n", n, u.reason)
			delete(causes, u.reason)
		}
	}
	t.Log("\n" + report.String())
}

// outcome is how a test ended.
type outcome struct {
	out []byte
	// started: it has started a server of ours.
	started, skipped bool
	passed           int
	// failed are the tests that failed: parts of it, or itself. The reasons are those of the list.
	failed, reasons []string
	// log is what the servers have written.
	log string
}

func (o *outcome) count(c *tally) {
	switch {
	case len(o.failed) > 0 && o.passed > 0:
		c.part++
	case len(o.failed) > 0:
		c.failed++
	case o.skipped:
		c.skipped++
	case o.started:
		c.passed++
	default:
		c.alone++
	}
}

// judge runs a test, and compares how it ends with the list.
func (r *runner) judge(t *testing.T, db *database, suite, name string) *outcome {
	o := r.try(t, db, suite, name)
	if len(r.unexpected(suite, o)) > 0 {
		o = r.try(t, db, suite, name)
	}
	if unexpected := r.unexpected(suite, o); len(unexpected) > 0 {
		t.Errorf("failed twice, and unfit.txt does not say why: %q\n%s\nthe servers: %s", unexpected,
			o.out, o.log)
	}
	for i := range r.list {
		u := &r.list[i]
		if !u.covers(suite, name) && !(u.suite == suite && strings.HasPrefix(u.test, name+"/")) {
			continue
		}
		failed := slices.ContainsFunc(o.failed, func(test string) bool { return u.covers(suite, test) })
		if !failed && !u.sometimes {
			t.Errorf("%s passes: take it out of unfit.txt, or put ~ before it if it fails now and then",
				u.test)
		}
		if failed && !slices.Contains(o.reasons, u.reason) {
			o.reasons = append(o.reasons, u.reason)
		}
	}
	return o
}

// unexpected are the tests that failed, and are not in the list.
func (r *runner) unexpected(suite string, o *outcome) (tests []string) {
	for _, test := range o.failed {
		if !slices.ContainsFunc(r.list, func(u unfit) bool { return u.covers(suite, test) }) {
			tests = append(tests, test)
		}
	}
	return tests
}

// try runs a test.
func (r *runner) try(t *testing.T, db *database, suite, name string) *outcome {
	t.Helper()
	dir, err := os.MkdirTemp("", "e") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	address, drop := db.create(t, dir)
	defer drop()
	ctx, cancel := context.WithTimeout(t.Context(), patience+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary(suite), "-test.v", "-test.run=^"+name+"$",
		fmt.Sprint("-test.timeout=", patience))
	cmd.Dir = filepath.Join(r.module, suite)
	temporary := filepath.Join(dir, "t")
	if err := os.Mkdir(temporary, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), member.ProgramEnv+"="+r.program,
		member.DatabaseEnv+"="+address, member.DirEnv+"="+dir, "TMPDIR="+temporary)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	// etcd's members, which go on beside ours, have much to tell.
	o := &outcome{out: regexp.MustCompile(`(?m)^.*(logger\.go:|\t(INFO|WARN)\t).*\n`).ReplaceAll(out, nil)}
	o.failed, o.passed = results(out, name, err)
	o.skipped = bytes.Contains(out, []byte("--- SKIP: "+name+" "))
	logs, err := filepath.Glob(filepath.Join(dir, "m*", "log"))
	if err != nil {
		t.Fatal(err)
	}
	o.started = len(logs) > 0
	for _, path := range logs {
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		o.log += programs.Tail(string(log))
		if bytes.Contains(log, []byte("panic: ")) {
			t.Errorf("a server has panicked: %s", log)
		}
	}
	return o
}

// results reads from a test's output which parts of it failed, or that it failed as a whole, and
// how many parts passed. A test that ends by a panic or its time-out fails as a whole.
func results(out []byte, name string, err error) (failed []string, passed int) {
	if err == nil {
		return nil, 1
	}
	for _, line := range regexp.MustCompile(`(?m)^\s*--- (FAIL|PASS): (\S+)`).
		FindAllSubmatch(out, -1) {
		if string(line[1]) == "PASS" {
			passed++
		} else {
			failed = append(failed, string(line[2]))
		}
	}
	leaves := slices.DeleteFunc(slices.Clone(failed), func(test string) bool {
		return slices.ContainsFunc(failed, func(other string) bool {
			return strings.HasPrefix(other, test+"/")
		})
	})
	var exit *exec.ExitError
	if len(leaves) == 0 || !errors.As(err, &exit) || bytes.Contains(out, []byte("\npanic: ")) {
		return []string{name}, 0
	}
	return leaves, passed
}

// database makes databases.
type database struct {
	kind   programs.Kind
	server *dbserver.Server
}

// create makes an empty database, and returns its URL and what drops it.
func (d *database) create(t *testing.T, dir string) (address string, drop func()) {
	t.Helper()
	if d.kind == programs.SQLite {
		return (&url.URL{Scheme: "sqlite", Path: filepath.Join(dir, "state.db")}).String(), func() {}
	}
	name := "rowkeeper_" + strings.ToLower(rand.Text())
	address, err := d.server.CreateDatabase(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return address, func() {
		if err := d.server.DropDatabase(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	}
}

// leftOut are files of tests of a module that could not be had where this was written:
// go.etcd.io/etcd/cache/v3.
var leftOut = []string{"integration/cache_test.go"}

// copied copies upstream's module, with the changes, and returns the directory.
func copied(t *testing.T) string {
	t.Helper()
	to := patched.Copy(t, upstream)
	for _, file := range leftOut {
		if err := os.Remove(filepath.Join(to, file)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(to, "framework", "integration", "cluster.go")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for _, c := range changes {
		if strings.Count(text, c.from) != 1 {
			t.Fatalf("etcd's framework has not exactly one %q: see what it is now", c.from)
		}
		text = strings.Replace(text, c.from, c.to, 1)
	}
	// The copy has the mode of the module cache, whose files cannot be written.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}
