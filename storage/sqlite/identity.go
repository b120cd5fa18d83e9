package sqlite

import (
	"context"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/sqlite3"
)

func (b *backend) Identity(ctx context.Context) (id contract.Identity, err error) {
	err = b.readDespiteFence(ctx, b.heads, func(_ context.Context, c *sqlite3.Conn) error {
		id, err = b.identity(c)
		id.Actual = b.fingerprint()
		if b.lost.Load() {
			id.Recorded = id.Actual + " with its write-ahead log"
		}
		return err
	})
	return id, err
}

// fingerprint tells this database from a copy of it, see [place]. A store in memory has no copies.
func (b *backend) fingerprint() string {
	if b.cfg.memory() {
		return b.dbName
	}
	return fmt.Sprintf("file %s, %s", b.file, b.place)
}

// identity reads which store a database holds, the fingerprint that is recorded in it, and its
// epoch.
func (b *backend) identity(c *sqlite3.Conn) (id contract.Identity, err error) {
	s, err := c.Prepare(selectIdentity)
	if err != nil {
		return id, err
	}
	found, err := s.Row(func() {
		id = contract.Identity{Store: s.ColString(0), Recorded: s.ColString(1),
			Epoch: contract.Epoch(s.ColInt(2))}
	})
	if err == nil && !found {
		err = contract.Errorf(contract.Invalid, "cannot use %s: %w", b.name(), contract.ErrEmptyStore)
	}
	return id, err
}

// sameStore refuses the file of another store in the place of the one that was opened first.
func (b *backend) sameStore(c *sqlite3.Conn) error {
	id, err := b.identity(c)
	if err == nil && b.store != "" && id.Store != b.store {
		err = contract.Errorf(contract.Invalid, "the database file %s was replaced by one of %w: put the "+
			"right file back, or restart to serve this one", b.name(), contract.ErrAnotherStore)
	}
	return err
}
