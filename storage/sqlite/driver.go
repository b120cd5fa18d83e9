package sqlite

import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

// Driver serves the URL schemes "sqlite" and "memory".
var Driver contract.Driver = driver{}

type driver struct{}

func (driver) Name() string { return "sqlite" }

func (driver) Schemes() []string { return []string{"sqlite", "memory"} }

func (driver) Examples() []string {
	return []string{"sqlite:///var/lib/rowkeeper/state.db", "memory: (gone at exit)"}
}
