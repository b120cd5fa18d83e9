package etcd_test

import (
	"database/sql"
	"log/slog"
	"net/url"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	_ "modernc.org/sqlite"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestTxnComparesLostValue: a server may remember a value that the database has lost. Then a
// comparison of it holds for the server and not for the database, and the transaction says so.
func TestTxnComparesLostValue(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store, err := etcd.Open(t.Context(), etcd.Config{URL: d.URL, Drivers: []etcd.Driver{d.Driver},
			Migrate: true, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		c := serveOpen(t, etcd.Opened(store), etcd.ServerConfig{})
		lost := put(t, c, "a/1", "v")
		compare := func() error {
			_, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Value("a/").WithPrefix(), "=", "v")).
				Then(clientv3.OpPut("c", "")).Commit()
			return err
		}
		for range 2 { // the server remembers what it has read
			must[*clientv3.GetResponse](t)(c.Get(t.Context(), "a/", clientv3.WithPrefix()))
			if err := compare(); err != nil {
				t.Fatal(err)
			}
		}
		u, err := url.Parse(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", u.Path+"?_pragma=busy_timeout(10000)")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec("DELETE FROM rowkeeper_log WHERE revision = ?", lost); err != nil {
			t.Fatal(err)
		}
		if err := compare(); status.Code(err) != codes.DataLoss {
			t.Errorf("%v", err)
		}
	}, dbtest.SQLite)
}
