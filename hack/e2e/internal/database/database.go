// Package database runs a database server for a test.
package database

import (
	"context"
	"errors"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
)

// Database is a database server of the kit for tests, with a database.
type Database struct {
	*dbserver.Server
	// URL is that of the database, with the administrator's password.
	URL string
}

// Start starts a server of a kind, and makes a database on it.
func Start(ctx context.Context, kind dbserver.Kind) (*Database, error) {
	s, err := dbserver.Start(ctx, kind, dbserver.Options{Own: true, Durable: true})
	if err != nil {
		return nil, err
	}
	url, err := s.CreateDatabase(ctx, "rowkeeper")
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return &Database{Server: s, URL: url}, nil
}
