package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Comparison tells how a database differs from a backup that holds what the database holds.
type Comparison struct {
	// Backup is what the backup says of itself.
	Backup Backup
	// Same is how many objects are in both, byte for byte.
	Same int64
	// Gone is how many objects of the backup have changed, or are not there any more.
	Gone int64
	// Mortal is how many objects of Gone would have expired by themselves, sooner or later.
	Mortal int64
	// Newer is how many objects the database has that were written after the backup.
	Newer int64
}

// ErrOtherStore refuses to compare a database with the backup of another one.
var ErrOtherStore = errors.New("the backup was made of another database or store")

// CompareBackup compares a backup with the database, which may have been written since. A write
// gives a key a new revision. So each key whose revision is not beyond that of the backup was there
// when the backup was made, and has not changed since: it has to be in the backup, byte for byte.
// Objects that were changed or deleted since are counted, and cannot be compared.
//
// The database may be the one that the backup was made of, or one into which it was restored, with
// the same revisions.
func (s *Store) CompareBackup(ctx context.Context, from io.Reader,
	progress Progress) (c Comparison, err error) {
	id, err := s.mvcc.Identity(ctx)
	if err != nil {
		return c, fmt.Errorf("cannot read the database: %w", err)
	}
	in, err := archive.NewReader(&cancelable{ctx, from}, s.mvcc.Limits())
	if err != nil {
		return c, fmt.Errorf("the backup cannot be used: %w", err)
	}
	defer in.Close()
	m := &merging{in: in, c: Comparison{Backup: backupOf(in.Header)}}
	var total, done int64
	err = s.mvcc.Export(ctx, func(_ context.Context, _ contract.State, keys int64,
		_ []contract.LeaseRow) error {
		total = keys
		return m.next()
	}, func(live *contract.Record) error {
		done++
		progress.tell("comparing", done, total)
		return m.compare(live)
	})
	if err == nil {
		err = m.end()
	}
	// If it is another store, nothing is wrong with the backup.
	if differs := (differenceError{}); id.Store != in.Header.Store &&
		(errors.As(err, &differs) || err == nil && m.c.Gone > m.c.Mortal) {
		return m.c, ErrOtherStore
	}
	return m.c, err
}

// differenceError says how a backup differs from the database that it was made of.
type differenceError struct{ error }

// merging walks through a backup and a database, which have the same order.
type merging struct {
	in *archive.Reader
	c  Comparison
	// file is the record of the backup that comes next, nil after the last one.
	file *contract.Record
}

func (m *merging) next() (err error) {
	m.file, err = m.in.Next()
	if errors.Is(err, io.EOF) {
		m.file, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("the backup cannot be used: %w", err)
	}
	return nil
}

// pass passes over a record of the backup that the database does not have.
func (m *merging) pass() error {
	m.c.Gone++
	if m.file.LiveExpiry() != 0 {
		m.c.Mortal++
	}
	return m.next()
}

// compare takes the next record of the database.
func (m *merging) compare(live *contract.Record) error {
	if live.Revision > contract.Revision(m.c.Backup.Revision) {
		m.c.Newer++
		return nil
	}
	for m.file != nil && live.Follows(m.file.ID()) {
		if err := m.pass(); err != nil {
			return err
		}
	}
	if m.file == nil || m.file.ID() != live.ID() {
		return differenceError{fmt.Errorf("the database has the key %q since revision %d, and the "+
			"backup of revision %d does not: it is not whole, or the database was restored since",
			string(live.Key), live.Revision, m.c.Backup.Revision)}
	}
	if !sameRecord(m.file, live) {
		return differenceError{fmt.Errorf("the key %q of revision %d is not in the backup as it is "+
			"in the database: one of them is damaged, or the database was restored since",
			string(live.Key), live.Revision)}
	}
	m.c.Same++
	return m.next()
}

// end reads the rest of the backup, whose end has its checksum.
func (m *merging) end() error {
	for m.file != nil {
		if err := m.pass(); err != nil {
			return err
		}
	}
	return nil
}

func sameRecord(a, b *contract.Record) bool {
	return a.Key == b.Key && a.ID() == b.ID() && a.Create == b.Create && a.Version == b.Version &&
		a.Lease == b.Lease && a.Expiry == b.Expiry && bytes.Equal(a.Value, b.Value)
}
