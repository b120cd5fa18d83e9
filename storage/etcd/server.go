package etcd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"weak"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/memory"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// MaxRequestBytes is the greatest [Config.MaxRequestBytes]: no value is larger here.
const MaxRequestBytes = contract.MaxValueBytes

// Version is the version of etcd whose API this is.
const Version = "3.7.3"

// ClusterVersion is what a cluster of such members agrees on.
const ClusterVersion = "3.7.0"

// ServerConfig says how to serve. The zero value of each field means its default.
type ServerConfig struct {
	// Name is what MemberList calls this server. Default "rowkeeper".
	Name string
	// ClientURLs are those that MemberList names.
	ClientURLs []string
	// MaxRequestBytes bounds a request. Default and at most 1.5 MiB.
	MaxRequestBytes int
	// MaxTxnOps bounds the operations of a transaction. Default 128.
	MaxTxnOps int
	// MaxStreamWatchers bounds the watches of a stream. Default 10,000.
	MaxStreamWatchers int64

	// The next five bound what the clients of all servers of a [Process] have together. Half of
	// each is divided among the servers, and the other half is for those that need more.

	// MaxConnections bounds the connections that are counted by [Server.Connect], and MaxStreams
	// the calls that last: streams of watches, and those that keep leases alive. A kube-apiserver
	// has one of each for every resource. Default 10,000, or 500 for each store if that is more, or
	// what a twelfth of [Memory] is enough for, and an eighth, if that is less.
	MaxConnections, MaxStreams int64
	// MaxCalls bounds the other calls in flight. Default 5,000, or one for each MiB of [Memory] if
	// that is less.
	MaxCalls int64
	// MaxWatchers bounds the watches. Default 100,000, or what a 24th of [Memory] is enough for if
	// that is less.
	MaxWatchers int64
	// MaxAnswerBytes bounds the answers that are made and not sent yet. Those that are being made
	// count twice. Default 2 GiB, or a quarter of [Memory] if that is less.
	MaxAnswerBytes int64

	// MaxConcurrentStreams bounds the calls that a connection may have at a time. Default 10,000.
	MaxConcurrentStreams uint32
	// ConnectTimeout is how long a new connection may take until its client has made itself known.
	// Default 10 s.
	ConnectTimeout time.Duration
	// LeaderTimeout is how long the database may be away before watches end that require a leader.
	// Default 10 s.
	LeaderTimeout time.Duration
	// SendTimeout is how long a client may take to read a response of a watch. Default 30 s.
	SendTimeout time.Duration
	// RequestTimeout is how long a request may take to come while others wait to come. Default 5 s.
	RequestTimeout time.Duration
	// Logger takes what nobody is left to be told. Default: that of [slog.Default].
	Logger *slog.Logger

	// Memory is what the process has. Default: [Memory].
	Memory int64

	// workers is how many goroutines a server keeps for calls.
	workers uint32
	// maxIdle is how long a connection may have no call, five minutes. A stream is one. The client
	// is told, and connects again for its next call.
	maxIdle time.Duration
	// requestBytes bounds the requests that are being answered, and arrivals how many are received
	// at a time. eventBytes bounds the responses of watches that are not sent yet, and pieces is
	// how many streams of a store have a piece of the log at a time.
	requestBytes, arrivals, eventBytes, pieces int64
}

// workers are the goroutines that a process keeps for calls, shared out between its servers. The
// stack of a new one grows several times while it answers, and is copied each time, which took a
// tenth of the processor time of an update. A call that finds none free is answered by a new one.
const workers = 256

// What a connection, a stream and a watch may need at most, whatever their clients do: buffers and
// goroutines, and for a stream its header and what comes before it is read.
const (
	connectionBytes = 96 << 10
	streamBytes     = 48<<10 + maxHeaderBytes + firstWindow
	watcherBytes    = 12 << 10
)

// fitting is a default, or as many as a share of the memory is enough for if that is less.
//
// All shares may be used at the same time, so their sum has to fit, and leave room for what stores
// keep themselves: the ring, the queue and the caches. A quarter of the memory is for connections,
// streams and watches, with room for as many streams as connections. Another quarter is for
// answers, and an eighth for what watches have read and what they send. Requests have seven parts
// of 32: what comes of them before they are read, what is being read, and what was read, of calls
// and of the gateway. TestMemory adds it all up.
func fitting(usual, share, each int64) int64 { return max(min(usual, share/each), 64) }

func (c ServerConfig) withDefaults(stores int) ServerConfig {
	if c.Memory == 0 {
		c.Memory = memory.Available()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 5 * time.Second
	}
	if c.SendTimeout == 0 {
		c.SendTimeout = 30 * time.Second
	}
	if c.Name == "" {
		c.Name = "rowkeeper"
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = contract.MaxValueBytes
	}
	if c.MaxTxnOps == 0 {
		c.MaxTxnOps = 128
	}
	if c.MaxStreamWatchers == 0 {
		c.MaxStreamWatchers = 10_000
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = fitting(max(10_000, 500*int64(stores)), c.Memory/12, connectionBytes)
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = max(min(5_000, c.Memory>>20), 64)
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = fitting(max(10_000, 500*int64(stores)), c.Memory/8, streamBytes)
	}
	if c.MaxWatchers == 0 {
		c.MaxWatchers = fitting(100_000, c.Memory/24, watcherBytes)
	}
	if c.MaxAnswerBytes == 0 {
		c.MaxAnswerBytes = min(2<<30, c.Memory/4)
	}
	if c.MaxConcurrentStreams == 0 {
		c.MaxConcurrentStreams = 10_000
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 10 * time.Second
	}
	if c.LeaderTimeout == 0 {
		c.LeaderTimeout = 10 * time.Second
	}
	if c.maxIdle == 0 {
		c.maxIdle = 5 * time.Minute
	}
	c.workers = uint32(workers / max(stores, 1))
	c.requestBytes = min(1<<30, c.Memory/16)
	c.arrivals = max(min(c.requestBytes/int64(decodedTimes*(c.MaxRequestBytes+overhead)), 256), 2)
	c.eventBytes = min(1<<30, c.Memory/16)
	c.pieces = max(min(c.eventBytes/contract.ReadBytes/int64(max(stores, 1)), 64), 1)
	return c
}

// Opener opens a store for a call, which releases it at its end. It may be what another call has
// opened. An error with a gRPC status is what the client is answered.
type Opener func(ctx context.Context) (store *Store, release func(), err error)

// Opened is the Opener of a store that is open for as long as the server answers.
func Opened(store *Store) Opener {
	return func(context.Context) (*Store, func(), error) { return store, func() {}, nil }
}

// Process has servers for several stores, whose clients share what the process may hold.
type Process struct {
	cfg                                                              ServerConfig
	connections, calls, streams, watchers, answers, requests, events *total
	arrivals, bodies                                                 *total
}

// NewProcess makes a process of a number of servers.
func NewProcess(c ServerConfig, stores int) *Process {
	c = c.withDefaults(stores)
	return &Process{cfg: c, connections: newTotal(c.MaxConnections, stores),
		calls: newTotal(c.MaxCalls, stores), streams: newTotal(c.MaxStreams, stores),
		watchers: newTotal(c.MaxWatchers, stores), answers: newTotal(c.MaxAnswerBytes, stores),
		requests: newTotal(c.requestBytes, stores), events: newTotal(c.eventBytes, stores),
		arrivals: newTotal(c.arrivals, stores), bodies: newTotal(c.requestBytes, stores)}
}

// Server answers the calls of the clients of a store.
type Server struct {
	open Opener
	cfg  ServerConfig
	last atomic.Pointer[identity]
	// These count what there is now, the last three bytes; see limits.go.
	connections, calls, streams, watchers, answers, requests, events bound
	arrivals                                                         arrivals
	// idle are the connections without calls.
	idle idle
	// pieces is taken by the streams that have a piece of the log.
	pieces  chan struct{}
	inside  inside
	metrics *metrics
	// bodies are the bytes of the requests of the gateway.
	bodies bound
}

// Server makes the server of a store. MemberList names the URLs.
func (p *Process) Server(open Opener, clientURLs []string) *Server {
	s := &Server{open: open, cfg: p.cfg, connections: bound{total: p.connections},
		calls: bound{total: p.calls}, streams: bound{total: p.streams},
		watchers: bound{total: p.watchers}, answers: bound{total: p.answers},
		requests: bound{total: p.requests}, events: bound{total: p.events},
		arrivals: arrivals{slots: bound{total: p.arrivals}, patience: p.cfg.RequestTimeout,
			now: map[*arrival]struct{}{}},
		pieces: make(chan struct{}, p.cfg.pieces), bodies: bound{total: p.bodies},
		metrics: newMetrics(), inside: inside{secret: rand.Text()}}
	s.cfg.ClientURLs = clientURLs
	s.idle.counted = &s.connections
	return s
}

// New makes the only server of a process.
func New(open Opener, c ServerConfig) *Server {
	return NewProcess(c, 1).Server(open, c.ClientURLs)
}

// storeServer is the store of a server as it is open during a call. It has the methods of etcd's
// services.
type storeServer struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedClusterServer
	pb.UnimplementedAuthServer

	*Server
	*identity
	s *mvcc.Engine
}

// identity is how the headers name a store. One that is dropped and created again has another one.
type identity struct {
	of              weak.Pointer[mvcc.Engine]
	cluster, member uint64
}

// enter opens the store for a call.
func (s *Server) enter(ctx context.Context) (*storeServer, func(), error) {
	opened, release, err := s.open(ctx)
	if err != nil {
		return nil, nil, failure(err)
	}
	now := &storeServer{Server: s, s: database.Engine(opened)}
	now.identity = s.last.Load()
	if of := weak.Make(now.s); now.identity == nil || now.of != of {
		id, err := now.s.Identity(ctx)
		if err != nil {
			release()
			return nil, nil, failure(err)
		}
		now.identity = &identity{of, number(id.Store), number(id.Store + "/" + s.cfg.Name)}
		s.last.Store(now.identity)
	}
	return now, release, nil
}

// number makes a number of a name, which is not 0.
func number(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:]) | 1
}

// overhead is what a request may have besides its keys and values.
const overhead = 512 << 10

// maxHeaderBytes bounds the metadata of a call.
const maxHeaderBytes = 32 << 10

// mostRequest is how large a request may be.
func (s *Server) mostRequest() int { return s.cfg.MaxRequestBytes + overhead }

// Options are those of a gRPC server that [Server.Register] is called with.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.mostRequest()),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.StaticStreamWindowSize(firstWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(s.cfg.MaxConcurrentStreams),
		grpc.ConnectionTimeout(s.cfg.ConnectTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 2 * time.Hour, Timeout: 20 * time.Second, MaxConnectionIdle: s.cfg.maxIdle}),
		grpc.NumStreamWorkers(s.cfg.workers),
		grpc.UnknownServiceHandler(unserved),
		grpc.InTapHandle(s.admit),
		experimental.BufferPool(buffers),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto"), &s.answers, &s.events,
			s.metrics.sent}),
	}
}

// unserved answers the calls of etcd's other services, those of users.
func unserved(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "this service of etcd is not served here. In place of "+
		"users and roles, give clients certificates, and the server --client-cert-auth and "+
		"--trusted-ca-file")
}

// Register registers the services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	for _, d := range []grpc.ServiceDesc{pb.KV_ServiceDesc, pb.Watch_ServiceDesc,
		pb.Lease_ServiceDesc, pb.Maintenance_ServiceDesc, pb.Cluster_ServiceDesc,
		only(pb.Auth_ServiceDesc, "Authenticate", "AuthStatus"),
		healthService(), lockService(), electionService()} {
		r.RegisterService(s.service(d), nil)
	}
}

// service makes a service whose calls are admitted, and answered by the store as it is open then.
func (s *Server) service(d grpc.ServiceDesc) *grpc.ServiceDesc {
	decode := (*received).decode
	if d.ServiceName == lockService().ServiceName || d.ServiceName == electionService().ServiceName {
		decode = (*received).decodeLasting
	}
	streams := slices.Clone(d.Streams)
	for i, m := range streams {
		count := s.metrics.method(d.ServiceName, &m, false)
		streams[i].Handler = func(_ any, stream grpc.ServerStream) error {
			return count.count(func() error {
				if m.ClientStreams {
					counted := &countedStream{ServerStream: stream, s: s, most: maxBody}
					if d.ServiceName == pb.Watch_ServiceDesc.ServiceName {
						counted.most = s.mostRequest() // keys may be that long
					}
					defer counted.release()
					return s.answer(stream, nil, func(now *storeServer, _ *received) error {
						return m.Handler(now, counted)
					})
				}
				return s.answer(stream, &m.StreamName, func(now *storeServer, r *received) error {
					return m.Handler(now, &receivedStream{stream, func(v any) error { return decode(r, v) }})
				})
			})
		}
	}
	for _, m := range d.Methods {
		one := grpc.StreamDesc{StreamName: m.MethodName}
		count := s.metrics.method(d.ServiceName, &one, true)
		one.Handler = func(_ any, stream grpc.ServerStream) error {
			return count.count(func() error {
				return s.answer(stream, &m.MethodName, func(now *storeServer, r *received) error {
					answer, err := m.Handler(now, stream.Context(),
						func(v any) error { return decode(r, v) }, nil)
					if err != nil {
						return err
					}
					return stream.SendMsg(answer)
				})
			})
		}
		streams = append(streams, one)
	}
	d.Methods, d.Streams = nil, streams
	return &d
}

// answer answers a call that was admitted. One that its client has given up is not answered. method
// is nil if there is more than one request, and by receives them.
func (s *Server) answer(stream grpc.ServerStream, method *string,
	by func(*storeServer, *received) error) (err error) {
	ctx := stream.Context()
	end, giveUp, err := answering(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer s.recovered(nil, &err)
	var r *received
	if method != nil {
		if r, err = s.receive(stream, *method, giveUp); err != nil {
			return err
		}
		defer r.answered()
	}
	now, release, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	return now.guarded(func() error { return by(now, r) })
}

func (s *storeServer) header(revision contract.Revision) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: s.cluster, MemberId: s.member, Revision: int64(revision),
		RaftTerm: uint64(s.s.Epoch())}
}

// failure makes an error of the store one that etcd's clients know.
func failure(err error) error {
	var (
		future *contract.FutureRevisionError
		limit  *contract.LimitError
	)
	if _, known := status.FromError(err); known {
		return err
	}
	switch {
	case errors.Is(err, contract.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.As(err, &future):
		return rpctypes.ErrGRPCFutureRev
	case errors.As(err, &limit) && limit.What == "transaction":
		return status.Errorf(codes.InvalidArgument, "%v, which counts the keys that a range deletes "+
			"and the values that are replaced: write less in one transaction", limit)
	case errors.As(err, &limit):
		return rpctypes.ErrGRPCRequestTooLarge
	case errors.Is(err, contract.ErrNoLease):
		return rpctypes.ErrGRPCLeaseNotFound
	case errors.Is(err, contract.ErrLeaseExists):
		return rpctypes.ErrGRPCLeaseExist
	case errors.Is(err, contract.ErrUnknownOutcome):
		return rpctypes.ErrGRPCTimeout
	case errors.Is(err, contract.ErrClosed):
		return rpctypes.ErrGRPCStopped
	case errors.Is(err, contract.ErrDropped):
		return errDropped
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	}
	switch contract.ClassOf(err) {
	case contract.Full:
		return rpctypes.ErrGRPCNoSpace
	case contract.Data: // it names the key
		return status.Error(codes.DataLoss, err.Error())
	case contract.Invalid: // it may say where the database is, and who logs in there
		return status.Error(codes.DataLoss,
			"the database is not as this server needs it: the server's log says more")
	case contract.Denied:
		return status.Error(codes.Unavailable, "the database refuses this server")
	}
	return rpctypes.ErrGRPCNoLeader
}

// errDropped lets clients try again: perhaps there is a new store of the name.
var errDropped = status.Error(codes.Unavailable, "the store was dropped")

func keyValue(k *mvcc.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(k.Key), CreateRevision: int64(k.Create),
		ModRevision: int64(k.Revision), Version: k.Version, Lease: int64(k.Lease), Value: k.Value}
}
