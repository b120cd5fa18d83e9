package postgres

import (
	"log/slog"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestLifetimes: connections that poll are replaced soon, whatever the URL says of others, so that
// one of them finds out where the address leads now.
func TestLifetimes(t *testing.T) {
	for parameters, want := range map[string][2]time.Duration{
		"": {time.Hour, contract.PollLifetime},
		"&pool_max_conn_lifetime=5h&pool_max_conn_lifetime_jitter=2h": {5 * time.Hour,
			contract.PollLifetime},
		"&pool_max_conn_lifetime=10s": {10 * time.Second, 10 * time.Second},
	} {
		cfg, err := parseURL("postgres://rk@localhost/store?sslmode=disable"+parameters,
			contract.DriverOptions{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		d, err := connect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		reads, polls := d.reads.Config().MaxConnLifetime, d.tails.Config().MaxConnLifetime
		if reads != want[0] || polls != want[1] ||
			polls == contract.PollLifetime && d.tails.Config().MaxConnLifetimeJitter != 0 {
			t.Errorf("%q: %v for lists, %v for polls, want %v", parameters, reads, polls, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
