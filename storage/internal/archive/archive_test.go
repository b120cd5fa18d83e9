package archive_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

var limits = contract.Limits{KeyBytes: contract.MaxKeyBytes, ValueBytes: contract.MaxValueBytes}

var leases = []contract.LeaseRow{{Lease: 5, TTL: 60, Expiry: 1 << 60}, {Lease: 1<<63 - 1, TTL: 1}}

func write(t testing.TB, h archive.Header, records ...contract.Record) ([]byte, archive.Summary) {
	t.Helper()
	var buf bytes.Buffer
	w, err := archive.NewWriter(&buf, h, leases)
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if err := w.Write(&records[i]); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), sum
}

func read(r io.Reader) (h archive.Header, records []contract.Record, sum archive.Summary, err error) {
	in, err := archive.NewReader(r, limits)
	if err != nil {
		return h, nil, sum, err
	}
	defer in.Close()
	digest := in.NewDigest()
	for {
		record, err := in.Next()
		if errors.Is(err, io.EOF) {
			if digest.Summary() != in.Summary() {
				err = errors.New("the digest of what was read differs")
				return in.Header, records, sum, err
			}
			return in.Header, records, in.Summary(), nil
		}
		if err != nil {
			return in.Header, records, sum, err
		}
		digest.Add(record)
		records = append(records, *record)
	}
}

var (
	header = archive.Header{Store: "s", Revision: 1<<62 - 1, Keys: 3, Leases: 2,
		Time: time.Unix(1, 2).UTC()}
	some = []contract.Record{
		{Key: "/a", Revision: 2, Create: 2, Version: 1, Value: []byte{}},
		{Key: "\xff\x00", Revision: 300, Create: 2, Version: 7, Lease: 1<<63 - 1, Expiry: 1 << 60,
			Value: bytes.Repeat([]byte("v"), contract.MaxValueBytes)},
		{Key: "/b", Revision: 1<<62 - 1, Create: 1 << 61, Version: 1 << 61, Value: []byte("v")},
	}
)

func TestRoundTrip(t *testing.T) {
	file, sum := write(t, header, some...)
	h, records, got, err := read(bytes.NewReader(file))
	if err != nil || h != header || got != sum || !reflect.DeepEqual(records, some) {
		t.Errorf("read %+v, %d records, %+v, %v", h, len(records), got, err)
	}
	in, err := archive.NewReader(bytes.NewReader(file), limits)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if !slices.Equal(in.Leases, leases) {
		t.Errorf("the leases are %v", in.Leases)
	}
	if again, _ := write(t, header, some...); !bytes.Equal(again, file) {
		t.Error("the same content makes another file")
	}
}

// TestLeasesAreBounded: a small file does not make its reader hold much. Leases come in the order
// of their IDs, each once, and no more than a store has.
func TestLeasesAreBounded(t *testing.T) {
	// file has a number of leases in its header, and then leases with these IDs.
	file := func(number int, ids ...uint64) io.Reader {
		var records []byte
		record := func(content []byte) {
			records = append(binary.AppendUvarint(records, uint64(len(content))), content...)
		}
		record(fmt.Appendf(nil, `H{"revision":9,"leases":%d}`, number))
		for _, id := range ids {
			lease := binary.AppendUvarint([]byte("L"), id)
			record(binary.AppendUvarint(binary.AppendUvarint(lease, 60), 1))
		}
		frame, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return io.MultiReader(strings.NewReader("rowkeeper-backup 1\n"),
			bytes.NewReader(frame.EncodeAll(records, nil)))
	}
	in, err := archive.NewReader(file(3, 2, 3, 5), limits)
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	for name, test := range map[string]struct {
		file  io.Reader
		words string
	}{
		"many equal ones": {file(4_000_000, slices.Repeat([]uint64{7}, 100)...), "one of its"},
		"not in order":    {file(2, 3, 2), "one of its"},
		"too many":        {file(60_000_000, 1, 2, 3), "its header"}, // and no more is read
	} {
		var damaged *archive.DamagedError
		if in, err := archive.NewReader(test.file, limits); !errors.As(err, &damaged) ||
			!strings.HasPrefix(err.Error(), test.words) {
			t.Errorf("%s: %v, %v", name, in, err)
		}
	}
	var buf bytes.Buffer
	if _, err := archive.NewWriter(&buf, header,
		make([]contract.LeaseRow, 1<<22+1)); err == nil || buf.Len() > 0 {
		t.Errorf("a backup with too many leases: %v", err)
	}
}

// TestReadErrors: what cannot be read is not called damaged.
func TestReadErrors(t *testing.T) {
	file, _ := write(t, header, some...)
	for _, at := range []int{0, 5, 30, len(file) - 1} {
		_, _, _, err := read(io.MultiReader(bytes.NewReader(file[:at]), failing{}))
		var damaged *archive.DamagedError
		if !errors.Is(err, errDisk) || errors.As(err, &damaged) {
			t.Errorf("after %d bytes: %v", at, err)
		}
	}
}

var errDisk = errors.New("the disk fails")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }

func TestImpossibleRecords(t *testing.T) {
	for name, records := range map[string][]contract.Record{
		"an empty key": {{Revision: 2, Create: 2, Version: 1}},
		"a key too long": {{Key: contract.Key(bytes.Repeat([]byte("k"),
			contract.MaxKeyBytes+1)), Revision: 2, Create: 2, Version: 1}},
		"a value too long": {{Key: "k", Revision: 2, Create: 2,
			Value: make([]byte, contract.MaxValueBytes+1)}},
		"revisions that do not rise": {{Key: "k", Revision: 2, Create: 2, Version: 1},
			{Key: "l", Revision: 2, Create: 2, Version: 1}},
		"created after it was":        {{Key: "k", Revision: 2, Create: 3, Version: 1}},
		"created never":               {{Key: "k", Revision: 2, Version: 1}},
		"never written":               {{Key: "k", Revision: 2, Create: 2}},
		"a revision after the newest": {{Key: "k", Revision: 11, Create: 2, Version: 1}},
	} {
		file, _ := write(t, archive.Header{Revision: 10, Keys: int64(len(records))}, records...)
		if _, _, _, err := read(bytes.NewReader(file)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

// TestImpossibleHeaders: a history that ends where no fence could go beyond it is none, or a store
// would be led there by a file.
func TestImpossibleHeaders(t *testing.T) {
	for _, revision := range []contract.Revision{-1, 0, 1 << 62, 1<<63 - 1} {
		file, _ := write(t, archive.Header{Revision: revision})
		if _, _, _, err := read(bytes.NewReader(file)); err == nil ||
			err.Error() != "its header is not understood" {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
}

// FuzzRead: any bytes are a whole file or an error, and take no more memory than a file could need.
func FuzzRead(f *testing.F) {
	file, _ := write(f, header, some[0], some[2])
	f.Add(file)
	small, _ := write(f, archive.Header{Revision: 5, Keys: 1},
		contract.Record{Key: "k", Revision: 5, Create: 2, Version: 1, Value: []byte("value")})
	f.Add(small)
	f.Add(small[:len(small)-1])
	f.Add([]byte("rowkeeper-backup 1\n"))
	f.Add([]byte("rowkeeper-backup 2\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		h, records, _, err := read(bytes.NewReader(file))
		if err != nil {
			return
		}
		if int64(len(records)) != h.Keys {
			t.Errorf("%d records, and the header says %d", len(records), h.Keys)
		}
		last := contract.Revision(0)
		for _, r := range records {
			if err := r.Valid(last, h.Revision, limits); err != nil {
				t.Error(err)
			}
			last = r.Revision
		}
	})
}
