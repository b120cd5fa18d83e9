package storagetest

import (
	"context"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// DeleteExpired deletes the objects whose time to live has passed by the database's clock, as is
// otherwise done in the background. Tests call it after they have moved [storage.Config].Clock.
func DeleteExpired(ctx context.Context, db *storage.Store) error {
	for _, store := range database.Engines(db.Database()) {
		if err := store.DeleteExpired(ctx); err != nil {
			return fmt.Errorf("cannot delete what has expired: %w", err)
		}
	}
	return nil
}
