// Package access is for storage/storagetest. It gives access to what products have no method for.
package access

import "github.com/rowkeeper/rowkeeper/storage/internal/mvcc"

// History returns the history behind a *storage.Database. Package storage sets it when it is
// initialized: this package cannot import storage, which imports it.
var History func(database any) *mvcc.Store
