package etcd_test

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// The benchmarks of this file measure what is done to thousands of keys or leases, each once:
//
//	go test -run '^$' -bench . -benchtime 1x ./storage/etcd

// many calls f so many times, by 64 clients at a time.
func many(b *testing.B, n int, f func(i int) error) {
	b.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// BenchmarkDeleteRange deletes 20,000 keys by their prefix.
func BenchmarkDeleteRange(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, d dbtest.DB) {
		c := serve(b, d)
		const keys = 20_000
		for b.Loop() {
			b.StopTimer()
			many(b, keys, func(i int) error {
				_, err := c.Put(b.Context(), fmt.Sprintf("/k/%05d", i), "a value")
				return err
			})
			b.StartTimer()
			res, err := c.Delete(b.Context(), "/k/", clientv3.WithPrefix())
			if err != nil || res.Deleted != keys {
				b.Fatalf("%v, %v", res, err)
			}
		}
	})
}

// BenchmarkGrants grants 2,000 leases, and BenchmarkPuts puts as many keys.
func BenchmarkGrants(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, d dbtest.DB) {
		c := serve(b, d)
		for b.Loop() {
			many(b, 2_000, func(int) error { _, err := c.Grant(b.Context(), 3600); return err })
		}
	})
}

func BenchmarkPuts(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, d dbtest.DB) {
		c := serve(b, d)
		for b.Loop() {
			many(b, 2_000, func(i int) error {
				_, err := c.Put(b.Context(), fmt.Sprintf("/k/%05d", i), "a value")
				return err
			})
		}
	})
}

// BenchmarkLapse measures until the keys of 5,000 leases are gone that lapse at the same time,
// where three servers use the database.
func BenchmarkLapse(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, d dbtest.DB) {
		clients := []*clientv3.Client{serve(b, d), serve(b, d), serve(b, d)}
		for b.Loop() {
			b.StopTimer()
			many(b, 5_000, func(i int) error {
				c := clients[i%3]
				l, err := c.Grant(b.Context(), 3600)
				if err == nil {
					_, err = c.Put(b.Context(), fmt.Sprintf("/k/%05d", i), "a value",
						clientv3.WithLease(l.ID))
				}
				return err
			})
			for _, c := range clients {
				if _, err := c.Grant(b.Context(), 3); err != nil { // its server looks then
					b.Fatal(err)
				}
			}
			lapseIn(b, d, 3*time.Second)
			<-time.After(3 * time.Second)
			b.StartTimer()
			for left := int64(1); left > 0; {
				res, err := clients[0].Get(b.Context(), "/k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
				if err != nil {
					b.Fatal(err)
				}
				left = res.Count
			}
		}
	})
}

// lapseIn makes all leases of the database lapse after a time.
func lapseIn(b *testing.B, d dbtest.DB, in time.Duration) {
	b.Helper()
	db, err := contract.OpenBackend(b.Context(), d.Driver, d.URL,
		contract.DriverOptions{Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	for from := contract.Lease(0); ; {
		rows, st, err := db.Leases(b.Context(), from, contract.LeasePage)
		if err != nil {
			b.Fatal(err)
		}
		if len(rows) == 0 {
			return
		}
		for i := range rows {
			rows[i].TTL, rows[i].Expiry = 2, st.Now.Add(in).UnixMicro()
		}
		if err := db.Locked(b.Context(), contract.LockOptions{}, func(tx contract.Tx) error {
			return tx.PutLeases(rows)
		}); err != nil {
			b.Fatal(err)
		}
		from = rows[len(rows)-1].Lease + 1
	}
}
