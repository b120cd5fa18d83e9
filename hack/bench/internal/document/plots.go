package document

import (
	"slices"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/runner"
	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
	"github.com/rowkeeper/rowkeeper/hack/plot"
)

// Plot is a chart and the name of its file.
type Plot struct {
	File  string
	Chart plot.Bars
}

// group is one group of bars: a figure of a line.
type group struct{ label, line, key string }

// Plots draws the results: the library beside etcd, and what is behind etcd's API beside etcd. A
// chart without figures of Rowkeeper is left out.
func Plots(results *runner.Results) []Plot {
	f := newFigures(results.Results)
	writes := func(key string) []group {
		return []group{
			{"create, 64 writers", "create64", key}, {"create, 256 writers", "create256", key},
			{"update, 64 writers", "update64", key}, {"update, 256 writers", "update256", key},
			{"one hot key, 16 writers", "hotkey", key},
			{"updates, reads, creates; 64 clients", "mixed", key},
		}
	}
	const throughput = "Operations a second: longer is better; the line is etcd"
	const cpu = "Processor time of an operation, client and server: shorter is better; the line is etcd"
	all := []Plot{
		{"throughput.svg", f.chart(throughput, "rowkeeper", "/s", writes("throughput"))},
		{"cpu.svg", f.chart(cpu, "rowkeeper", "µs", writes("cpu"))},
		{"watch.svg", f.chart("Event after the write's answer, median: shorter is better; the line is etcd",
			"rowkeeper", "ms", []group{
				{"1 watcher, 16 writers flat out", "watch1", "lag_p50"},
				{"100 watchers, 100 writes/s", "watch100", "lag_p50"},
			})},
		{"etcdapi.svg", f.chart(throughput, "rowkeeper-etcd", "/s", writes("throughput"))},
		{"etcdapi-cpu.svg", f.chart(cpu, "rowkeeper-etcd", "µs", writes("cpu"))},
	}
	return slices.DeleteFunc(all, func(p Plot) bool { return len(p.Chart.Groups) == 0 })
}

// chart compares a product of ours with etcd, and what speaks etcd's API with kine, too.
func (f figures) chart(title, product, unit string, groups []group) plot.Bars {
	c := plot.Bars{Title: title,
		Label: func(value float64) string { return quantity(value, unit) }}
	targets := slices.DeleteFunc(slices.Clone(f.targets), func(t target.Target) bool {
		return t.Product != product && t.Product != "etcd" &&
			(t.Product != "kine" || product != "rowkeeper-etcd")
	})
	for _, t := range targets {
		c.Series = append(c.Series, plot.Series{Name: t.Name(), Colour: colours[t.Product]})
	}
	for _, g := range groups {
		values := make([]plot.Value, len(targets))
		found := false
		for i, t := range targets {
			values[i].Length, values[i].OK = f.median(g.line, t.Name(), g.key)
			found = found || values[i].OK && t.Product == product
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

// colours tell products apart. The names of the bars tell the databases.
var colours = map[string]string{"etcd": "#6b7280", "kine": "#ea7c1f", "rowkeeper-etcd": "#22a05a",
	"rowkeeper": "#3b82d6"}
