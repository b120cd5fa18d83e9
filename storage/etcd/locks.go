package etcd

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Locks and elections are made of keys and leases, by etcd's own code, as the client library makes
// them. Those that a client makes itself and those that it lets the server make know each other.

func lockService() grpc.ServiceDesc {
	return byClient(v3lockpb.Lock_ServiceDesc,
		func(c *clientv3.Client) any { return v3lock.NewLockServer(c) })
}

func electionService() grpc.ServiceDesc {
	return byClient(v3electionpb.Election_ServiceDesc,
		func(c *clientv3.Client) any { return v3election.NewElectionServer(c) })
}

// maxLastingBytes bounds the requests of calls that last: they are kept for as long.
const maxLastingBytes = 16 << 10

// byClient makes a service that is made of calls to the server that has it.
func byClient(d grpc.ServiceDesc, server func(*clientv3.Client) any) grpc.ServiceDesc {
	d.Methods, d.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i, m := range d.Methods {
		d.Methods[i].Handler = func(now any, ctx context.Context, request func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			c, done, err := now.(*storeServer).client(ctx)
			if err != nil {
				return nil, err
			}
			defer done()
			return m.Handler(server(c), ctx, func(v any) error { return small(v, request(v)) },
				interceptor)
		}
	}
	for i, m := range d.Streams {
		d.Streams[i].Handler = func(now any, stream grpc.ServerStream) error {
			c, done, err := now.(*storeServer).client(stream.Context())
			if err != nil {
				return err
			}
			defer done()
			return m.Handler(server(c), smallStream{stream})
		}
	}
	return d
}

// small refuses a request that is too large to be kept.
func small(v any, err error) error {
	if m, ok := v.(proto.Message); err == nil && ok && proto.Size(m) > maxLastingBytes {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return err
}

type smallStream struct{ grpc.ServerStream }

// RecvMsg implements [grpc.ServerStream].
func (s smallStream) RecvMsg(v any) error { return small(v, s.ServerStream.RecvMsg(v)) }

// client makes a client of the server for a call, whose streams end with it.
func (s *storeServer) client(ctx context.Context) (c *clientv3.Client, done func(), err error) {
	conn, err := s.connected()
	if err != nil {
		return nil, nil, err
	}
	c = clientv3.NewCtxClient(ctx)
	c.KV = clientv3.NewKVFromKVClient(pb.NewKVClient(conn), c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(pb.NewLeaseClient(conn), c, time.Second)
	c.Watcher = clientv3.NewWatchFromWatchClient(pb.NewWatchClient(conn), c)
	return c, func() { _ = c.Close() }, nil // its error is why the context has ended
}
