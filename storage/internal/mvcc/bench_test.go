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

// BenchmarkPast measures reads of the past, in a log of 200,000 updates of values of 1 KB, of 200
// keys: a page of 100 rows of a key that exists; the state of such a key half of the log ago; the
// 50 newest rows of all keys; and all rows of a key that was deleted before all of these updates,
// for which the whole log is scanned. And it tells how much the database has grown by each update.
func BenchmarkPast(b *testing.B) {
	dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
		s := open(b, db, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}})
		const keys, updates = 200, 1_000
		value := make([]byte, 1024)
		for i := range value {
			value[i] = byte('a' + i*i%26)
		}
		write := func(m contract.Mutation) contract.Revision {
			r, err := s.Commit(b.Context(), m)
			if err != nil {
				b.Error(err)
			}
			return r
		}
		gone := write(contract.Mutation{Key: "/gone", Value: value})
		gone = write(contract.Mutation{Key: "/gone", Expect: gone, Delete: true})
		before, err := s.Size(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		var writers sync.WaitGroup
		for i := range keys {
			writers.Go(func() {
				var r contract.Revision
				for range updates {
					r = write(contract.Mutation{Key: contract.Key(fmt.Sprintf("/k/%03d", i)), Expect: r,
						Value: value})
				}
			})
		}
		writers.Wait()
		after, err := s.Size(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		all := func(o mvcc.PastOptions, read func(mvcc.PastOptions) (*mvcc.Past, error)) (rows int) {
			for {
				p, err := read(o)
				if err != nil {
					b.Fatal(err)
				}
				if rows += len(p.Rows); p.Next == nil || o.Limit < 100 {
					return rows
				}
				o.Place = *p.Next
			}
		}
		for name, f := range map[string]func() int{
			"page": func() int {
				p, err := s.PastOf(b.Context(), "/k/007", mvcc.PastOptions{Limit: 100})
				if err != nil {
					b.Fatal(err)
				}
				return len(p.Rows)
			},
			"at": func() int {
				p, err := s.PastAt(b.Context(), "/k/007", gone+keys*updates/2, time.Time{}, false)
				if err != nil {
					b.Fatal(err)
				}
				return len(p.Rows)
			},
			"newest": func() int {
				return all(mvcc.PastOptions{Limit: 50}, func(o mvcc.PastOptions) (*mvcc.Past, error) {
					return s.PastIn(b.Context(), "/k/", "/k0", o)
				})
			},
			"deleted": func() int {
				return all(mvcc.PastOptions{Limit: 100, Earlier: true},
					func(o mvcc.PastOptions) (*mvcc.Past, error) {
						return s.PastOf(b.Context(), "/gone", o)
					})
			},
		} {
			b.Run(name, func(b *testing.B) {
				rows := 0
				for b.Loop() {
					rows = f()
				}
				b.ReportMetric(float64(rows), "rows")
				b.ReportMetric(float64(after.Total-before.Total)/(keys*updates), "B/update")
			})
		}
	})
}
