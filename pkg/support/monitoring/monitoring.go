// Package monitoring has the metrics of a server program that are about neither its database nor
// its requests: its build, and how long its certificates are valid.
package monitoring

import (
	"bytes"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

var (
	build = prometheus.NewDesc("rowkeeper_build_info", "1. The labels say which version the "+
		"program is, of Rowkeeper unless the label rowkeeper has one, and what it is made with.",
		[]string{"version", "rowkeeper", "kubernetes", "commit", "goversion"}, nil)
	expiry = prometheus.NewDesc("rowkeeper_certificate_expiry_timestamp_seconds", "When a "+
		"certificate that the server uses ends, in seconds since 1970.",
		[]string{"certificate"}, nil)
)

// Certificate is a certificate that a server uses, or a list of authorities.
type Certificate struct {
	// Name is the value of the label certificate.
	Name string
	// Content returns the certificates in PEM, as they are now. If it fails, the metric is not
	// there.
	Content func() ([]byte, error)
	// Authorities says that any of them will do, so that what counts is the last that ends. Of a
	// chain, it is the first.
	Authorities bool
}

// File is the list of authorities in a file.
func File(name, path string) Certificate {
	return Certificate{Name: name, Authorities: true,
		Content: func() ([]byte, error) { return os.ReadFile(path) }}
}

// end is when the certificate ends.
func (c Certificate) end() (time.Time, bool) {
	content, err := c.Content()
	if err != nil || len(bytes.TrimSpace(content)) == 0 {
		return time.Time{}, false
	}
	list, err := cert.ParseCertsPEM(content)
	if err != nil {
		return time.Time{}, false
	}
	var ends []time.Time
	for _, one := range list {
		ends = append(ends, one.NotAfter)
	}
	if c.Authorities {
		return slices.MaxFunc(ends, time.Time.Compare), true
	}
	return slices.MinFunc(ends, time.Time.Compare), true
}

// Certificates collects when certificates end.
type Certificates []Certificate

// Describe implements [prometheus.Collector].
func (c Certificates) Describe(to chan<- *prometheus.Desc) { to <- expiry }

// Collect implements [prometheus.Collector].
func (c Certificates) Collect(to chan<- prometheus.Metric) {
	for _, one := range c {
		if end, ok := one.end(); ok {
			to <- prometheus.MustNewConstMetric(expiry, prometheus.GaugeValue,
				float64(end.Unix()), one.Name)
		}
	}
}

// Build collects which version the program is.
type Build struct{}

// Describe implements [prometheus.Collector].
func (Build) Describe(to chan<- *prometheus.Desc) { to <- build }

// Collect implements [prometheus.Collector].
func (Build) Collect(to chan<- prometheus.Metric) {
	i := version.Get()
	to <- prometheus.MustNewConstMetric(build, prometheus.GaugeValue, 1, i.Version, i.Rowkeeper,
		i.Kubernetes, i.GitCommit, i.GoVersion)
}

// served has the certificates of the API server of this process.
var served struct {
	once         sync.Once
	mu           sync.Mutex
	certificates Certificates
}

type ofProcess struct{}

func (ofProcess) Describe(to chan<- *prometheus.Desc) {
	Certificates{}.Describe(to)
	Build{}.Describe(to)
}

func (ofProcess) Collect(to chan<- prometheus.Metric) {
	served.mu.Lock()
	certificates := served.certificates
	served.mu.Unlock()
	certificates.Collect(to)
	Build{}.Collect(to)
}

// Serve puts both on the page that the API servers of this process share. If there are several, the
// certificates are those of the last.
func Serve(certificates Certificates) {
	served.once.Do(func() { legacyregistry.RawMustRegister(ofProcess{}) })
	served.mu.Lock()
	defer served.mu.Unlock()
	served.certificates = certificates
}
