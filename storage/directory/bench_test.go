package directory

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// number is what an environment variable says, or the other number.
func number(env string, otherwise int) int {
	n, _ := strconv.Atoi(os.Getenv(env))
	return cmp.Or(n, otherwise)
}

// BenchmarkDirectory measures a directory of 1,000 rows, or as many as ROWKEEPER_BENCH_ROWS says.
// Its databases are in the row alone: what takes long there is measured by [BenchmarkSpread].
func BenchmarkDirectory(b *testing.B) {
	rows := number("ROWKEEPER_BENCH_ROWS", 1000)
	dbtest.Each(b, func(b *testing.B, db dbtest.DB) {
		d := benchDirectory(b, db, map[string]string{"a": db.URL, "b": db.URL, "c": db.URL})
		name := func(i int) string { return fmt.Sprint("tenant-", i) }
		began := time.Now()
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := w; i < rows; i += writers {
					r := Row{Name: name(i), State: Open, Database: string(rune('a' + i%3)), Generation: 1}
					if _, err := d.write(b.Context(), r); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		b.Logf("%d rows were written in %v", rows, time.Since(began))
		b.Run("get", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if r, err := d.Get(b.Context(), name(i*7919%rows)); err != nil || r.State != Open {
					b.Fatal(r, err)
				}
			}
		})
		b.Run("write", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r, err := d.Get(b.Context(), name(i*7919%rows))
				if err == nil {
					_, err = d.write(b.Context(), r)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("emptiest", func(b *testing.B) {
			for b.Loop() {
				if _, err := d.Emptiest(b.Context(), ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// writers is how many write at a time.
const writers = 64

// benchDirectory makes a directory in a database. Its databases have the URLs.
func benchDirectory(b *testing.B, control dbtest.DB, urls map[string]string) *Directory {
	b.Helper()
	var lines strings.Builder
	for name, url := range urls {
		fmt.Fprintln(&lines, name, url)
	}
	file := filepath.Join(b.TempDir(), "databases")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	config := Config{URL: control.URL, Drivers: []contract.Driver{control.Driver}, Migrate: true,
		Logger: slog.New(slog.DiscardHandler)}
	databases, err := ReadDatabases(file, config)
	if err != nil {
		b.Fatal(err)
	}
	for name := range urls {
		c, err := databases.Config(name, "")
		if err == nil {
			_, err = database.Migrate(b.Context(), c)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	d, err := OpenDirectory(b.Context(), config, databases)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	return d
}

// BenchmarkSpread measures 60 stores, or as many as ROWKEEPER_BENCH_STORES says, on one server of
// PostgreSQL and on three, which all run on this machine: an operation is a write of one of the
// stores, by 64 writers, and cpu-µs is what this process and all servers used for it.
func BenchmarkSpread(b *testing.B) {
	stores := number("ROWKEEPER_BENCH_STORES", 60)
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			urls := map[string]string{}
			var control dbtest.DB
			for i := range n {
				db := dbtest.NewServer(b, dbtest.Postgres, dbserver.Options{}).Open()
				urls[string(rune('a'+i))] = db.URL
				control = db
			}
			d := benchDirectory(b, control, urls)
			pool := NewPool(d)
			defer pool.Close()
			_, before := dbtest.Usage()
			began := time.Now()
			var engines []*mvcc.Engine
			for i := range stores {
				name := fmt.Sprint("tenant-", i)
				if _, err := d.Create(b.Context(), name, string(rune('a'+i%n))); err != nil {
					b.Fatal(err)
				}
				s, release, err := pool.Use(b.Context(), name)
				if err != nil {
					b.Fatal(err)
				}
				defer release()
				engines = append(engines, database.Engine(s))
			}
			b.Logf("%d stores were made and opened in %v", stores, time.Since(began))
			_, after := dbtest.Usage()
			b.Logf("the servers need %d KB more for each", (after-before)/int64(stores)>>10)
			b.Run("write", func(b *testing.B) { writeAll(b, engines) })
		})
	}
}

// writeAll writes new keys to the stores in turn.
func writeAll(b *testing.B, stores []*mvcc.Engine) {
	value := []byte(strings.Repeat("x", 1024))
	var writes atomic.Int64
	idle, _ := dbtest.Usage()
	own := dbtest.OwnUsage()
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; writes.Add(1) <= int64(b.N); i += writers {
				key := fmt.Sprintf("/objects/%d/%d-%d", b.N, w, i)
				if _, err := stores[i%len(stores)].Commit(b.Context(), contract.Mutation{
					Key: contract.Key(key), Value: value}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	used, _ := dbtest.Usage()
	b.ReportMetric(float64((used-idle).Microseconds())/float64(b.N), "database-cpu-µs/op")
	b.ReportMetric(float64((dbtest.OwnUsage()-own).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}
