// Package access is for storage/storagetest and storage/etcd. It gives them the history behind a
// database, for which products have no method.
package access

import "github.com/rowkeeper/rowkeeper/storage/internal/mvcc"

// History returns the history behind a *storage.Database. Package storage sets it when it is
// initialized: this package cannot import storage, which imports it.
var History func(database any) *mvcc.Store

// Histories returns the histories of all stores of a *storage.Database, in an order that depends on
// their names.
var Histories func(database any) []*mvcc.Store
