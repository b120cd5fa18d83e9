package dbtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage returns the processor time and the memory, in bytes, of all database servers that run on
// this machine, those in containers too. Memory that processes share counts once. Other servers
// than the benchmark's count as well, so a benchmark that uses it runs beside no others. Where
// there is no /proc, both are 0.
func Usage() (processor time.Duration, memory int64) {
	directories, _ := filepath.Glob("/proc/[0-9]*")
	for _, directory := range directories {
		name, used := stat(directory)
		if name != "postgres" && name != "mariadbd" && name != "mysqld" {
			continue
		}
		processor += used
		rollup, err := os.ReadFile(filepath.Join(directory, "smaps_rollup"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(rollup)) {
			if kilobytes, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kilobytes), " kB"), 10, 64)
				memory += n << 10
			}
		}
	}
	return processor, memory
}

// OwnUsage returns the processor time of this process; 0 where there is no /proc.
func OwnUsage() time.Duration {
	_, processor := stat("/proc/self")
	return processor
}

// stat returns the name of a process, and the processor time of itself and of its children that
// have ended. The name is "" if the process has ended.
func stat(directory string) (name string, processor time.Duration) {
	const tick = 10 * time.Millisecond
	data, err := os.ReadFile(filepath.Join(directory, "stat"))
	if err != nil {
		return "", 0
	}
	_, after, _ := strings.Cut(string(data), "(")
	name, rest, _ := strings.Cut(after, ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return "", 0
	}
	for _, field := range fields[11:15] {
		if n, err := strconv.ParseInt(field, 10, 64); err == nil {
			processor += time.Duration(n) * tick
		}
	}
	return name, processor
}
