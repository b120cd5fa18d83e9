package plot

import (
	"fmt"
	"html"
	"strings"
)

// Bars compares series in groups. Each group has a panel with an axis of its own, which begins at
// 0, and a bar for each series, with its name before it and its value after it.
type Bars struct {
	Title string
	// Label writes a value for readers.
	Label  func(value float64) string
	Groups []string
	// Series are in the order of their bars. A line through each panel shows the first one's value.
	Series []Series
}

// Series are the bars of one name, one for each group.
type Series struct {
	Name, Colour string
	Values       []Value
}

// Value is a bar's length, if there is one.
type Value struct {
	Length float64
	OK     bool
}

// The measures of a panel of bars in pixels. Two panels fill the width of a page.
const (
	barStep  = 20
	nameW    = 166
	barsW    = 150
	valueW   = 84
	barPanel = nameW + barsW + valueW
	barTop   = 44
	titleH   = 30
)

// SVG draws the chart. A group without values is left out.
func (c Bars) SVG() string {
	var groups []int
	for g := range c.Groups {
		if len(c.of(g)) > 0 {
			groups = append(groups, g)
		}
	}
	height, most := barTop, 0
	var tops []int
	for i, g := range groups {
		if i%perRow == 0 {
			height, most = height+most, 0
		}
		tops = append(tops, height)
		most = max(most, titleH+len(c.of(g))*barStep+20)
	}
	var b strings.Builder
	open(&b, perRow*barPanel+20, height+most, 13, c.Title)
	for i, g := range groups {
		c.panel(&b, 10+i%perRow*barPanel, tops[i], g)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// of returns the series that have a value in a group.
func (c Bars) of(group int) (those []Series) {
	for _, s := range c.Series {
		if s.Values[group].OK {
			those = append(those, s)
		}
	}
	return those
}

func (c Bars) panel(b *strings.Builder, x, y, group int) {
	those, longest := c.of(group), 0.0
	for _, s := range those {
		longest = max(longest, s.Values[group].Length)
	}
	length := func(s Series) float64 {
		if longest == 0 {
			return 0
		}
		return barsW * s.Values[group].Length / longest
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="600">%s</text>`+"\n", x, y+14,
		html.EscapeString(c.Groups[group]))
	first, bottom := y+titleH, y+titleH+len(those)*barStep
	for i, s := range those {
		at := first + i*barStep
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, x+nameW-8, at+12,
			html.EscapeString(s.Name))
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, x+nameW, at,
			max(length(s), 1), barStep-5, s.Colour)
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(x+nameW+6)+length(s), at+12,
			html.EscapeString(c.Label(s.Values[group].Length)))
	}
	base := float64(x+nameW) + length(those[0])
	fmt.Fprintf(b, `<line class="base" x1="%.1f" x2="%.1[1]f" y1="%d" y2="%d" stroke-dasharray="2 3"/>`+
		"\n", base, first-4, bottom)
}
