package mvcc

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestMetricsOfDocuments: the alerts, the dashboard and the reference name metrics that exist, the
// reference names all of them, and every alert has its chapter.
func TestMetricsOfDocuments(t *testing.T) {
	// Those of pkg/support/monitoring.
	known := map[string]bool{"rowkeeper_build_info": true,
		"rowkeeper_certificate_expiry_timestamp_seconds": true}
	descs := make(chan *prometheus.Desc, 100)
	NewMetrics().Describe(descs)
	close(descs)
	name := regexp.MustCompile(`rowkeeper_[a-z_]*[a-z]`)
	for d := range descs {
		known[name.FindString(d.String())] = true
	}
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join("../../..", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const rules, reference = "deploy/components/prometheus/rules.yaml", "docs/reference/metrics.md"
	part := regexp.MustCompile(`_(bucket|sum|count)$`) // of a histogram
	for _, path := range []string{rules, reference, "deploy/dashboard.json"} {
		found := name.FindAllString(read(path), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", path)
		}
		for _, one := range found {
			if !known[one] && !known[part.ReplaceAllString(one, "")] {
				t.Errorf("%s names %s, which does not exist", path, one)
			}
		}
	}
	for one := range known {
		if !strings.Contains(read(reference), "`"+one) {
			t.Errorf("%s lacks %s", reference, one)
		}
	}
	var classes []string
	for c := contract.Unavailable; c <= contract.Invalid; c++ {
		classes = append(classes, c.String())
	}
	looked := regexp.MustCompile(`class=~"([^"]*)"`).FindAllStringSubmatch(read(rules), -1)
	if len(looked) != 2 {
		t.Fatalf("%d alerts look at classes, not 2", len(looked))
	}
	for class := range strings.SplitSeq(looked[0][1]+"|"+looked[1][1], "|") {
		if !slices.Contains(classes, class) {
			t.Errorf("%s names the class %q", rules, class)
		}
	}
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(read(rules), -1)
	chapters := regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(read("docs/operate/alerts.md"), -1)
	if len(alerts) == 0 || len(alerts) != len(chapters) {
		t.Fatalf("%d alerts have %d chapters", len(alerts), len(chapters))
	}
	for i, alert := range alerts {
		if alert[1] != chapters[i][1] ||
			!strings.Contains(read(rules), "alerts.md#"+strings.ToLower(alert[1])+"\n") {
			t.Errorf("the alert %s has the chapter %s", alert[1], chapters[i][1])
		}
	}
}

// TestWhatAlertsNeed: counters of failures are there before the first one. That the log cannot be
// read is counted from the first failure to the next success. Whether notifications work is not
// told where there are none, and the time of a change of history not before there is one.
func TestWhatAlertsNeed(t *testing.T) {
	m := NewMetrics()
	gather := func() map[string]float64 {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(m)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, one := range f.Metric {
				name := strings.TrimPrefix(f.GetName(), "rowkeeper_")
				for _, l := range one.Label {
					name += " " + l.GetValue()
				}
				got[name] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
			}
		}
		return got
	}
	got := gather()
	for _, name := range []string{"commit_failures_total full", "commit_failures_total invalid",
		"commit_failures_total unavailable", "unknown_outcomes_total unknown",
		"tail_failing_seconds", "history_changed_timestamp_seconds"} {
		if v, ok := got[name]; !ok || v != 0 {
			t.Errorf("%s is %v, %t", name, v, ok)
		}
	}
	if _, ok := got["notifications_working"]; ok {
		t.Error("a database without notifications tells whether they work")
	}
	m.tailFailed()
	first := m.failingSince
	m.tailFailed()
	if gather()["tail_failing_seconds"] <= 0 || m.failingSince != first {
		t.Error("it is not told how long the log could not be read")
	}
	m.tailWorks()
	m.listening(false)
	m.adopted()
	got = gather()
	if v, ok := got["notifications_working"]; !ok || v != 0 || got["tail_failing_seconds"] != 0 ||
		got["history_changed_timestamp_seconds"] == 0 {
		t.Error(got)
	}
	m.listening(true)
	if gather()["notifications_working"] != 1 {
		t.Error("notifications work")
	}
}
