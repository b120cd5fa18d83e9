package plot

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Panel shows lines over time.
type Panel struct {
	Title, Unit string
	Lines       []Line
}

// Line has a name if there are several. Minutes are those from the beginning of the picture.
type Line struct {
	Name          string
	Minutes, Data []float64
}

// colours tell lines apart. They are repeated if there are more lines.
var colours = []string{"#0284c7", "#ea580c", "#16a34a", "#a855f7", "#ca8a04", "#e11d48"}

// The measures of a panel in pixels.
const (
	panelW, panelH   = 400, 150
	marginL, marginT = 64, 34
	// legendH is the height of the names of lines, two beside each other.
	legendH = 16
	perRow  = 2
)

// Lines draws panels below and beside each other. Each axis begins at 0.
func Lines(title string, panels []Panel) string {
	width, height, end := perRow*(panelW+marginL+24), 40, 1.0
	for row := range slices.Chunk(panels, perRow) {
		height += panelH + marginT + 30 + legend(row)
		for _, p := range row {
			for _, l := range p.Lines {
				for _, m := range l.Minutes {
					end = max(end, m)
				}
			}
		}
	}
	var b strings.Builder
	open(&b, width, height, 11, title)
	y := 40
	for row := range slices.Chunk(panels, perRow) {
		for i, p := range row {
			p.draw(&b, marginL+i*(panelW+marginL+24), y+marginT, end)
		}
		y += panelH + marginT + 30 + legend(row)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// legend is the height of the names below a row of panels.
func legend(row []Panel) int {
	most := 0
	for _, p := range row {
		if len(p.Lines) > 1 || len(p.Lines) == 1 && p.Lines[0].Name != "" {
			most = max(most, (len(p.Lines)+1)/2)
		}
	}
	return most * legendH
}

func (p Panel) draw(b *strings.Builder, x, y int, end float64) {
	top := 0.0
	for _, l := range p.Lines {
		for _, v := range l.Data {
			top = max(top, v)
		}
	}
	if top == 0 {
		top = 1 // all lines are at 0, or there are none
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
	for i, l := range p.Lines {
		colour := colours[i%len(colours)]
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour)
		for i, v := range l.Data {
			fmt.Fprintf(b, "%.1f,%.1f ", float64(x)+panelW*l.Minutes[i]/end,
				float64(y)+panelH*(1-v/top))
		}
		b.WriteString(`"/>` + "\n")
		if l.Name != "" {
			nameX, nameY := x+i%2*panelW/2, y+panelH+32+i/2*legendH
			fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="3"/>`,
				nameX, nameX+14, nameY-4, nameY-4, colour)
			fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", nameX+20, nameY,
				html.EscapeString(l.Name))
		}
	}
}
