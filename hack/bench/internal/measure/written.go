package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Written reads how many bytes this process, and the servers with these process ids and their
// children, have had written to disks: write_bytes in proc(5), which counts a page of the kernel's
// cache when it becomes dirty. A child that has ended is part of its parent's count.
func Written(servers []int) (int64, error) {
	total, err := writtenBy("self")
	if err != nil {
		return 0, err
	}
	processes, err := tree(servers)
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		n, err := writtenBy(strconv.Itoa(p.pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended since the processes were read
		}
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

func writtenBy(pid string) (int64, error) {
	name := "/proc/" + pid + "/io"
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if n, ok := strings.CutPrefix(line, "write_bytes:"); ok {
			return strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s does not say what was written", name)
}
