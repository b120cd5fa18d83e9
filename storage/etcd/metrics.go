package etcd

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Dashboards and alerts for etcd read metrics of its names. Those whose figures there are here have
// these names, too. docs/reference/metrics.md says what they mean here, and why others are missing.

// metrics count the calls of a server.
type metrics struct {
	started, handled *prometheus.CounterVec
	seconds          *prometheus.HistogramVec
	received, sent   prometheus.Counter
}

var callLabels = []string{"grpc_type", "grpc_service", "grpc_method"}

func newMetrics() *metrics {
	return &metrics{
		started: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grpc_server_started_total",
			Help: "Calls that were begun."}, callLabels),
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grpc_server_handled_total",
			Help: "Calls that have ended, by their status."}, append(callLabels, "grpc_code")),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_server_handling_seconds", Help: "Time that a call took.",
			Buckets: prometheus.DefBuckets}, callLabels),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "etcd_network_client_grpc_received_bytes_total",
			Help: "Bytes of requests, but those of streams."}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "etcd_network_client_grpc_sent_bytes_total", Help: "Bytes of answers."}),
	}
}

// method are the metrics of a method, which are looked up once.
type method struct {
	labels  []string
	started prometheus.Counter
	handled *prometheus.CounterVec
	ok      prometheus.Counter
	seconds prometheus.Observer
}

// method makes those of a method. A dashboard sees each from the beginning.
func (m *metrics) method(service string, d *grpc.StreamDesc, unary bool) *method {
	kind := "unary"
	switch {
	case unary:
	case d.ClientStreams && d.ServerStreams:
		kind = "bidi_stream"
	case d.ClientStreams:
		kind = "client_stream"
	default:
		kind = "server_stream"
	}
	labels := []string{kind, service, d.StreamName}
	return &method{labels, m.started.WithLabelValues(labels...), m.handled,
		m.handled.WithLabelValues(append(labels, codes.OK.String())...),
		m.seconds.WithLabelValues(labels...)}
}

// count counts a call, which f answers.
func (m *method) count(f func() error) error {
	m.started.Inc()
	began := time.Now()
	err := f()
	m.seconds.Observe(time.Since(began).Seconds())
	if err == nil {
		m.ok.Inc()
	} else {
		m.handled.WithLabelValues(append(m.labels, status.Code(err).String())...).Inc()
	}
	return err
}

// Collector collects metrics of the names of etcd's. Those of the store are there while it is open.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Server }

// Describe describes nothing, since what is collected is not always there.
func (collector) Describe(chan<- *prometheus.Desc) {}

var (
	hasLeader = prometheus.NewDesc("etcd_server_has_leader",
		"1 if the database answers, 0 if it does not.", nil, nil)
	isLeader = prometheus.NewDesc("etcd_server_is_leader",
		"As etcd_server_has_leader: every server leads.", nil, nil)
	databaseSize = prometheus.NewDesc("etcd_mvcc_db_total_size_in_bytes",
		"Size of the store's tables and indexes when it was last measured.", nil, nil)
	databaseInUse = prometheus.NewDesc("etcd_mvcc_db_total_size_in_use_in_bytes",
		"Size of what of them is in use.", nil, nil)
	headRevision = prometheus.NewDesc("etcd_debugging_mvcc_current_revision",
		"The newest revision.", nil, nil)
	compactedRevision = prometheus.NewDesc("etcd_debugging_mvcc_compact_revision",
		"Revision up to which history is gone.", nil, nil)
	watchers = prometheus.NewDesc("etcd_debugging_mvcc_watcher_total", "Watches that are open.",
		nil, nil)
	serverVersion = prometheus.NewDesc("etcd_server_version",
		"1. The label says whose API of etcd this is.", []string{"server_version"}, nil)
	clusterVersion = prometheus.NewDesc("etcd_cluster_version",
		"1. The label says which version the members agree on.", []string{"cluster_version"}, nil)
	// commits are the names of a histogram. etcd acknowledges a write when its log is on the disk,
	// as the database does when it has committed.
	commits = []*prometheus.Desc{
		prometheus.NewDesc("etcd_disk_backend_commit_duration_seconds",
			"Time of a commit group, until it is durable.", nil, nil),
		prometheus.NewDesc("etcd_disk_wal_fsync_duration_seconds",
			"As etcd_disk_backend_commit_duration_seconds.", nil, nil),
	}
)

// renamed is a metric by another name.
type renamed struct {
	prometheus.Metric
	desc *prometheus.Desc
}

// Desc implements [prometheus.Metric].
func (r renamed) Desc() *prometheus.Desc { return r.desc }

// answerWait is how long the database may take until it counts as away.
const answerWait = 2 * time.Second

// Collect implements [prometheus.Collector].
func (c collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range []prometheus.Collector{c.s.metrics.started, c.s.metrics.handled,
		c.s.metrics.seconds, c.s.metrics.received, c.s.metrics.sent} {
		m.Collect(to)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(serverVersion, 1, Version)
	gauge(clusterVersion, 1, strings.TrimSuffix(ClusterVersion, ".0"))
	last := c.s.last.Load()
	var store *mvcc.Engine
	if last != nil {
		store = last.of.Value()
	}
	if store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerWait)
	defer cancel()
	head, err := store.Head(ctx)
	if errors.Is(err, contract.ErrClosed) || errors.Is(err, contract.ErrDropped) {
		return
	}
	leads := 0.0
	if err == nil {
		leads = 1
		gauge(headRevision, float64(head))
	}
	gauge(compactedRevision, float64(store.CompactedRevision()))
	to <- renamed{store.Metrics().Watchers(), watchers}
	gauge(hasLeader, leads)
	gauge(isLeader, leads)
	if size := store.Metrics().Size(); size.Total > 0 {
		gauge(databaseSize, float64(size.Total))
		gauge(databaseInUse, float64(size.Live))
	}
	for _, d := range commits {
		to <- renamed{store.Metrics().CommitSeconds(), d}
	}
}
