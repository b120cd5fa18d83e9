package plot

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Bars is a chart of grouped bars.
type Bars struct {
	Title, Unit string
	// Label writes a height for readers.
	Label func(height float64) string
	// Log: the axis is logarithmic.
	Log bool
	// Groups are the labels below the axis; a line break begins a new line.
	Groups []string
	Series []Series
}

// Series are the bars of one colour, one for each group.
type Series struct {
	Name, Colour string
	Values       []Value
}

// Value is a bar's height, if there is one.
type Value struct {
	Height float64
	OK     bool
}

// The measures of a chart in pixels.
const (
	barWidth  = 15
	groupGap  = 26
	plotH     = 280
	left      = 64
	top       = 44
	legendRow = 22
	labels    = 44
)

// SVG draws the chart.
func (c Bars) SVG() string {
	groupWidth := len(c.Series)*barWidth + groupGap
	width := max(left+len(c.Groups)*groupWidth+16, 560)
	const perRow = 4
	legendRows := (len(c.Series) + perRow - 1) / perRow
	height := top + plotH + labels + legendRows*legendRow + 12
	a := c.axis()

	var b strings.Builder
	open(&b, width, height, 12, c.Title)
	for _, v := range a.ticks {
		tick(&b, left, width-16, a.y(v), strconv.FormatFloat(v, 'g', 12, 64)+" "+c.Unit)
	}
	base := a.y(a.base)
	for g, label := range c.Groups {
		x := left + groupGap/2 + g*groupWidth
		for s, series := range c.Series {
			v := series.Values[g]
			if !v.OK {
				continue
			}
			y := a.y(v.Height)
			fmt.Fprintf(&b,
				`<rect x="%d" y="%.1f" width="%d" height="%.1f" fill="%s"><title>%s: %s</title></rect>`+"\n",
				x+s*barWidth, min(y, base), barWidth-2, max(math.Abs(base-y), 1), series.Colour,
				html.EscapeString(series.Name), html.EscapeString(c.Label(v.Height)))
		}
		for i, line := range strings.Split(label, "\n") {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" font-size="11">%s</text>`+
				"\n", x+len(c.Series)*barWidth/2, top+plotH+18+i*14, html.EscapeString(line))
		}
	}
	fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#374151"/>`+"\n", left,
		width-16, base, base)
	for s, series := range c.Series {
		x, y := left+s%perRow*(width-left)/perRow, top+plotH+labels+s/perRow*legendRow
		fmt.Fprintf(&b,
			`<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`+
				"\n", x, y, series.Colour, x+18, y+10, html.EscapeString(series.Name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis maps values to heights.
type axis struct {
	log       bool
	from, to  float64
	base      float64
	ticks     []float64
	transform func(float64) float64
}

// axis chooses whole decades, or a round maximum. On a logarithmic axis of ratios, bars begin at 1.
func (c Bars) axis() axis {
	low, high := math.Inf(1), 0.0
	for _, s := range c.Series {
		for _, v := range s.Values {
			if v.OK && v.Height > 0 {
				low, high = min(low, v.Height), max(high, v.Height)
			}
		}
	}
	if high == 0 {
		low, high = 1, 10
	}
	if !c.Log {
		a := axis{ticks: linear(high), transform: func(v float64) float64 { return v }}
		a.to = a.ticks[len(a.ticks)-1]
		return a
	}
	a := axis{log: true, transform: math.Log10}
	if c.Unit == "×" {
		low, high = min(low, 0.5), max(high, 2)
		a.base = 1
	}
	steps := steps(low, high)
	a.from, a.to = steps[0], steps[len(steps)-1]
	if a.base == 0 {
		a.base = a.from
	}
	a.ticks = steps
	return a
}

// steps are the numbers 1, 2 and 5 times powers of ten around a range, at least two of them; of a
// long range only the powers of ten.
func steps(low, high float64) []float64 {
	factors := []float64{1, 2, 5}
	if high/low > 2000 {
		factors = factors[:1]
	}
	var all []float64
	for exponent := math.Floor(math.Log10(low)); ; exponent++ {
		for _, f := range factors {
			v := f * math.Pow(10, exponent)
			if len(all) == 1 && v <= low {
				all = all[:0] // a closer beginning
			}
			all = append(all, v)
			if v >= high && len(all) > 1 {
				return all
			}
		}
	}
}

func (a axis) y(v float64) float64 {
	if a.log {
		v = max(v, a.from)
	}
	from, to := a.transform(a.from), a.transform(a.to)
	return top + plotH*(1-(a.transform(v)-from)/(to-from))
}
