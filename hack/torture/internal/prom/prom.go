// Package prom runs a Prometheus of this machine with the alerts that are shipped, so that it can
// be seen which of them fire.
//
// The alerts wait for minutes before they fire, and look back over minutes. Here all times are
// divided by Factor: those of the alerts, and the interval in which Prometheus asks. Thresholds
// stay as they are, such as a second for a commit.
package prom

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Factor makes a minute of the rules a second here.
const Factor = 60

// Interval is how often Prometheus asks: every minute, divided. The answer has to come as fast.
const Interval = time.Minute / Factor

// Target is a process whose metrics are read.
type Target struct {
	// Address is host and port. CA verifies its certificate, and Cert and Key, if it asks for one,
	// are the client's. All are files.
	Address, CA, Cert, Key string
}

// Server is a running Prometheus.
type Server struct {
	v1.API
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts Prometheus, which keeps all in a directory. It is given to no service: nobody else
// sees it. Close ends it.
func Start(ctx context.Context, dir string, rules *Rules, targets []Target) (*Server, error) {
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	file, err := rules.File(Factor)
	if err != nil {
		return nil, err
	}
	config, err := configuration(targets)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "rules.yml"), file, 0o644),
		os.WriteFile(filepath.Join(dir, "prometheus.yml"), config, 0o644)); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	address := fmt.Sprint("127.0.0.1:", port)
	s := &Server{dir: dir, done: make(chan struct{}), cmd: exec.Command("prometheus",
		"--config.file=prometheus.yml", "--storage.tsdb.path=data",
		"--web.listen-address="+address)}
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = dir, log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start prometheus: %w", err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended is in its log
		close(s.done)
	}()
	client, err := api.NewClient(api.Config{Address: "http://" + address})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.API = v1.NewAPI(client)
	if err := s.await(ctx, len(targets)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// configuration names the targets. They have the same job, as replicas in a cluster have.
func configuration(targets []Target) ([]byte, error) {
	type object = map[string]any
	var jobs []object
	for i, t := range targets {
		job := object{"job_name": fmt.Sprint("replica ", i), "static_configs": []object{{
			"targets": []string{t.Address}, "labels": object{"job": "rowkeeper"}}}}
		files := object{"ca_file": t.CA}
		if t.Cert != "" {
			files["cert_file"], files["key_file"] = t.Cert, t.Key
		}
		job["scheme"], job["tls_config"] = "https", files
		jobs = append(jobs, job)
	}
	each := fmt.Sprintf("%dms", Interval.Milliseconds())
	return yaml.Marshal(object{
		"global": object{"scrape_interval": each, "scrape_timeout": each,
			"evaluation_interval": each},
		"rule_files": []string{"rules.yml"}, "scrape_configs": jobs})
}

// await waits until all targets were read.
func (s *Server) await(ctx context.Context, targets int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		up, err := s.Now(ctx, "sum(up)")
		if err == nil && len(up) == 1 && int(up[0].Value) == targets {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("of %d targets, it reads %v", targets, up)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-s.done:
			return fmt.Errorf("prometheus has ended: %s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("prometheus does not read all targets: %w: %s", err, s.Log())
		}
	}
}

// Log is the end of what Prometheus wrote.
func (s *Server) Log() string {
	content, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// Close ends Prometheus.
func (s *Server) Close() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.done
	return nil
}

// Now evaluates an expression. What is no number is left out.
func (s *Server) Now(ctx context.Context, expr string) (model.Vector, error) {
	value, _, _, err := s.Query(ctx, expr, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("%s is no vector", expr)
	}
	return slices.DeleteFunc(vector, func(s *model.Sample) bool {
		return math.IsNaN(float64(s.Value))
	}), nil
}

// Firing are the names of the alerts that fire now, and Pending says whether others may soon.
func (s *Server) Firing(ctx context.Context) (firing []string, pending bool, err error) {
	found, err := s.Now(ctx, "ALERTS")
	for _, one := range found {
		if one.Metric["alertstate"] == "pending" {
			pending = true
		} else {
			firing = append(firing, string(one.Metric["alertname"]))
		}
	}
	slices.Sort(firing)
	return slices.Compact(firing), pending, err
}

// Watch collects the names of the alerts that fire until it is told to stop.
func (s *Server) Watch(ctx context.Context) (stop func() ([]string, error)) {
	ctx, cancel := context.WithCancel(ctx)
	seen := map[string]bool{}
	var failed error
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			firing, _, err := s.Firing(ctx)
			if err != nil && ctx.Err() == nil {
				failed = err
			}
			for _, name := range firing {
				seen[name] = true
			}
			select {
			case <-ctx.Done():
			case <-time.After(Interval / 2):
			}
		}
	})
	return func() ([]string, error) {
		cancel()
		watching.Wait()
		var names []string
		for name := range seen {
			names = append(names, name)
		}
		slices.Sort(names)
		return names, failed
	}
}
