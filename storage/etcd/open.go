package etcd

import (
	"context"
	"errors"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Driver opens databases of one kind. The packages sqlite, postgres and mysql beside this one have
// one each.
type Driver = contract.Driver

// Config says which database to open, and how to use it. URL and Drivers are required; the zero
// value of each other field means its default.
type Config = database.Config

// CompactionPolicy says how much history is kept.
type CompactionPolicy = database.CompactionPolicy

// Store is an open store of a database. It is closed by its method Close, or belongs to a
// [StorePool]. A store of package storage has one below it, too: its method Database returns it.
type Store = database.Store

// StorePool has the stores of a database, for a program that serves many of them. A store is opened
// when it is first used, and closed when nobody has used it for a minute.
type StorePool = database.StorePool

// Backup describes a backup: everything that a store held at one revision.
type Backup = database.Backup

// Progress is called after each key with what is being done ("reading", "checking", "writing",
// "comparing"), to how many of how many keys.
type Progress = database.Progress

// RestoreOptions say how to restore a backup.
type RestoreOptions = database.RestoreOptions

// Open opens a store. Its error is one sentence that says what to do, without passwords.
func Open(ctx context.Context, c Config) (*Store, error) { return database.Open(ctx, c, nil) }

// StartingUp tells whether a database could not be opened since its server is starting up. So it
// can be opened soon.
func StartingUp(err error) bool { return errors.Is(err, contract.ErrStartingUp) }

// OpenStores connects to a database, of which it opens no store yet. Config.Store is not used.
func OpenStores(ctx context.Context, c Config) (*StorePool, error) {
	return database.OpenStores(ctx, c)
}
