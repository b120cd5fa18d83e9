package measure

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of /proc/PID/stat on every Linux system: USER_HZ is 100.
const tick = 10 * time.Millisecond

type process struct {
	pid, parent int
	cpu         time.Duration
}

// tree reads the processes with these ids and all their descendants.
func tree(roots []int) ([]process, error) {
	if len(roots) == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readProcess(pid)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended since the directory was read
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	// Process ids wrap, so a parent may come after its child: repeat until nothing is added.
	in := make(map[int]bool, len(roots))
	for _, pid := range roots {
		in[pid] = true
	}
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if in[p.parent] && !in[p.pid] {
				in[p.pid], grew = true, true
			}
		}
	}
	found := slices.DeleteFunc(all, func(p process) bool { return !in[p.pid] })
	for _, pid := range roots {
		if !slices.ContainsFunc(found, func(p process) bool { return p.pid == pid }) {
			return nil, fmt.Errorf("server process %d has ended", pid)
		}
	}
	return found, nil
}

// readProcess reads /proc/PID/stat: see proc(5).
func readProcess(pid int) (process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	// The program's name is in parentheses and may hold any character; what follows the last
	// parenthesis begins with the third field.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const parent, utime, stime, cutime, cstime = 4 - 3, 14 - 3, 15 - 3, 16 - 3, 17 - 3
	if len(fields) <= cstime {
		return process{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	p := process{pid: pid}
	if p.parent, err = strconv.Atoi(fields[parent]); err != nil {
		return process{}, err
	}
	for _, i := range []int{utime, stime, cutime, cstime} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return process{}, err
		}
		p.cpu += time.Duration(n) * tick
	}
	return p, nil
}
