package etcdmove_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/etcdmove"
	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func each(t *testing.T, test func(t *testing.T, store *database.Store)) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		store, err := database.Open(t.Context(), database.Config{URL: d.URL,
			Drivers: []contract.Driver{d.Driver}, Migrate: true,
			Logger:     slog.New(slog.DiscardHandler),
			Compaction: database.CompactionPolicy{Window: -1}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, store)
	})
}

// etcd answers what an import asks of one.
type etcd struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	kvs      []*mvccpb.KeyValue
	revision int64
	left     map[int64]int64
	// fails says what happens to a page.
	fails func(page int) error
	pages int
}

func (e *etcd) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	res := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: e.revision, ClusterId: 7}}
	if r.CountOnly {
		return res, nil
	}
	if e.pages++; e.fails != nil {
		if err := e.fails(e.pages); err != nil {
			return nil, err
		}
	}
	if e.pages > 1 && r.Revision != e.revision {
		return nil, fmt.Errorf("page %d is read at revision %d", e.pages, r.Revision)
	}
	for _, kv := range e.kvs {
		if bytes.Compare(kv.Key, r.Key) < 0 {
			continue
		}
		if res.Count++; res.Count <= r.Limit {
			res.Kvs = append(res.Kvs, kv)
		}
	}
	res.More = res.Count > r.Limit
	return res, nil
}

func (e *etcd) LeaseTimeToLive(_ context.Context,
	r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	res := &pb.LeaseTimeToLiveResponse{Header: &pb.ResponseHeader{}, ID: r.ID, TTL: -1}
	if left, ok := e.left[r.ID]; ok {
		res.TTL, res.GrantedTTL = left, 2*left
	}
	return res, nil
}

func (e *etcd) LeaseLeases(context.Context,
	*pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	res := &pb.LeaseLeasesResponse{Header: &pb.ResponseHeader{}}
	for id := range e.left {
		res.Leases = append(res.Leases, &pb.LeaseStatus{ID: id})
	}
	return res, nil
}

// client serves the etcd, and returns a client of it.
func (e *etcd) client(t *testing.T) *clientv3.Client {
	t.Helper()
	g := grpc.NewServer()
	pb.RegisterKVServer(g, e)
	pb.RegisterLeaseServer(g, e)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{l.Addr().String()},
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.Close()
		g.Stop()
		if err := errors.Join(err, <-done); err != nil {
			t.Error(err)
		}
	})
	return c
}

// records are what a database holds, in order of revisions.
func records(t *testing.T, store *database.Store) (all []*contract.Record, leases []contract.LeaseRow) {
	t.Helper()
	var b bytes.Buffer
	if _, err := store.WriteBackup(t.Context(), &b, nil); err != nil {
		t.Fatal(err)
	}
	r, err := archive.NewReader(&b, contract.Limits{KeyBytes: contract.MaxKeyBytes,
		ValueBytes: contract.MaxValueBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, r.Leases
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, record)
	}
}

// TestImport: keys have their revisions, versions and values, those with leases their end, and no
// old revision can be read. An etcd of several pages is read at one revision.
func TestImport(t *testing.T) {
	const n, ttl = 1200, 100
	each(t, func(t *testing.T, store *database.Store) {
		e := &etcd{revision: 5000, left: map[int64]int64{7: ttl, 9: ttl}}
		for i := range n {
			kv := &mvccpb.KeyValue{Key: fmt.Appendf(nil, "/k/%04d", i),
				Value: fmt.Appendf(nil, "v%d", i), CreateRevision: int64(2 + i/2), Version: int64(1 + i%3),
				ModRevision: int64(2 + (i*7)%n)} // in another order than the keys
			kv.CreateRevision = min(kv.CreateRevision, kv.ModRevision)
			switch i % 100 {
			case 5:
				kv.Lease = 9
			case 6:
				kv.Lease = 8 // which has ended
			}
			e.kvs = append(e.kvs, kv)
		}
		before := time.Now()
		i, err := etcdmove.Import(t.Context(), e.client(t), store, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i.Objects != n || i.Revision != e.revision || i.From != e.revision ||
			i.Now != e.revision || i.Renumbered || i.Head < e.revision+1<<31 {
			t.Errorf("it says %+v", i)
		}
		if e.pages != 3 {
			t.Errorf("it has read %d pages", e.pages)
		}
		want := slices.Clone(e.kvs)
		slices.SortFunc(want, func(a, b *mvccpb.KeyValue) int {
			return int(a.ModRevision - b.ModRevision)
		})
		// The keys whose lease has ended are on their way out.
		want = slices.DeleteFunc(want, func(kv *mvccpb.KeyValue) bool { return kv.Lease == 8 })
		got, leases := records(t, store)
		got = slices.DeleteFunc(got, func(r *contract.Record) bool { return r.Lease == 8 })
		if len(got) != len(want) {
			t.Fatalf("there are %d keys, want %d", len(got), len(want))
		}
		for i, kv := range want {
			if r := got[i]; string(r.Key) != string(kv.Key) || int64(r.Revision) != kv.ModRevision ||
				int64(r.Create) != kv.CreateRevision || r.Version != kv.Version ||
				!bytes.Equal(r.Value, kv.Value) || int64(r.Lease) != kv.Lease || r.Expiry != 0 {
				t.Fatalf("%v became %+v", kv, r)
			}
		}
		leases = slices.DeleteFunc(leases, func(l contract.LeaseRow) bool { return l.Lease == 8 })
		for i, id := range []contract.Lease{7, 9} {
			l := leases[i]
			// The database's clock may be another one by a little.
			left := l.Left(before)
			if l.Lease != id || l.TTL != 2*ttl || left < (ttl-1)*time.Second ||
				left > (ttl+60)*time.Second {
				t.Errorf("the lease %d became %+v, with %s left", id, l, left)
			}
		}
		s := database.Engine(store)
		if _, _, err := s.GetAt(t.Context(), "/k/0000", 4000); !errors.Is(err, contract.ErrCompacted) {
			t.Errorf("a read at a revision of etcd: %v", err)
		}

		_, err = etcdmove.Import(t.Context(), e.client(t), store, nil)
		if !errors.Is(err, etcdmove.ErrNotEmpty) {
			t.Errorf("a second import: %v", err)
		}
	})
}

// TestImportOfTransactions: keys that were written at one revision keep it. If there are too many
// at one, all get revisions of their own, beyond all that etcd had, and in its order.
func TestImportOfTransactions(t *testing.T) {
	each(t, func(t *testing.T, store *database.Store) {
		e := &etcd{revision: 20}
		for key, revision := range map[string]int64{"a": 9, "b": 3, "c": 9, "d": 12} {
			e.kvs = append(e.kvs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(key),
				CreateRevision: revision, ModRevision: revision, Version: 1})
		}
		slices.SortFunc(e.kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
		i, err := etcdmove.Import(t.Context(), e.client(t), store, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		all, _ := records(t, store)
		for _, r := range all {
			got = append(got, fmt.Sprintf("%s@%d.%d", r.Key, r.Revision, r.Create))
		}
		if want := "a@9.9 b@3.3 c@9.9 d@12.12"; strings.Join(got, " ") != want {
			t.Errorf("it has %v, want %s", got, want)
		}
		if i.Head <= 24 {
			t.Errorf("the history goes on at %d", i.Head)
		}
	})
	each(t, func(t *testing.T, store *database.Store) {
		e := &etcd{revision: 20}
		for n := range 514 {
			key := fmt.Sprintf("k/%03d", n)
			e.kvs = append(e.kvs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(key),
				CreateRevision: 9, ModRevision: int64(9 + n/513), Version: 1})
		}
		if _, err := etcdmove.Import(t.Context(), e.client(t), store, nil); err != nil {
			t.Fatal(err)
		}
		all, _ := records(t, store)
		for n, r := range all {
			if want := contract.Revision(21 + n); r.Revision != want || r.Create != want || r.Part != 0 {
				t.Errorf("%s is at %d, part %d, created at %d, want %d", r.Key, r.Revision, r.Part,
					r.Create, want)
			}
		}
	})
}

// TestImportOfReserved: an etcd cannot say what Rowkeeper has recorded.
func TestImportOfReserved(t *testing.T) {
	each(t, func(t *testing.T, store *database.Store) {
		e := &etcd{revision: 5, kvs: []*mvccpb.KeyValue{{Key: []byte(contract.Reserved + "x"),
			ModRevision: 5, CreateRevision: 5, Version: 1}}}
		_, err := etcdmove.Import(t.Context(), e.client(t), store, nil)
		if err == nil || !strings.Contains(err.Error(), `the etcd has the key "rowkeeper/x"`) {
			t.Error(err)
		}
	})
}

// TestImportInterrupted: an import that fails leaves nothing, and can be repeated.
func TestImportInterrupted(t *testing.T) {
	each(t, func(t *testing.T, store *database.Store) {
		e := &etcd{revision: 2000, fails: func(page int) error {
			if page == 2 {
				return rpctypes.ErrGRPCCompacted
			}
			return nil
		}}
		for i := range int64(1000) {
			e.kvs = append(e.kvs, &mvccpb.KeyValue{Key: fmt.Appendf(nil, "%04d", i),
				CreateRevision: i + 2, ModRevision: i + 2, Version: 1})
		}
		client := e.client(t)
		_, err := etcdmove.Import(t.Context(), client, store, nil)
		if err == nil || !strings.Contains(err.Error(), "revision 2000 was compacted") {
			t.Errorf("the etcd is compacted meanwhile: %v", err)
		}
		if left, _ := records(t, store); len(left) > 0 {
			t.Errorf("a failed import has left %d keys", len(left))
		}
		e.pages, e.fails = 0, nil
		if i, err := etcdmove.Import(t.Context(), client, store, nil); err != nil || i.Objects != 1000 {
			t.Errorf("the second try: %+v, %v", i, err)
		}
	})
}

// TestExport: the file is what etcd's tools take for a snapshot. Keys have their revisions,
// expiring keys a lease, and the history begins beyond the store's, compacted. That an etcd starts
// with it is shown in hack/e2e.
func TestExport(t *testing.T) {
	each(t, func(t *testing.T, store *database.Store) {
		s := database.Engine(store)
		apply := func(m contract.Mutation) {
			t.Helper()
			m.Expect, m.Era = contract.Any, s.Era()
			if _, err := s.Apply(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		large := bytes.Repeat([]byte("x"), 1<<20)
		for range 2 {
			apply(contract.Mutation{Key: "/a", Value: []byte("a")})
		}
		apply(contract.Mutation{Key: "/b", Value: []byte("b"), TTL: 100 * time.Second})
		if _, _, err := s.GrantLease(t.Context(), 9, 1000); err != nil {
			t.Fatal(err)
		}
		apply(contract.Mutation{Key: "/d", Value: []byte("d"), Lease: 9})
		for i := range 20 { // more than one transaction of the file
			apply(contract.Mutation{Key: contract.Key(fmt.Sprintf("/l/%d", i)), Value: large})
		}
		apply(contract.Mutation{Key: "/c", Value: []byte("c")})
		apply(contract.Mutation{Key: "/c", Delete: true})
		want, _ := records(t, store)

		file, err := os.Create(filepath.Join(t.TempDir(), "snapshot.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		e, err := etcdmove.Export(t.Context(), store, file, nil)
		if err != nil {
			t.Fatal(err)
		}
		head, err := s.Head(t.Context())
		if err != nil || e.Keys != 23 || e.Revision != int64(head) || e.Next < e.Revision+1<<31 {
			t.Errorf("it says %+v, the head is %d, %v", e, head, err)
		}
		content, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		end := len(content) - sha256.Size
		if sum := sha256.Sum256(content[:end]); end%512 != 0 || !bytes.Equal(sum[:], content[end:]) {
			t.Errorf("the file has %d bytes, and no checksum at the end", len(content))
		}
		if err := file.Truncate(int64(end)); err != nil {
			t.Fatal(err)
		}
		bolt, err := bbolt.Open(file.Name(), 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer bolt.Close()
		err = bolt.View(func(tx *bbolt.Tx) error {
			var got []*mvccpb.KeyValue
			err := tx.Bucket([]byte("key")).ForEach(func(k, v []byte) error {
				kv := &mvccpb.KeyValue{}
				if err := proto.Unmarshal(v, kv); err != nil {
					return err
				}
				revision := int64(binary.BigEndian.Uint64(k))
				if len(v) == 0 && revision == e.Next && string(k[8:]) == "_"+strings.Repeat("\x00", 8) {
					return nil // the fence
				}
				if kv.ModRevision != revision {
					t.Errorf("at revision %d is %s of %d", revision, kv.Key, kv.ModRevision)
				}
				got = append(got, kv)
				return nil
			})
			if err != nil {
				return err
			}
			leases := map[int64]string{}
			for i, r := range want {
				kv := got[i]
				if string(kv.Key) != string(r.Key) || !bytes.Equal(kv.Value, r.Value) ||
					kv.ModRevision != int64(r.Revision) || kv.CreateRevision != int64(r.Create) ||
					kv.Version != r.Version || r.Lease != 0 && kv.Lease != int64(r.Lease) {
					t.Errorf("%s@%d became %s@%d with the lease %d", r.Key, r.Revision, kv.Key,
						kv.ModRevision, kv.Lease)
				}
				if kv.Lease != 0 {
					leases[kv.Lease] = string(r.Key)
				}
			}
			if len(got) != len(want) {
				t.Errorf("there are %d keys, want %d", len(got), len(want))
			}
			found := map[string]string{}
			err = tx.Bucket([]byte("lease")).ForEach(func(k, v []byte) error {
				id := int64(binary.BigEndian.Uint64(k))
				var fields []uint64
				for len(v) > 0 {
					number, _, n := protowire.ConsumeTag(v)
					value, m := protowire.ConsumeVarint(v[n:])
					if int(number) != len(fields)+1 || m < 0 {
						return fmt.Errorf("the lease %d is %x", id, v)
					}
					fields, v = append(fields, value), v[n+m:]
				}
				// The seconds that remain are fewer the longer the test takes.
				if fields[0] != uint64(id) || fields[2] > fields[1] || fields[2]+60 < fields[1] {
					t.Errorf("the lease %d is %v", id, fields)
				}
				found[leases[id]] = fmt.Sprint(id == 9, fields[1] > 900)
				return nil
			})
			if lines := fmt.Sprint(found); lines != "map[/b:false false /d:true true]" {
				t.Errorf("the leases are %s", lines)
			}
			compacted := tx.Bucket([]byte("meta")).Get([]byte("scheduledCompactRev"))
			if int64(binary.BigEndian.Uint64(compacted)) != e.Next {
				t.Errorf("compacted is %x, want %d", compacted, e.Next)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
