package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
)

// profiler writes profiles of a job's process for each measured phase: its processor time, and what
// it allocated, waited for and was blocked by until the phase's end.
type profiler struct {
	prefix string
	phase  int
}

func newProfiler(job Job) (*profiler, error) {
	runtime.SetMutexProfileFraction(10)
	runtime.SetBlockProfileRate(10_000)
	prefix := filepath.Join(job.Profiles, fmt.Sprintf("%s-%s-%d", job.Line, job.Target, job.Round))
	return &profiler{prefix: prefix}, os.MkdirAll(job.Profiles, 0o755)
}

// measuring is called when a phase begins. Call the function that it returns at the end.
func (p *profiler) measuring() (end func() error, err error) {
	p.phase++
	prefix := fmt.Sprintf("%s-phase%d", p.prefix, p.phase)
	cpu, err := os.Create(prefix + ".cpu.pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(err, cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		err := cpu.Close()
		for _, name := range []string{"allocs", "mutex", "block"} {
			f, createErr := os.Create(prefix + "." + name + ".pprof")
			if createErr != nil {
				return errors.Join(err, createErr)
			}
			err = errors.Join(err, pprof.Lookup(name).WriteTo(f, 0), f.Close())
		}
		return err
	}, nil
}
