package etcdclient

import (
	"context"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/check"
)

// BundleSize is how many keys a bundle has.
const BundleSize = 5

// bundleKey is a key of a bundle, beside those of the objects.
func (e *Endpoint) bundleKey(bundle string, i int) []byte {
	return fmt.Appendf(nil, "%s%s/%d", e.bundles, bundle, i)
}

// bundle are the bounds of a bundle's keys.
func (e *Endpoint) bundle(bundle string) (from, to []byte) {
	return []byte(e.bundles + bundle + "/"), []byte(e.bundles + bundle + "0")
}

// BundleWrite is how a transaction writes a bundle.
type BundleWrite int

// The ways: all keys in a row, some of them in a transaction inside, and deletions in both ways.
const (
	PutAll BundleWrite = iota
	PutNested
	DeleteRange
	DeleteEach
	BundleWrites
)

// WriteBundle writes a bundle if it is as revision has left it, 0 if it is not to be there. It
// reads the bundle in the same transaction, after the write, or in place of it. It tells whether
// it has written, at which revision, and what it has read.
func (e *Endpoint) WriteBundle(ctx context.Context, bundle, value string, revision int64,
	how BundleWrite) (done bool, at int64, parts []check.Part, err error) {
	unchanged := func(i int) *pb.Compare {
		return &pb.Compare{Key: e.bundleKey(bundle, i), Target: pb.Compare_MOD,
			Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_ModRevision{ModRevision: revision}}
	}
	from, to := e.bundle(bundle)
	read := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: from, RangeEnd: to}}}
	deleteRange := func(from, to []byte) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
			RequestDeleteRange: &pb.DeleteRangeRequest{Key: from, RangeEnd: to}}}
	}
	var each []*pb.RequestOp
	for i := range BundleSize {
		op := deleteRange(e.bundleKey(bundle, i), nil)
		if how < DeleteRange {
			op = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
				Key: e.bundleKey(bundle, i), Value: []byte(value)}}}
		}
		each = append(each, op)
	}
	ops := each
	switch how {
	case PutNested:
		// To compare any key is to compare all of them.
		ops = append(each[:2:2], &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{
			RequestTxn: &pb.TxnRequest{Compare: []*pb.Compare{unchanged(BundleSize - 1)},
				Success: each[2:]}}})
	case DeleteRange:
		ops = []*pb.RequestOp{deleteRange(from, to)}
	}
	r, err := e.kv.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{unchanged(0)},
		Success: append(ops[:len(ops):len(ops)], read), Failure: []*pb.RequestOp{read}})
	if err != nil {
		return false, 0, nil, err
	}
	found := r.Responses[len(r.Responses)-1].GetResponseRange()
	return r.Succeeded, r.Header.Revision, e.parts(found.Kvs), nil
}

// ReadBundle reads a bundle at a revision, 0 for the newest one, in pages of so many keys. It
// returns the revision at which it has read.
func (e *Endpoint) ReadBundle(ctx context.Context, bundle string, at,
	page int64) (int64, []check.Part, error) {
	r := &pb.RangeRequest{Revision: at, Limit: page}
	r.Key, r.RangeEnd = e.bundle(bundle)
	var kvs []*mvccpb.KeyValue
	for {
		answer, err := e.kv.Range(ctx, r)
		if err != nil {
			return 0, nil, err
		}
		if r.Revision == 0 {
			r.Revision = answer.Header.Revision
		}
		kvs = append(kvs, answer.Kvs...)
		if !answer.More {
			return r.Revision, e.parts(kvs), nil
		}
		r.Key = append(kvs[len(kvs)-1].Key, 0)
	}
}

// WatchBundles watches all bundles from a revision on, and calls each with what a response has of
// a bundle. It returns the revision from which to go on, and why it has ended.
func (e *Endpoint) WatchBundles(ctx context.Context, from int64,
	each func(bundle string, parts []check.Part)) (next int64, err error) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx,
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
	defer cancel()
	stream, err := e.watch.Watch(ctx)
	if err != nil {
		return from, err
	}
	create := &pb.WatchCreateRequest{Key: []byte(e.bundles), StartRevision: from,
		RangeEnd: []byte(strings.TrimSuffix(e.bundles, "/") + "0")}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: create}}); err != nil {
		return from, err
	}
	for {
		r, err := stream.Recv()
		switch {
		case err != nil:
			return from, err
		case r.CompactRevision > 0:
			return r.CompactRevision, rpctypes.ErrGRPCCompacted
		case r.Canceled:
			return from, fmt.Errorf("the watch was canceled: %s", r.CancelReason)
		}
		var kvs []*mvccpb.KeyValue
		for _, event := range r.Events {
			kvs = append(kvs, event.Kv)
			from = event.Kv.ModRevision + 1
		}
		seen := map[string][]check.Part{}
		for _, p := range e.parts(kvs) {
			bundle, _, _ := strings.Cut(p.Key, "/")
			seen[bundle] = append(seen[bundle], p)
		}
		for bundle, parts := range seen {
			each(bundle, parts)
		}
	}
}

func (e *Endpoint) parts(kvs []*mvccpb.KeyValue) []check.Part {
	parts := make([]check.Part, 0, len(kvs))
	for _, kv := range kvs {
		parts = append(parts, check.Part{Key: strings.TrimPrefix(string(kv.Key), e.bundles),
			Value: string(kv.Value), Revision: kv.ModRevision})
	}
	return parts
}
