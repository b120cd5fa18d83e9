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
