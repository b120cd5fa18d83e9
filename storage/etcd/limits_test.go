package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/partial"
	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// unavailable tells whether the error is one that clients try again.
func unavailable(err error) bool { return status.Code(err) == codes.Unavailable }

// TestManyCalls: calls beyond the bound are refused, whether their requests have come or not, and
// all are taken again when there is room.
func TestManyCalls(t *testing.T) {
	blocked := make(chan struct{})
	var armed atomic.Bool
	with, _ := inMemory(t, func(ctx context.Context, method string) error {
		if armed.Load() && method == "Get" {
			select {
			case <-blocked:
			case <-ctx.Done():
			}
		}
		return nil
	})
	const most = 10
	c := serveBy(t, with, etcd.ServerConfig{MaxCalls: most})
	armed.Store(true)
	kv := pb.NewKVClient(c.ActiveConnection())
	// Half of the calls send no request.
	for range most / 2 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := c.ActiveConnection().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true},
			pb.KV_Put_FullMethodName, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 1000)
	for range cap(errs) {
		go func() {
			_, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
			errs <- err
		}()
	}
	for range cap(errs) - most/2 {
		if err := <-errs; !unavailable(err) {
			t.Fatalf("a call beyond the bound: %v", err)
		}
	}
	close(blocked)
	for range most / 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	// The client of etcd tries again by itself.
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := c.Get(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestResetCalls: calls that their client resets count until the server has ended them, so a client
// that resets all that it asks for does not make the database work without bound.
func TestResetCalls(t *testing.T) {
	const most = 10
	var armed atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	entered, blocked := make(chan struct{}, 10*most), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(blocked) })
	defer unblock()
	// A range has a query of its own, which here does not end when nobody waits for it.
	with, _ := inMemory(t, func(_ context.Context, method string) error {
		if armed.Load() && method == "Page" {
			entered <- struct{}{}
			if len(entered) > most {
				cancel()
			}
			<-blocked
		}
		return nil
	})
	c := serveBy(t, with, etcd.ServerConfig{MaxCalls: most})
	armed.Store(true)
	kv := pb.NewKVClient(c.ActiveConnection())
	r := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	reset, resetAll := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range most {
		wg.Go(func() {
			if _, err := kv.Range(reset, r); status.Code(err) != codes.Canceled {
				t.Error(err)
			}
		})
	}
	for len(entered) < most && t.Context().Err() == nil {
		runtime.Gosched()
	}
	resetAll()
	wg.Wait()
	for range 1000 {
		if _, err := kv.Range(ctx, r); !unavailable(err) {
			t.Fatalf("a call beside those that were reset and go on: %v", err)
		}
	}
	unblock()
	// The client of etcd tries again by itself.
	if _, err := c.Get(t.Context(), "k", clientv3.WithRange("l")); err != nil {
		t.Error(err)
	}
}

// TestManyWatchesOfLog: a client that has many watches of old events on a stream, and reads
// nothing, makes the server read the log for few of them at a time. As soon as it reads, all of
// them get everything.
func TestManyWatchesOfLog(t *testing.T) {
	const keys, watches = 32, 100
	var armed atomic.Bool
	var tails atomic.Int64
	gate := make(chan struct{})
	with, without := inMemory(t, func(ctx context.Context, method string) error {
		if method == "Tail" && armed.Load() {
			tails.Add(1)
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	before := serve(t, without)
	for i := range keys {
		put(t, before, fmt.Sprintf("k%02d", i), strings.Repeat("v", 8<<10))
	}
	c := serve(t, with) // its ring begins after these
	other := c.Watch(t.Context(), "other", clientv3.WithCreatedNotify())
	if res := <-other; !res.Created {
		t.Fatalf("%+v", res)
	}
	conn, err := grpc.NewClient(c.Endpoints()[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream := must[pb.Watch_WatchClient](t)(pb.NewWatchClient(conn).Watch(t.Context()))
	armed.Store(true)
	for range watches {
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"),
				StartRevision: 2}}}); err != nil {
			t.Fatal(err)
		}
		if res := must[*pb.WatchResponse](t)(stream.Recv()); !res.Created || res.Canceled {
			t.Fatal(res)
		}
	}
	close(gate)
	// Watches of other streams go on meanwhile.
	const writes = 20
	for range writes {
		put(t, c, "other", "x")
		if res := <-other; res.Err() != nil {
			t.Fatal(res.Err())
		}
	}
	if n := tails.Load(); n > watches/2 {
		t.Errorf("the log was read %d times for a client that reads nothing", n)
	}
	seen := map[int64]int64{}
	for ended := 0; ended < watches; {
		res := must[*pb.WatchResponse](t)(stream.Recv())
		for _, e := range res.Events {
			if last := seen[res.WatchId]; last != 0 && e.Kv.ModRevision != last+1 {
				t.Fatalf("watch %d: %d after %d", res.WatchId, e.Kv.ModRevision, last)
			}
			if seen[res.WatchId] = e.Kv.ModRevision; e.Kv.ModRevision == keys+1 {
				ended++
			}
		}
	}
}

// TestManyWatches: streams and watches beyond the bounds are refused, and what ended makes room.
func TestManyWatches(t *testing.T) {
	d := memdb.New(t.Name(), time.Now)
	c := serveBy(t, dbtest.DB{URL: "memdb:", Driver: d},
		etcd.ServerConfig{MaxStreams: 3, MaxStreamWatchers: 5, MaxWatchers: 7})
	client := pb.NewWatchClient(c.ActiveConnection())
	open := func() (pb.Watch_WatchClient, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := client.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s, cancel
	}
	// watch returns why there is no watch.
	watch := func(s pb.Watch_WatchClient) string {
		err := s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return res.CancelReason
	}
	first, endFirst := open()
	for i := range 20 {
		if reason := watch(first); (reason == "") != (i < 5) ||
			reason != "" && !strings.Contains(reason, "this stream has") {
			t.Errorf("watch %d of the stream: %q", i, reason)
		}
	}
	second, endSecond := open()
	defer endSecond()
	for i := range 20 {
		if reason := watch(second); (reason == "") != (i < 2) ||
			reason != "" && !strings.Contains(reason, "this server has") {
			t.Errorf("watch %d of all: %q", 5+i, reason)
		}
	}
	third, endThird := open()
	defer endThird()
	watch(third)
	for range 100 {
		s, cancel := open()
		if _, err := s.Recv(); !unavailable(err) {
			t.Fatalf("a stream beyond the bound: %v", err)
		}
		cancel()
	}
	endFirst()
	for {
		s, cancel := open()
		err := s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}})
		if err == nil {
			var res *pb.WatchResponse
			if res, err = s.Recv(); err == nil && !res.Canceled {
				cancel()
				return
			}
		}
		cancel()
		if t.Context().Err() != nil {
			t.Fatal("what has ended makes no room")
		}
	}
}

// TestLargeAnswers: answers that nobody reads, and answers that are too large together, are
// bounded, and make room when they are given up or their connection is.
func TestLargeAnswers(t *testing.T) {
	d := memdb.New(t.Name(), time.Now)
	const value, keys = 256 << 10, 12
	c := serveBy(t, dbtest.DB{URL: "memdb:", Driver: d}, etcd.ServerConfig{MaxAnswerBytes: keys * value})
	for i := range keys {
		put(t, c, fmt.Sprintf("k%02d", i), strings.Repeat("v", value))
	}
	kv := pb.NewKVClient(c.ActiveConnection())
	_, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("all keys at once, which can never be answered: %v", err)
	}
	_, err = kv.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp("k", "k06"),
		rangeOp("k", "k06")}})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("all keys in a transaction: %v", err)
	}
	few := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("k03")}
	read := func() error {
		_, err := kv.Range(t.Context(), few)
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}

	// Clients that ask and do not read.
	for _, end := range []string{"the calls", "the connection"} {
		other, err := grpc.NewClient(c.Endpoints()[0],
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for err = nil; err == nil && t.Context().Err() == nil; err = read() {
			s, err := other.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
				pb.KV_Range_FullMethodName)
			if err == nil {
				err = errors.Join(s.SendMsg(few), s.CloseSend())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !unavailable(err) {
			t.Errorf("answers that nobody reads have no bound: %v", err)
		}
		// Writes go on.
		if _, err := c.Put(t.Context(), "other", "1"); err != nil {
			t.Error(err)
		}
		if end == "the calls" {
			cancel()
		} else if err := other.Close(); err != nil {
			t.Error(err)
		}
		for err = read(); err != nil && t.Context().Err() == nil; {
			runtime.GC() // finds what gRPC has forgotten
			err = read()
		}
		if err != nil {
			t.Errorf("%s make no room: %v", end, err)
		}
		cancel()
		_ = other.Close() // again
	}
}

func rangeOp(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: []byte(key), RangeEnd: []byte(end)}}}
}

// heap is how much memory is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLongKeys: keys that are longer than any that is stored are answered as what does not exist,
// and long bounds as what they mean. Neither calls that have ended nor watches keep them.
func TestLongKeys(t *testing.T) {
	with, _ := inMemory(t, nil)
	c := serve(t, with)
	longest := strings.Repeat("k", 1024)
	long := longest + strings.Repeat("k", 700_000)
	put(t, c, longest, "1")
	put(t, c, "l", "2")
	put(t, c, "m", "3")
	if _, err := c.Put(t.Context(), longest+"k", ""); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "1024 bytes") {
		t.Errorf("a put of a long key: %v", err)
	}
	if res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), long)); res.Count != 0 {
		t.Errorf("a long key exists: %v", res.Count)
	}
	if res := must[*clientv3.DeleteResponse](t)(c.Delete(t.Context(), long)); res.Deleted != 0 {
		t.Errorf("a long key was deleted: %v", res)
	}
	for _, op := range []clientv3.Op{clientv3.OpGet(long), clientv3.OpDelete(long)} {
		res := must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).If(
			clientv3.Compare(clientv3.CreateRevision(long), "=", 0)).Then(op).Commit())
		if !res.Succeeded {
			t.Error("a long key exists in a transaction")
		}
	}
	for start, want := range map[string]string{longest: longest + " l m", long: "l m"} {
		res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), start, clientv3.WithRange("n"),
			clientv3.WithKeysOnly()))
		var keys []string
		for _, kv := range res.Kvs {
			keys = append(keys, string(kv.Key))
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("from a key of %d bytes on: %.20s, %d keys", len(start), got, len(keys))
		}
	}

	before := heap()
	watches := must[pb.Watch_WatchClient](t)(pb.NewWatchClient(c.ActiveConnection()).Watch(
		t.Context()))
	for i := range 40 {
		end := fmt.Sprint("m", i) + long
		res := must[*clientv3.GetResponse](t)(c.Get(t.Context(), "l", clientv3.WithRange(end),
			clientv3.WithLimit(1)))
		if !res.More || res.Count != 2 {
			t.Fatalf("%v", res)
		}
		err := watches.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte(end)}}})
		if err != nil {
			t.Fatal(err)
		}
		if res := must[*pb.WatchResponse](t)(watches.Recv()); !res.Created || res.Canceled {
			t.Fatal(res)
		}
	}
	if kept := heap() - before; kept > 20<<20 {
		t.Errorf("%d bytes are kept of long keys", kept)
	}
}

// TestSilentRequests: requests that do not come give way to others when as many are waited for as
// may be.
func TestSilentRequests(t *testing.T) {
	with, _ := inMemory(t, nil)
	// So little memory leaves room for two requests at a time.
	c := serveBy(t, with, etcd.ServerConfig{Memory: 64 << 20, RequestTimeout: 100 * time.Millisecond})
	for range 10 {
		if _, err := c.ActiveConnection().NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true},
			pb.KV_Put_FullMethodName, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Put(t.Context(), "k", strings.Repeat("v", 1<<20)); err != nil {
		t.Error(err)
	}
}

// TestLargeStreamRequests: requests on streams count while they are being answered. Large ones are
// refused where there is no room, and small ones wait.
func TestLargeStreamRequests(t *testing.T) {
	var armed atomic.Bool
	blocked := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(blocked) })
	defer unblock()
	with, _ := inMemory(t, func(ctx context.Context, method string) error {
		if armed.Load() && method == "State" {
			select {
			case <-blocked:
			case <-ctx.Done():
			}
		}
		return nil
	})
	// So little memory leaves room for two requests of 700 kB, which count twice.
	c := serveBy(t, with, etcd.ServerConfig{Memory: 64 << 20})
	watches := pb.NewWatchClient(c.ActiveConnection())
	answers := make(chan error, 6)
	watch := func(key string) {
		w := must[pb.Watch_WatchClient](t)(watches.Watch(t.Context()))
		if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte(key)}}}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := w.Recv()
			answers <- err
		}()
	}
	armed.Store(true)
	for range 5 {
		watch(strings.Repeat("k", 700_000))
	}
	watch("k")
	for range 3 {
		if err := <-answers; !unavailable(err) {
			t.Errorf("a large request beyond the bound: %v", err)
		}
	}
	unblock()
	for range 3 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// TestPartsOfRequests: a large request on a stream, of which only a part comes, is refused if there
// is no room for it, and given up after a while if there is.
func TestPartsOfRequests(t *testing.T) {
	const large = 1_600_000
	for name, test := range map[string]struct {
		memory  int64
		streams int
		want    codes.Code
	}{
		"no room": {48 << 20, 20, codes.Unavailable},
		"room":    {64 << 20, 1, codes.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			with, _ := inMemory(t, nil)
			c := serveBy(t, with, etcd.ServerConfig{Memory: test.memory, RequestTimeout: time.Second})
			conn, err := grpc.NewClient(c.Endpoints()[0], grpc.WithContextDialer(
				partial.Dialer("unix", int64(test.streams)*100_000)),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			ends := make(chan error, test.streams)
			for range test.streams {
				w := must[pb.Watch_WatchClient](t)(pb.NewWatchClient(conn).Watch(ctx))
				go func() {
					_ = w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
						CreateRequest: &pb.WatchCreateRequest{Key: make([]byte, large)}}}) // it never is
				}()
				go func() {
					_, err := w.Recv()
					ends <- err
				}()
			}
			for range test.streams {
				if err := <-ends; status.Code(err) != test.want {
					t.Errorf("a stream whose request has not come ends with %v", err)
				}
			}
			if _, err := c.Put(t.Context(), "k", "v"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLargeListsOfOthers: requests that hold no values are small, as lists of next to nothing grow
// when they are decoded.
func TestLargeListsOfOthers(t *testing.T) {
	with, _ := inMemory(t, nil)
	c := serve(t, with).ActiveConnection()
	members := pb.NewClusterClient(c)
	for n, want := range map[int]codes.Code{10: codes.Unimplemented, 1_000_000: codes.InvalidArgument} {
		_, err := members.MemberAdd(t.Context(), &pb.MemberAddRequest{PeerURLs: make([]string, n)})
		if status.Code(err) != want {
			t.Errorf("%d URLs: %v", n, err)
		}
	}
	for n, want := range map[int]codes.Code{10: codes.OK, 100_000: codes.InvalidArgument} {
		alive := must[pb.Lease_LeaseKeepAliveClient](t)(pb.NewLeaseClient(c).LeaseKeepAlive(t.Context()))
		r := &pb.LeaseKeepAliveRequest{ID: 1}
		r.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType),
			make([]byte, n)))
		if err := alive.Send(r); err != nil {
			t.Fatal(err)
		}
		if _, err := alive.Recv(); status.Code(err) != want {
			t.Errorf("%d bytes beside the ID of a lease: %v", n, err)
		}
	}
}

// TestLargeTransactions: a transaction that would delete too many keys is refused before all are
// read. Many reads of keys that it has put need no more room than one.
func TestLargeTransactions(t *testing.T) {
	with, _ := inMemory(t, nil)
	c := serveBy(t, with, etcd.ServerConfig{MaxAnswerBytes: 7 << 19})
	key := func(i, j int) string { return fmt.Sprintf("r%d/%03d", i, j) }
	var deletes []clientv3.Op
	for i := range 10 {
		var puts []clientv3.Op
		for j := range 100 {
			puts = append(puts, clientv3.OpPut(key(i, j), strings.Repeat("v", 2<<10)))
		}
		must[*clientv3.TxnResponse](t)(c.Txn(t.Context()).Then(puts...).Commit())
		deletes = append(deletes, clientv3.OpDelete(key(i, 0), clientv3.WithRange(key(i, 100))))
	}
	if _, err := c.Txn(t.Context()).Then(deletes...).Commit(); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "513 keys, more than the limit of 512") {
		t.Errorf("a thousand keys are deleted at once: %v", err)
	}
	res, err := c.Txn(t.Context()).Then(clientv3.OpPut("a", "1"),
		clientv3.OpGet("r", clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpPut("b", "1")).Commit()
	if err != nil || res.Responses[1].GetResponseRange().Count != 1_000 {
		t.Errorf("keys are counted between two writes: %v, %v", res, err)
	}
	var ops []clientv3.Op
	for i := range 60 {
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("p/%02d", i), strings.Repeat("v", 10<<10)),
			clientv3.OpGet("p/", clientv3.WithPrefix(), clientv3.WithCountOnly()))
	}
	if res, err = c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
		t.Fatalf("many reads between writes: %v", err)
	}
	for i := range 60 {
		if n := res.Responses[2*i+1].GetResponseRange().Count; n != int64(i+1) {
			t.Errorf("after %d puts there are %d keys", i+1, n)
		}
	}
}

// TestManyOperations: a transaction of too many operations is refused, also if they are in others.
func TestManyOperations(t *testing.T) {
	with, _ := inMemory(t, nil)
	kv := pb.NewKVClient(serve(t, with).ActiveConnection())
	many := make([]*pb.RequestOp, 1_000)
	for i := range many {
		many[i] = rangeOp("k", "")
	}
	for what, r := range map[string]*pb.TxnRequest{"comparisons": {Compare: make([]*pb.Compare, 100_000)},
		"operations": {Success: many}, "nested operations": {Failure: []*pb.RequestOp{{
			Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: many}}}}}} {
		for i := range r.Compare {
			r.Compare[i] = &pb.Compare{}
		}
		if _, err := kv.Txn(t.Context(), r); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "too many operations") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSlowReader: a client that does not read the events of its watch loses the stream, so that
// others that need the log come to their turn.
func TestSlowReader(t *testing.T) {
	with, without := inMemory(t, nil)
	before := serve(t, without)
	for i := range 8 {
		put(t, before, fmt.Sprint("k", i), strings.Repeat("v", 1<<20))
	}
	// So little memory leaves one stream a piece of the log.
	c := serveBy(t, with, etcd.ServerConfig{Memory: 64 << 20, SendTimeout: time.Second})
	conn, err := grpc.NewClient(c.Endpoints()[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"),
			StartRevision: 2}}}
	slow := must[pb.Watch_WatchClient](t)(pb.NewWatchClient(conn).Watch(t.Context()))
	if err := slow.Send(watch); err != nil {
		t.Fatal(err)
	}
	if res := must[*pb.WatchResponse](t)(slow.Recv()); !res.Created {
		t.Fatal(res)
	}
	if got := events(t, c.Watch(t.Context(), "k", clientv3.WithPrefix(), clientv3.WithRev(2)),
		8); len(got) != 8 {
		t.Errorf("%d events", len(got))
	}
	for err = nil; err == nil; {
		_, err = slow.Recv()
	}
	if !unavailable(err) {
		t.Errorf("the stream that was not read ends with %v", err)
	}
}

// TestLargeHeader: a call with much metadata is refused, before the server has more of it than it
// may.
func TestLargeHeader(t *testing.T) {
	with, _ := inMemory(t, nil)
	c := serve(t, with)
	kv := pb.NewKVClient(c.ActiveConnection())
	for size, refused := range map[int]bool{16 << 10: false, 1 << 20: true} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", size))
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")}, grpc.WaitForReady(true))
		if (err != nil) != refused {
			t.Errorf("with %d bytes of metadata: %v", size, err)
		}
	}
}

// TestSilentClient: a client that begins as those of gRPC do, and says no more, is not waited for.
func TestSilentClient(t *testing.T) {
	with, _ := inMemory(t, nil)
	c := serveBy(t, with, etcd.ServerConfig{ConnectTimeout: 100 * time.Millisecond})
	conn, err := net.Dial("unix", strings.TrimPrefix(c.Endpoints()[0], "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n"); err != nil {
		t.Fatal(err)
	}
	// Less than the time that gRPC gives by itself, two minutes.
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still there")
	}
	if _, err := c.Get(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

// closing is a connection that says when it ends.
type closing struct {
	net.Conn
	ended chan struct{}
	once  sync.Once
}

func (c *closing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.once.Do(func() { close(c.ended) })
	}
	return n, err
}

// TestIdleConnections: a connection without a call is closed. Its client does not notice, whether
// it calls long after that or at the same time, and one with a watch keeps its connection.
func TestIdleConnections(t *testing.T) {
	with, _ := inMemory(t, nil)
	store := openStore(t, with)
	client := func(idle time.Duration) (*clientv3.Client, chan *closing) {
		endpoints := serveOpen(t, etcd.Opened(store), etcd.ServerConfig{}.MaxIdle(idle)).Endpoints()
		conns := make(chan *closing, 10_000)
		c := must[*clientv3.Client](t)(clientv3.New(clientv3.Config{Endpoints: endpoints,
			Context: t.Context(), Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
				grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(at, "unix:"))
					c := &closing{Conn: conn, ended: make(chan struct{})}
					if err == nil {
						conns <- c
					}
					return c, err
				})}}))
		t.Cleanup(func() { c.Close() })
		return c, conns
	}
	for range 3 {
		c, conns := client(50 * time.Millisecond)
		put(t, c, "k", "v")
		<-(<-conns).ended
		put(t, c, "k", "v")
	}
	c, _ := client(time.Millisecond)
	for range 300 { // some of them begin when the connection is about to end
		put(t, c, "k", "v")
	}
	c, conns := client(50 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := c.Watch(ctx, "w", clientv3.WithCreatedNotify())
	<-w
	kept := <-conns
	other, others := client(50 * time.Millisecond)
	put(t, other, "k", "v")
	<-(<-others).ended // a connection that began after the watch
	select {
	case <-kept.ended:
		t.Error("a connection with a watch was closed")
	default:
	}
	put(t, other, "w", "v")
	if got := events(t, w, 1); len(got) != 1 {
		t.Errorf("%d events", len(got))
	}
}

// TestConnectionsGiveWay: beyond the bound the connection that has had no call for longest is
// closed, and none if each has a call.
func TestConnectionsGiveWay(t *testing.T) {
	s := etcd.New(nil, etcd.ServerConfig{MaxConnections: 3})
	connect := func() (*closing, net.Conn) {
		ours, theirs := net.Pipe()
		counted, ok := s.Connect(theirs)
		if !ok {
			return nil, nil
		}
		c := &closing{Conn: ours, ended: make(chan struct{})}
		go func() { _, _ = io.Copy(io.Discard, c) }()
		t.Cleanup(func() { counted.Close() })
		return c, counted
	}
	first, busy := connect()
	second, also := connect()
	third, idle := connect()
	etcd.FollowCalls(busy, http.StateActive)
	etcd.FollowCalls(also, http.StateActive)
	etcd.FollowCalls(also, http.StateIdle) // later than the third
	fourth, _ := connect()
	<-third.ended
	fifth, last := connect()
	<-second.ended
	etcd.FollowCalls(busy, http.StateIdle)
	etcd.FollowCalls(last, http.StateActive)
	sixth, busy6 := connect()
	<-fourth.ended
	etcd.FollowCalls(busy6, http.StateActive)
	seventh, busy7 := connect()
	<-first.ended
	etcd.FollowCalls(busy7, http.StateActive)
	if c, _ := connect(); c != nil {
		t.Error("a connection with a call gave way")
	}
	for _, c := range []*closing{fifth, sixth, seventh} {
		select {
		case <-c.ended:
			t.Error("a connection too many has ended")
		default:
		}
	}
	idle.Close() // which counts no more
	if c, _ := connect(); c != nil {
		t.Error("a connection counted less than once")
	}
	busy7.Close()
	if c, _ := connect(); c == nil {
		t.Error("there is no room where a connection was closed")
	}
}
