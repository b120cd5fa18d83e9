package etcd

import (
	"context"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// inside is a connection of a server to itself. The gateway, and the services of locks and
// elections, make their calls by it. So these calls are admitted, bounded and answered as those of
// other clients are, and they reach no other store. Nothing but this process can use the
// connection.
type inside struct {
	// secret is what a call says that is a part of another one. Nobody else knows it.
	secret string
	mu     sync.Mutex
	closed bool
	conn   *grpc.ClientConn
	server *grpc.Server
	ended  chan struct{}
}

// connected returns the connection, which it makes when it is first used.
func (s *Server) connected() (*grpc.ClientConn, error) {
	i := &s.inside
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.closed:
		return nil, rpctypes.ErrGRPCStopped
	case i.conn != nil:
		return i.conn, nil
	}
	l := bufconn.Listen(firstWindow)
	// All clients of the gateway share the connection, so it takes as many calls as they make.
	server := grpc.NewServer(append(s.Options(), grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.NumStreamWorkers(0))...)
	conn, err := grpc.NewClient("passthrough:///inside",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return l.DialContext(ctx)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(), grpc.WithStaticStreamWindowSize(firstWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithUnaryInterceptor(holdAnswer), grpc.WithStreamInterceptor(holdAnswers))
	if err != nil {
		return nil, err
	}
	s.Register(server)
	i.conn, i.server, i.ended = conn, server, make(chan struct{})
	go func() {
		defer close(i.ended)
		_ = server.Serve(l) // it ends when it is stopped
	}()
	return conn, nil
}

// partKey is where a call says that it is a part of another one.
const partKey = "rowkeeper-part"

// part tells whether a call is a part of another one, which counts for it.
func (i *inside) part(header metadata.MD) bool { return slices.Contains(header.Get(partKey), i.secret) }

// parts makes the calls that are parts of a call which lasts. If one that lasts itself fails,
// etcd's code tries again, soon and for ever. So failures are told late, and a call is given up
// whose parts do nothing else for ServerConfig.LeaderTimeout.
type parts struct {
	*grpc.ClientConn
	s      *Server
	giveUp context.CancelCauseFunc

	mu sync.Mutex
	// failing is since when they fail, zero if the last one did not.
	failing time.Time
}

// partPause is how late a failure is told.
const partPause = time.Second

var errParts = status.Error(codes.Unavailable,
	"this call waits for what the server could not find out for long: try again")

func (p *parts) context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, partKey, p.s.inside.secret)
}

// Invoke implements [grpc.ClientConnInterface].
func (p *parts) Invoke(ctx context.Context, method string, request, answer any,
	o ...grpc.CallOption) error {
	return p.ClientConn.Invoke(p.context(ctx), method, request, answer, o...)
}

// NewStream implements [grpc.ClientConnInterface].
func (p *parts) NewStream(ctx context.Context, d *grpc.StreamDesc, method string,
	o ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := p.ClientConn.NewStream(p.context(ctx), d, method, o...)
	if err != nil {
		p.heard(ctx, err)
		return nil, err
	}
	return &partStream{stream, p, ctx}, nil
}

type partStream struct {
	grpc.ClientStream
	p *parts
	// asked is the context of who has begun the stream. The stream's own ends with it.
	asked context.Context
}

// RecvMsg implements [grpc.ClientStream].
func (s *partStream) RecvMsg(v any) error {
	err := s.ClientStream.RecvMsg(v)
	s.p.heard(s.asked, err)
	return err
}

// heard notes an answer, or that there is none.
func (p *parts) heard(ctx context.Context, err error) {
	p.mu.Lock()
	if err == nil || ctx.Err() != nil {
		p.failing = time.Time{}
		p.mu.Unlock()
		return
	}
	if p.failing.IsZero() {
		p.failing = time.Now()
	}
	over := time.Since(p.failing) >= p.s.cfg.LeaderTimeout
	p.mu.Unlock()
	if over {
		p.giveUp(errParts)
	}
	contract.Wait(ctx, partPause)
}

// Close ends the calls of [Server.Gateway], and those that wait for locks and elections. All others
// are for the gRPC server to end.
func (s *Server) Close() {
	i := &s.inside
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.conn == nil {
		return
	}
	_ = i.conn.Close() // it fails if it is closed
	i.server.Stop()
	<-i.ended
}
