// Package archive is the format of backups. A backup holds all keys of a store as of one revision.
// It sorts them by the revision of their last write, those first that a part of a transaction
// wrote.
//
// # The format, version 1
//
// A file begins with one line of text, "rowkeeper-backup 1\n", in which 1 is the version of what
// follows: a single Zstandard frame (RFC 8878), with the checksum of its content, and nothing after
// it. The frame holds records, each of which is its length (of what follows the length) as an
// unsigned varint, a byte that says of which type it is, and its content:
//
//   - 'H', the header, is the first: a JSON object, see [Header]. Members that are not known are
//     passed over.
//   - 'L' is a lease: as unsigned varints its ID, its time to live in seconds, and the time at
//     which it lapses in microseconds since 1970, or 0 if it has ended and its keys are being
//     deleted. The leases follow the header, in ascending order of IDs, and are 2^22 at most: both
//     programs hold them in memory, 24 bytes each.
//   - 'K' is a key that exists: the length of the key as an unsigned varint, the key, and as
//     unsigned varints the revision of the key's value, which part of a transaction wrote it (from
//     1 on, and 0 for the last write at the revision), the revision that created the key, how often
//     it was written since then, the lease that it is attached to, or 0, and the time at which it
//     expires in microseconds since 1970, or 0; the rest of the record is the value, as it is in
//     the database: if it is encrypted there, it is here. Keys that were written by parts come
//     first, in the order of revisions and parts. Then the revisions rise from record to record.
//   - 'E', the end, is the last: the number of keys as an unsigned varint, and the SHA-256 of all
//     records before it, with their lengths.
//
// Varints are those of encoding/binary, in the shortest form. A program that meets another version,
// or a type that it does not know, refuses the file.
package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Version is the newest version of the format, and the only one yet.
const Version = 1

const magic = "rowkeeper-backup "

// The types of records.
const (
	typeHeader = 'H'
	typeLease  = 'L'
	typeKey    = 'K'
	typeEnd    = 'E'
)

// maxRecord bounds a record in bytes, so that a damaged length takes no memory.
const maxRecord = contract.MaxKeyBytes + contract.MaxValueBytes + 1<<16

// maxLeases bounds the leases, which are held in memory.
const maxLeases = 1 << 22

// maxRevision bounds the newest revision, so that the history can go on beyond it: fences put it at
// 2^30 a second since 1970 at most, which is 2^62 in the year 2106.
const maxRevision contract.Revision = 1<<62 - 1

// Header says what is in a file.
type Header struct {
	// Store is the identity of the store.
	Store string `json:"store"`
	// Revision is the state that was written: that after the write with this revision, which is
	// less than 2^62.
	Revision contract.Revision `json:"revision"`
	// Keys is how many there are.
	Keys int64 `json:"keys"`
	// Leases is how many there are.
	Leases int64 `json:"leases,omitempty"`
	// Time is the database's clock when the state was read.
	Time time.Time `json:"time"`
}

// Summary is what the end says, by which two contents are compared.
type Summary struct {
	Keys   int64
	Digest [sha256.Size]byte
}

// Writer writes a file.
type Writer struct {
	out  *zstd.Encoder
	keys int64
	sum  summer
}

// summer encodes records and digests them.
type summer struct {
	buf  []byte
	hash hash.Hash
}

// frame encodes a record, of which encode appends the content.
func (s *summer) frame(kind byte, encode func([]byte) []byte) []byte {
	// The length goes in front when it is known.
	const room = binary.MaxVarintLen64
	s.buf = encode(append(slices.Grow(s.buf[:0], room+1)[:room], kind))
	var length [room]byte
	n := binary.PutUvarint(length[:], uint64(len(s.buf)-room))
	at := room - n
	copy(s.buf[at:], length[:n])
	return s.buf[at:]
}

func (s *summer) header(h Header) ([]byte, error) {
	content, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return s.frame(typeHeader, func(b []byte) []byte { return append(b, content...) }), nil
}

func (s *summer) lease(r contract.LeaseRow) []byte {
	return s.frame(typeLease, func(b []byte) []byte {
		b = binary.AppendUvarint(b, uint64(r.Lease))
		b = binary.AppendUvarint(b, uint64(r.TTL))
		return binary.AppendUvarint(b, uint64(r.Expiry))
	})
}

func (s *summer) key(r *contract.Record) []byte {
	return s.frame(typeKey, func(b []byte) []byte {
		b = binary.AppendUvarint(b, uint64(len(r.Key)))
		b = append(b, r.Key...)
		b = binary.AppendUvarint(b, uint64(r.Revision))
		b = binary.AppendUvarint(b, uint64(r.Part))
		b = binary.AppendUvarint(b, uint64(r.Create))
		b = binary.AppendUvarint(b, uint64(r.Version))
		b = binary.AppendUvarint(b, uint64(r.Lease))
		b = binary.AppendUvarint(b, uint64(r.Expiry))
		return append(b, r.Value...)
	})
}

// NewWriter begins a file with the leases, which may be in any order. Nothing is complete before
// Close has returned.
func NewWriter(w io.Writer, h Header, leases []contract.LeaseRow) (*Writer, error) {
	if len(leases) > maxLeases {
		return nil, fmt.Errorf("the store has %d leases, and a backup holds %d at most: revoke those "+
			"that nobody renews", len(leases), maxLeases)
	}
	leases = slices.SortedFunc(slices.Values(leases), func(a, b contract.LeaseRow) int {
		return cmp.Compare(a.Lease, b.Lease)
	})
	h.Leases = int64(len(leases))
	if _, err := io.WriteString(w, magic+strconv.Itoa(Version)+"\n"); err != nil {
		return nil, err
	}
	// A window of 1 MiB, with two threads: a few megabytes of memory, here and when it is read.
	out, err := zstd.NewWriter(w, zstd.WithEncoderCRC(true), zstd.WithWindowSize(1<<20),
		zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, err
	}
	aw := &Writer{out: out, sum: summer{hash: sha256.New()}}
	record, err := aw.sum.header(h)
	if err == nil {
		err = aw.write(record)
	}
	for _, r := range leases {
		if err == nil {
			err = aw.write(aw.sum.lease(r))
		}
	}
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return aw, nil
}

func (w *Writer) write(record []byte) error {
	w.sum.hash.Write(record)
	_, err := w.out.Write(record)
	return err
}

// Write appends a key.
func (w *Writer) Write(r *contract.Record) error {
	w.keys++
	return w.write(w.sum.key(r))
}

// Close writes the end.
func (w *Writer) Close() (Summary, error) {
	s := Summary{Keys: w.keys}
	w.sum.hash.Sum(s.Digest[:0])
	_, err := w.out.Write(w.sum.frame(typeEnd, func(b []byte) []byte {
		return append(binary.AppendUvarint(b, uint64(s.Keys)), s.Digest[:]...)
	}))
	if closeErr := w.out.Close(); err == nil {
		err = closeErr
	}
	return s, err
}

// Abandon releases what an incomplete file needs.
func (w *Writer) Abandon() { w.out.Reset(nil) }

// Digest digests the keys of a database, to be compared with those of a file.
type Digest struct {
	keys int64
	sum  summer
}

// NewDigest begins a digest with the header and the leases of a file.
func (r *Reader) NewDigest() *Digest {
	d := &Digest{sum: summer{hash: sha256.New()}}
	d.sum.hash.Write(r.header)
	for _, lease := range r.Leases {
		d.sum.hash.Write(d.sum.lease(lease))
	}
	return d
}

// Add adds a key.
func (d *Digest) Add(r *contract.Record) {
	d.keys++
	d.sum.hash.Write(d.sum.key(r))
}

// Summary returns what the end of such a file says.
func (d *Digest) Summary() Summary {
	s := Summary{Keys: d.keys}
	d.sum.hash.Sum(s.Digest[:0])
	return s
}

// Reader reads a file.
type Reader struct {
	Header Header
	Leases []contract.LeaseRow
	// header is its record.
	header []byte
	in     *bufio.Reader
	zstd   *zstd.Decoder
	buf    []byte
	hash   hash.Hash
	keys   int64
	last   contract.RowID
	limits contract.Limits
}

// A DamagedError says that a file is not what Writer has written.
type DamagedError struct{ Err error }

func (e *DamagedError) Error() string { return e.Err.Error() }
func (e *DamagedError) Unwrap() error { return e.Err }

func damaged(format string, args ...any) error { return &DamagedError{fmt.Errorf(format, args...)} }

// readError is an error of what the file is read from.
type readError struct{ error }

// source keeps the errors of reading apart from those of decoding.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
		err = readError{err}
	}
	return n, err
}

// NewReader reads the header and the leases. limits are those of the database for which the file is
// meant.
func NewReader(r io.Reader, limits contract.Limits) (*Reader, error) {
	in := bufio.NewReader(&source{Reader: r})
	line := make([]byte, 0, 64)
	for len(line) < cap(line) && !bytes.HasSuffix(line, []byte("\n")) {
		c, err := in.ReadByte()
		if err != nil {
			if failed := (readError{}); errors.As(err, &failed) {
				return nil, failed.error
			}
			break
		}
		line = append(line, c)
	}
	version, ours := strings.CutPrefix(string(line), magic)
	number, err := strconv.ParseUint(strings.TrimSuffix(version, "\n"), 10, 31)
	switch {
	case !ours || err != nil || !strings.HasSuffix(version, "\n"):
		return nil, damaged("it does not begin as a backup by rowkeeper does")
	case number > Version:
		return nil, damaged("it is of version %d of the format, and this program knows only "+
			"versions up to %d: use a newer rowkeeper", number, Version)
	case number < 1:
		return nil, damaged("there is no version %d of the format", number)
	}
	decoder, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(2),
		zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, err
	}
	ar := &Reader{zstd: decoder, in: bufio.NewReaderSize(decoder, 1<<16), hash: sha256.New(),
		limits: limits}
	kind, content, err := ar.record()
	switch {
	case err != nil:
	case kind != typeHeader:
		err = damaged("it has no header")
	default:
		ar.header = slices.Clone(ar.buf)
		if jsonErr := json.Unmarshal(content, &ar.Header); jsonErr != nil ||
			ar.Header.Revision < 1 || ar.Header.Revision > maxRevision || ar.Header.Keys < 0 ||
			ar.Header.Leases < 0 || ar.Header.Leases > maxLeases {
			err = damaged("its header is not understood")
		}
	}
	if err == nil {
		err = ar.leases()
	}
	if err != nil {
		ar.Close()
		return nil, err
	}
	return ar, nil
}

// leases reads the leases, which follow the header.
func (r *Reader) leases() error {
	for last := contract.Lease(0); int64(len(r.Leases)) < r.Header.Leases; {
		kind, content, err := r.record()
		if err != nil {
			return err
		}
		number := numbers(&content)
		row := contract.LeaseRow{Lease: contract.Lease(number()), TTL: int64(number()),
			Expiry: int64(number())}
		if kind != typeLease || len(content) > 0 || row.Lease <= last || row.TTL < 1 ||
			row.TTL > contract.MaxTTL || row.Expiry < 0 {
			return damaged("one of its %d leases is not understood", r.Header.Leases)
		}
		last, r.Leases = row.Lease, append(r.Leases, row)
	}
	return nil
}

// record reads the next record. Its content is valid until the one after it is read.
func (r *Reader) record() (kind byte, content []byte, err error) {
	length, err := binary.ReadUvarint(r.in)
	if err != nil {
		return 0, nil, r.cut(err)
	}
	if length < 1 || length > maxRecord {
		return 0, nil, damaged("it is damaged after %d keys (a record of %d bytes)", r.keys, length)
	}
	r.buf = binary.AppendUvarint(r.buf[:0], length)
	at := len(r.buf)
	r.buf = slices.Grow(r.buf, int(length))[:at+int(length)]
	if _, err := io.ReadFull(r.in, r.buf[at:]); err != nil {
		return 0, nil, r.cut(err)
	}
	if kind = r.buf[at]; kind != typeEnd {
		r.hash.Write(r.buf)
	}
	return kind, r.buf[at+1:], nil
}

// cut says why a record could not be read.
func (r *Reader) cut(err error) error {
	var failed readError
	switch {
	case errors.As(err, &failed):
		return failed.error
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return damaged("it is cut off after %d keys", r.keys)
	}
	return damaged("it is damaged after %d keys (%w)", r.keys, err)
}

// Next returns the next key, or io.EOF after the last one of a file that is whole.
func (r *Reader) Next() (*contract.Record, error) {
	kind, content, err := r.record()
	if err != nil {
		return nil, err
	}
	switch kind {
	case typeKey:
		k, err := r.key(content)
		var limit *contract.LimitError
		if errors.As(err, &limit) {
			return nil, fmt.Errorf("it holds what this database cannot: %w", err)
		}
		if err != nil {
			return nil, damaged("it is damaged after %d keys (%w)", r.keys, err)
		}
		r.keys++
		r.last = k.ID()
		return k, nil
	case typeEnd:
		return nil, r.end(content)
	}
	return nil, damaged("it has a record of the unknown type %q after %d keys", string(kind),
		r.keys)
}

var errShort = errors.New("a record is too short")

// numbers returns a function that takes the next number from the beginning of the content: 1<<63 if
// there is none.
func numbers(content *[]byte) func() uint64 {
	return func() uint64 {
		v, n := binary.Uvarint(*content)
		if n <= 0 {
			*content = nil
			return 1 << 63
		}
		*content = (*content)[n:]
		return v
	}
}

func (r *Reader) key(content []byte) (*contract.Record, error) {
	number := numbers(&content)
	length := number()
	if length > uint64(len(content)) {
		return nil, errShort
	}
	k := &contract.Record{Key: contract.Key(content[:length])}
	content = content[length:]
	revision, part := number(), number()
	create, version := number(), number()
	lease, expiry := number(), number()
	if revision|part|create|version|lease|expiry >= 1<<63 {
		return nil, errShort
	}
	k.Revision, k.Part = contract.Revision(revision), int(part)
	k.Create, k.Version = contract.Revision(create), int64(version)
	k.Lease, k.Expiry = contract.Lease(lease), int64(expiry)
	k.Value = append(make([]byte, 0, len(content)), content...)
	return k, k.Valid(r.last, r.Header.Revision, r.limits)
}

func (r *Reader) end(content []byte) error {
	keys, n := binary.Uvarint(content)
	var digest [sha256.Size]byte
	r.hash.Sum(digest[:0])
	switch {
	case n <= 0 || keys != uint64(r.keys) || r.keys != r.Header.Keys:
		return damaged("it has %d keys, and its header says %d", r.keys, r.Header.Keys)
	case !bytes.Equal(content[n:], digest[:]):
		return damaged("its checksum is not that of its content")
	}
	if _, err := r.in.ReadByte(); err == nil {
		return damaged("it goes on after its end")
	} else if !errors.Is(err, io.EOF) {
		return r.cut(err)
	}
	return io.EOF
}

// Summary returns what the end of the file says, after Next has returned io.EOF.
func (r *Reader) Summary() Summary {
	s := Summary{Keys: r.keys}
	r.hash.Sum(s.Digest[:0])
	return s
}

// Close releases the memory. It does not close what is read from.
func (r *Reader) Close() { r.zstd.Close() }
