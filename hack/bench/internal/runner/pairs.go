package runner

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Pairs are values of one figure, made in turns: of one line on one target by the benches of an
// older commit and of this one, or of one line on two targets. Old[i] and New[i] were made one
// right after the other.
type Pairs struct {
	// Key is the figure. Target says to what it belongs.
	Line, Target, Key string
	Old, New          []float64
}

// turn is a run of one side.
type turn struct {
	program string
	job     Job
}

// Compare runs n pairs of each line on each target. One program is this one, and old is the bench
// of another commit. They take turns in being the first. key names the figure that is kept.
func (p Plan) Compare(ctx context.Context, old, key string, n int) ([]Pairs, error) {
	var all []Pairs
	p.Rounds = 1
	for _, job := range p.jobs() {
		pairs, err := p.turns(ctx, job.Target, turn{old, job}, turn{"", job}, []string{key}, n)
		all = append(all, pairs...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// Beside runs n pairs of each line on the base and on each of the other targets, which take turns
// in being the first. All figures of the line are kept.
func (p Plan) Beside(ctx context.Context, base string, n int) ([]Pairs, error) {
	var all []Pairs
	p.Rounds = 1
	for _, job := range p.jobs() {
		if job.Target == base {
			continue
		}
		baseJob := job
		baseJob.Target = base
		pairs, err := p.turns(ctx, job.Target+" to "+base, turn{"", baseJob}, turn{"", job}, nil, n)
		all = append(all, pairs...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// turns runs two sides in turns, and keeps the figures of the keys; all that the line has if there
// are no keys.
func (p Plan) turns(ctx context.Context, name string, older, newer turn, keys []string,
	n int) ([]Pairs, error) {
	var pairs []Pairs
	for i := range n {
		both := []turn{older, newer}
		for side := range both {
			if i%2 == 1 {
				side = 1 - side
			}
			title := fmt.Sprintf("%s, %s, pair %d of %d", newer.job.Line, both[side].job.Target,
				i+1, n)
			r, err := p.runJob(ctx, both[side].program, both[side].job, func(text string) {
				p.Screen.Progress(title + ": " + text)
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", title, err)
			}
			if keys == nil {
				keys = slices.Sorted(maps.Keys(r.Metrics))
			}
			if pairs == nil {
				for _, key := range keys {
					pairs = append(pairs, Pairs{Line: newer.job.Line, Target: name, Key: key})
				}
			}
			for k, key := range keys {
				figures := &pairs[k].Old
				if side == 1 {
					figures = &pairs[k].New
				}
				*figures = append(*figures, r.Metrics[key])
			}
		}
	}
	for _, pair := range pairs {
		p.Screen.Line(pair.String())
	}
	return pairs, nil
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
	return fmt.Sprintf("%s, %s, %s: %.3f (%.3f to %.3f)", p.Line, p.Target, p.Key, median, low, high)
}
