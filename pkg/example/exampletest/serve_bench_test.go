package exampletest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// BenchmarkServe prints the median time from the start of "rowkeeper serve", in an empty directory,
// to the end of the first "kubectl get" that succeeds, how much of it is kubectl's own, and the
// memory that the server takes at rest, as the operating system counts it. With -benchtime 20x it
// is the median of 20.
func BenchmarkServe(b *testing.B) {
	bin := b.TempDir()
	rowkeeper, kubectl := filepath.Join(bin, "rowkeeper"), filepath.Join(bin, "kubectl")
	for program, in := range map[string]struct{ dir, workspace string }{
		rowkeeper: {"cmd/rowkeeper", ""}, kubectl: {"hack/tools/kubectl", "off"}} {
		build := exec.CommandContext(b.Context(), "go", "build", "-o", program, ".")
		build.Dir = filepath.Join("..", "..", "..", filepath.FromSlash(in.dir))
		build.Env = append(os.Environ(), "GOWORK="+in.workspace)
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("%v: %v\n%s", build.Args, err, out)
		}
	}
	var starts, gets, memory []float64
	for b.Loop() {
		start, get, resident := serve(b, rowkeeper, kubectl)
		starts, gets, memory = append(starts, start.Seconds()*1000),
			append(gets, get.Seconds()*1000), append(memory, resident)
	}
	median := func(values []float64) float64 {
		slices.Sort(values)
		return values[len(values)/2]
	}
	b.ReportMetric(median(starts), "median-ms")
	b.ReportMetric(median(gets), "kubectl-ms")
	b.ReportMetric(median(memory), "MiB")
	b.ReportMetric(0, "ns/op")
}

// serve starts a server and ends it. It returns the time to the end of the first successful kubectl
// get, that of a second one, and MiB.
func serve(b *testing.B, rowkeeper, kubectl string) (start, get time.Duration, resident float64) {
	b.Helper()
	dir := b.TempDir()
	list := func() error {
		cmd := exec.CommandContext(b.Context(), kubectl, "--kubeconfig",
			filepath.Join(dir, ".rowkeeper", "kubeconfig"), "get", "pipelines")
		cmd.Env = append(os.Environ(), "HOME="+dir)
		return cmd.Run()
	}
	port, err := programs.FreePort()
	if err != nil {
		b.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(rowkeeper, "serve", "--example", "--secure-port", strconv.Itoa(port))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	deadline := time.After(time.Minute)
	for list() != nil {
		select {
		case err := <-exited:
			b.Fatalf("the server ended: %v\n%s", err, log.String())
		case <-deadline:
			_ = cmd.Process.Kill() // it may have ended meanwhile
			b.Fatal("the server did not answer in a minute")
		default:
		}
	}
	start = time.Since(began)
	began = time.Now()
	if err := list(); err != nil {
		b.Fatal(err)
	}
	get = time.Since(began)
	if resident, err = residentMiB(cmd.Process.Pid); err != nil {
		b.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		b.Fatal(err)
	}
	if err := <-exited; err != nil {
		b.Fatalf("the server ended with %v\n%s", err, log.String())
	}
	return start, get, resident
}

// residentMiB reads how much memory a process has, as Linux tells it.
func residentMiB(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(size)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status says nothing of memory", pid)
}
