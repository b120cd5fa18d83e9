package mysql

import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

var schemes = []string{"mysql", "mariadb"}

// Driver opens stores in MySQL and MariaDB. Its URLs are described in the package's documentation.
var Driver contract.Driver = opener{}

type opener struct{}

// Name returns "mysql".
func (opener) Name() string { return "mysql" }

// Schemes returns "mysql" and "mariadb". Both mean the same: what the server is, it says itself.
func (opener) Schemes() []string { return schemes }

// Examples implements [contract.Driver].
func (opener) Examples() []string { return []string{"mysql://user@host:3306/database?tls=true"} }
