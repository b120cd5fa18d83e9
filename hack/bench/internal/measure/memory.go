package measure

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// sampling is how often memory is read while a peak is looked for.
const sampling = 5 * time.Millisecond

// PeakMemory runs f and returns how many bytes of memory this process and the servers held at most meanwhile, and how many before it. Counted is what the
// processes allocated (anonymous pages) and each server's shared memory once; not the files that they map, which are the kernel's page cache.
func PeakMemory(servers []int, f func() error) (peak, before int64, err error) {
	if before, err = memory(servers); err != nil {
		return 0, 0, err
	}
	peak = before
	stop := make(chan struct{})
	var sampler sync.WaitGroup
	var samplerErr error
	sampler.Go(func() {
		tick := time.NewTicker(sampling)
		defer tick.Stop()
		for last := false; !last && samplerErr == nil; {
			select {
			case <-stop:
				last = true
			case <-tick.C:
			}
			var now int64
			now, samplerErr = memory(servers)
			peak = max(peak, now)
		}
	})
	err = f()
	close(stop)
	sampler.Wait()
	return peak, before, errors.Join(err, samplerErr)
}

// memory sums the memory of this process and of the servers with all their children.
func memory(servers []int) (int64, error) {
	total, _, err := status(os.Getpid())
	if err != nil {
		return 0, err
	}
	for _, root := range servers {
		processes, err := tree([]int{root})
		if err != nil {
			return 0, err
		}
		var shared int64
		for _, p := range processes {
			anonymous, shm, err := status(p.pid)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue
			}
			if err != nil {
				return 0, err
			}
			total += anonymous
			shared = max(shared, shm)
		}
		total += shared
	}
	return total, nil
}

// status reads a process's resident anonymous and shared memory in bytes. A process that is just ending has none.
func status(pid int) (anonymous, shared int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		var into *int64
		switch name {
		case "RssAnon":
			into = &anonymous
		case "RssShmem":
			into = &shared
		default:
			continue
		}
		var kilobytes int64
		if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", &kilobytes); err != nil {
			return 0, 0, fmt.Errorf("/proc/%d/status: %s: %w", pid, line, err)
		}
		*into = kilobytes << 10
	}
	return anonymous, shared, nil
}
