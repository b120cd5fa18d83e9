package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Alarm implements etcd's Maintenance: there is none.
func (s *storeServer) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action == pb.AlarmRequest_ACTIVATE {
		return nil, status.Error(codes.Unimplemented, "no alarm can be raised here")
	}
	head, err := s.s.Head(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return &pb.AlarmResponse{Header: s.header(head)}, nil
}

// Status implements etcd's Maintenance. This server is the leader, as every server of the database
// is.
func (s *storeServer) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	head, err := s.s.Head(ctx)
	if err != nil {
		return nil, failure(err)
	}
	size, err := s.s.Size(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return &pb.StatusResponse{Header: s.header(head), Version: Version, DbSize: size.Total,
		DbSizeInUse: size.Live, Leader: s.member, RaftIndex: uint64(head),
		RaftAppliedIndex: uint64(head), RaftTerm: uint64(s.s.Epoch()),
		StorageVersion: ClusterVersion}, nil
}

// Snapshot implements etcd's Maintenance.
func (s *storeServer) Snapshot(*pb.SnapshotRequest,
	grpc.ServerStreamingServer[pb.SnapshotResponse]) error {
	return status.Error(codes.Unimplemented,
		"a snapshot cannot be had from a server here: \"rowkeeper etcd export\" writes one")
}

// Defragment implements etcd's Maintenance. There is nothing to do: the database uses again what
// was freed.
func (s *storeServer) Defragment(ctx context.Context,
	_ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	head, err := s.s.Head(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return &pb.DefragmentResponse{Header: s.header(head)}, nil
}

// errHash refuses checksums: two servers of one database read the same rows.
var errHash = status.Error(codes.Unimplemented,
	"there are no copies here whose checksums could differ: check the database by its own tools")

// Hash implements etcd's Maintenance.
func (s *storeServer) Hash(context.Context, *pb.HashRequest) (*pb.HashResponse, error) {
	return nil, errHash
}

// HashKV implements etcd's Maintenance.
func (s *storeServer) HashKV(context.Context, *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	return nil, errHash
}

// MoveLeader implements etcd's Maintenance.
func (s *storeServer) MoveLeader(context.Context,
	*pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	return nil, status.Error(codes.Unimplemented,
		"every server leads here: stop one, and its clients go to another")
}

// Downgrade implements etcd's Maintenance.
func (s *storeServer) Downgrade(context.Context,
	*pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	return nil, status.Error(codes.Unimplemented,
		"etcd's files are not used here: \"rowkeeper migrate\" is for this database's tables")
}

// MemberList implements etcd's Cluster: this server is the only member that it knows.
func (s *storeServer) MemberList(ctx context.Context,
	r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	head, err := s.s.Head(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return &pb.MemberListResponse{Header: s.header(head), Members: []*pb.Member{{ID: s.member,
		Name: s.cfg.Name, ClientURLs: s.cfg.ClientURLs}}}, nil
}

// errMembers refuses what would change the members of a cluster of etcd.
var errMembers = status.Error(codes.Unimplemented,
	"members are neither added nor removed here: start or stop a \"rowkeeper etcd\" of the database")

// MemberAdd implements etcd's Cluster.
func (s *storeServer) MemberAdd(context.Context, *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	return nil, errMembers
}

// MemberRemove implements etcd's Cluster.
func (s *storeServer) MemberRemove(context.Context,
	*pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return nil, errMembers
}

// MemberUpdate implements etcd's Cluster.
func (s *storeServer) MemberUpdate(context.Context,
	*pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	return nil, errMembers
}

// MemberPromote implements etcd's Cluster.
func (s *storeServer) MemberPromote(context.Context,
	*pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	return nil, errMembers
}
