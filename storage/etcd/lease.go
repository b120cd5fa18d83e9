package etcd

import (
	"context"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// The ID of a lease says when it expires, in seconds since 1970 by the database's clock, and its
// time to live in seconds. The rest is random. So any server of the database knows every lease, and
// none is stored.
const (
	randomBits = 7
	ttlBits    = 22
	maxTTL     = 1<<ttlBits - 1
	// minTTL is the least that is granted, as by etcd.
	minTTL = 2
)

// grant is what the ID of a lease says.
type grant struct {
	expires time.Time
	ttl     int64
}

func idOf(expires time.Time, ttl int64) mvcc.Lease {
	id := expires.Unix()<<ttlBits | ttl
	return mvcc.Lease(id<<randomBits | rand.Int64N(1<<randomBits))
}

func grantOf(id mvcc.Lease) grant {
	return grant{expires: time.Unix(int64(id>>(ttlBits+randomBits)), 0),
		ttl: int64(id>>randomBits) & maxTTL}
}

// lease returns a lease that has not expired, by the database's clock. That is asked for only where
// this machine's clock leaves a doubt: a key of a lease that has expired is gone at once.
func (s *Server) lease(ctx context.Context, id mvcc.Lease) (grant, error) {
	l := grantOf(id)
	if id < 0 || l.ttl < minTTL {
		return l, rpctypes.ErrGRPCLeaseNotFound
	}
	if time.Until(l.expires) > time.Minute {
		return l, nil
	}
	st, err := s.s.State(ctx)
	if err == nil && !st.Now.Before(l.expires) {
		err = rpctypes.ErrGRPCLeaseNotFound
	}
	return l, err
}

// LeaseGrant implements etcd's Lease.
func (s *Server) LeaseGrant(ctx context.Context,
	r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	switch {
	case r.ID != 0:
		return nil, status.Error(codes.InvalidArgument,
			"the server chooses the IDs of leases here: leave the ID 0")
	case r.TTL > maxTTL:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	st, err := s.s.State(ctx)
	if err != nil {
		return nil, failure(err)
	}
	ttl := max(r.TTL, minTTL)
	// The end is rounded up: no lease is shorter than it was asked for.
	expires := st.Now.Add(time.Duration(ttl)*time.Second + time.Second - time.Nanosecond)
	return &pb.LeaseGrantResponse{Header: s.header(st.Head.Revision), ID: int64(idOf(expires, ttl)),
		TTL: ttl}, nil
}

// LeaseTimeToLive implements etcd's Lease.
func (s *Server) LeaseTimeToLive(ctx context.Context,
	r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	st, err := s.s.State(ctx)
	if err != nil {
		return nil, failure(err)
	}
	res := &pb.LeaseTimeToLiveResponse{Header: s.header(st.Head.Revision), ID: r.ID, TTL: -1}
	l := grantOf(mvcc.Lease(r.ID))
	left := l.expires.Sub(st.Now)
	if r.ID <= 0 || l.ttl < minTTL || left <= 0 {
		return res, nil
	}
	res.TTL, res.GrantedTTL = min(int64(left/time.Second), l.ttl), l.ttl
	if !r.Keys {
		return res, nil
	}
	all := bounds{start: "\x00", end: beyond}
	err = s.pages(ctx, all, &pb.RangeRequest{KeysOnly: true}, st.Head.Revision, 0,
		func(p *mvcc.RangeResult, _ bool) error {
			for i := range p.KVs {
				if kv := &p.KVs[i]; kv.Lease == mvcc.Lease(r.ID) {
					res.Keys = append(res.Keys, []byte(kv.Key))
				}
			}
			return nil
		})
	if err != nil {
		return nil, failure(err)
	}
	return res, nil
}

var errFixed = status.Error(codes.Unimplemented, "a lease ends at the time that it was granted "+
	"for here: grant another one, and put the keys again")

// LeaseRevoke implements etcd's Lease.
func (s *Server) LeaseRevoke(context.Context,
	*pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return nil, errFixed
}

// LeaseKeepAlive implements etcd's Lease.
func (s *Server) LeaseKeepAlive(
	grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) error {
	return errFixed
}

// LeaseLeases implements etcd's Lease.
func (s *Server) LeaseLeases(context.Context,
	*pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	return nil, status.Error(codes.Unimplemented, "leases are not stored here, and so not listed")
}
