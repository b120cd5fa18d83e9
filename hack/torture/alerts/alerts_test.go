package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/prom"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

const root = "../../.."

func TestMain(m *testing.M) {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	os.Exit(m.Run())
}

func shipped(t *testing.T) *prom.Rules {
	t.Helper()
	rules, err := prom.ReadRules(root)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestEveryAlertHasAFault: no alert is without a fault that has to fire it, and the faults name
// alerts that exist.
func TestEveryAlertHasAFault(t *testing.T) {
	known, fired := map[string]bool{}, map[string]bool{}
	for _, r := range shipped(t).Alerts() {
		known[strings.TrimPrefix(r.Alert, prefix)] = true
	}
	for _, f := range faults() {
		for _, names := range f.fires {
			for _, name := range names {
				fired[name] = true
			}
			for _, name := range slices.Concat(names, f.may) {
				if !known[name] {
					t.Errorf("%s fires %s, which does not exist", f.name, name)
				}
			}
		}
	}
	for name := range known {
		if !fired[name] {
			t.Errorf("no fault fires %s", name)
		}
	}
}

// TestTable: the recorded table has each fault as it is, on SQLite and PostgreSQL, with the alerts
// that have to fire.
func TestTable(t *testing.T) {
	const path = "../ALERTS.md"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(content) != head+recorded.text() {
		t.Error("ALERTS.md is not as the program writes it: " +
			"make alerts ALERTS='-results ALERTS.md'")
	}
	for _, f := range faults() {
		for _, k := range []programs.Kind{programs.SQLite, programs.Postgres} {
			names, ok := f.fires[k]
			cell := recorded.fired[f.name][k]
			switch {
			case ok && cell == "":
				t.Errorf("%s on %s is not in ALERTS.md", f.name, k)
			case ok && len(names) == 0 && cell != nothing:
				t.Errorf("%s on %s fired %s", f.name, k, cell)
			}
			for _, name := range names {
				if !has(cell, name) {
					t.Errorf("%s on %s did not fire %s", f.name, k, name)
				}
			}
		}
	}
}

// program skips a test if a program is not there, or fails it where the program is required.
func program(t *testing.T, name string) string {
	t.Helper()
	const required = "ROWKEEPER_TEST_PROGRAMS"
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path
	case slices.Contains(strings.Split(os.Getenv(required), ","), name):
		t.Fatal(err)
	}
	t.Skipf("there is no %s; %s=%[1]s makes that a failure", name, required)
	return ""
}

// promtool runs promtool in a directory with the rules, as they are shipped.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	path := program(t, "promtool")
	file, err := shipped(t).File(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rules.yml"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestRules: promtool takes the rules, and alerts fire in their real time for what is hard to make:
// no replica at all; a single event of a counter; a new process that has fenced before it was seen.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	promtool(t, dir, "check", "rules", "rules.yml")
	cases := []struct {
		series, values string
		at, alert      string
		labels         string // "": it does not fire
	}{
		{`up{job="rowkeeper", instance="a"}`, "1x4 0x20", "3m", "Down", ""},
		{`up{job="rowkeeper", instance="a"}`, "1x4 0x20", "8m", "Down",
			"{job: rowkeeper, instance: a, severity: critical}"},
		{`up{job="other"}`, "1x20", "5m", "Down", "{job: rowkeeper, severity: critical}"},
		{`rowkeeper_unknown_outcomes_total{resolution="unknown"}`, "0x5 1x20", "7m",
			"OutcomeUnknown", "{resolution: unknown, severity: warning}"},
		{`rowkeeper_history_changed_timestamp_seconds{instance="new"}`, "_x5 240x20", "7m",
			"HistoryReplaced", "{instance: new, severity: critical}"},
		{`rowkeeper_history_changed_timestamp_seconds{instance="new"}`, "_x5 240x60", "40m",
			"HistoryReplaced", ""},
		{`rowkeeper_history_changed_timestamp_seconds`, "0x60", "40m", "HistoryReplaced", ""},
		{`rowkeeper_tail_failing_seconds`, "0x5 1 0x5 1 0x5", "12m", "DatabaseAway", ""},
		{`rowkeeper_compaction_failures_total`, "0x5 0+1x20 20x60", "40m", "CompactionFails", ""},
		{`rowkeeper_pool_connections{pool="commit", state="in_use"}`, "1x30", "20m",
			"PoolExhausted", ""},
		{`rowkeeper_certificate_expiry_timestamp_seconds{certificate="serving"}`, "1209500x200",
			"90m", "CertificateExpires", "{certificate: serving, severity: warning}"},
	}
	var b strings.Builder
	b.WriteString("rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n")
	for _, c := range cases {
		expected := "[]"
		if c.labels != "" {
			var r prom.Annotated
			for _, one := range shipped(t).Alerts() {
				if one.Alert == prefix+c.alert {
					r = one.Annotated
				}
			}
			expected = fmt.Sprintf("[{exp_labels: %s, exp_annotations: {summary: %q, "+
				"runbook_url: %q}}]", c.labels, r.Annotations["summary"],
				r.Annotations["runbook_url"])
		}
		fmt.Fprintf(&b, "- interval: 1m\n  input_series:\n  - {series: '%s', values: '%s'}\n"+
			"  alert_rule_test:\n  - {eval_time: %s, alertname: %s, exp_alerts: %s}\n", c.series,
			c.values, c.at, prefix+c.alert, expected)
	}
	if err := os.WriteFile(filepath.Join(dir, "test.yml"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "test", "rules", "test.yml")
}

// busy are the alerts that may be true on a machine that runs other tests: a commit, an event or an
// answer to Prometheus needs more than a second there. make alerts, on a quiet machine, does not
// allow them.
var busy = []string{"Down", "CommitsSlow", "CommitLockWaits", "TailSlow", "DeliveryLags",
	"PoolExhausted"}

// TestAlerts makes a few faults, and each fires what it has to. The dashboard has data in all its
// panels, also with "rowkeeper etcd". make alerts makes all faults.
func TestAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	program(t, "prometheus")
	rowkeeper, err := server.Build(root)
	if err != nil {
		t.Fatal(err)
	}
	rules := shipped(t)
	dashboard, err := prom.ReadDashboard(root)
	if err != nil {
		t.Fatal(err)
	}
	have := func(t *testing.T, kind programs.Kind, err error) {
		t.Helper()
		env := func(name string) []string { return list(os.Getenv(name)) }
		only := env("ROWKEEPER_TEST_ONLY")
		if len(only) > 0 && !slices.Contains(only, string(kind)) {
			t.Skipf("%s: ROWKEEPER_TEST_ONLY leaves it out", kind)
		}
		if missing(err) && !slices.Contains(env("ROWKEEPER_TEST_REQUIRE"), string(kind)) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for kind, names := range map[programs.Kind][]string{
		programs.SQLite:   {"server-kill", "restore"},
		programs.Postgres: {"network-cut"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			have(t, kind, nil)
			faults := runs(kind, names)
			for i := range faults {
				faults[i].may = slices.Concat(faults[i].may, busy)
			}
			err := runFaults(t.Context(), kind, rowkeeper, rules, faults, tell{t},
				func(o outcome) error {
					if text := o.wrong(); text != "" {
						t.Errorf("%s: %s", o.fault.name, text)
					}
					return nil
				})
			have(t, kind, err)
		})
	}
	for _, etcd := range []bool{false, true} {
		t.Run(fmt.Sprintf("dashboard, etcd: %t", etcd), func(t *testing.T) {
			have(t, programs.Postgres, nil)
			e, err := open(t.Context(), programs.Postgres, rowkeeper, rules, tell{t}, false, etcd)
			have(t, programs.Postgres, err)
			defer func() {
				if err := e.close(); err != nil {
					t.Error(err)
				}
			}()
			e.use(t.Context(), 0)
			// "rowkeeper etcd" measures its tables once a minute.
			if err := e.until(t.Context(), mendWithin, func(ctx context.Context) error {
				return e.look(ctx, dashboard)
			}); err != nil {
				t.Error(err)
			}
			firing, _, err := e.prom.Firing(t.Context())
			firing = slices.DeleteFunc(firing, func(name string) bool {
				return slices.Contains(busy, strings.TrimPrefix(name, prefix))
			})
			if err != nil || len(firing) > 0 {
				t.Errorf("alerts fire: %v %v", firing, err)
			}
		})
	}
}

// tell tells a test's log what goes on.
type tell struct{ t *testing.T }

func (w tell) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
