package runner

import (
	"math"
	"testing"
)

// TestRatio: the interval for 15 pairs goes from the fourth to the twelfth ratio, as every table of
// the sign test says, whatever order they come in.
func TestRatio(t *testing.T) {
	p := Pairs{}
	for i := range 15 {
		p.Old = append(p.Old, 10)
		p.New = append(p.New, float64(10*((i*7)%15+1)))
	}
	if median, low, high := p.Ratio(); median != 8 || low != 4 || high != 12 {
		t.Errorf("the ratio is %v (%v to %v), want 8 (4 to 12)", median, low, high)
	}
	p.Old, p.New = p.Old[:6], p.New[:6]
	if median, low, high := p.Ratio(); median != 7.5 || low != 1 || high != 15 {
		t.Errorf("the ratio of six is %v (%v to %v), want 7.5 (1 to 15)", median, low, high)
	}
	p.Old, p.New = p.Old[:5], p.New[:5]
	if _, low, high := p.Ratio(); low != 0 || !math.IsInf(high, 1) {
		t.Errorf("the interval of five is %v to %v", low, high)
	}
}
