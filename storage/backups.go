package storage

import (
	"context"
	"io"

	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Backup describes a backup: everything that a store held at one revision.
type Backup = database.Backup

// Progress is called after each object with what is being done ("reading", "checking", "writing",
// "comparing"), to how many of how many objects.
type Progress = database.Progress

// RestoreOptions say how to restore a backup.
type RestoreOptions = database.RestoreOptions

// Comparison tells how a database differs from a backup that holds what the database holds.
type Comparison = database.Comparison

var (
	// ErrNotEmpty refuses to restore a backup into a database that has objects.
	ErrNotEmpty = database.ErrNotEmpty
	// ErrStalled ends a backup whose output takes nothing more.
	ErrStalled = database.ErrStalled
	// ErrNotConfirmed says that nobody can tell whether a backup was restored. It was as a whole,
	// or not at all.
	ErrNotConfirmed = database.ErrNotConfirmed
	// ErrOtherStore refuses to compare a database with the backup of another one.
	ErrOtherStore = database.ErrOtherStore
)

// WriteBackup writes everything that the database holds to w: the state at one revision, read in
// one snapshot, while servers go on. Objects are written as they are stored, so what is encrypted
// in the database is encrypted in the backup. Memory does not grow with the number of objects. w is
// not closed; after an error, what was written to it is of no use.
//
// As long as it reads, the database keeps what it would give up otherwise. So it fails with
// ErrStalled if w takes five minutes for one Write, and at once when the context ends; a Write that
// hangs is left behind then, and ends when w lets it.
//
// The format is documented in storage/internal/archive.
func (s *Store) WriteBackup(ctx context.Context, w io.Writer,
	progress Progress) (b Backup, err error) {
	return s.db.WriteBackup(ctx, w, progress)
}

// ReadBackup reads a backup to its end, and returns an error if it is not whole, or of a newer
// format.
func ReadBackup(r io.Reader, progress Progress) (Backup, error) {
	return database.ReadBackup(r, progress)
}

// DescribeBackup reads only the beginning of a backup: what it says of itself.
func DescribeBackup(r io.Reader) (Backup, error) { return database.DescribeBackup(r) }

// RestoreBackup makes a backup the content of the database, which may be of another kind than the
// one that it was made of. Objects keep their UIDs, and the times at which they expire. They keep
// their resourceVersions, too, unless the backup comes from another store (see Backup.Store) and
// this database has ever been written: then its clients may know the same resourceVersions of other
// objects, and all of them get new ones, greater than any before.
//
// The backup is read twice: first to check that it is whole. Then everything is replaced in one
// transaction, in which what was written is read back and compared, and in which a new history
// begins (see Fence). So if it fails or is killed, nothing was changed; servers may be running,
// whose reads see what was before until they see what is restored, whose writes wait meanwhile or
// fail, and whose watches begin anew.
//
// It returns what was restored, and the first revision of the new history.
func (s *Store) RestoreBackup(ctx context.Context, from io.ReadSeeker,
	o RestoreOptions) (b Backup, revision int64, err error) {
	return s.db.RestoreBackup(ctx, from, o)
}

// CompareBackup compares a backup with the database, which may have been written since. A write
// gives a key a new revision. So each key whose revision is not beyond that of the backup was there
// when the backup was made, and has not changed since: it has to be in the backup, byte for byte.
// Objects that were changed or deleted since are counted, and cannot be compared.
//
// The database may be the one that the backup was made of, or one into which it was restored, with
// the same revisions.
func (s *Store) CompareBackup(ctx context.Context, from io.Reader,
	progress Progress) (Comparison, error) {
	return s.db.CompareBackup(ctx, from, progress)
}
