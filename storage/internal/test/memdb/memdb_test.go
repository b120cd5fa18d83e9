package memdb

import (
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/backendtest"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backendtest.Subject {
		d := New(t.Name(), time.Now)
		return backendtest.Subject{Open: func(t testing.TB) contract.Backend {
			return d.Open(contract.DriverOptions{Timeout: 30 * time.Second})
		}}
	})
}
