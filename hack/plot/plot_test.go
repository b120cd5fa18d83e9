package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      []float64
	}{
		{0.5, 4.4, []float64{0.5, 1, 2, 5}},
		{45, 2953, []float64{20, 50, 100, 200, 500, 1000, 2000, 5000}},
		{7, 7, []float64{5, 10}},
		{0.003, 4919, []float64{0.001, 0.01, 0.1, 1, 10, 100, 1000, 10000}},
	} {
		got := steps(c.low, c.high)
		if !slices.EqualFunc(got, c.want, func(a, b float64) bool {
			return math.Abs(a/b-1) < 1e-9
		}) {
			t.Errorf("steps(%v, %v) = %v, want %v", c.low, c.high, got, c.want)
		}
	}
}

func TestLinear(t *testing.T) {
	for high, want := range map[float64][]float64{
		10: {0, 2.5, 5, 7.5, 10}, 31: {0, 5, 10, 15, 20, 25, 30, 35},
		70: {0, 10, 20, 30, 40, 50, 60, 70},
	} {
		if got := linear(high); !slices.Equal(got, want) {
			t.Errorf("linear(%v) = %v, want %v", high, got, want)
		}
	}
}

// TestLines: the picture is well-formed, and has a line for each panel, whatever the figures are.
func TestLines(t *testing.T) {
	svg := Lines("a < b", []Panel{
		{Title: "memory", Unit: "MB", Lines: []Line{
			{Minutes: []float64{0, 1, 2}, Data: []float64{10, 30, 20}}}},
		{Title: "nothing", Unit: "x", Lines: []Line{{}}},
		{Title: "two", Lines: []Line{{Name: "a < b"}, {Name: "c", Minutes: []float64{1},
			Data: []float64{1}}}},
		{Title: "none"},
	})
	if n := strings.Count(svg, "<polyline"); n != 4 {
		t.Errorf("%d lines, want 4", n)
	}
	for dec := xml.NewDecoder(strings.NewReader(svg)); ; {
		_, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
}
