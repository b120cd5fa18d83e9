package etcdclient

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// Grant makes a lease of so many seconds. One that is there already is left as it is.
func (e *Endpoint) Grant(ctx context.Context, lease, seconds int64) error {
	_, err := pb.NewLeaseClient(e.requests).LeaseGrant(ctx,
		&pb.LeaseGrantRequest{ID: lease, TTL: seconds})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist) {
		return nil
	}
	return err
}

// Renew tells whether the lease was renewed. One that has ended is not.
func (e *Endpoint) Renew(ctx context.Context, lease int64) (renewed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(e.requests).LeaseKeepAlive(ctx)
	if err != nil {
		return false, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}); err != nil {
		return false, err
	}
	r, err := stream.Recv()
	return err == nil && r.TTL > 0, err
}

// Attach writes an object with a lease, whatever was there.
func (e *Endpoint) Attach(ctx context.Context, o history.Object, lease int64) error {
	_, err := e.kv.Put(ctx, &pb.PutRequest{Key: []byte(e.prefix + o.Key), Value: api.Body(o),
		Lease: lease})
	return err
}

// Ended tells whether an error of Attach says that the lease has ended.
func Ended(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }
