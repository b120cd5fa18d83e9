package mysql

import (
	"context"
	"database/sql"
	"errors"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Identity asks on a connection of its own, which finds out anew what the server is.
func (b *backend) Identity(ctx context.Context) (mvcc.Identity, error) {
	const what = "read the store's identity"
	var id mvcc.Identity
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	c, err := b.admin.Conn(ctx)
	if err != nil {
		return id, b.failed(what, err)
	}
	defer c.Close()
	err = c.Raw(func(c any) error { id.Actual = c.(*conn).facts.fingerprint; return nil })
	if err == nil {
		err = c.QueryRowContext(ctx, selectIdentity).Scan(&id.Store, &id.Recorded, &id.Epoch)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return id, mvcc.ErrEmptyStore
	case err != nil:
		return id, b.failed(what, err)
	}
	return id, nil
}
