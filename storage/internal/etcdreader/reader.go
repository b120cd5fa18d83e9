// Package etcdreader reads what an etcd holds, through its API, in the order of backups.
package etcdreader

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Temporary makes a file that is gone when it is closed.
func Temporary() (*os.File, error) {
	f, err := os.CreateTemp("", "rowkeeper-import-*")
	if err != nil {
		return nil, fmt.Errorf("cannot make a temporary file: %w", err)
	}
	os.Remove(f.Name()) // where that is not possible it stays
	return f, nil
}

// Reader reads an etcd in the order of its keys, and puts them into that of a backup.
type Reader struct {
	// Client is one of the etcd, Clock is the clock of the database that gets the leases, and
	// Progress is told how far it is. These are set before.
	Client   *clientv3.Client
	Clock    func(context.Context) (time.Time, error)
	Progress func(doing string, done, total int64)

	// Cluster is the etcd's, and At the revision that was read.
	Cluster uint64
	At      int64
	// Leases are those that keys are attached to, and all others, and Time is when they were read,
	// by the database's clock.
	Leases []contract.LeaseRow
	Time   time.Time

	// spool has the keys as they were read, index says where.
	spool *os.File
	index []place
	// attached are the leases that keys are attached to.
	attached map[clientv3.LeaseID]bool
}

// pageKeys is how many keys are read at a time.
const pageKeys = 500

// ErrCompacted says that what is read has gone meanwhile.
var ErrCompacted = errors.New("compacted while it was read")

type place struct {
	revision, offset, length int64
	part                     int
}

// Close lets go of what was read.
func (r *Reader) Close() {
	if r.spool != nil {
		r.spool.Close()
	}
}

// Keys is how many keys were read.
func (r *Reader) Keys() int { return len(r.index) }

// Read reads all keys, and then the leases.
func (r *Reader) Read(ctx context.Context) (err error) {
	r.attached = map[clientv3.LeaseID]bool{}
	if r.spool, err = Temporary(); err != nil {
		return err
	}
	out := bufio.NewWriterSize(r.spool, 1<<20)
	var offset int64
	for key, more := "\x00", true; more; {
		page, err := r.Client.Get(ctx, key, clientv3.WithFromKey(), clientv3.WithLimit(pageKeys),
			clientv3.WithRev(r.At))
		if errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("revision %d was %w: stop the clients of the etcd, and run this again",
				r.At, ErrCompacted)
		}
		if err != nil {
			return err
		}
		if r.At == 0 {
			r.At, r.Cluster = page.Header.Revision, page.Header.ClusterId
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
		if r.Progress != nil {
			r.Progress("reading", done, done-int64(len(page.Kvs))+page.Count)
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
func (r *Reader) readLeases(ctx context.Context) error {
	all, err := r.Client.Leases(ctx)
	if err != nil {
		return err
	}
	for _, l := range all.Leases {
		r.attached[l.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(r.attached)) {
		left, err := r.Client.TimeToLive(ctx, id)
		if err != nil {
			return err
		}
		now, err := r.Clock(ctx)
		if err != nil {
			return err
		}
		row := contract.LeaseRow{Lease: contract.Lease(id), TTL: max(left.GrantedTTL, 1)}
		if left.TTL >= 0 { // or it has ended, and its keys are to be deleted
			row.Expiry = now.Add(time.Duration(left.TTL+1) * time.Second).UnixMicro()
		}
		r.Leases = append(r.Leases, row)
	}
	r.Time, err = r.Clock(ctx)
	return err
}

// Parts tells which part of its transaction each key is, and returns false if a transaction has
// left more keys than one may have here. The keys are put into the order of backups.
func (r *Reader) Parts() (ok bool) {
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

// Records calls each for the keys, in their order.
func (r *Reader) Records(each func(*contract.Record) error) error {
	for _, p := range r.index {
		content := make([]byte, p.length)
		if _, err := r.spool.ReadAt(content, p.offset); err != nil {
			return err
		}
		var kv mvccpb.KeyValue
		if err := proto.Unmarshal(content, &kv); err != nil {
			return err
		}
		if err := each(RecordOf(&kv, p.part)); err != nil {
			return err
		}
	}
	return nil
}

// RecordOf is the record of a key, which is a part of its transaction, or 0.
func RecordOf(kv *mvccpb.KeyValue, part int) *contract.Record {
	r := &contract.Record{Key: contract.Key(kv.Key), Revision: contract.Revision(kv.ModRevision),
		Part: part, Create: contract.Revision(kv.CreateRevision), Version: kv.Version,
		Lease: contract.Lease(kv.Lease), Value: kv.Value}
	if r.Value == nil {
		r.Value = []byte{}
	}
	return r
}
