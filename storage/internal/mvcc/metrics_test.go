package mvcc

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/pkg/support/monitoring"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestMetricsOfDocuments: the alerts, the dashboard and the reference name metrics that exist, the
// reference names all of them, and every alert has its chapter.
func TestMetricsOfDocuments(t *testing.T) {
	known := map[string]bool{}
	descs := make(chan *prometheus.Desc, 100)
	NewMetrics().Describe(descs)
	monitoring.Build{}.Describe(descs)
	monitoring.Certificates{}.Describe(descs)
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
	looked := regexp.MustCompile(`class=~"([^"]*)"`).FindStringSubmatch(read(rules))
	if len(looked) == 0 {
		t.Fatal("no alert looks at classes")
	}
	for class := range strings.SplitSeq(looked[1], "|") {
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
