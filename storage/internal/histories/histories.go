// Package histories gives other packages of this module the mvcc.Store behind a storage.Store,
// which the public API hides.
package histories

import "github.com/rowkeeper/rowkeeper/storage/internal/mvcc"

// Of returns the history behind a *storage.Store. Package storage sets it when it is
// initialized: this package cannot import storage, which imports it.
var Of func(database any) *mvcc.Store

// All returns the histories of all stores of a *storage.Store, in an order that depends on their
// names.
var All func(database any) []*mvcc.Store
