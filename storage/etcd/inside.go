package etcd

import (
	"context"
	"math"
	"net"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// inside is a connection of a server to itself. The gateway, and the services of locks and
// elections, make their calls by it. So these calls are admitted, bounded and answered as those of
// other clients are, and they reach no other store. Nothing but this process can use the
// connection.
type inside struct {
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
