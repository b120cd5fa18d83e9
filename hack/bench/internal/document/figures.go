// Package document turns results into a Markdown document and plots.
package document

import (
	"fmt"
	"math"
	"slices"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/measure"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/workload"
)

// figures looks up results.
type figures struct {
	// values are by line, target, round and key.
	values map[string]map[string]map[int]workload.Metrics
	// targets that have results, in their usual order.
	targets []target.Target
}

func newFigures(results []runner.Result) figures {
	f := figures{values: make(map[string]map[string]map[int]workload.Metrics)}
	for _, r := range results {
		if f.values[r.Line] == nil {
			f.values[r.Line] = make(map[string]map[int]workload.Metrics)
		}
		if f.values[r.Line][r.Target] == nil {
			f.values[r.Line][r.Target] = make(map[int]workload.Metrics)
		}
		f.values[r.Line][r.Target][r.Round] = r.Metrics
	}
	f.targets = slices.DeleteFunc(target.All(), func(t target.Target) bool {
		return !slices.ContainsFunc(results, func(r runner.Result) bool {
			return r.Target == t.Name()
		})
	})
	return f
}

// rounds is how many results a line has of a target.
func (f figures) rounds(line, target string) int { return len(f.values[line][target]) }

// median is a figure's median over the rounds, false if there is none.
func (f figures) median(line, target, key string) (float64, bool) {
	var values []float64
	for _, m := range f.values[line][target] {
		if v, ok := m[key]; ok {
			values = append(values, v)
		}
	}
	return measure.Median(values), len(values) > 0
}

// ratio is the median over the rounds of a figure's ratio to the baseline's of the same round,
// false if there is none.
func (f figures) ratio(line, name, key string) (float64, bool) {
	var ratios []float64
	for round, m := range f.values[line][name] {
		v, ok := m[key]
		base, baseOK := f.values[line][target.Baseline][round][key]
		if ok && baseOK && base != 0 {
			ratios = append(ratios, v/base)
		}
	}
	return measure.Median(ratios), len(ratios) > 0
}

// verdict says whether a target meets the aim of a measure; judged is false if there is no aim for
// it, or no figure.
func (f figures) verdict(line workload.Line, m workload.Measure,
	t target.Target) (met, judged bool) {
	bound, ok := m.Aim.Bound(t.Database)
	if !ok || t.Product != "rowkeeper" {
		return false, false
	}
	value, ok := f.ratio(line.Name, t.Name(), m.Key)
	if m.Aim.Absolute {
		value, ok = f.median(line.Name, t.Name(), m.Key)
	}
	return m.Met(value, bound), ok
}

// number writes three significant digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1000:
		text := fmt.Sprintf("%.0f", v)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// quantity adds the unit.
func quantity(v float64, unit string) string {
	switch unit {
	case "", "/s":
		return number(v) + unit
	}
	return number(v) + " " + unit
}
