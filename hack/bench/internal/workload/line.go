package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

// Metrics are the figures of one run of a line.
type Metrics map[string]float64

// Line is one piece of work that every target does.
type Line struct {
	// Name selects the line. Work describes it in the table.
	Name, Work string
	// Once: the line is so long that it is run in one round only.
	Once bool
	// Dial is what the line asks of the client.
	Dial target.DialOptions
	// Only, if not nil, says which targets can do it.
	Only func(target.Target) bool
	// Measures are those of its metrics that are shown, the most important first.
	Measures []Measure

	Run func(ctx context.Context, b *Bench) (Metrics, error)
}

// Measure is one figure of a line.
type Measure struct {
	// Key is its name in Metrics. Title and Unit are for people.
	Key, Title, Unit string
	// Lower is better. Otherwise higher is.
	Lower bool
	// Aim is what Rowkeeper wants to reach, nil for figures that are only shown.
	Aim *Aim
}

// Aim bounds a figure, or its ratio to the baseline's figure of the same round: from below if
// higher is better, from above if lower is.
type Aim struct {
	// Absolute bounds the figure itself.
	Absolute bool
	// Fast is the bound for SQLite and Postgres, MySQL that for the MySQL family. 0: none.
	Fast, MySQL float64
}

// Bound is the aim for a database, false if there is none.
func (a *Aim) Bound(database string) (float64, bool) {
	if a == nil {
		return 0, false
	}
	bound := a.Fast
	if database == "mariadb" || database == "mysql" {
		bound = a.MySQL
	}
	return bound, bound != 0
}

// Met says whether a figure, or its ratio, is within the aim.
func (m Measure) Met(value, bound float64) bool {
	if m.Lower {
		return value <= bound
	}
	return value >= bound
}

// ratio and limit are the two kinds of aims.
func ratio(fast, mysql float64) *Aim { return &Aim{Fast: fast, MySQL: mysql} }
func limit(fast, mysql float64) *Aim { return &Aim{Absolute: true, Fast: fast, MySQL: mysql} }

// Lines are all lines, in the order in which they are run and shown.
func Lines() []Line {
	return slices.Concat(writeLines(), readLines(), listLines(), watchLines(), historyLines(),
		replicaLines(), leaseLines(), groupLines(), storeLines(), sizeLines())
}

// Find returns the lines with these names, in their usual order.
func Find(names []string) ([]Line, error) {
	all := Lines()
	var known []string
	for _, l := range all {
		known = append(known, l.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no line %q; the lines are %s", name,
				strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(l Line) bool { return !slices.Contains(names, l.Name) }), nil
}
