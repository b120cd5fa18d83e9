package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Panel is a line over time, in minutes.
type Panel struct {
	Title, Unit   string
	Minutes, Data []float64
}

// The measures of a panel in pixels.
const (
	panelW, panelH   = 400, 150
	marginL, marginT = 64, 34
	perRow           = 2
)

// Plot draws panels below and beside each other. Each axis begins at 0.
func Plot(title string, panels []Panel) string {
	rows := (len(panels) + perRow - 1) / perRow
	width, height := perRow*(panelW+marginL+24), 40+rows*(panelH+marginT+30)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="system-ui, sans-serif" font-size="11" fill="#1f2937">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/><text x="16" y="24" font-size="15" font-weight="600">%s</text>`+"\n", width, height, html.EscapeString(title))
	for i, p := range panels {
		p.draw(&b, marginL+i%perRow*(panelW+marginL+24), 40+marginT+i/perRow*(panelH+marginT+30))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p Panel) draw(b *strings.Builder, x, y int) {
	top, end := 0.0, 1.0
	for i, v := range p.Data {
		top, end = max(top, v), max(end, p.Minutes[i])
	}
	step := math.Pow(10, math.Floor(math.Log10(max(top, 1e-9))))
	if top/step < 3 {
		step /= 2
	}
	top = max(math.Ceil(top/step), 1) * step
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="12" font-weight="600">%s</text>`+"\n", x, y-12, html.EscapeString(p.Title))
	for v := 0.0; v <= top+step/2; v += step {
		at := float64(y) + panelH*(1-v/top)
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e5e7eb"/><text x="%d" y="%.1f" text-anchor="end">%.4g %s</text>`+"\n",
			x, x+panelW, at, at, x-6, at+4, v, html.EscapeString(p.Unit))
	}
	minutes := max(math.Ceil(end/6), 1)
	for m := 0.0; m <= end; m += minutes {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f min</text>`+"\n", float64(x)+panelW*m/end, y+panelH+16, m)
	}
	b.WriteString(`<polyline fill="none" stroke="#0369a1" stroke-width="1.5" points="`)
	for i, v := range p.Data {
		fmt.Fprintf(b, "%.1f,%.1f ", float64(x)+panelW*p.Minutes[i]/end, float64(y)+panelH*(1-v/top))
	}
	b.WriteString(`"/>` + "\n")
}
