package etcd_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// stream is a stream of one request. Responses to the client are dropped.
type stream[Req, Res any] struct {
	grpc.ServerStream
	ctx context.Context
	r   *Req
	// cancel, unless it is nil, gives up the stream when there are no more requests.
	cancel context.CancelFunc
}

func (s *stream[Req, Res]) Context() context.Context { return s.ctx }
func (s *stream[Req, Res]) Send(*Res) error          { return nil }
func (s *stream[Req, Res]) Recv() (*Req, error) {
	r := s.r
	if s.r = nil; r == nil {
		if s.cancel != nil {
			s.cancel()
		}
		return nil, io.EOF
	}
	return r, nil
}

// call makes a request of bytes and gives it to a method. It tells whether they are one.
func call[Req any, P interface {
	*Req
	proto.Message
}](data []byte, do func(P) error) (err error, ok bool) {
	r := P(new(Req))
	if proto.Unmarshal(data, r) != nil {
		return nil, false
	}
	return do(r), true
}

// FuzzRequests: whatever a client sends, the server does not panic, and its errors are of a kind
// that clients know.
func FuzzRequests(f *testing.F) {
	store, err := etcd.Open(f.Context(), etcd.Config{URL: "memdb:",
		Drivers: []etcd.Driver{memdb.New("fuzz", time.Now)}, Migrate: true,
		Compaction: etcd.CompactionPolicy{Window: -1}})
	if err != nil {
		f.Fatal(err)
	}
	defer store.Close()
	s, release, err := etcd.Enter(etcd.New(etcd.Opened(store), etcd.ServerConfig{}), f.Context())
	if err != nil {
		f.Fatal(err)
	}
	defer release()
	ctx := context.Background()
	calls := []func([]byte) (error, bool){
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.RangeRequest) error { _, err := s.Range(ctx, r); return err })
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.RangeRequest) error {
				return s.RangeStream(r, &stream[pb.RangeRequest, pb.RangeStreamResponse]{ctx: ctx})
			})
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.PutRequest) error { _, err := s.Put(ctx, r); return err })
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.DeleteRangeRequest) error {
				_, err := s.DeleteRange(ctx, r)
				return err
			})
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.TxnRequest) error { _, err := s.Txn(ctx, r); return err })
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.CompactionRequest) error { _, err := s.Compact(ctx, r); return err })
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.LeaseGrantRequest) error { _, err := s.LeaseGrant(ctx, r); return err })
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.LeaseRevokeRequest) error {
				_, err := s.LeaseRevoke(ctx, r)
				return err
			})
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.LeaseTimeToLiveRequest) error {
				_, err := s.LeaseTimeToLive(ctx, r)
				return err
			})
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.LeaseKeepAliveRequest) error {
				return s.LeaseKeepAlive(&stream[pb.LeaseKeepAliveRequest,
					pb.LeaseKeepAliveResponse]{ctx: ctx, r: r})
			})
		},
		func(d []byte) (error, bool) {
			return call(d, func(r *pb.WatchRequest) error {
				ctx, cancel := context.WithCancel(ctx)
				return s.Watch(&stream[pb.WatchRequest, pb.WatchResponse]{ctx: ctx, r: r, cancel: cancel})
			})
		},
	}
	const largest = 1<<63 - 1
	for i, r := range []proto.Message{
		&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte{0}, Limit: -1, Revision: -1, SortTarget: 9},
		&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("b"), Limit: 1, Revision: largest},
		&pb.PutRequest{Key: []byte("a"), Lease: -1, PrevKv: true, IgnoreLease: true},
		&pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true},
		&pb.TxnRequest{Compare: []*pb.Compare{{Key: []byte("a"), Target: pb.Compare_VALUE}},
			Success: []*pb.RequestOp{{}, {Request: &pb.RequestOp_RequestTxn{}}},
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
				RequestPut: &pb.PutRequest{Key: []byte("a"), Value: []byte("b")}}}}},
		&pb.CompactionRequest{Revision: -largest, Physical: true},
		&pb.LeaseGrantRequest{ID: -1, TTL: largest},
		&pb.LeaseRevokeRequest{ID: largest},
		&pb.LeaseTimeToLiveRequest{ID: -1, Keys: true},
		&pb.LeaseKeepAliveRequest{ID: -largest},
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{RangeEnd: []byte{0}, StartRevision: largest,
				WatchId: -1, Filters: []pb.WatchCreateRequest_FilterType{7}}}},
	} {
		data, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), data)
	}
	f.Fuzz(func(t *testing.T, method byte, data []byte) {
		err, ok := calls[int(method)%len(calls)](data)
		if !ok || err == nil || errors.Is(err, io.EOF) {
			return
		}
		if code := status.Code(err); code == codes.Unknown || code == codes.Internal ||
			code == codes.DataLoss || code == codes.Unavailable {
			t.Errorf("the error is %v, of the code %s", err, code)
		}
	})
}
