// Package access is for storage/storagetest and storage/etcd. It gives them the history behind a
// database, for which products have no method.
package access

import "github.com/rowkeeper/rowkeeper/storage/internal/mvcc"

// History returns the history behind a *storage.Database. Package storage sets it when it is
// initialized: this package cannot import storage, which imports it.
var History func(database any) *mvcc.Store
