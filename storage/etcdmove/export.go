package etcdmove

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// Exported describes what was exported.
type Exported struct {
	// Keys is how many there are, Revision the one at which they were read, and Next the one at
	// which the history of the new etcd begins.
	Keys, Revision, Next int64
}

// beyond is how far the new history begins after the store's, which may go on for a while.
const beyond = 1 << 32

// The buckets and keys of etcd's file that are written.
var (
	keyBucket, metaBucket, leaseBucket = []byte("key"), []byte("meta"), []byte("lease")
	scheduledCompaction                = []byte("scheduledCompactRev")
)

// batchBytes is about how much is written in one transaction.
const batchBytes = 16 << 20

// Progress is called after each key with what is being done ("reading", "writing", …), to how many
// of how many keys.
type Progress = database.Progress

// Export writes what a store holds, at one revision, as a snapshot of etcd into a file that exists
// and is empty. The content of the file is durable afterwards.
func Export(ctx context.Context, from *etcd.Store, file *os.File,
	progress Progress) (e Exported, err error) {
	db, err := bbolt.Open(file.Name(), 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true,
		Timeout: time.Second})
	if err != nil {
		return e, fmt.Errorf("cannot write the snapshot: %w", err)
	}
	w := &writer{db: db}
	err = database.Engine(from).Export(ctx, func(_ context.Context, st contract.State, keys int64,
		leases []contract.LeaseRow) error {
		e = Exported{Keys: keys, Revision: int64(st.Head.Revision),
			Next: int64(st.Head.Revision) + beyond}
		w.now, w.done, w.leases = st.Now, 0, map[contract.Lease]contract.LeaseRow{}
		for _, l := range leases {
			w.leases[l.Lease] = l
		}
		return w.clear()
	}, func(r *contract.Record) error {
		if err := w.key(r); err != nil {
			return err
		}
		if w.done++; progress != nil {
			progress("writing", w.done, e.Keys)
		}
		return nil
	})
	if err == nil {
		err = w.end(e.Next)
	}
	if w.tx != nil {
		err = errors.Join(err, w.tx.Rollback())
	}
	if err = errors.Join(err, db.Close()); err == nil {
		err = seal(file)
	}
	if err != nil {
		return e, fmt.Errorf("cannot write the snapshot: %w", err)
	}
	return e, nil
}

// seal appends the checksum that etcd's tools look for.
func seal(file *os.File) error {
	sum := sha256.New()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.Copy(sum, file); err != nil {
		return err
	}
	if _, err := file.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return file.Sync()
}

// writer writes keys.
type writer struct {
	db *bbolt.DB
	// tx is open while it has written bytes into keys.
	tx    *bbolt.Tx
	keys  *bbolt.Bucket
	bytes int
	// now is the database's clock.
	now    time.Time
	done   int64
	leases map[contract.Lease]contract.LeaseRow
}

// clear begins anew.
func (w *writer) clear() error {
	if w.tx != nil {
		if err := w.tx.Rollback(); err != nil {
			return err
		}
		w.tx = nil
	}
	return w.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{keyBucket, metaBucket, leaseBucket} {
			err := tx.DeleteBucket(name)
			if err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
				return err
			}
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *writer) key(r *contract.Record) error {
	kv := &mvccpb.KeyValue{Key: []byte(r.Key), Value: r.Value, CreateRevision: int64(r.Create),
		ModRevision: int64(r.Revision), Version: r.Version, Lease: int64(r.Lease)}
	if r.Lease == 0 && r.Expiry > 0 {
		kv.Lease = int64(w.leaseUntil(r.Expiry))
	}
	content, err := proto.Marshal(kv)
	if err != nil {
		return err
	}
	return w.put(revisionKey(int64(r.Revision), int64(r.Part)), content)
}

// leaseUntil returns a lease for keys that expire by themselves, which in an etcd none does.
func (w *writer) leaseUntil(expiry int64) contract.Lease {
	id := contract.Lease(expiry)
	for w.leases[id].Lease != 0 && w.leases[id].Expiry != expiry {
		id++
	}
	w.leases[id] = contract.LeaseRow{Lease: id, Expiry: expiry,
		TTL: seconds(time.UnixMicro(expiry).Sub(w.now))}
	return id
}

// seconds rounds up, and is not 0: a lease has a time to live.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

func (w *writer) put(key, content []byte) (err error) {
	if w.tx == nil {
		if w.tx, err = w.db.Begin(true); err != nil {
			return err
		}
		w.keys, w.bytes = w.tx.Bucket(keyBucket), 0
		w.keys.FillPercent = 1 // little comes between
	}
	if err := w.keys.Put(key, content); err != nil {
		return err
	}
	if w.bytes += len(content); w.bytes < batchBytes {
		return nil
	}
	tx := w.tx
	w.tx = nil
	return tx.Commit()
}

// revisionKey is how etcd writes a revision: that of a transaction, and the place in it.
func revisionKey(revision, place int64) []byte {
	key := append(binary.BigEndian.AppendUint64(nil, uint64(revision)), '_')
	return binary.BigEndian.AppendUint64(key, uint64(place))
}

// end writes the leases and the fence.
func (w *writer) end(fence int64) error {
	if err := w.put(revisionKey(fence, 0), nil); err != nil {
		return err
	}
	if w.tx != nil {
		tx := w.tx
		w.tx = nil
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return w.db.Update(func(tx *bbolt.Tx) error {
		for id, l := range w.leases {
			// etcd's message Lease: its ID, its time to live, and what remains of it, from the
			// start of the etcd on.
			var m []byte
			for i, v := range []int64{int64(id), l.TTL, seconds(l.Left(w.now))} {
				m = protowire.AppendTag(m, protowire.Number(i+1), protowire.VarintType)
				m = protowire.AppendVarint(m, uint64(v))
			}
			key := binary.BigEndian.AppendUint64(nil, uint64(id))
			if err := tx.Bucket(leaseBucket).Put(key, m); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(scheduledCompaction, revisionKey(fence, 0))
	})
}
