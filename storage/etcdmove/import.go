package etcdmove

import (
	"context"
	"fmt"
	"io"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/etcdreader"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Imported describes what was imported.
type Imported struct {
	database.Backup
	// From is the revision of the etcd that was read, and Now the one that it had afterwards. If
	// they differ, it was written meanwhile.
	From, Now int64
	// Head is the first revision of the store's new history.
	Head int64
}

var (
	// ErrNotEmpty refuses to import into a store that holds something.
	ErrNotEmpty = database.ErrNotEmpty
	// ErrNotConfirmed says that nobody can tell whether everything was imported, or nothing.
	ErrNotConfirmed = database.ErrNotConfirmed
)

// Import puts what an etcd holds into a store that holds nothing; otherwise it fails with
// [ErrNotEmpty]. If it fails or is killed, nothing was changed. It keeps everything in
// temporary files until it has read it, and of each key a few bytes in memory.
func Import(ctx context.Context, from *clientv3.Client, into *etcd.Store,
	progress Progress) (i Imported, err error) {
	s := database.Engine(into)
	some, err := s.Range(ctx, mvcc.RangeOptions{Start: "\x00", End: "\xff", Limit: 1,
		KeysOnly: true})
	switch {
	case err != nil:
		return i, err
	case len(some.KVs) > 0:
		return i, ErrNotEmpty // before the etcd is read for long
	}
	r := &etcdreader.Reader{Client: from, Progress: progress,
		Clock: func(ctx context.Context) (time.Time, error) {
			st, err := s.State(ctx)
			return st.Now, err
		}}
	defer r.Close()
	if err := r.Read(ctx); err != nil {
		return i, fmt.Errorf("cannot read the etcd: %w", err)
	}
	file, err := etcdreader.Temporary()
	if err != nil {
		return i, err
	}
	defer file.Close()
	if err := writeBackup(r, file); err != nil {
		return i, fmt.Errorf("cannot keep what was read in a temporary file: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return i, err
	}
	i.From = r.At
	if i.Backup, i.Head, err = into.RestoreBackup(ctx, file,
		database.RestoreOptions{Progress: progress}); err != nil {
		return i, err
	}
	now, err := from.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return i, fmt.Errorf("everything was imported, but it cannot be told whether the etcd was "+
			"written meanwhile: %w", err)
	}
	i.Now = now.Header.Revision
	return i, nil
}

// writeBackup writes what was read as a backup. If the keys cannot have their revisions, they get
// new ones.
func writeBackup(r *etcdreader.Reader, file io.Writer) error {
	keep := r.Parts()
	last := contract.Revision(r.At)
	if !keep {
		last += contract.Revision(r.Keys())
	}
	w, err := archive.NewWriter(file, archive.Header{Store: fmt.Sprintf("etcd-%016x", r.Cluster),
		Revision: last, Keys: int64(r.Keys()), Time: r.Time.UTC()}, r.Leases)
	if err != nil {
		return err
	}
	next := contract.Revision(r.At)
	err = r.Records(func(record *contract.Record) error {
		if next++; !keep {
			record.Revision, record.Part, record.Create = next, 0, next
		}
		return w.Write(record)
	})
	if err != nil {
		w.Abandon()
		return err
	}
	_, err = w.Close()
	return err
}
