package document

import (
	"slices"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/plot"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Plot is a chart and the name of its file.
type Plot struct {
	File  string
	Chart plot.Bars
}

// group is one group of bars: a figure of a line.
type group struct{ label, line, key string }

// Plots draws the results. A chart without figures is left out.
func Plots(results *runner.Results) []Plot {
	f := newFigures(results.Results)
	writes := func(key string) []group {
		return []group{
			{"create\n64 writers", "create64", key}, {"create\n256 writers", "create256", key},
			{"update\n64 writers", "update64", key}, {"update\n256 writers", "update256", key},
			{"update, cached\n256 writers", "updatecached256", key},
			{"one hot key\n16 writers", "hotkey", key}, {"mixed\n64 clients", "mixed", key},
		}
	}
	all := []Plot{
		{"throughput.svg", f.chart("Throughput relative to etcd (log scale, higher is better)", "×",
			true, f.ratio, writes("throughput"))},
		{"cpu.svg",
			f.chart("CPU time per operation, client and server (log scale, lower is better)", "µs",
				true, f.median, writes("cpu"))},
		{"watch.svg", f.chart("Event after acknowledgement, p50 (log scale, lower is better)", "ms",
			true, f.median, []group{
				{"1 watcher\n16 writers flat out", "watch1", "lag_p50"},
				{"100 watchers\n100 writes/s", "watch100", "lag_p50"},
				{"1,000 watchers\n100 writes/s", "watch1000", "lag_p50"},
				{"mixed\n10 watchers", "mixed", "lag_p50"},
			})},
	}
	var plots []Plot
	for _, p := range all {
		if len(p.Chart.Groups) > 0 {
			plots = append(plots, p)
		}
	}
	return plots
}

func (f figures) chart(title, unit string, log bool,
	figure func(line, target, key string) (float64, bool), groups []group) plot.Bars {
	c := plot.Bars{
		Title: title, Unit: unit, Log: log,
		Label: func(height float64) string { return quantity(height, unit) },
	}
	for _, t := range f.targets {
		c.Series = append(c.Series, plot.Series{Name: t.Name(), Colour: colour(t)})
	}
	for _, g := range groups {
		values := make([]plot.Value, len(f.targets))
		found := false
		for i, t := range f.targets {
			values[i].Height, values[i].OK = figure(g.line, t.Name(), g.key)
			found = found || values[i].OK
		}
		if !found {
			continue
		}
		c.Groups = append(c.Groups, g.label)
		for i := range c.Series {
			c.Series[i].Values = append(c.Series[i].Values, values[i])
		}
	}
	return c
}

// colour tells products apart by hue, and databases by shade.
func colour(t target.Target) string {
	shades := map[string][4]string{
		"etcd":           {"#6b7280"},
		"kine":           {"#fdba74", "#fb923c", "#ea580c", "#9a3412"},
		"rowkeeper-etcd": {"#86efac", "#22c55e", "#15803d", "#14532d"},
		"rowkeeper":      {"#7dd3fc", "#0ea5e9", "#0369a1", "#1e3a8a"},
	}
	shade := max(0, slices.Index(programs.Kinds(), programs.Kind(t.Database)))
	return shades[t.Product][shade]
}
