// Package runner runs lines of the bench on targets, each run in a process of its own with fresh
// directories, and keeps the results.
package runner

import (
	"time"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// Job is one run of a line on a target, as its process is told on standard input, in JSON.
type Job struct {
	Line, Target string
	// Round counts from 1.
	Round int
	// Dir is an empty directory for all that the target stores.
	Dir      string
	Programs target.Programs
	Duration time.Duration
	Scale    float64
	// Object is the shape of all objects.
	Object object.Shape
	// Profiles, if not empty, is a directory for profiles of the client's process.
	Profiles string
}

// Message is what a job's process says on standard output, one in each line, in JSON: progress, and
// at last a result or an error.
type Message struct {
	Progress string  `json:",omitempty"`
	Result   *Result `json:",omitempty"`
	Error    string  `json:",omitempty"`
}

// Result is what one run has measured.
type Result struct {
	Line    string           `json:"line"`
	Target  string           `json:"target"`
	Round   int              `json:"round"`
	Metrics workload.Metrics `json:"metrics"`
	// Settings are what the target's servers say about durability.
	Settings []string `json:"settings"`
	// Started, and Seconds for all of it, servers and loading included.
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
}
