package options

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/rowkeeper/rowkeeper/storage"
)

// exposed are the databases whose metrics are at /metrics. All API servers of a process share that
// page, so that the first database's metrics are named as they are, and those of further ones, if
// any, have the label database with the number of the place.
var exposed databases

type databases struct {
	once   sync.Once
	mu     sync.Mutex
	places []place
}

// place is a database, and how many servers of this process want its metrics to be seen. A place
// without any is free.
type place struct {
	store   *storage.Store
	servers int
}

// expose shows the metrics of a database until hide was called. It may be exposed several times,
// and is shown until the last is hidden.
func expose(store *storage.Store) (hide func()) {
	exposed.once.Do(func() {
		legacyregistry.RawMustRegister(&exposed)
		etcd3metrics.SetStorageMonitorGetter(exposed.monitors)
	})
	exposed.mu.Lock()
	defer exposed.mu.Unlock()
	i := slices.IndexFunc(exposed.places, func(p place) bool { return p.store == store })
	if i < 0 {
		i = slices.IndexFunc(exposed.places, func(p place) bool { return p.store == nil })
	}
	if i < 0 {
		i = len(exposed.places)
		exposed.places = append(exposed.places, place{})
	}
	exposed.places[i].store = store
	exposed.places[i].servers++
	return func() {
		exposed.mu.Lock()
		defer exposed.mu.Unlock()
		if exposed.places[i].servers--; exposed.places[i].servers == 0 {
			exposed.places[i].store = nil
		}
	}
}

// Describe describes nothing, as what there is to collect changes with the databases.
func (*databases) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (d *databases) Collect(metrics chan<- prometheus.Metric) {
	for i, p := range d.list() {
		if p.store == nil {
			continue
		}
		collector := p.store.Collector()
		if i > 0 {
			collector = prometheus.WrapCollectorWith(prometheus.Labels{"database": strconv.Itoa(i + 1)}, collector)
		}
		collector.Collect(metrics)
	}
}

func (d *databases) list() []place {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.places)
}

// monitors lets upstream's metric apiserver_storage_size_bytes show the sizes.
func (d *databases) monitors() ([]etcd3metrics.Monitor, error) {
	var monitors []etcd3metrics.Monitor
	for _, p := range d.list() {
		if p.store != nil {
			monitors = append(monitors, sizeMonitor{p.store})
		}
	}
	return monitors, nil
}

type sizeMonitor struct{ store *storage.Store }

// sizeWait is how long the database may take to tell its size.
const sizeWait = 2 * time.Second

// Monitor takes the size that was last measured: the page must not wait for a database that does
// not answer, since it has to tell of that.
func (m sizeMonitor) Monitor(ctx context.Context) (etcd3metrics.StorageMetrics, error) {
	if size := m.store.LastSize(); size.Total > 0 {
		return etcd3metrics.StorageMetrics{Size: size.Total}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sizeWait)
	defer cancel()
	size, err := m.store.Size(ctx)
	return etcd3metrics.StorageMetrics{Size: size.Total}, err
}

func (sizeMonitor) Close() error { return nil }
