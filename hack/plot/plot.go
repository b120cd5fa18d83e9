// Package plot draws the plots of the bench and of the torture test, as SVG.
//
// [Bars] compares targets by bars. [Lines] shows measures over time. Libraries for plots
// draw far more, and bring fonts and rasters with them; these two need a page of code each.
package plot

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// styles are the colours of all but what the figures are drawn with, by day and in the dark.
const styles = `<style>
text { fill: #1f2937 } .paper { fill: #ffffff } .grid { stroke: #e5e7eb } .base { stroke: #6b7280 }
@media (prefers-color-scheme: dark) {
text { fill: #d1d5db } .paper { fill: #1b1b1f } .grid { stroke: #3a3f47 } .base { stroke: #9ca3af }
}
</style>
`

// open begins a picture with a title.
func open(b *strings.Builder, width, height, fontSize int, title string) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" `+
		`viewBox="0 0 %[1]d %[2]d" font-family="system-ui, sans-serif" font-size="%[3]d">`+"\n",
		width, height, fontSize)
	fmt.Fprintf(b, `%s<rect class="paper" width="%d" height="%d"/>`+"\n", styles, width, height)
	fmt.Fprintf(b, `<text x="16" y="24" font-size="15" font-weight="600">%s</text>`+"\n",
		html.EscapeString(title))
}

// tick draws a line of the grid from x1 to x2, and its label on the left.
func tick(b *strings.Builder, x1, x2 int, y float64, label string) {
	fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" class="grid"/>`, x1, x2, y, y)
	fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", x1-6, y+4,
		html.EscapeString(label))
}

// linear returns the ticks of an axis from 0 to a round number that is at least high.
func linear(high float64) (ticks []float64) {
	step := math.Pow(10, math.Floor(math.Log10(max(high, 1e-9))))
	if high/step < 2.5 {
		step /= 4
	} else if high/step < 5 {
		step /= 2
	}
	to := max(math.Ceil(high/step), 1) * step
	for v := 0.0; v <= to+step/2; v += step {
		ticks = append(ticks, v)
	}
	return ticks
}
