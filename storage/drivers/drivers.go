package drivers

import (
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// All returns the drivers of all databases. Each is a storage.Driver.
func All() []contract.Driver {
	return []contract.Driver{sqlite.Driver, postgres.Driver, mysql.Driver}
}
