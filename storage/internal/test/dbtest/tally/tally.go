// Package tally counts the tests of many processes by the databases that they ran on.
package tally

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
)

// Env is the environment variable that names a file to which each test binary adds its report, so
// that the program that runs all of them can print the sum.
const Env = "ROWKEEPER_TEST_REPORT"

// Entry counts the tests of one kind and source that ran, or that did not run for one reason.
type Entry struct {
	Kind    string
	Version string `json:",omitempty"`
	Source  string `json:",omitempty"`
	// Reason is why the tests did not run, "" if they did.
	Reason string `json:",omitempty"`
	Tests  int
}

// Tally counts tests by what they ran on.
type Tally struct {
	mu      sync.Mutex
	entries []Entry
}

// Add adds the count of an entry.
func (r *Tally) Add(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.entries, func(o Entry) bool {
		o.Tests = e.Tests
		return o == e
	})
	if i < 0 {
		r.entries = append(r.entries, e)
		return
	}
	r.entries[i].Tests += e.Tests
}

// Read adds what a file holds that [Tally.Append] has written.
func (r *Tally) Read(file io.Reader) error {
	s := bufio.NewScanner(file)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var e Entry
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			return fmt.Errorf("read the report of the databases: %w", err)
		}
		r.Add(e)
	}
	return s.Err()
}

// Write writes the report for people.
func (r *Tally) Write(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.entries, func(a, b Entry) int {
		return slices.Index(order, a.Kind)*2 + min(len(a.Reason), 1) - slices.Index(order,
			b.Kind)*2 - min(len(b.Reason), 1)
	})
	for _, e := range r.entries {
		line := fmt.Sprintf("ran      %-8s %-9s %5d databases on %s", e.Kind, e.Version,
			e.Tests, e.Source)
		if e.Reason != "" {
			line = fmt.Sprintf("NOT RUN  %-8s %-9s %5d tests: %s", e.Kind, "", e.Tests,
				strings.ReplaceAll(e.Reason, "\n", "; "))
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// order is that of the output.
var order = []string{"memory", "sqlite", "postgres", "mariadb", "mysql"}

// Append adds the report to a file. Several processes may do so at once.
func (r *Tally) Append(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []byte
	for _, e := range r.entries {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		lines = append(append(lines, line...), '\n')
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(lines) // one write, so that reports do not mix
	return errors.Join(err, f.Close())
}
