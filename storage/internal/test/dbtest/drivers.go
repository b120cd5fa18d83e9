package dbtest

import (
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// drivers are those of the kinds. MariaDB's is MySQL's, and so on.
var drivers = map[Kind]contract.Driver{
	SQLite:   sqlite.Driver,
	Memory:   sqlite.Driver,
	Postgres: postgres.Driver,
	MariaDB:  mysql.Driver,
	MySQL:    mysql.Driver,
}

// Driver is the driver of a kind.
func Driver(k Kind) contract.Driver { return drivers[k] }
