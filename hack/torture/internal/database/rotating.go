package database

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/dbserver"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// Rotating is a database whose servers log in with a password that changes. They read their URLs
// from files.
type Rotating struct {
	*Served
	dir      string
	servers  int
	password string
}

// rotated is the user whose password changes. He owns the database.
const rotated = "rotated"

// NewRotating starts one. dir is for the files.
func NewRotating(ctx context.Context, kind programs.Kind, servers int,
	dir string) (*Rotating, error) {
	served, err := NewServed(ctx, kind, servers, dbserver.Options{})
	if err != nil {
		return nil, err
	}
	r := &Rotating{served, dir, servers, rand.Text()}
	statements := []string{
		fmt.Sprintf("CREATE USER %s WITH PASSWORD '%s'", rotated, r.password),
		"ALTER DATABASE rowkeeper OWNER TO " + rotated,
	}
	if kind != programs.Postgres {
		statements = []string{
			fmt.Sprintf("CREATE USER %s IDENTIFIED BY '%s'", rotated, r.password),
			"GRANT ALL ON rowkeeper.* TO " + rotated,
		}
	}
	if err := errors.Join(served.server.Exec(ctx, statements...), r.Write()); err != nil {
		return nil, errors.Join(err, served.Close())
	}
	return r, nil
}

func (r *Rotating) as(rawURL, password string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	u.User = url.UserPassword(rotated, password)
	return u.String()
}

// URL implements Database.
func (r *Rotating) URL(server int) string { return r.as(r.Served.URL(server), r.password) }

// File is the file that has the URL of a server.
func (r *Rotating) File(server int) string {
	return filepath.Join(r.dir, fmt.Sprint("url-", server))
}

// Next chooses another password, and returns the old one.
func (r *Rotating) Next() (old string) {
	old, r.password = r.password, rand.Text()
	return old
}

// Write writes the files with the chosen password.
func (r *Rotating) Write() error {
	for i := range r.servers {
		file := r.File(i)
		if err := os.WriteFile(file+".new", []byte(r.URL(i)+"\n"), 0o600); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return err
		}
	}
	return nil
}

// Alter makes the database take the chosen password, and no other.
func (r *Rotating) Alter(ctx context.Context) error {
	statement := "ALTER USER %s IDENTIFIED BY '%s'"
	if r.server.Kind == programs.Postgres {
		statement = "ALTER USER %s WITH PASSWORD '%s'"
	}
	return r.server.Exec(ctx, fmt.Sprintf(statement, rotated, r.password))
}

// Takes tells whether the database lets somebody in with a password.
func (r *Rotating) Takes(ctx context.Context, password string) bool {
	db, err := rows.Open(r.as(r.Direct(), password), "", "default")
	if err != nil {
		return false
	}
	defer db.Close()
	return db.PingContext(ctx) == nil
}
