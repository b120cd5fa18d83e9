package runner

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
)

// Machine is where the bench ran.
type Machine struct {
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"`
	Memory     string  `json:"memory"`
	Kernel     string  `json:"kernel"`
	FileSystem string  `json:"fileSystem"`
	Go         string  `json:"go"`
	SyncP50    float64 `json:"syncP50"` // milliseconds to append a page durably
	SyncP99    float64 `json:"syncP99"`
}

// DescribeMachine looks at this machine and the file system of dir, on which it tries how long a
// durable write takes.
func DescribeMachine(dir string) (Machine, error) {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	var err error
	if m.FileSystem, err = measure.FileSystem(dir); err != nil {
		return m, err
	}
	if model, err := field("/proc/cpuinfo", "model name"); err == nil {
		m.CPU = model
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("sysinfo: %w", err)
	}
	m.Memory = fmt.Sprintf("%.0f GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " +
		unix.ByteSliceToString(name.Release[:])
	sync, err := measure.Sync(dir, 500)
	if err != nil {
		return m, fmt.Errorf("durable writes to %s: %w", dir, err)
	}
	m.SyncP50, m.SyncP99 = measure.Milliseconds(sync.Percentile(50)),
		measure.Milliseconds(sync.Percentile(99))
	return m, nil
}

// field reads the first value of a name in a file of lines "name : value".
func field(path, name string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%s has no %s", path, name)
}

// Commit names Rowkeeper's commit, which is that of the tree around the bench, and says if its
// files are not as they are there.
func Commit(root string) string {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	if changed, err := git("status", "--porcelain", "--", "storage", "migrations", "go.mod",
		"go.sum"); err != nil || changed != "" {
		commit += " with changes"
	}
	return commit
}
