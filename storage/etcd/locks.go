package etcd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
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
// them. Locks that a client makes itself and locks that it lets the server make know each other.

func lockService() grpc.ServiceDesc {
	return byClient(v3lockpb.Lock_ServiceDesc,
		func(c *clientv3.Client) any { return v3lock.NewLockServer(c) })
}

func electionService() grpc.ServiceDesc {
	return byClient(v3electionpb.Election_ServiceDesc,
		func(c *clientv3.Client) any { return elections{v3election.NewElectionServer(c), c} })
}

// elections is etcd's service of elections, with an Observe of its own.
type elections struct {
	v3electionpb.ElectionServer
	c *clientv3.Client
}

// Observe tells who leads, and what the leader proclaims. etcd's is a watch of the client library,
// which keeps in memory whatever a client does not read. This one watches only until something has
// changed, and watches on when that was sent.
func (e elections) Observe(r *v3electionpb.LeaderRequest,
	stream grpc.ServerStreamingServer[v3electionpb.LeaderResponse]) error {
	ctx, prefix := stream.Context(), string(r.Name)+"/"
	told := &mvccpb.KeyValue{}
	tell := func(h *pb.ResponseHeader, kv *mvccpb.KeyValue) error {
		if kv.CreateRevision == told.CreateRevision && kv.ModRevision <= told.ModRevision {
			return nil // it is read again after a compaction
		}
		told = kv
		return stream.Send(&v3electionpb.LeaderResponse{Header: h, Kv: kv})
	}
	for {
		first, err := e.c.Get(ctx, prefix, clientv3.WithFirstCreate()...)
		if err != nil {
			return err
		}
		next := first.Header.Revision + 1
		if len(first.Kvs) == 0 {
			_, err := e.changed(ctx, prefix, next, clientv3.WithPrefix(), clientv3.WithFilterDelete())
			if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				return err
			}
			continue
		}
		leader := first.Kvs[0]
		if err := tell(first.Header, leader); err != nil {
			return err
		}
		for leads := true; leads; {
			w, err := e.changed(ctx, string(leader.Key), next)
			if errors.Is(err, rpctypes.ErrCompacted) {
				break
			}
			if err != nil {
				return err
			}
			for _, event := range w.Events {
				if next = event.Kv.ModRevision + 1; event.Type == clientv3.EventTypeDelete {
					leads = false
					break
				}
				if err := tell(w.Header, event.Kv); err != nil {
					return err
				}
			}
		}
	}
}

// changed returns the first events from a revision on.
func (e elections) changed(ctx context.Context, key string, from int64,
	o ...clientv3.OpOption) (w clientv3.WatchResponse, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for w := range e.c.Watch(ctx, key, append(o, clientv3.WithRev(from))...) {
		if w.Err() != nil || len(w.Events) > 0 {
			return w, w.Err()
		}
	}
	return w, cmp.Or(ctx.Err(), rpctypes.ErrGRPCStopped)
}

// maxLastingBytes bounds the requests of calls that last: they are kept for as long.
const maxLastingBytes = 4 << 10

// byClient makes a service that is made of calls to the server that has it.
func byClient(d grpc.ServiceDesc, server func(*clientv3.Client) any) grpc.ServiceDesc {
	d.Methods, d.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i, m := range d.Methods {
		d.Methods[i].Handler = func(now any, ctx context.Context, request func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			ctx, c, done, err := now.(*storeServer).client(ctx)
			if err != nil {
				return nil, err
			}
			defer done()
			answer, err := m.Handler(server(c), ctx, func(v any) error { return small(v, request(v)) },
				interceptor)
			return answer, givenUp(ctx, err)
		}
	}
	for i, m := range d.Streams {
		d.Streams[i].Handler = func(now any, stream grpc.ServerStream) error {
			ctx, c, done, err := now.(*storeServer).client(stream.Context())
			if err != nil {
				return err
			}
			defer done()
			return givenUp(ctx, m.Handler(server(c), smallStream{stream, ctx}))
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

type smallStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (s smallStream) Context() context.Context { return s.ctx }

// RecvMsg implements [grpc.ServerStream].
func (s smallStream) RecvMsg(v any) error { return small(v, s.ServerStream.RecvMsg(v)) }

// givenUp is the error of a call that was given up by the server, or its own.
func givenUp(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errParts) {
		return errParts
	}
	return err
}

// client makes a client of the server for a call, whose streams end with it, and the context of the
// call. When the call is given up, etcd's code deletes what it has written by the client's own
// context, which therefore lasts longer, by as much as a request may take.
func (s *storeServer) client(ctx context.Context) (_ context.Context, c *clientv3.Client, done func(),
	err error) {
	conn, err := s.connected()
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(s.cfg.RequestTimeout, cancel)
		context.AfterFunc(longer, func() { late.Stop() })
	})
	p := &parts{ClientConn: conn, s: s.Server, giveUp: giveUp}
	c = clientv3.NewCtxClient(longer)
	c.KV = clientv3.NewKVFromKVClient(pb.NewKVClient(p), c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(pb.NewLeaseClient(p), c, time.Second)
	c.Watcher = clientv3.NewWatchFromWatchClient(pb.NewWatchClient(p), c)
	return ctx, c, func() {
		stop()
		cancel()
		// It waits for what the client has begun, which ends with the context that was canceled,
		// but for a pause of a tenth of a second at most. Its error is why the context has ended.
		_ = c.Close()
		giveUp(nil)
	}, nil
}
