package measure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// sampling is how often memory is read while a peak is looked for.
	sampling = 5 * time.Millisecond
	// counting is how many samples are taken of the same processes before it is looked which there
	// are.
	counting = 20
)

// PeakMemory runs f and returns how many bytes of memory this process and the servers held at most
// meanwhile, and how many before it. Counted is what the processes allocated (anonymous pages) and
// each server's shared memory once; not the files that they map, which are the kernel's page cache.
func PeakMemory(servers []int, f func() error) (peak, before int64, err error) {
	m, err := watchMemory(servers)
	if err != nil {
		return 0, 0, err
	}
	defer m.close()
	if before, err = m.read(); err != nil {
		return 0, 0, err
	}
	peak = before
	stop := make(chan struct{})
	var sampler sync.WaitGroup
	var samplerErr error
	sampler.Go(func() {
		tick := time.NewTicker(sampling)
		defer tick.Stop()
		last := false
		for i := 1; !last && samplerErr == nil; i++ {
			select {
			case <-stop:
				last = true
			case <-tick.C:
			}
			if i%counting == 0 {
				samplerErr = m.count()
			}
			var now int64
			if samplerErr == nil {
				now, samplerErr = m.read()
			}
			peak = max(peak, now)
		}
	})
	err = f()
	close(stop)
	sampler.Wait()
	return peak, before, errors.Join(err, samplerErr)
}

// Memory returns how many bytes this process and the servers hold, as PeakMemory counts them.
func Memory(servers []int) (int64, error) {
	m, err := watchMemory(servers)
	if err != nil {
		return 0, err
	}
	defer m.close()
	return m.read()
}

// memory reads the memory of this process and of the servers with all their children. It allocates
// nothing while it reads, since what it allocates would be measured, too.
type memory struct {
	servers []int
	self    *os.File
	// processes are the status files of each server's processes.
	processes []map[int]*os.File
	buffer    []byte
}

func watchMemory(servers []int) (*memory, error) {
	m := &memory{servers: servers, processes: make([]map[int]*os.File, len(servers)),
		buffer: make([]byte, 8192)}
	for i := range m.processes {
		m.processes[i] = make(map[int]*os.File)
	}
	var err error
	if m.self, err = statusFile(os.Getpid()); err != nil {
		return nil, err
	}
	if err := m.count(); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func statusFile(pid int) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/%d/status", pid)) }

func (m *memory) close() {
	_ = m.self.Close()
	for _, files := range m.processes {
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// count looks for processes that have been started. Those that have ended are forgotten when they
// are read.
func (m *memory) count() error {
	for i, server := range m.servers {
		processes, err := tree([]int{server})
		if err != nil {
			return err
		}
		for _, p := range processes {
			if m.processes[i][p.pid] != nil {
				continue
			}
			f, err := statusFile(p.pid)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			m.processes[i][p.pid] = f
		}
	}
	return nil
}

func (m *memory) read() (int64, error) {
	total, _, err := m.status(m.self)
	if err != nil {
		return 0, err
	}
	for _, files := range m.processes {
		var shared int64
		for pid, f := range files {
			anonymous, shm, err := m.status(f)
			if errors.Is(err, syscall.ESRCH) {
				delete(files, pid)
				_ = f.Close()
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

var anonymousField, sharedField = []byte("\nRssAnon:"), []byte("\nRssShmem:")

// status reads a process's resident anonymous and shared memory in bytes. A process that is just
// ending has none.
func (m *memory) status(f *os.File) (anonymous, shared int64, err error) {
	n, err := f.ReadAt(m.buffer, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	text := m.buffer[:n]
	return kilobytes(text, anonymousField) << 10, kilobytes(text, sharedField) << 10, nil
}

// kilobytes finds the number in a line "name: 123 kB", 0 if there is no such line.
func kilobytes(text, field []byte) int64 {
	_, rest, found := bytes.Cut(text, field)
	if !found {
		return 0
	}
	value, _, _ := bytes.Cut(bytes.TrimLeft(rest, " \t"), []byte(" kB"))
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
