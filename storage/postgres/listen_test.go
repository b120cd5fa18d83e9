package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
)

// listens has a backend listen until stop is called. It returns once notifications flow.
func listens(t *testing.T, b contract.Backend) (heard <-chan contract.Revision, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	all, flows, done := make(chan contract.Revision, 1000), make(chan error, 1000), make(chan struct{})
	go func() {
		defer close(done)
		b.(contract.Notifier).Listen(ctx, func(r contract.Revision) { all <- r },
			func(err error) { flows <- err })
	}()
	for err := range flows {
		if err == nil {
			break
		}
		t.Log(err)
	}
	return all, func() { cancel(); <-done }
}

// hears waits until a revision is heard.
func hears(t *testing.T, heard <-chan contract.Revision, want contract.Revision) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case r := <-heard:
			if r == want {
				return
			}
		case <-timeout:
			t.Fatalf("revision %d was not heard", want)
		}
	}
}

// announce has a backend announce a revision. No commit belongs to it, which nobody asks for.
func announce(t *testing.T, b contract.Backend, r contract.Revision) {
	t.Helper()
	if err := b.(contract.Notifier).Announce(t.Context(),
		[]contract.Announced{{Store: b, Revision: r}}); err != nil {
		t.Fatal(err)
	}
}

// A process that is alone announces nothing. A process that begins to listen hears what it has
// missed.
func TestAlone(t *testing.T) {
	url := migrated(t)
	first, second, admin := openURL(t, url), openURL(t, url), connect(t, url)
	defer first.Close()
	defer second.Close()
	postgres.ProbeEvery(first, 20*time.Millisecond)
	var table int64
	if err := admin.QueryRow(t.Context(), `SELECT 'rowkeeper_log'::regclass::oid::bigint`).Scan(
		&table); err != nil {
		t.Fatal(err)
	}
	if postgres.Alone(first) {
		t.Fatal("who does not listen does not know that it is alone")
	}
	_, stopFirst := listens(t, first)
	eventually(t, "the first to be alone", func() bool { return postgres.Alone(first) })
	exec(t, admin, fmt.Sprint("LISTEN rowkeeper_", table), "LISTEN marker")
	for r := contract.Revision(100); r < 400; r += 100 {
		announce(t, first, r)
		// Notifications come in the order of the transactions.
		exec(t, admin, "NOTIFY marker")
		for {
			n, err := admin.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(n.Payload, fmt.Sprint(" 1 ", r)) {
				t.Errorf("the first is alone, and announced %q", n.Payload)
			}
			if n.Channel == "marker" {
				break
			}
		}

		announce(t, first, r+1)
		heard, stop := listens(t, second)
		hears(t, heard, r+1)
		eventually(t, "the first to hear that it is not alone", func() bool {
			return !postgres.Alone(first)
		})
		if postgres.Alone(second) {
			t.Error("two listen, and the second holds itself for alone")
		}
		announce(t, first, r+2)
		hears(t, heard, r+2)
		stop()
		eventually(t, "the first to be alone", func() bool { return postgres.Alone(first) })
	}
	stopFirst()
	if postgres.Alone(first) {
		t.Error("who does not listen any more does not know that it is alone")
	}
}
