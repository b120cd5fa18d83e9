package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestBars: a panel has a bar for each value, and none is as long as the longest but that one.
func TestBars(t *testing.T) {
	svg := Bars{Title: "a < b", Label: func(v float64) string { return fmt.Sprint(v) },
		Groups: []string{"one", "none", "zero"},
		Series: []Series{
			{Name: "first", Values: []Value{{Length: 5, OK: true}, {}, {OK: true}}},
			{Name: "second", Values: []Value{{Length: 10, OK: true}, {}, {}}},
		}}.SVG()
	wellFormed(t, svg)
	for part, want := range map[string]int{`<rect x=`: 3, `width="75.0"`: 1, `width="150.0"`: 1,
		`width="1.0"`: 1, `>none<`: 0, `%!`: 0, `>10<`: 1, `class="base"`: 2} {
		if n := strings.Count(svg, part); n != want {
			t.Errorf("%d times %s, want %d, in\n%s", n, part, want, svg)
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
	wellFormed(t, svg)
}

func wellFormed(t *testing.T, svg string) {
	t.Helper()
	for dec := xml.NewDecoder(strings.NewReader(svg)); ; {
		_, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
}
