package move

import (
	"context"
	"errors"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Source is what is moved. [Etcd], [Kine] and [Store] make one. It is closed by its method Close.
type Source struct{ source }

// source is what differs between sources.
type source interface {
	// identity names the source, without secrets. It is the same as long as the source holds the
	// same history.
	identity(ctx context.Context) (string, error)
	// fenced tells whether a fence was made, or the source was closed otherwise.
	fenced(ctx context.Context) (bool, error)
	// count counts the keys, about.
	count(ctx context.Context) (int64, error)
	// all calls each for all that the source holds, as of one moment, in the order of
	// [contract.Snapshot]. The records are each's to keep. It returns from where on changes are
	// followed, and the leases. Keys that expire a time after the target is opened do so by the
	// clock.
	all(ctx context.Context, clock clock, each func(*contract.Record) error) (whole, error)
	// follow hands out the changes after a position in their order, until ctx ends, which is no
	// error, or it returns errPassed. newest is the newest revision that the source is known to
	// have.
	follow(ctx context.Context, after position, clock clock,
		each func(changes []change, upto position, newest contract.Revision) error) error
	// fence makes the source stand still, or returns why it does not. It may be called again.
	fence(ctx context.Context) error
	// newest reads the newest revision. It rises with each write.
	newest(ctx context.Context) (contract.Revision, error)
	// unfence lets the source be used again, and tells whether it was fenced.
	unfence(ctx context.Context) (bool, error)

	Close() error
}

// clock tells the time by the target's clock.
type clock func(context.Context) (time.Time, error)

// whole is what is known of everything that a source holds.
type whole struct {
	// at is from where on changes are followed.
	at position
	// leases are all of the source.
	leases []contract.LeaseRow
}

// change is that of a key.
type change struct {
	key contract.Key
	// record is nil if the key was deleted.
	record *contract.Record
}

// errPassed says that changes are gone that were not read.
var errPassed = errors.New("the source has compacted changes that were to be read")

// followPause is how often a source is asked for changes that cannot tell of them.
const followPause = 200 * time.Millisecond

// last keeps the last change of each key, since only that has to be written.
func last(changes []change) (remove []contract.Key, records []contract.Record) {
	newest := make(map[contract.Key]int, len(changes))
	for i := range changes {
		newest[changes[i].key] = i
	}
	for i := range changes {
		switch c := &changes[i]; {
		case newest[c.key] != i:
		case c.record == nil:
			remove = append(remove, c.key)
		default:
			records = append(records, *c.record)
		}
	}
	return remove, records
}
