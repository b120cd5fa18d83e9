package monitoring

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/rowkeeper/rowkeeper/pkg/support/pki"
)

// until makes a certificate that ends at a time.
func until(t *testing.T, end time.Time) string {
	t.Helper()
	pair, err := pki.SelfSigned(pki.Server("test"), end.Add(-time.Hour), end)
	if err != nil {
		t.Fatal(err)
	}
	content, _, err := pair.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestCertificates: the metric says when a chain is of no use any more, and when the last authority
// ends. What cannot be read is not there.
func TestCertificates(t *testing.T) {
	soon := time.Now().Add(time.Hour).Truncate(time.Second)
	later := soon.Add(time.Hour)
	both := until(t, later) + until(t, soon)
	content := func(text string, err error) func() ([]byte, error) {
		return func() ([]byte, error) { return []byte(text), err }
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Build{}, Certificates{
		{Name: "chain", Content: content(both, nil)},
		{Name: "authorities", Content: content(both, nil), Authorities: true},
		{Name: "empty", Content: content("\n", nil)},
		{Name: "other", Content: content("no PEM", nil)},
		{Name: "gone", Content: content(both, errors.New("it is gone"))},
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			got[m.Label[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	delete(got, "") // the build's label commit
	if len(got) != 2 || got["chain"] != float64(soon.Unix()) ||
		got["authorities"] != float64(later.Unix()) {
		t.Errorf("%v; want %d and %d", got, soon.Unix(), later.Unix())
	}
}

// TestServe: the page of API servers has the build, and the certificates of the last one.
func TestServe(t *testing.T) {
	end := time.Now().Add(time.Hour)
	for _, name := range []string{"first", "second"} {
		Serve(Certificates{{Name: name, Content: func() ([]byte, error) {
			return []byte(until(t, end)), nil
		}}})
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "rowkeeper_") {
			found = append(found, f.String())
		}
	}
	all := strings.Join(found, "\n")
	if len(found) != 2 || !strings.Contains(all, `"second"`) || strings.Contains(all, `"first"`) ||
		!strings.Contains(all, "kubernetes") {
		t.Error(all)
	}
}
