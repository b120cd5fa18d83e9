package programs

import "strings"

// Kind is a kind of database.
type Kind string

// The kinds of databases: the one list of them for all tests and tools.
const (
	SQLite   Kind = "sqlite"
	Postgres Kind = "postgres"
	MariaDB  Kind = "mariadb"
	MySQL    Kind = "mysql"
)

// Kinds are all kinds.
func Kinds() []Kind { return append([]Kind{SQLite}, Servers()...) }

// Servers are the kinds that have a server.
func Servers() []Kind { return []Kind{Postgres, MariaDB, MySQL} }

// Env is the environment variable that holds an administrator's URL of a running server of this
// kind.
func (k Kind) Env() string { return "ROWKEEPER_TEST_" + strings.ToUpper(string(k)) }

// SourceEnv is the environment variable that tells people where the server at the URL of [Kind.Env]
// came from, if a program started it for its tests.
func (k Kind) SourceEnv() string { return k.Env() + "_SOURCE" }

// MissingEnv is the environment variable that holds the reason why there is no server of this kind,
// for programs that need not try again.
func (k Kind) MissingEnv() string { return k.Env() + "_MISSING" }

// ImageEnv is the environment variable that names the image of containers of this kind.
func (k Kind) ImageEnv() string { return k.Env() + "_IMAGE" }
