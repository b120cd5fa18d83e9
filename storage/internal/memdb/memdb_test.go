package memdb

import (
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/backendtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backendtest.Database {
		d := New(t.Name(), time.Now)
		return backendtest.Database{Open: func(t testing.TB) mvcc.Backend {
			b, err := d.Open(t.Context(), "", mvcc.DriverOptions{Timeout: 30 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}}
	})
}
