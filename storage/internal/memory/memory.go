// Package memory finds out how much memory this process has. Packages storage and storage/etcd
// bound by it what they keep.
package memory

import (
	"bytes"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Available is how many bytes of memory this process has: what GOMEMLIMIT says, or its control
// group, or the machine, whichever is least. It is math.MaxInt64 where nothing of that can be found
// out.
func Available() int64 {
	least := debug.SetMemoryLimit(-1)
	if group, ok := Group(); ok {
		least = min(least, group)
	}
	content, _ := os.ReadFile("/proc/meminfo")
	for line := range bytes.Lines(content) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[0] == "MemTotal:" {
			if kilobytes, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				least = min(least, kilobytes<<10)
			}
		}
	}
	return least
}

// Group is the limit of the control group that this process is in, or of one above it.
func Group() (limit int64, ok bool) { return groupIn("/") }

// groupIn is Group with /proc and /sys below a directory.
func groupIn(system string) (limit int64, ok bool) {
	content, _ := os.ReadFile(path.Join(system, "proc/self/cgroup"))
	limit = math.MaxInt64
	for line := range bytes.Lines(content) {
		f := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(f) < 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if f[1] == "memory" { // the first version of control groups
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if f[1] != "" {
			continue
		}
		// In a container the name may be of a directory that only the host sees.
		for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
			text, err := os.ReadFile(path.Join(system, root, dir, file))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil &&
				bad == nil && n < limit {
				limit, ok = n, true
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, ok
}

// KeepWithinGroup sets GOMEMLIMIT, unless it is set, to nine tenths of what the control group of
// this process may have, so that garbage is collected before the kernel ends the process.
func KeepWithinGroup() {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	if limit, ok := Group(); ok {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}
