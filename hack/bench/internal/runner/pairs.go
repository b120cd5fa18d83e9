package runner

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// Pairs are the figures of one line on one target, made by two programs in turns: the benches of
// an older commit and of this one. Old[i] and New[i] were made one right after the other.
type Pairs struct {
	Line, Target string
	Old, New     []float64
}

// Compare runs n pairs of each line on each target. One program is this one, and old is the bench
// of another commit. They take turns in being the first. key names the figure that is kept.
func (p Plan) Compare(ctx context.Context, old, key string, n int) ([]Pairs, error) {
	var all []Pairs
	p.Rounds = 1
	for _, job := range p.jobs() {
		pairs := Pairs{Line: job.Line, Target: job.Target}
		for i := range n {
			programs := []string{old, ""}
			figures := []*[]float64{&pairs.Old, &pairs.New}
			if i%2 == 1 {
				slices.Reverse(programs)
				slices.Reverse(figures)
			}
			for turn, program := range programs {
				title := fmt.Sprintf("%s, %s, pair %d of %d", job.Line, job.Target, i+1, n)
				r, err := p.runJob(ctx, program, job, func(text string) {
					p.Screen.Progress(title + ": " + text)
				})
				if err != nil {
					return all, fmt.Errorf("%s: %w", title, err)
				}
				*figures[turn] = append(*figures[turn], r.Metrics[key])
			}
		}
		all = append(all, pairs)
		p.Screen.Line(pairs.String())
	}
	return all, nil
}

// Ratio returns the median of the ratios of the new figures to the old ones, and an interval that
// holds the true median with a probability of at least 95 %. It needs six pairs; with fewer the
// interval is unbounded.
//
// The interval assumes nothing of how the ratios are distributed: the true median lies below the
// k-th smallest of n ratios as often as a fair coin shows heads less than k times in n throws.
func (p Pairs) Ratio() (median, low, high float64) {
	n := len(p.New)
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = p.New[i] / p.Old[i]
	}
	slices.Sort(ratios)
	if median = ratios[n/2]; n%2 == 0 {
		median = (median + ratios[n/2-1]) / 2
	}
	k, outside := 0, 0.0
	for term := math.Pow(0.5, float64(n)); outside+term <= 0.025; k++ {
		outside += term
		term *= float64(n-k) / float64(k+1)
	}
	if k == 0 {
		return median, 0, math.Inf(1)
	}
	return median, ratios[k-1], ratios[n-k]
}

func (p Pairs) String() string {
	median, low, high := p.Ratio()
	return fmt.Sprintf("%s, %s: %.3f (%.3f to %.3f)", p.Line, p.Target, median, low, high)
}
