package mvcc

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Metrics count what an Engine does. It is a prometheus.Collector: register it where the process's
// metrics are.
type Metrics struct {
	commitSeconds, lockWaitSeconds, groupMutations prometheus.Histogram
	commitFailures, unknownOutcomes                *prometheus.CounterVec
	headRevision, deliveredRevision                prometheus.Gauge
	lagSeconds, tailFailing                        prometheus.GaugeFunc
	deliverySeconds                                prometheus.Histogram
	listeningState                                 *prometheus.GaugeVec
	notifications, tailedRows, tailFailures        prometheus.Counter
	liveWatchers                                   prometheus.Gauge
	demotions, replayedRows                        prometheus.Counter
	compactedRevision, sweptRevision, sweepDebt    prometheus.Gauge
	sweptRows, compactionFailures                  prometheus.Counter
	databaseBytes                                  *prometheus.GaugeVec
	expiredKeys, fences, historyChanges            prometheus.Counter
	historyChanged                                 prometheus.Gauge
	readRetries, refusedReads                      prometheus.Counter
	pools                                          *prometheus.GaugeVec

	// mu protects the fields below.
	mu sync.Mutex
	// headSeen and deliveredSeen are the newest; behindSince is when the second fell behind the
	// first, zero if it has not.
	headSeen, deliveredSeen contract.Revision
	behindSince             time.Time
	// failingSince is when reading the log began to fail, zero if it last succeeded.
	failingSince time.Time
	poolsOf      contract.Pooled
	measured     contract.Size
}

// NewMetrics makes metrics that are registered nowhere.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "rowkeeper_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "rowkeeper_" + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "rowkeeper_" + name,
			Help: help, Buckets: buckets})
	}
	seconds := prometheus.ExponentialBuckets(0.0001, 2.5, 14) // 0.1 ms to 15 s
	m := &Metrics{
		commitSeconds: histogram("commit_duration_seconds",
			"Time from giving a commit group to the database to its durable commit.", seconds),
		lockWaitSeconds: histogram("commit_lock_wait_seconds", "Time that a commit group waited "+
			"for the commit lock, where the database tells it.", seconds),
		groupMutations: histogram("commit_group_mutations", "Mutations in a commit group.",
			prometheus.ExponentialBuckets(1, 2, 11)),
		commitFailures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rowkeeper_commit_failures_total",
			Help: "Commit groups that failed, by what the failure means."}, []string{"class"}),
		unknownOutcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rowkeeper_unknown_outcomes_total",
			Help: "Commit groups whose outcome was unknown, by what became of them: committed, " +
				"aborted, or unknown for ever."}, []string{"resolution"}),
		headRevision: gauge("head_revision", "Newest revision that this process knows of."),
		deliveredRevision: gauge("delivered_revision",
			"Newest revision that this process has delivered to its watchers."),
		deliverySeconds: histogram("tail_delivery_seconds", "Time from another process's "+
			"commit to its delivery here, by the database's clock.", seconds),
		listeningState: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rowkeeper_notifications_working",
			Help: "1 if other processes' writes are notified, 0 if they are polled for. There is " +
				"none where the database has no notifications."}, nil),
		notifications: counter("notifications_total", "Notifications received."),
		tailedRows: counter("tailed_rows_total",
			"Rows of the log that were read to deliver them."),
		tailFailures: counter("tail_failures_total",
			"Failed attempts to read the log's new rows."),
		liveWatchers: gauge("watchers", "Watches that are open."),
		demotions: counter("watcher_demotions_total",
			"Times that a watcher was too slow for the events in memory and went on from the log."),
		replayedRows: counter("replayed_rows_total",
			"Rows of the log that were read for watchers behind the events in memory."),
		compactedRevision: gauge("compacted_revision",
			"Revision below which history may be gone."),
		sweptRevision: gauge("swept_revision", "Revision up to which replaced rows have "+
			"been removed."),
		sweepDebt: gauge("sweep_debt_revisions",
			"Compacted revisions that have not been swept."),
		sweptRows:          counter("swept_rows_total", "Rows that the sweep has removed."),
		compactionFailures: counter("compaction_failures_total", "Failed compactions."),
		databaseBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rowkeeper_database_bytes",
			Help: "Size of the store's tables and indexes: live (in use) and dead (free to be " +
				"used again)."}, []string{"state"}),
		expiredKeys: counter("expired_keys_total", "Keys that were deleted because their time "+
			"had come."),
		fences: counter("fences_total", "Fences that this process has set."),
		historyChanges: counter("history_changes_total",
			"Times that this process moved to another history: all its watches ended."),
		historyChanged: gauge("history_changed_timestamp_seconds", "When this process last set a "+
			"fence or moved to another history, in seconds since 1970, 0 if it never has."),
		readRetries: counter("read_retries_total", "Reads that were tried again."),
		refusedReads: counter("refused_reads_total", "Answers that were not used because the "+
			"server was read-only."),
		pools: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rowkeeper_pool_connections",
			Help: "Connections to the database, by pool and state (in_use, idle, max)."},
			[]string{"pool", "state"}),
	}
	m.lagSeconds = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rowkeeper_delivery_lag_seconds",
		Help: "Time since this process has known of a revision that it has not delivered, 0 if " +
			"it is up to date."}, m.lag)
	m.tailFailing = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rowkeeper_tail_failing_seconds",
		Help: "Time for which every attempt to read the log's new rows has failed, 0 if the last " +
			"one has not."}, m.failingFor)
	// A counter that appears with its first event does not increase by it, so all are there at 0.
	for c := contract.Unavailable; c <= contract.Invalid; c++ {
		m.commitFailures.WithLabelValues(c.String())
	}
	for _, what := range []string{"committed", "aborted", "unknown"} {
		m.unknownOutcomes.WithLabelValues(what)
	}
	return m
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.commitSeconds, m.lockWaitSeconds, m.groupMutations,
		m.commitFailures, m.unknownOutcomes, m.headRevision, m.deliveredRevision, m.lagSeconds,
		m.tailFailing,
		m.deliverySeconds, m.listeningState, m.notifications, m.tailedRows, m.tailFailures,
		m.liveWatchers,
		m.demotions, m.replayedRows, m.compactedRevision, m.sweptRevision, m.sweepDebt, m.sweptRows,
		m.compactionFailures, m.databaseBytes,
		m.expiredKeys, m.fences, m.historyChanges, m.historyChanged, m.readRetries, m.refusedReads,
		m.pools}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(c chan<- *prometheus.Desc) {
	for _, one := range m.collectors() {
		one.Describe(c)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(c chan<- prometheus.Metric) {
	m.mu.Lock()
	p := m.poolsOf
	m.mu.Unlock()
	if p != nil {
		for _, pool := range p.Pools() {
			m.pools.WithLabelValues(pool.Name, "in_use").Set(float64(pool.InUse))
			m.pools.WithLabelValues(pool.Name, "idle").Set(float64(pool.Idle))
			m.pools.WithLabelValues(pool.Name, "max").Set(float64(pool.Max))
		}
	}
	for _, one := range m.collectors() {
		one.Collect(c)
	}
}

// observe connects the metrics to their backend. It is nil after the backend is closed.
func (m *Metrics) observe(b contract.Backend) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.poolsOf, _ = b.(contract.Pooled)
}

func (m *Metrics) lag() float64        { return m.since(&m.behindSince) }
func (m *Metrics) failingFor() float64 { return m.since(&m.failingSince) }

// since is the time since one of the fields, 0 if that is zero.
func (m *Metrics) since(field *time.Time) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if field.IsZero() {
		return 0
	}
	return time.Since(*field).Seconds()
}

func (m *Metrics) head(r contract.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r <= m.headSeen {
		return
	}
	m.headSeen = r
	m.headRevision.Set(float64(r))
	if r > m.deliveredSeen && m.behindSince.IsZero() {
		m.behindSince = time.Now()
	}
}

func (m *Metrics) delivered(p contract.Position) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deliveredSeen = p.Revision
	m.deliveredRevision.Set(float64(p.Revision))
	if p.Revision >= m.headSeen {
		m.headSeen = p.Revision
		m.headRevision.Set(float64(p.Revision))
		m.behindSince = time.Time{}
	}
}

func (m *Metrics) committed(mutations int, took, lockWait time.Duration) {
	m.commitSeconds.Observe(took.Seconds())
	m.groupMutations.Observe(float64(mutations))
	if lockWait > 0 {
		m.lockWaitSeconds.Observe(lockWait.Seconds())
	}
}

func (m *Metrics) tailed(rows int, lag time.Duration) {
	m.tailedRows.Add(float64(rows))
	m.deliverySeconds.Observe(max(lag, 0).Seconds())
}

func (m *Metrics) listening(ok bool) {
	state := 0.0
	if ok {
		state = 1
	}
	m.listeningState.WithLabelValues().Set(state)
}

func (m *Metrics) compacted(st contract.State) {
	m.compactedRevision.Set(float64(st.Compacted))
	m.sweptRevision.Set(float64(st.Swept))
	m.sweepDebt.Set(float64(st.Compacted - st.Swept))
}

func (m *Metrics) fenced() {
	m.fences.Inc()
	m.historyChanged.SetToCurrentTime()
}

func (m *Metrics) adopted() {
	m.historyChanges.Inc()
	m.historyChanged.SetToCurrentTime()
}

func (m *Metrics) tailFailed() {
	m.tailFailures.Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failingSince.IsZero() {
		m.failingSince = time.Now()
	}
}

func (m *Metrics) tailWorks() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failingSince = time.Time{}
}

func (m *Metrics) swept(rows int, st contract.State) {
	m.sweptRows.Add(float64(rows))
	m.compacted(st)
}

// CommitSeconds is the histogram of commits, for who gives it another name.
func (m *Metrics) CommitSeconds() prometheus.Metric { return m.commitSeconds }

// Watchers is the gauge of open watches, for who gives it another name.
func (m *Metrics) Watchers() prometheus.Metric { return m.liveWatchers }

// Size is the size when it was last measured, 0 before that.
func (m *Metrics) Size() contract.Size {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.measured
}

func (m *Metrics) size(s contract.Size) {
	m.mu.Lock()
	m.measured = s
	m.mu.Unlock()
	m.databaseBytes.WithLabelValues("live").Set(float64(s.Live))
	m.databaseBytes.WithLabelValues("dead").Set(float64(s.Total - s.Live))
}

func (m *Metrics) commitFailed(c contract.Class) { m.commitFailures.WithLabelValues(c.String()).Inc() }
func (m *Metrics) resolved(what string)          { m.unknownOutcomes.WithLabelValues(what).Inc() }
func (m *Metrics) notified()                     { m.notifications.Inc() }
func (m *Metrics) watchers(n int)                { m.liveWatchers.Set(float64(n)) }
func (m *Metrics) demoted()                      { m.demotions.Inc() }
func (m *Metrics) replayed(rows int)             { m.replayedRows.Add(float64(rows)) }
func (m *Metrics) compactionFailed()             { m.compactionFailures.Inc() }
func (m *Metrics) reaped(n int)                  { m.expiredKeys.Add(float64(n)) }
func (m *Metrics) readRetried()                  { m.readRetries.Inc() }
func (m *Metrics) notReady()                     { m.refusedReads.Inc() }
