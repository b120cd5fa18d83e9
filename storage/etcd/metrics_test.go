package etcd_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
)

// TestMetrics: what dashboards and alerts for etcd read is there, and counts.
func TestMetrics(t *testing.T) {
	var away atomic.Bool
	d, _ := inMemory(t, func(context.Context, string) error {
		if away.Load() {
			return errors.New("the database is away")
		}
		return nil
	})
	store := openStore(t, d)
	s := etcd.New(etcd.Opened(store), etcd.ServerConfig{})
	c := serveServer(t, s)
	put(t, c, "k", "v")
	must[*clientv3.GetResponse](t)(c.Get(t.Context(), "k"))
	if _, err := c.Get(t.Context(), "k", clientv3.WithRev(99)); !errors.Is(err,
		rpctypes.ErrFutureRev) {
		t.Error(err)
	}
	watch := c.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	<-watch
	gathered := func() map[string]float64 {
		t.Helper()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(s.Collector())
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				name := f.GetName()
				for _, l := range m.Label {
					if l.GetName() != "grpc_type" {
						name += " " + strings.TrimPrefix(l.GetValue(), "etcdserverpb.")
					}
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() +
					float64(m.GetHistogram().GetSampleCount())
			}
		}
		return got
	}
	got := gathered()
	for name, want := range map[string]float64{
		"etcd_server_has_leader":                         1,
		"etcd_server_is_leader":                          1,
		"grpc_server_started_total Put KV":               1,
		"grpc_server_handled_total OK Put KV":            1,
		"grpc_server_handling_seconds Put KV":            1,
		"grpc_server_handled_total OK Range KV":          1,
		"grpc_server_handled_total OutOfRange Range KV":  1,
		"grpc_server_started_total Watch Watch":          1,
		"grpc_server_handled_total OK Watch Watch":       0,
		"grpc_server_started_total LeaseKeepAlive Lease": 0,
		"etcd_disk_wal_fsync_duration_seconds":           1,
		"etcd_disk_backend_commit_duration_seconds":      1,
	} {
		if have, ok := got[name]; !ok || have != want {
			t.Errorf("%s is %v, not %v", name, have, want)
		}
	}
	for _, name := range []string{"etcd_network_client_grpc_received_bytes_total",
		"etcd_network_client_grpc_sent_bytes_total"} {
		if got[name] < 10 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	away.Store(true)
	if got := gathered()["etcd_server_has_leader"]; got != 0 {
		t.Errorf("without a database, etcd_server_has_leader is %v", got)
	}
	away.Store(false)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if have, ok := gathered()["etcd_server_has_leader"]; ok {
		t.Errorf("a closed store has a leader: %v", have)
	}
}
