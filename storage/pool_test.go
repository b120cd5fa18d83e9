package storage

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestStorePool: all who use a store at a time have the same one, so that they take turns at a key,
// and find out if they encode in two ways. Nothing is kept of it when the last one has released it.
func TestStorePool(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite)
	p, err := OpenStores(t.Context(), Config{URL: d.URL, Drivers: []Driver{d.Driver}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	use := func() (*Store, func()) {
		t.Helper()
		store, release, err := p.Use(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		return store, release
	}
	one, releaseOne := use()
	create(t, pods(t, one), pod("a"))
	other, releaseOther := use()
	if one != other {
		t.Error("two who use a store have two")
	}
	releaseOne()
	releaseOne() // which does nothing
	if again, release := use(); again != other {
		t.Error("a store that is used is another one for the next who uses it")
	} else {
		release()
	}
	if len(p.used) != 1 || !p.IsOpen("default") {
		t.Errorf("while one uses a store, there are %d", len(p.used))
	}
	releaseOther()
	if len(p.used) != 0 {
		t.Errorf("when nobody uses a store, there are %d", len(p.used))
	}
	if _, _, err := p.Use(t.Context(), "unknown"); err == nil {
		t.Error("a store that is not there can be used")
	}
}
