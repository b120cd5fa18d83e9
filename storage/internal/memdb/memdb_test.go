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
			return d.Open(mvcc.DriverOptions{Timeout: 30 * time.Second})
		}}
	})
}
