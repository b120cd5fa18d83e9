package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/internal/histories"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Version is the version of etcd whose API this is.
const Version = "3.7.3"

// Config says how to serve. The zero value of each field means its default.
type Config struct {
	// Name is what MemberList calls this server. Default "rowkeeper".
	Name string
	// ClientURLs are those that MemberList names.
	ClientURLs []string
	// MaxRequestBytes bounds a request. Default 1.5 MiB.
	MaxRequestBytes int
	// MaxTxnOps bounds the operations of a transaction. Default 128.
	MaxTxnOps int
	// MaxWatchers bounds the watches of all clients together, and MaxStreamWatchers those of a
	// stream. Default 100,000 and 10,000.
	MaxWatchers, MaxStreamWatchers int64
	// MaxCalls bounds the calls in flight, and MaxStreams those that last: streams of
	// watches, and those that keep leases alive. Default 5,000 and 10,000.
	MaxCalls, MaxStreams int64
	// MaxAnswerBytes bounds the keys and values of the answers that are made and not sent yet.
	// Default 2 GiB.
	MaxAnswerBytes int64
	// MaxConcurrentStreams bounds the calls that a connection may have at a time. Default 10,000.
	MaxConcurrentStreams uint32
	// LeaderTimeout is how long the database may be away before watches end that require a leader.
	// Default 10 s.
	LeaderTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "rowkeeper"
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = mvcc.MaxValueBytes
	}
	if c.MaxTxnOps == 0 {
		c.MaxTxnOps = 128
	}
	if c.MaxWatchers == 0 {
		c.MaxWatchers = 100_000
	}
	if c.MaxStreamWatchers == 0 {
		c.MaxStreamWatchers = 10_000
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 5_000
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 10_000
	}
	if c.MaxAnswerBytes == 0 {
		c.MaxAnswerBytes = 2 << 30
	}
	if c.MaxConcurrentStreams == 0 {
		c.MaxConcurrentStreams = 10_000
	}
	if c.LeaderTimeout == 0 {
		c.LeaderTimeout = 10 * time.Second
	}
	return c
}

// Server answers the calls of etcd's clients.
type Server struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedClusterServer

	s               *mvcc.Store
	cfg             Config
	cluster, member uint64
	// watchers, calls and streams count what there is now, answers bytes; see limits.go.
	watchers, calls, streams, answers atomic.Int64
}

// New makes a server of an open database. The context bounds a read of its identity.
func New(ctx context.Context, db *storage.Database, c Config) (*Server, error) {
	s := histories.Of(db)
	id, err := s.Identity(ctx)
	if err != nil {
		return nil, err
	}
	c = c.withDefaults()
	return &Server{s: s, cfg: c, cluster: number(id.Store), member: number(id.Store + "/" + c.Name)},
		nil
}

// Dropped is closed when this process has learnt that the store was dropped.
func (s *Server) Dropped() <-chan struct{} { return s.s.Dropped() }

// number makes a number of a name, which is not 0.
func number(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:]) | 1
}

// overhead is what a request may have besides its keys and values.
const overhead = 512 << 10

// Options are those of a gRPC server that [Server.Register] is called with.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.cfg.MaxRequestBytes + overhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(s.cfg.MaxConcurrentStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.UnknownServiceHandler(unserved),
		grpc.InTapHandle(s.admit),
		grpc.UnaryInterceptor(answerCall),
		grpc.StreamInterceptor(answerStream),
		grpc.ForceServerCodecV2(newCodec(&s.answers)),
	}
}

// unserved answers the calls of etcd's other services: users, and the locks and elections that etcd
// makes for clients which do not make them themselves.
func unserved(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "this service of etcd is not served here. In place of "+
		"users and roles, give clients certificates, and the server --client-cert-auth and "+
		"--trusted-ca-file. Locks and elections are in etcd's client library")
}

// Register registers the services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	pb.RegisterKVServer(r, s)
	pb.RegisterWatchServer(r, s)
	pb.RegisterLeaseServer(r, s)
	pb.RegisterMaintenanceServer(r, s)
	pb.RegisterClusterServer(r, s)
}

func (s *Server) header(revision mvcc.Revision) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: s.cluster, MemberId: s.member, Revision: int64(revision),
		RaftTerm: uint64(s.s.Epoch())}
}

// failure makes an error of the store one that etcd's clients know.
func failure(err error) error {
	var (
		future *mvcc.FutureRevisionError
		limit  *mvcc.LimitError
	)
	if _, known := status.FromError(err); known {
		return err
	}
	switch {
	case errors.Is(err, mvcc.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.As(err, &future):
		return rpctypes.ErrGRPCFutureRev
	case errors.As(err, &limit):
		return rpctypes.ErrGRPCRequestTooLarge
	case errors.Is(err, mvcc.ErrNoLease):
		return rpctypes.ErrGRPCLeaseNotFound
	case errors.Is(err, mvcc.ErrLeaseExists):
		return rpctypes.ErrGRPCLeaseExist
	case errors.Is(err, mvcc.ErrUnknownOutcome):
		return rpctypes.ErrGRPCTimeout
	case errors.Is(err, mvcc.ErrClosed):
		return rpctypes.ErrGRPCStopped
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	}
	switch mvcc.ClassOf(err) {
	case mvcc.Full:
		return rpctypes.ErrGRPCNoSpace
	case mvcc.Data, mvcc.Invalid:
		return status.Error(codes.DataLoss, err.Error())
	case mvcc.Denied:
		return status.Error(codes.Unavailable, "the database refuses this server")
	}
	return rpctypes.ErrGRPCNoLeader
}

func keyValue(k *mvcc.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(k.Key), CreateRevision: int64(k.Create),
		ModRevision: int64(k.Revision), Version: k.Version, Lease: int64(k.Lease), Value: k.Value}
}
