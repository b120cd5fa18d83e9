package move

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"iter"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// batchRecords and batchBytes bound what is written in one transaction.
const (
	batchRecords = 500
	batchBytes   = 4 << 20
)

// sum counts and hashes records in their order.
type sum struct {
	keys int64
	hash hash.Hash
	buf  []byte
}

func newSum() *sum { return &sum{hash: sha256.New()} }

func (s *sum) add(r *contract.Record) {
	s.keys++
	b := binary.AppendUvarint(s.buf[:0], uint64(len(r.Key)))
	b = append(b, r.Key...)
	for _, n := range []int64{int64(r.Revision), int64(r.Part), int64(r.Create), r.Version,
		int64(r.Lease), r.Expiry, int64(len(r.Value))} {
		b = binary.AppendVarint(b, n)
	}
	s.buf = append(b, r.Value...)
	s.hash.Write(s.buf)
}

func (s *sum) String() string { return hex.EncodeToString(s.hash.Sum(nil)) }

// same tells whether two records with one ID have the same content.
func same(a, b *contract.Record) bool {
	return a.Key == b.Key && a.Create == b.Create && a.Version == b.Version && a.Lease == b.Lease &&
		a.Expiry == b.Expiry && bytes.Equal(a.Value, b.Value)
}

// merged tells what a pass has found and done.
type merged struct {
	whole
	// source is the sum of what the source holds.
	source *sum
	// written and removed count what differed.
	written, removed int64
	// newest is the greatest revision of a record.
	newest contract.Revision
}

// errEnough ends a stream that is not read to its end.
var errEnough = errors.New("enough")

// target is what the move writes to.
type target struct {
	b    contract.Backend
	fill *contract.Fill
}

// records are those of the target, but for the record of the move, as of one moment.
func (t *target) records(ctx context.Context) iter.Seq2[*contract.Record, error] {
	return func(yield func(*contract.Record, error) bool) {
		err := t.b.Snapshot(ctx, func(_ context.Context, s contract.Snapshot) error {
			return s.Records(func(r *contract.Record) error {
				if r.Key != contract.FillKey && !yield(r, nil) {
					return errEnough
				}
				return nil
			})
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, err)
		}
	}
}

// pass reads both sides in the same order, and makes the target what the source is.
//
// The target is read as it was when the pass began. A key that has another ID in the source than in
// the target comes twice, and is removed by the later one of the two unless it was written in this
// pass.
func (t *target) pass(ctx context.Context, from source, c clock,
	write func(remove []contract.Key, records []contract.Record) error,
	tell func(done int64)) (m merged, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	there, stop := iter.Pull2(t.records(ctx))
	defer stop()
	var (
		old     *contract.Record
		more    bool
		remove  []contract.Key
		records []contract.Record
		size    int
	)
	moved := map[contract.Key]bool{}
	advance := func() (err error) {
		old, err, more = there()
		return err
	}
	flush := func() error {
		if len(remove)+len(records) == 0 {
			return nil
		}
		err := write(remove, records)
		remove, records, size = remove[:0], records[:0], 0
		return err
	}
	full := func() error {
		if len(records)+len(remove) >= batchRecords || size >= batchBytes {
			return flush()
		}
		return nil
	}
	drop := func() error {
		if !moved[old.Key] {
			remove = append(remove, old.Key)
			m.removed++
			if err := full(); err != nil {
				return err
			}
		}
		return advance()
	}
	if err := advance(); err != nil {
		return m, err
	}
	m.source = newSum()
	m.whole, err = from.all(ctx, c, func(r *contract.Record) error {
		if r.Value == nil {
			return contract.LostValue(r.Key, r.Revision)
		}
		m.source.add(r)
		m.newest = max(m.newest, r.Revision)
		tell(m.source.keys)
		for more && order(old.ID(), r.ID()) < 0 {
			if err := drop(); err != nil {
				return err
			}
		}
		found := more && old.ID() == r.ID()
		if found && same(old, r) {
			return advance()
		}
		if found && old.Key != r.Key {
			if err := drop(); err != nil { // its place is taken
				return err
			}
		} else if found {
			if err := advance(); err != nil {
				return err
			}
		}
		if more {
			moved[r.Key] = true
		}
		records, size = append(records, *r), size+len(r.Key)+len(r.Value)
		m.written++
		return full()
	})
	for err == nil && more {
		err = drop()
	}
	if err == nil {
		err = flush()
	}
	return m, err
}

// sum reads the target back.
func (t *target) sum(ctx context.Context, tell func(done int64)) (*sum, error) {
	s := newSum()
	for r, err := range t.records(ctx) {
		if err != nil {
			return nil, err
		}
		s.add(r)
		tell(s.keys)
	}
	return s, nil
}
