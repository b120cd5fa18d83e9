package etcdmove

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
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

// pageKeys is how many keys are read at a time.
const pageKeys = 500

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
	r := &reader{client: from, store: s, progress: progress, attached: map[clientv3.LeaseID]bool{}}
	defer r.close()
	if err := r.read(ctx); err != nil {
		return i, fmt.Errorf("cannot read the etcd: %w", err)
	}
	file, err := temporary()
	if err != nil {
		return i, err
	}
	defer file.Close()
	if err := r.writeBackup(file); err != nil {
		return i, fmt.Errorf("cannot keep what was read in a temporary file: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return i, err
	}
	i.From = r.at
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

// temporary makes a file that is gone when it is closed.
func temporary() (*os.File, error) {
	f, err := os.CreateTemp("", "rowkeeper-import-*")
	if err != nil {
		return nil, fmt.Errorf("cannot make a temporary file: %w", err)
	}
	os.Remove(f.Name()) // where that is not possible it stays
	return f, nil
}

// reader reads an etcd in the order of its keys, and puts them into that of a backup.
type reader struct {
	client   *clientv3.Client
	store    *mvcc.Engine
	progress Progress

	cluster uint64
	// at is the revision that is read.
	at int64
	// spool has the keys as they were read, index says where.
	spool *os.File
	index []place
	// attached are the leases that keys are attached to, leases these and all others, and time is
	// the database's clock.
	attached map[clientv3.LeaseID]bool
	leases   []contract.LeaseRow
	time     time.Time
}

type place struct {
	revision, offset, length int64
	part                     int
}

func (r *reader) close() {
	if r.spool != nil {
		r.spool.Close()
	}
}

func (r *reader) read(ctx context.Context) (err error) {
	if r.spool, err = temporary(); err != nil {
		return err
	}
	out := bufio.NewWriterSize(r.spool, 1<<20)
	var offset int64
	for key, more := "\x00", true; more; {
		page, err := r.client.Get(ctx, key, clientv3.WithFromKey(), clientv3.WithLimit(pageKeys),
			clientv3.WithRev(r.at))
		if errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("revision %d was compacted while it was read: stop the clients of "+
				"the etcd, and run this again", r.at)
		}
		if err != nil {
			return err
		}
		if r.at == 0 {
			r.at, r.cluster = page.Header.Revision, page.Header.ClusterId
		}
		for _, kv := range page.Kvs {
			if strings.HasPrefix(string(kv.Key), contract.Reserved) {
				return fmt.Errorf("the etcd has the key %q, and only Rowkeeper itself writes keys "+
					"that begin with %q: delete it in the etcd first", kv.Key, contract.Reserved)
			}
			content, err := proto.Marshal(kv)
			if err != nil {
				return err
			}
			if _, err := out.Write(content); err != nil {
				return err
			}
			r.index = append(r.index, place{kv.ModRevision, offset, int64(len(content)), 0})
			offset += int64(len(content))
			if kv.Lease != 0 {
				r.attached[clientv3.LeaseID(kv.Lease)] = true
			}
		}
		done := int64(len(r.index))
		if r.progress != nil {
			r.progress("reading", done, done-int64(len(page.Kvs))+page.Count)
		}
		if more = page.More; more {
			key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	// In the order of the keys before: that of the writes of a transaction is not known.
	slices.SortStableFunc(r.index, func(a, b place) int {
		return cmp.Compare(a.revision, b.revision)
	})
	return r.readLeases(ctx)
}

// readLeases finds out when the leases lapse. The database's clock is read after etcd's answer, and
// etcd leaves out parts of seconds: no lease lapses earlier than it would have.
func (r *reader) readLeases(ctx context.Context) error {
	all, err := r.client.Leases(ctx)
	if err != nil {
		return err
	}
	for _, l := range all.Leases {
		r.attached[l.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(r.attached)) {
		left, err := r.client.TimeToLive(ctx, id)
		if err != nil {
			return err
		}
		st, err := r.store.State(ctx)
		if err != nil {
			return err
		}
		row := contract.LeaseRow{Lease: contract.Lease(id), TTL: max(left.GrantedTTL, 1)}
		if left.TTL >= 0 { // or it has ended, and its keys are to be deleted
			row.Expiry = st.Now.Add(time.Duration(left.TTL+1) * time.Second).UnixMicro()
		}
		r.leases = append(r.leases, row)
	}
	st, err := r.store.State(ctx)
	r.time = st.Now
	return err
}

// parts tells which part of its transaction each key is, and returns false if a transaction has
// left more keys than one may have here. The index is put into the order of backups.
func (r *reader) parts() (ok bool) {
	for i := 0; i < len(r.index); {
		end := i
		for end < len(r.index) && r.index[end].revision == r.index[i].revision {
			end++
		}
		if end-i > contract.MaxParts+1 {
			return false
		}
		for n := i; n < end-1; n++ {
			r.index[n].part = n - i + 1
		}
		i = end
	}
	slices.SortStableFunc(r.index, func(a, b place) int {
		return cmp.Compare(min(b.part, 1), min(a.part, 1))
	})
	return true
}

// writeBackup writes what was read as a backup. If the keys cannot have their revisions, they get
// new ones.
func (r *reader) writeBackup(file io.Writer) error {
	keep := r.parts()
	last := contract.Revision(r.at)
	if !keep {
		last += contract.Revision(len(r.index))
	}
	w, err := archive.NewWriter(file, archive.Header{Store: fmt.Sprintf("etcd-%016x", r.cluster),
		Revision: last, Keys: int64(len(r.index)), Time: r.time.UTC()}, r.leases)
	if err != nil {
		return err
	}
	for i, p := range r.index {
		content := make([]byte, p.length)
		if _, err := r.spool.ReadAt(content, p.offset); err != nil {
			w.Abandon()
			return err
		}
		var kv mvccpb.KeyValue
		if err := proto.Unmarshal(content, &kv); err != nil {
			w.Abandon()
			return err
		}
		record := &contract.Record{Key: contract.Key(kv.Key), Revision: contract.Revision(kv.ModRevision),
			Part: p.part, Create: contract.Revision(kv.CreateRevision), Version: kv.Version, Lease: contract.Lease(kv.Lease),
			Value: kv.Value}
		if !keep {
			record.Revision, record.Part = contract.Revision(r.at+int64(i)+1), 0
			record.Create = record.Revision
		}
		if err := w.Write(record); err != nil {
			w.Abandon()
			return err
		}
	}
	_, err = w.Close()
	return err
}
