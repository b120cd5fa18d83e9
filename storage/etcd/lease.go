package etcd

import (
	"context"
	"errors"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// minTTL is the least time to live that is granted, in seconds, as by etcd.
const minTTL = 2

// LeaseGrant implements etcd's Lease.
func (s *storeServer) LeaseGrant(ctx context.Context,
	r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	switch {
	case r.ID < 0:
		return nil, status.Error(codes.InvalidArgument, "the ID of a lease is not negative here")
	case r.TTL > contract.MaxTTL:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	row, head, err := s.s.GrantLease(ctx, contract.Lease(r.ID), max(r.TTL, minTTL))
	if err != nil {
		return nil, failure(err)
	}
	return &pb.LeaseGrantResponse{Header: s.header(head), ID: int64(row.Lease), TTL: row.TTL}, nil
}

// LeaseRevoke implements etcd's Lease.
func (s *storeServer) LeaseRevoke(ctx context.Context,
	r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if err := s.s.RevokeLease(ctx, contract.Lease(r.ID)); err != nil {
		return nil, failure(err)
	}
	head, err := s.s.Head(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return &pb.LeaseRevokeResponse{Header: s.header(head)}, nil
}

// LeaseKeepAlive implements etcd's Lease. A lease that is not there has the time to live 0.
func (s *storeServer) LeaseKeepAlive(
	stream grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		row, head, err := s.s.RenewLease(stream.Context(), contract.Lease(r.ID))
		if err != nil && !errors.Is(err, contract.ErrNoLease) {
			return failure(err)
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: s.header(head), ID: r.ID,
			TTL: row.TTL}); err != nil {
			return err
		}
	}
}

// LeaseTimeToLive implements etcd's Lease. A lease that is not there has the time to live -1.
func (s *storeServer) LeaseTimeToLive(ctx context.Context,
	r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	own := &bill{s: s.Server}
	defer own.pay()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	row, left, head, err := s.s.LeaseOf(ctx, contract.Lease(r.ID))
	res := &pb.LeaseTimeToLiveResponse{Header: s.header(head), ID: r.ID, TTL: -1}
	if errors.Is(err, contract.ErrNoLease) {
		return res, nil
	}
	if err == nil && r.Keys {
		err = s.s.EachAttached(ctx, row.Lease, func(k contract.Key) {
			res.Keys = append(res.Keys, []byte(k))
			if err := own.add(mvcc.KeyValue{Key: k}); err != nil {
				cancel(err)
			}
		})
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, failure(err)
	}
	res.TTL, res.GrantedTTL = int64(left/time.Second), row.TTL
	return res, nil
}

// LeaseLeases implements etcd's Lease.
func (s *storeServer) LeaseLeases(ctx context.Context,
	_ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	res := &pb.LeaseLeasesResponse{}
	own := &bill{s: s.Server}
	defer own.pay()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	head, err := s.s.EachLease(ctx, func(l contract.Lease) {
		res.Leases = append(res.Leases, &pb.LeaseStatus{ID: int64(l)})
		if err := own.add(mvcc.KeyValue{}); err != nil {
			cancel(err)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, failure(err)
	}
	res.Header = s.header(head)
	return res, nil
}
