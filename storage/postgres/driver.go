package postgres

import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

// Driver opens stores in PostgreSQL, by the URL schemes postgres and postgresql.
var Driver contract.Driver = driver{}

type driver struct{}

// Name returns "postgres".
func (driver) Name() string { return "postgres" }

// Schemes returns the URL schemes "postgres" and "postgresql".
func (driver) Schemes() []string { return []string{"postgres", "postgresql"} }

// Examples implements [contract.Driver].
func (driver) Examples() []string {
	return []string{"postgres://user@host/database?sslmode=verify-full"}
}
