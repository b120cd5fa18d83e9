// Package drivers is the list of all databases, for programs that serve any of them. A program that
// imports it links them all; one that needs fewer names their drivers instead. Nothing else in the
// library imports it.
package drivers

import (
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// All returns the drivers of all databases. Each is a storage.Driver.
func All() []mvcc.Driver {
	return []mvcc.Driver{sqlite.Driver, postgres.Driver, mysql.Driver}
}
