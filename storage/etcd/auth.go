package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// only leaves the named methods in a service. To all others [unserved] says what to do instead.
func only(d grpc.ServiceDesc, names ...string) grpc.ServiceDesc {
	methods := d.Methods
	d.Methods, d.Streams = nil, nil
	for _, m := range methods {
		for _, name := range names {
			if m.MethodName == name {
				d.Methods = append(d.Methods, m)
			}
		}
	}
	return d
}

// Authenticate implements etcd's Auth: clients that have a user go on without one then, as they do
// with an etcd that has no users.
func (s *storeServer) Authenticate(context.Context,
	*pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return nil, rpctypes.ErrGRPCAuthNotEnabled
}

// AuthStatus implements etcd's Auth.
func (s *storeServer) AuthStatus(ctx context.Context,
	_ *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	head, err := s.s.Head(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return &pb.AuthStatusResponse{Header: s.header(head), AuthRevision: 1}, nil
}

// health answers probes of a store.
type health struct {
	healthpb.UnimplementedHealthServer
	*storeServer
}

// healthService is gRPC's own service for probes, which is answered as etcd's are by a store.
func healthService() grpc.ServiceDesc {
	d := only(healthpb.Health_ServiceDesc, "Check")
	check := d.Methods[0].Handler
	d.Methods[0].Handler = func(now any, ctx context.Context, request func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		return check(&health{storeServer: now.(*storeServer)}, ctx, request, interceptor)
	}
	return d
}

// Watch is not served: the service has Check alone. Without this, that of etcd's would be meant.
func (h *health) Watch(*healthpb.HealthCheckRequest,
	grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	return unserved(nil, nil)
}

// Check implements gRPC's own service for probes. As in etcd, it knows the server as a whole.
func (h *health) Check(ctx context.Context,
	r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if r.Service != "" {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	answer := healthpb.HealthCheckResponse_SERVING
	if _, err := h.s.Head(ctx); err != nil {
		answer = healthpb.HealthCheckResponse_NOT_SERVING
	}
	return &healthpb.HealthCheckResponse{Status: answer}, nil
}
