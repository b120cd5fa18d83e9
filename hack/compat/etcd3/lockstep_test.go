package etcd3

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/hack/compat/etcd3/testserver"
	"github.com/rowkeeper/rowkeeper/hack/compat/internal/patched"
	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// lockstepEnv is how many requests TestLockstep makes of each server.
const lockstepEnv = "ROWKEEPER_LOCKSTEP"

// parallelEnv is on how many pairs of servers it makes them at a time. Each gets its part.
const parallelEnv = "ROWKEEPER_LOCKSTEP_PARALLEL"

// piece is after how many requests the events are compared and the history is compacted.
const piece = 2_000

// TestLockstep makes the same requests of etcd and of "rowkeeper etcd", one after the other, and
// compares every answer: puts, deletions, reads of older revisions, transactions of several keys
// and ranges, with others inside, leases that are revoked and compactions. Again and again it
// compares all events. The headers of a transaction's parts are left out: etcd's name a revision
// only.
func TestLockstep(t *testing.T) {
	number := func(env string, usual int) int {
		if n, err := strconv.Atoi(os.Getenv(env)); err == nil {
			return n
		}
		return usual
	}
	parallel := number(parallelEnv, 1)
	requests := number(lockstepEnv, 3_000) / parallel
	program, err := filepath.Abs("../../../bin/compat/rowkeeper")
	if err != nil {
		t.Fatal(err)
	}
	// The program is in the workspace. This module is not.
	patched.Run(t, "env", "GOWORK=", "go", "build", "-C", "../../..", "-o", program,
		"./cmd/rowkeeper")
	for _, kind := range programs.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			wanted(t, kind)
			t.Setenv(testserver.ProgramEnv, program)
			t.Setenv(testserver.KindEnv, string(kind))
			var all []*lockstep
			for range parallel {
				seed := rand.Uint64()
				l := &lockstep{T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), from: 2,
					revision: 1, etcd: startEtcd(t), ours: testserver.RunEtcd(t, nil).Client}
				l.grant(1)
				l.grant(2)
				l.deepest()
				all = append(all, l)
			}
			var wg sync.WaitGroup
			var made atomic.Int64
			for _, l := range all {
				wg.Go(func() { made.Add(int64(l.run(requests))) })
			}
			wg.Wait()
			t.Logf("%d requests", made.Load())
		})
	}
}

// run makes so many requests, until an answer differs, or the time of the test is nearly over. It
// returns how many it has made.
func (l *lockstep) run(most int) (requests int) {
	end, limited := l.Deadline()
	for ; requests < most; requests++ {
		if limited && time.Until(end) < time.Minute {
			break
		}
		if requests%piece == piece-1 {
			l.events()
			l.compact()
		}
		if l.step(); l.Failed() {
			l.Errorf("seed %d, request %d", l.seed, requests)
			return requests
		}
	}
	l.events()
	if l.written < requests/8 || l.failed < requests/8 || l.several < requests/40 ||
		l.ranges < requests/100 || l.revoked < requests/100 {
		l.Errorf("of %d requests, %d transactions have written, %d of them several keys, of %d the "+
			"comparisons did not hold, %d ranges were deleted, and %d leases revoked", requests,
			l.written, l.several, l.failed, l.ranges, l.revoked)
	}
	return requests
}

// startEtcd starts an etcd, and returns a client of it.
func startEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = free, free
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = free, free
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready")
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Clients[0].Addr().String()},
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

type lockstep struct {
	*testing.T
	seed       uint64
	rng        *rand.Rand
	etcd, ours *clientv3.Client
	// revision is the newest one, from the first one whose events were not compared yet.
	revision, from int64
	// written counts the transactions that have written, several those that have put several keys,
	// failed those whose comparisons did not hold, ranges the deletions of several keys by a range,
	// and revoked the leases that had keys.
	written, several, failed, ranges, revoked int
	// deletes tells whether the transactions inside of the next one delete, and do not put. etcd
	// puts and deletes a key in one, if they are in different ones.
	deletes bool
}

// both makes a request of both servers, which gives its answer.
func both[Req, Res proto.Message](l *lockstep, r Req, call func(context.Context, *grpc.ClientConn,
	Req) (Res, error)) (res Res, ok bool) {
	l.Helper()
	want, wantErr := call(l.Context(), l.etcd.ActiveConnection(), r)
	got, err := call(l.Context(), l.ours.ActiveConnection(), r)
	if status.Code(wantErr) != status.Code(err) ||
		status.Convert(wantErr).Message() != status.Convert(err).Message() {
		l.Errorf("%v\netcd:   %v\nhere:   %v", r, wantErr, err)
	}
	if wantErr != nil || err != nil {
		return res, false
	}
	for _, m := range []proto.Message{want, got} {
		withoutServer(m)
	}
	if !proto.Equal(want, got) {
		l.Errorf("%v\netcd:   %v\nhere:   %v", r, want, got)
	}
	return want, true
}

func ranged(ctx context.Context, c *grpc.ClientConn, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return pb.NewKVClient(c).Range(ctx, r)
}

func transacted(ctx context.Context, c *grpc.ClientConn, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return pb.NewKVClient(c).Txn(ctx, r)
}

// withoutServer leaves of an answer's header the revision only, and of those of a transaction's
// parts nothing.
func withoutServer(m proto.Message) {
	h := m.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader()
	h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
	if txn, ok := m.(*pb.TxnResponse); ok {
		withoutHeaders(txn)
	}
}

func withoutHeaders(txn *pb.TxnResponse) {
	for _, op := range txn.Responses {
		switch r := op.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			r.ResponseRange.Header = nil
		case *pb.ResponseOp_ResponsePut:
			r.ResponsePut.Header = nil
		case *pb.ResponseOp_ResponseDeleteRange:
			r.ResponseDeleteRange.Header = nil
		case *pb.ResponseOp_ResponseTxn:
			r.ResponseTxn.Header = nil
			withoutHeaders(r.ResponseTxn)
		}
	}
}

// puts counts the puts that were done.
func puts(txn *pb.TxnResponse) (n int) {
	for _, op := range txn.Responses {
		if op.GetResponsePut() != nil {
			n++
		}
		if inner := op.GetResponseTxn(); inner != nil {
			n += puts(inner)
		}
	}
	return n
}

// events compares all events since the last time, in their order, with what was there before each.
func (l *lockstep) events() {
	l.Helper()
	if l.from > l.revision {
		return
	}
	all := func(c *clientv3.Client) (events []string) {
		ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
		defer cancel()
		last := int64(0)
		for res := range c.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(l.from),
			clientv3.WithPrevKV()) {
			if err := res.Err(); err != nil {
				l.Errorf("a watch from %d: %v", l.from, err)
				return events
			}
			for _, e := range res.Events {
				if e.Kv.ModRevision <= last {
					l.Errorf("a response has an event of %d, and the one before ended there",
						e.Kv.ModRevision)
				}
				events = append(events, fmt.Sprint(e.Type, e.Kv, e.PrevKv))
			}
			if last = res.Events[len(res.Events)-1].Kv.ModRevision; last >= l.revision {
				return events
			}
		}
		l.Errorf("a watch from %d ends at %d, before %d", l.from, last, l.revision)
		return events
	}
	want, got := all(l.etcd), all(l.ours)
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			l.Errorf("of %d events in etcd and %d here, the first that differs is\n%v\n%v", len(want),
				len(got), want[min(i, len(want)):min(i+1, len(want))], got[min(i, len(got)):min(i+1, len(got))])
			return
		}
	}
	l.from = l.revision + 1
}

// compact compacts the history up to what other requests do not read, and reads behind that.
func (l *lockstep) compact() {
	l.Helper()
	at := l.revision - 50
	both(l, &pb.CompactionRequest{Revision: at, Physical: l.rng.IntN(2) == 0},
		func(ctx context.Context, c *grpc.ClientConn,
			r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
			return pb.NewKVClient(c).Compact(ctx, r)
		})
	for _, at := range []int64{at - 1, at, at + 1} {
		both(l, &pb.RangeRequest{Key: []byte("\x00"), RangeEnd: []byte("\x00"), Revision: at}, ranged)
	}
}

// deepest makes a transaction that is as deep within others as it may be, and one that is deeper.
func (l *lockstep) deepest() {
	l.Helper()
	for _, levels := range []int{127, 128} {
		r := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: []byte("deep")}}}}}
		for range levels {
			r = &pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("none"), Target: pb.Compare_VERSION,
				TargetUnion: &pb.Compare_Version{}}}, Success: []*pb.RequestOp{{
				Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}}}
		}
		if res, ok := both(l, r, transacted); ok {
			l.revision = res.Header.Revision
		}
	}
}

// grant grants a lease of an hour.
func (l *lockstep) grant(id int64) {
	l.Helper()
	both(l, &pb.LeaseGrantRequest{ID: id, TTL: 3600}, func(ctx context.Context, c *grpc.ClientConn,
		r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
		return pb.NewLeaseClient(c).LeaseGrant(ctx, r)
	})
}

// revoke asks for the keys of a lease, revokes it, and grants it again. One is not there.
func (l *lockstep) revoke(id int64) {
	l.Helper()
	of, ok := both(l, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true},
		func(ctx context.Context, c *grpc.ClientConn,
			r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
			res, err := pb.NewLeaseClient(c).LeaseTimeToLive(ctx, r)
			if err == nil {
				// etcd's keys are in no order, and the second may have passed.
				slices.SortFunc(res.Keys, bytes.Compare)
				res.TTL = min(res.TTL, 1)
			}
			return res, err
		})
	if ok && len(of.Keys) > 0 {
		l.revoked++
	}
	if res, ok := both(l, &pb.LeaseRevokeRequest{ID: id}, func(ctx context.Context, c *grpc.ClientConn,
		r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
		return pb.NewLeaseClient(c).LeaseRevoke(ctx, r)
	}); ok {
		l.revision = res.Header.Revision
		l.grant(id)
	}
}

func (l *lockstep) step() {
	l.Helper()
	switch l.rng.IntN(24) {
	case 0, 1:
		r := l.get()
		r.Revision = max(1, l.revision-int64(l.rng.IntN(20)))
		both(l, r, ranged)
	case 2, 3:
		if res, ok := both(l, l.put(), func(ctx context.Context, c *grpc.ClientConn,
			r *pb.PutRequest) (*pb.PutResponse, error) {
			return pb.NewKVClient(c).Put(ctx, r)
		}); ok {
			l.revision = res.Header.Revision
		}
	case 4, 5, 6:
		if res, ok := both(l, &pb.DeleteRangeRequest{Key: l.key(), RangeEnd: l.rangeEnd(),
			PrevKv: l.rng.IntN(2) == 0}, func(ctx context.Context, c *grpc.ClientConn,
			r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
			return pb.NewKVClient(c).DeleteRange(ctx, r)
		}); ok {
			if l.revision = res.Header.Revision; res.Deleted > 1 {
				l.ranges++
			}
		}
	case 7:
		l.revoke(1 + int64(l.rng.IntN(3)))
	default:
		l.deletes = l.rng.IntN(4) == 0
		res, ok := both(l, l.txn(0), transacted)
		if !ok {
			return
		}
		if res.Header.Revision > l.revision {
			if l.written++; puts(res) > 1 {
				l.several++
			}
		}
		if !res.Succeeded {
			l.failed++
		}
		l.revision = res.Header.Revision
	}
}

// key is one of few, so that they meet.
func (l *lockstep) key() []byte {
	keys := []string{"a", "a\x00", "a/1", "a/2", "b", "b/\xff", "c", "\xff", "none"}
	return []byte(keys[l.rng.IntN(len(keys))])
}

func (l *lockstep) rangeEnd() []byte {
	switch l.rng.IntN(4) {
	case 0:
		return l.key()
	case 1:
		return []byte("\x00")
	}
	return nil
}

func (l *lockstep) value() []byte { return []byte(fmt.Sprint(l.rng.IntN(3)))[:l.rng.IntN(2)] }

func (l *lockstep) put() *pb.PutRequest {
	key := l.key()
	for string(key) == "none" {
		key = l.key()
	}
	r := &pb.PutRequest{Key: key, Value: l.value(), Lease: int64(l.rng.IntN(3)),
		PrevKv: l.rng.IntN(2) == 0}
	switch l.rng.IntN(12) {
	case 0:
		r.IgnoreValue, r.Value = true, nil
	case 1:
		r.IgnoreLease, r.Lease = true, 0
	}
	return r
}

// get is a read, of whatever kind.
func (l *lockstep) get() *pb.RangeRequest {
	r := &pb.RangeRequest{Key: l.key(), RangeEnd: l.rangeEnd()}
	switch l.rng.IntN(8) {
	case 0:
		r.CountOnly = true
	case 1:
		r.Limit = int64(1 + l.rng.IntN(3))
	case 2:
		r.SortOrder = pb.RangeRequest_DESCEND
		r.Limit = int64(l.rng.IntN(3))
	case 3:
		r.MinModRevision = max(0, l.revision-int64(l.rng.IntN(10)))
	}
	return r
}

// txn is a transaction, in which there may be others.
func (l *lockstep) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{Success: l.ops(depth), Failure: l.ops(depth)}
	for range l.rng.IntN(4) {
		r.Compare = append(r.Compare, l.compare())
	}
	return r
}

// ops are some reads, and writes among them, or none.
func (l *lockstep) ops(depth int) (ops []*pb.RequestOp) {
	writes := l.rng.IntN(3)
	for range 1 + l.rng.IntN(4) {
		op := &pb.RequestOp{}
		switch n := l.rng.IntN(6); {
		case writes == 0 || n < 2:
			r := l.get()
			if l.rng.IntN(8) == 0 {
				r.Revision = max(1, l.revision+2-int64(l.rng.IntN(20)))
			}
			op.Request = &pb.RequestOp_RequestRange{RequestRange: r}
		case n == 2 && (depth == 0 || l.deletes), depth > 0 && l.deletes:
			d := &pb.DeleteRangeRequest{Key: l.key(), PrevKv: l.rng.IntN(2) == 0}
			if l.rng.IntN(3) == 0 {
				d.RangeEnd = l.key() // etcd puts a key that it deletes by a range without an end
			}
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}
		case n == 3 && depth < 2:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: l.txn(depth + 1)}
		default:
			op.Request = &pb.RequestOp_RequestPut{RequestPut: l.put()}
		}
		ops = append(ops, op)
	}
	return ops
}

func (l *lockstep) compare() *pb.Compare {
	c := &pb.Compare{Key: l.key(), RangeEnd: l.rangeEnd(),
		Result: pb.Compare_CompareResult(l.rng.IntN(4)), Target: pb.Compare_CompareTarget(l.rng.IntN(5))}
	recent := max(0, l.revision-int64(l.rng.IntN(20)))
	switch few := int64(l.rng.IntN(3)); c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: few}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: recent * few}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: recent * few}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: l.value()}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: few}
	}
	return c
}
