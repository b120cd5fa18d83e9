package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/rowkeeper/rowkeeper/hack/plot"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/prom"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// steps are what happens while the picture is taken.
var steps = []struct {
	say string
	fault
	lasts time.Duration
}{
	{"a light load", fault{}, time.Minute},
	{"clients send as much as they can", fault{begin: heavyLoad}, 80 * time.Second},
	{"the network of one replica is cut", fault{begin: networkCut}, 20 * time.Second},
	{"a light load", fault{}, 40 * time.Second},
	{"a fence by hand", fault{begin: fence}, 40 * time.Second},
}

// draw lets clients use two servers on PostgreSQL, and draws the panels of the dashboard.
func draw(ctx context.Context, root, rowkeeper string, rules *prom.Rules, file string,
	out io.Writer) (err error) {
	dashboard, err := prom.ReadDashboard(root)
	if err != nil {
		return err
	}
	e, err := open(ctx, programs.Postgres, rowkeeper, rules, out, false, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	began := time.Now()
	for _, s := range steps {
		e.say("%s", s.say)
		mend := func() error { return nil }
		if s.begin != nil {
			m, err := s.begin(ctx, e)
			if err != nil {
				return err
			}
			if m != nil {
				mend = m
			}
		}
		pause(ctx, s.lasts)
		if err := errors.Join(ctx.Err(), mend()); err != nil {
			return err
		}
	}
	var panels []plot.Panel
	for _, p := range dashboard.Panels {
		drawn, err := e.panel(ctx, p, began)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Title, err)
		}
		panels = append(panels, drawn)
	}
	return os.WriteFile(file, []byte(plot.Lines(fmt.Sprintf("The dashboard of two replicas on %s",
		e.db.Version()), panels)), 0o644)
}

// step is the time between two points of a line.
const step = 2 * time.Second

// mostLines is how many lines of a panel are drawn, if some of them are at 0 all the time.
const mostLines = 6

// panel evaluates the expressions of a panel over the time since began.
func (e *env) panel(ctx context.Context, p prom.Panel, began time.Time) (plot.Panel, error) {
	out := plot.Panel{Title: p.Title}
	top := 0.0
	for _, x := range p.Targets {
		value, _, _, err := e.prom.QueryRange(ctx, x.For(rateOver),
			v1.Range{Start: began, End: time.Now(), Step: step})
		if err != nil {
			return out, err
		}
		for _, series := range value.(model.Matrix) {
			labels := map[string]string{}
			for name, label := range series.Metric {
				labels[string(name)] = string(label)
			}
			l := plot.Line{Name: e.called(x.Legend(labels))}
			for _, point := range series.Values {
				v := float64(point.Value)
				if math.IsNaN(v) {
					continue
				}
				top = max(top, v)
				l.Minutes = append(l.Minutes, point.Timestamp.Time().Sub(began).Minutes())
				l.Data = append(l.Data, v)
			}
			out.Lines = append(out.Lines, l)
		}
	}
	if len(out.Lines) > mostLines {
		out.Lines = slices.DeleteFunc(out.Lines, func(l plot.Line) bool {
			return !slices.ContainsFunc(l.Data, func(v float64) bool { return v != 0 })
		})
	}
	slices.SortStableFunc(out.Lines, func(a, b plot.Line) int {
		return strings.Compare(a.Name, b.Name)
	})
	unit, scale := unitOf(p.FieldConfig.Defaults.Unit, top)
	out.Unit = unit
	for _, l := range out.Lines {
		for i := range l.Data {
			l.Data[i] *= scale
		}
	}
	return out, nil
}

// called gives replicas names that are the same in each picture.
func (e *env) called(text string) string {
	for i, s := range e.servers {
		text = strings.ReplaceAll(text, s.Address(), fmt.Sprintf("replica-%d", i+1))
	}
	return text
}

// unitOf is how Grafana's unit is written for figures up to top, and by what they are multiplied.
func unitOf(unit string, top float64) (string, float64) {
	switch {
	case unit == "ops":
		return "/s", 1
	case unit == "s" && top < 1:
		return "ms", 1e3
	case unit == "s":
		return "s", 1
	case unit == "bytes":
		return "MB", 1e-6
	case top >= 1e15:
		return "·10¹⁵", 1e-15
	}
	return "", 1
}
