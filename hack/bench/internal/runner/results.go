package runner

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
)

// Run is how the results of one file were made. All have to be made in the same way, or they could
// not be compared.
type Run struct {
	// Commit is that of Rowkeeper, with a mark if its files are changed.
	Commit   string        `json:"commit"`
	Duration time.Duration `json:"duration"`
	Scale    float64       `json:"scale"`
	Object   object.Shape  `json:"object"`
	// Command is how it was started.
	Command string    `json:"command"`
	Date    time.Time `json:"date"`
	Machine Machine   `json:"machine"`
}

// same says whether results of both may stand in one file.
func (r Run) same(other Run) bool {
	return r.Commit == other.Commit && r.Duration == other.Duration && r.Scale == other.Scale &&
		r.Object == other.Object &&
		r.Machine.CPU == other.Machine.CPU && r.Machine.Cores == other.Machine.Cores &&
		r.Machine.FileSystem == other.Machine.FileSystem
}

// Results is a file of lines of JSON: runs, and results that belong to the run before them.
type Results struct {
	Runs    []Run
	Results []Result
	path    string
}

// entry is one line of the file.
type entry struct {
	Run    *Run    `json:"run,omitempty"`
	Result *Result `json:"result,omitempty"`
}

// OpenResults reads a file of results, if there is one. A last line that was cut off is left out.
func OpenResults(path string) (*Results, error) {
	rs := &Results{path: path}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return rs, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return rs, nil
		}
		if err != nil {
			return nil, err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if e.Run != nil {
			rs.Runs = append(rs.Runs, *e.Run)
		}
		if e.Result != nil {
			rs.Results = append(rs.Results, *e.Result)
		}
	}
}

// Last is the newest run, the zero value if there is none.
func (rs *Results) Last() Run {
	if len(rs.Runs) == 0 {
		return Run{}
	}
	return rs.Runs[len(rs.Runs)-1]
}

// Begin adds a run. Results that were made in another way are an error.
func (rs *Results) Begin(run Run) error {
	if len(rs.Runs) > 0 && !rs.Last().same(run) {
		return fmt.Errorf("%s holds results of another commit, machine, duration or scale: name "+
			"another file with -results, or begin anew with -fresh", rs.path)
	}
	if err := rs.append(entry{Run: &run}); err != nil {
		return err
	}
	rs.Runs = append(rs.Runs, run)
	return nil
}

// Add adds a result, and makes it durable.
func (rs *Results) Add(r Result) error {
	if err := rs.append(entry{Result: &r}); err != nil {
		return err
	}
	rs.Results = append(rs.Results, r)
	return nil
}

// Has says whether a run of a line on a target has a result.
func (rs *Results) Has(line, target string, round int) bool {
	for _, r := range rs.Results {
		if r.Line == line && r.Target == target && r.Round == round {
			return true
		}
	}
	return false
}

// append rewrites the file, so that it never ends in the middle of a line.
func (rs *Results) append(e entry) (err error) {
	old, err := os.ReadFile(rs.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if i := lastNewline(old); i < len(old) {
		old = old[:i]
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(rs.path), 0o755); err != nil {
		return err
	}
	next := rs.path + ".next"
	if err := os.WriteFile(next, append(append(old, data...), '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(next, rs.path)
}

// lastNewline is the position after it.
func lastNewline(data []byte) int {
	for i := len(data); i > 0; i-- {
		if data[i-1] == '\n' {
			return i
		}
	}
	return 0
}
