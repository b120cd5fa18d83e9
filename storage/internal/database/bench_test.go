package database

import (
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// BenchmarkTenants measures what PostgreSQL has to do for the stores of tenants while nobody
// writes: connections, memory, and in each second, transactions and processor time. There are 20
// stores, or as many as ROWKEEPER_BENCH_STORES says. One process serves all of them, or each has a
// process of its own, as it would have to log in by a role of its own. Such processes have nothing
// in common but the server, so stores that are opened one by one, each with its own connections,
// stand for them. An iteration takes ten seconds. The first one begins three minutes after the
// stores were opened.
func BenchmarkTenants(b *testing.B) {
	tenants := 20
	if n, err := strconv.Atoi(os.Getenv("ROWKEEPER_BENCH_STORES")); err == nil {
		tenants = n
	}
	for _, processes := range []int{1, tenants} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			server := dbtest.NewServer(b, dbtest.Postgres, dbserver.Options{
				Settings: map[string]string{"max_connections": strconv.Itoa(12*tenants + 50)}})
			d := server.Open()
			c := Config{URL: d.URL, Drivers: []contract.Driver{d.Driver}, Migrate: true}
			pool, err := OpenStores(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			defer pool.Close()
			for i := range tenants {
				c.Store = fmt.Sprint("tenant", i)
				if _, err := CreateStore(b.Context(), c); err != nil {
					b.Fatal(err)
				}
				var s *Store
				if processes == 1 {
					var release func()
					s, release, err = pool.Use(b.Context(), c.Store)
					if err == nil {
						defer release()
					}
				} else if s, err = Open(b.Context(), c, nil); err == nil {
					defer s.Close()
				}
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.mvcc.Commit(b.Context(),
					contract.Mutation{Key: "/k", Value: []byte("v")}); err != nil {
					b.Fatal(err)
				}
			}
			if processes > 1 {
				if err := pool.Close(); err != nil {
					b.Fatal(err)
				}
			}
			db, err := sql.Open("pgx", d.URL)
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			ask := func(query string) (n int64) {
				if err := db.QueryRowContext(b.Context(), query).Scan(&n); err != nil {
					b.Fatal(err)
				}
				return n
			}
			const transactions = `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`
			<-time.After(3 * time.Minute) // what comes of opening and writing is over
			for b.Loop() {
				count, began := ask(transactions), time.Now()
				used, _ := dbtest.Usage()
				<-time.After(10 * time.Second)
				now, memory := dbtest.Usage()
				seconds := time.Since(began).Seconds()
				b.ReportMetric(float64(ask(transactions)-count)/seconds, "transactions/s")
				b.ReportMetric((now-used).Seconds()/seconds*1000, "database-ms/s")
				b.ReportMetric(float64(memory)/(1<<20), "database-MB")
			}
			b.ReportMetric(float64(ask(`SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'`)),
				"connections")
		})
	}
}
