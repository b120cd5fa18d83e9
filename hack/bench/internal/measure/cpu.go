package measure

import (
	"fmt"
	"syscall"
	"time"
)

// CPU is the processor time that a group of processes has used, in user and kernel mode.
type CPU struct {
	// Client is this process, which holds the storage.Interface under test. Servers are all other
	// processes of the target.
	Client, Servers time.Duration
}

// CPUTime reads the processor time of this process and of the servers with these process ids, their
// children included. A child that has ended is part of its parent's time.
func CPUTime(servers []int) (CPU, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return CPU{}, fmt.Errorf("getrusage: %w", err)
	}
	cpu := CPU{Client: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
	processes, err := tree(servers)
	if err != nil {
		return CPU{}, err
	}
	for _, p := range processes {
		cpu.Servers += p.cpu
	}
	return cpu, nil
}

// Sub is the time used since an earlier reading.
func (c CPU) Sub(earlier CPU) CPU {
	return CPU{Client: c.Client - earlier.Client, Servers: c.Servers - earlier.Servers}
}

// Add sums two groups.
func (c CPU) Add(other CPU) CPU {
	return CPU{Client: c.Client + other.Client, Servers: c.Servers + other.Servers}
}

// Total is the time of client and servers together.
func (c CPU) Total() time.Duration { return c.Client + c.Servers }
