package measure

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	var l Latencies
	if got := l.Percentile(50); got != 0 {
		t.Errorf("the median of nothing is %v, want 0", got)
	}
	for i := 100; i >= 0; i-- {
		l = append(l, time.Duration(i))
	}
	for _, p := range []float64{0, 1, 50, 99, 100} {
		if got := l.Percentile(p); got != time.Duration(p) {
			t.Errorf("percentile %v is %d, want %v", p, got, p)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

// shell starts a shell, and returns when it has run a command in a child of its own. It lives until
// the test ends.
func shell(t *testing.T, command string) (pid int) {
	t.Helper()
	cmd := exec.Command("sh", "-c", command+"; echo done; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // read fails at the end of its input
	})
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestCPUTime lets a child of a child work: its time counts while it runs and after it has ended.
func TestCPUTime(t *testing.T) {
	pid := shell(t, `sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'`)
	cpu, err := CPUTime([]int{pid})
	if err != nil {
		t.Fatal(err)
	}
	if cpu.Servers == 0 || cpu.Client == 0 {
		t.Errorf("the processes have used %v and %v, want more than nothing", cpu.Servers,
			cpu.Client)
	}
	if got := cpu.Sub(cpu).Total(); got != 0 {
		t.Errorf("the time since now is %v, want 0", got)
	}
	if _, err := CPUTime([]int{1 << 30}); err == nil {
		t.Error("a process that does not exist has a time")
	}
}

// held keeps memory from being collected.
var held []byte

func TestPeakMemory(t *testing.T) {
	const size = 64 << 20
	defer func() { held = nil }()
	peak, before, err := PeakMemory(nil, func() error {
		held = bytes.Repeat([]byte{1}, size)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if peak < before+size/2 {
		t.Errorf("the peak is %d bytes above %d, want about %d", peak-before, before, size)
	}
}

func TestDirSize(t *testing.T) {
	dir := t.TempDir()
	const size = 1 << 20
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "file"), []byte(strings.Repeat("x", size)),
		0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file-wal"), []byte(strings.Repeat("x", size/4)),
		0o644); err != nil {
		t.Fatal(err)
	}
	got, log, err := DirSize(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got < size*5/4 || got > size*5/4+1<<16 || log < size/4 || log > size/4+1<<16 {
		t.Errorf("a directory of %d bytes with a log of %d has %d and %d", size*5/4, size/4, got,
			log)
	}
}

func TestFileSystemInMemory(t *testing.T) {
	const dir = "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("there is no %s to look at: %v", dir, err)
	}
	if name, err := FileSystem(dir); err == nil {
		t.Errorf("%s is accepted, as %s", dir, name)
	}
}

// TestWritten writes a file, and lets a child write one.
func TestWritten(t *testing.T) {
	const size = 1 << 20
	//nolint:usetesting // temporary files may be in memory, where nothing is written to a disk
	dir, err := os.MkdirTemp(".", "written-*")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	before, err := Written(nil)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "own")
	if err := os.WriteFile(own, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := Written(nil)
	if err != nil {
		t.Fatal(err)
	}
	if after-before < size {
		t.Errorf("this process has written %d bytes, and %d were counted", size, after-before)
	}
	pid := shell(t, fmt.Sprintf("cp %q %q", own, own+".copy"))
	all, err := Written([]int{pid})
	if err != nil {
		t.Fatal(err)
	}
	if all-after < size {
		t.Errorf("a child's child has written %d bytes, and %d were counted", size, all-after)
	}
}
