package etcd_test

import (
	"context"
	"errors"
	"os"
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
		"etcd_debugging_mvcc_watcher_total":              1,
		"etcd_debugging_mvcc_current_revision":           2,
		"etcd_server_version " + etcd.Version:            1,
		"etcd_cluster_version 3.7":                       1,
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
	checkDocument(t, got)
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

// checkDocument: of the metrics that docs/reference/metrics.md names as etcd's, those of its first
// table are there, and those of the second are not. Nothing is there that it does not name.
func checkDocument(t *testing.T, got map[string]float64) {
	t.Helper()
	content, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(content), "## Metrics with etcd's names\n")
	there, missing, found := strings.Cut(chapter, "\nThese are not there.")
	if !found {
		t.Fatal("metrics.md has no list of what is missing")
	}
	collected := map[string]bool{}
	for name := range got {
		name, _, _ = strings.Cut(name, " ")
		collected[name] = true
	}
	// Sizes are there once they were measured, which a minute after the start is the first time.
	for _, name := range []string{"etcd_mvcc_db_total_size_in_bytes",
		"etcd_mvcc_db_total_size_in_use_in_bytes"} {
		collected[name] = true
	}
	names := func(table string) (list []string) {
		for line := range strings.Lines(table) {
			if cell, ok := strings.CutPrefix(line, "| `"); ok {
				cell, _, _ = strings.Cut(cell, "` |")
				list = append(list, strings.Split(cell, "`, `")...)
			}
		}
		return list
	}
	for _, name := range names(there) {
		if !collected[name] && !strings.HasPrefix(name, "process_") { // these are the command's
			t.Errorf("metrics.md names %s, which is not there", name)
		}
		delete(collected, name)
	}
	for _, name := range names(missing) {
		if collected[name] {
			t.Errorf("metrics.md says that %s is not there", name)
		}
	}
	if len(names(there)) < 15 || len(names(missing)) < 15 || len(collected) > 0 {
		t.Errorf("metrics.md lacks %v", collected)
	}
}
