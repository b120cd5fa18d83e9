package plant

import (
	"context"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// The bugs of clients of etcd.
const (
	// TornTransaction does the first operation of one transaction in 20 of several by itself, and
	// then the others.
	TornTransaction Bug = "tear one transaction in 20"
	// TornResponse sends the first event of one revision in 20 that has several by itself.
	TornResponse Bug = "tear one response of a watch in 20"
	// TornRead leaves the last key out of one read in 20 of several.
	TornRead Bug = "leave a key out of one read in 20"
)

// EtcdBugs are the bugs of clients of etcd.
func EtcdBugs() []Bug { return []Bug{TornTransaction, TornResponse, TornRead} }

// Options put the bug between a client of etcd and its server.
func (b Bug) Options() []grpc.DialOption {
	var count atomic.Int64
	turn := func() bool { return count.Add(1)%20 == 0 }
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, answer any,
			conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if txn, ok := request.(*pb.TxnRequest); ok && b == TornTransaction &&
				len(txn.Success) > 2 && turn() {
				first := proto.CloneOf(txn)
				first.Success = first.Success[:1]
				if err := invoke(ctx, method, first, answer, conn, o...); err != nil {
					return err
				}
				if !answer.(*pb.TxnResponse).Succeeded {
					return invoke(ctx, method, request, answer, conn, o...)
				}
				request = &pb.TxnRequest{Success: txn.Success[1:], Failure: txn.Failure}
			}
			err := invoke(ctx, method, request, answer, conn, o...)
			if r, ok := answer.(*pb.RangeResponse); ok && b == TornRead && err == nil &&
				len(r.Kvs) > 1 && !r.More && turn() {
				r.Kvs = r.Kvs[:len(r.Kvs)-1]
			}
			return err
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc,
			conn *grpc.ClientConn, method string, open grpc.Streamer,
			o ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, d, conn, method, o...)
			if err == nil && b == TornResponse {
				stream = &tornStream{ClientStream: stream, turn: turn}
			}
			return stream, err
		}),
	}
}

// tornStream tears responses of a watch.
type tornStream struct {
	grpc.ClientStream
	turn func() bool
	// left are the events of the last response that were not sent with it.
	left *pb.WatchResponse
}

// RecvMsg implements [grpc.ClientStream].
func (s *tornStream) RecvMsg(m any) error {
	r, ok := m.(*pb.WatchResponse)
	if !ok {
		return s.ClientStream.RecvMsg(m)
	}
	if s.left != nil {
		proto.Merge(r, s.left)
		s.left = nil
		return nil
	}
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if ofOneRevision(r.Events) && s.turn() {
		s.left = proto.CloneOf(r)
		r.Events, s.left.Events = r.Events[:1], s.left.Events[1:]
	}
	return nil
}

func ofOneRevision(events []*mvccpb.Event) bool {
	return len(events) > 1 && events[0].Kv.ModRevision == events[1].Kv.ModRevision
}
