package mvcc_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// BenchmarkCrossReplicaWatch measures, for writes through one store, how long after their
// acknowledgement a watcher of another store over the same database has their events: idle (the
// writes come one by one, with quiet between), and while 16 writers write through the first store.
// A negative time, when the event was faster than the acknowledgement, counts as 0.
func BenchmarkCrossReplicaWatch(b *testing.B) {
	for _, writers := range []int{0, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
				a, other := open(b, db, mvcc.Config{}), open(b, db, mvcc.Config{})
				w, err := other.Watch(b.Context(),
					mvcc.WatchOptions{Prefix: "/measured/", After: other.Delivered()})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(b.Context())
				var load sync.WaitGroup
				defer load.Wait()
				defer cancel()
				value := make([]byte, 1024)
				for i := range writers {
					load.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							if _, err := a.Commit(b.Context(),
								contract.Mutation{Key: contract.Key(fmt.Sprintf("/load/%d/%d", i, n)),
									Value: value}); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				seen := make(chan time.Time)
				go func() {
					for {
						batch, err := w.Next(ctx)
						if err != nil {
							return
						}
						now := time.Now()
						for range batch.Events {
							seen <- now
						}
					}
				}()
				var latencies []time.Duration
				quiet := time.NewTicker(20 * time.Millisecond)
				defer quiet.Stop()
				for n := 0; b.Loop(); n++ {
					if _, err := a.Commit(b.Context(),
						contract.Mutation{Key: contract.Key(fmt.Sprintf("/measured/%d", n)),
							Value: value}); err != nil {
						b.Fatal(err)
					}
					acknowledged := time.Now()
					latencies = append(latencies, max((<-seen).Sub(acknowledged), 0))
					<-quiet.C
				}
				slices.Sort(latencies)
				b.ReportMetric(float64(latencies[len(latencies)/2])/1e6, "p50-ms")
				b.ReportMetric(float64(latencies[len(latencies)*99/100])/1e6, "p99-ms")
			})
		})
	}
}

// BenchmarkIdle counts the statements that a store costs its server when nobody writes, after the
// time for which it polls faster is over, with and without watchers. The server counts them; one of
// each counting is taken off.
func BenchmarkIdle(b *testing.B) {
	for _, watchers := range []int{0, 100} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
				s := open(b, db, mvcc.Config{QuietAfter: time.Millisecond})
				for range watchers {
					if _, err := s.Watch(b.Context(), mvcc.WatchOptions{Prefix: "/",
						After: s.Delivered(), Progress: true}); err != nil {
						b.Fatal(err)
					}
				}
				d := raw(b, db)
				d.SetMaxOpenConns(1)
				settle := time.NewTimer(time.Second)
				<-settle.C
				for b.Loop() {
					before, began := statements(b, d, db), time.Now()
					period := time.NewTimer(5 * time.Second)
					<-period.C
					b.ReportMetric(float64(statements(b, d,
						db)-before-1)/time.Since(began).Seconds(), "statements/s")
				}
			}, dbtest.Postgres, dbtest.MariaDB, dbtest.MySQL)
		})
	}
}

// statements is how many statements the server has executed: for Postgres, where each read is a
// transaction, the transactions of the database; for MySQL those of the server.
func statements(b *testing.B, d *sql.DB, db dbtest.DB) (n int64) {
	b.Helper()
	var err error
	if db.Kind == dbtest.Postgres {
		// A session reports what it did once a second at most.
		err = d.QueryRow(`SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
	} else {
		var name string
		err = d.QueryRow(`SHOW GLOBAL STATUS LIKE 'Questions'`).Scan(&name, &n)
	}
	if err != nil {
		b.Fatal(err)
	}
	return n
}
