package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/prom"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// outcome is what a fault has led to.
type outcome struct {
	fault   fault
	kind    programs.Kind
	version string
	// fired are the alerts, with the prefix.
	fired []string
}

// wrong says what of the outcome is not as the fault says, "" if nothing is.
func (o outcome) wrong() string {
	var wrong []string
	for _, name := range o.fault.fires[o.kind] {
		if !slices.Contains(o.fired, prefix+name) {
			wrong = append(wrong, name+" did not fire")
		}
	}
	for _, name := range o.fired {
		name = strings.TrimPrefix(name, prefix)
		if !slices.Contains(o.fault.fires[o.kind], name) && !slices.Contains(o.fault.may, name) {
			wrong = append(wrong, name+" fired")
		}
	}
	return strings.Join(wrong, ", ")
}

// runs are the faults of a kind of database, in the order in which they are made.
func runs(kind programs.Kind, names []string) (list []fault) {
	for _, f := range faults() {
		if _, ok := f.fires[kind]; ok && (len(names) == 0 || slices.Contains(names, f.name)) {
			list = append(list, f)
		}
	}
	// Those that need another database come last.
	slices.SortStableFunc(list, func(a, b fault) int {
		if a.small == b.small {
			return 0
		}
		if a.small {
			return 1
		}
		return -1
	})
	return list
}

// runFaults makes the faults, one after the other, and tells what each has led to.
func runFaults(ctx context.Context, kind programs.Kind, rowkeeper string, rules *prom.Rules,
	list []fault, out io.Writer, each func(outcome) error) (err error) {
	var e *env
	defer func() {
		if e != nil {
			err = errors.Join(err, e.close())
		}
	}()
	for i, f := range list {
		if i == 0 || f.small != list[i-1].small {
			if e != nil {
				if err := e.close(); err != nil {
					return err
				}
			}
			if e, err = open(ctx, kind, rowkeeper, rules, out, f.small, false); err != nil {
				return err
			}
			// The first seconds are those of new servers.
			if err := e.calm(ctx); err != nil {
				return err
			}
		}
		o, err := e.run(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

// run makes a fault, and collects the alerts until everything is as before.
func (e *env) run(ctx context.Context, f fault) (o outcome, err error) {
	o = outcome{fault: f, kind: e.kind, version: e.db.Version()}
	began := time.Now()
	stop := e.prom.Watch(ctx)
	var wanted []string
	for _, name := range f.fires[e.kind] {
		wanted = append(wanted, prefix+name)
	}
	mend := func() error { return nil }
	if f.begin != nil {
		m, err := f.begin(ctx, e)
		if err != nil {
			_, _ = stop()
			return o, err
		}
		if m != nil {
			mend = m
		}
	}
	err = e.hold(ctx, time.Duration(f.minutes)*time.Minute/prom.Factor, wanted)
	if err = errors.Join(err, mend()); err == nil {
		err = e.calm(ctx)
	}
	fired, failed := stop()
	o.fired = fired
	e.say("%s: %s after %.0f s", f.name, short(fired), time.Since(began).Seconds())
	return o, errors.Join(err, failed)
}

// look evaluates all expressions of the dashboard, and says which give no data.
func (e *env) look(ctx context.Context, d *prom.Dashboard) error {
	var errs []error
	for _, p := range d.Panels {
		for _, x := range p.Targets {
			found, err := e.prom.Now(ctx, x.For(rateOver))
			if err == nil && len(found) == 0 {
				err = errors.New("there is no data")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s, %s: %w", p.Title, x.LegendFormat, err))
			}
		}
	}
	return errors.Join(errs...)
}

// rateOver is what Grafana would choose for $__rate_interval: four times the interval in which
// Prometheus asks.
const rateOver = 4 * prom.Interval

// missing tells whether a kind of database cannot be had here.
func missing(err error) bool {
	var m *database.Missing
	return errors.As(err, &m)
}
