package plot

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

// Lines draws panels below and beside each other. Each axis begins at 0.
func Lines(title string, panels []Panel) string {
	rows := (len(panels) + perRow - 1) / perRow
	width, height := perRow*(panelW+marginL+24), 40+rows*(panelH+marginT+30)
	var b strings.Builder
	open(&b, width, height, 11, title)
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
	ticks := linear(top)
	top = ticks[len(ticks)-1]
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="12" font-weight="600">%s</text>`+"\n", x, y-12,
		html.EscapeString(p.Title))
	for _, v := range ticks {
		tick(b, x, x+panelW, float64(y)+panelH*(1-v/top), fmt.Sprintf("%.4g %s", v, p.Unit))
	}
	minutes := max(math.Ceil(end/6), 1)
	for m := 0.0; m <= end; m += minutes {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f min</text>`+"\n",
			float64(x)+panelW*m/end, y+panelH+16, m)
	}
	b.WriteString(`<polyline fill="none" stroke="#0369a1" stroke-width="1.5" points="`)
	for i, v := range p.Data {
		fmt.Fprintf(b, "%.1f,%.1f ", float64(x)+panelW*p.Minutes[i]/end,
			float64(y)+panelH*(1-v/top))
	}
	b.WriteString(`"/>` + "\n")
}
