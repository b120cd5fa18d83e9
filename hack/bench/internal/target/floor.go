package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// FloorCommand is the bench's command that runs [ServeFloor] at an address.
const FloorCommand = "floor"

// floorServer is a process of [ServeFloor].
type floorServer struct{ *etcdServer }

// startFloor starts a process of this program.
func startFloor(ctx context.Context, dir string, _ Programs) (Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port, err := programs.FreePort()
	if err != nil {
		return nil, err
	}
	if dir, err = mkdir(dir, "floor"); err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s := floorServer{&etcdServer{address: "http://" + address,
		Program: program(dir, syscall.SIGTERM, self, FloorCommand, address)}}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (floorServer) Settings(context.Context) ([]string, error) {
	return []string{"floor: no disk and no history, only what gRPC costs"}, nil
}

// ServeFloor serves as much of etcd's API as creates, updates and gets use, from a map: there is no
// disk, no history, and no watch. So it does what every server of this API in Go does besides its
// own work, and less than that is not to be had.
func ServeFloor(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	pb.RegisterKVServer(s, &floor{kvs: map[string]*mvccpb.KeyValue{}, head: 1})
	pb.RegisterMaintenanceServer(s, floorStatus{})
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(l)
}

type floorStatus struct {
	pb.UnimplementedMaintenanceServer
}

// Status has the version that etcd's storage looks for.
func (floorStatus) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{}, Version: "3.7.3"}, nil
}

type floor struct {
	pb.UnimplementedKVServer

	mu   sync.Mutex
	kvs  map[string]*mvccpb.KeyValue
	head int64
}

// Range reads one key.
func (f *floor) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.get(r), nil
}

func (f *floor) get(r *pb.RangeRequest) *pb.RangeResponse {
	res := &pb.RangeResponse{Header: f.header()}
	if kv := f.kvs[string(r.Key)]; kv != nil {
		res.Kvs, res.Count = []*mvccpb.KeyValue{kv}, 1
	}
	return res
}

// Txn puts a key if it is at the revision that is compared, and otherwise reads it.
func (f *floor) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if len(r.Compare) != 1 || len(r.Success) != 1 || r.Success[0].GetRequestPut() == nil {
		return nil, status.Error(codes.Unimplemented, "the floor does not serve this transaction")
	}
	put := r.Success[0].GetRequestPut()
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.kvs[string(put.Key)]
	if was.GetModRevision() != r.Compare[0].GetModRevision() {
		res := &pb.TxnResponse{Header: f.header()}
		for _, op := range r.Failure {
			res.Responses = append(res.Responses, &pb.ResponseOp{
				Response: &pb.ResponseOp_ResponseRange{ResponseRange: f.get(op.GetRequestRange())}})
		}
		return res, nil
	}
	f.head++
	created := f.head
	if was != nil {
		created = was.CreateRevision
	}
	f.kvs[string(put.Key)] = &mvccpb.KeyValue{Key: put.Key, Value: put.Value, ModRevision: f.head,
		CreateRevision: created, Version: was.GetVersion() + 1}
	return &pb.TxnResponse{Header: f.header(), Succeeded: true, Responses: []*pb.ResponseOp{{
		Response: &pb.ResponseOp_ResponsePut{
			ResponsePut: &pb.PutResponse{Header: f.header()}}}}}, nil
}

func (f *floor) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 1, MemberId: 1, RaftTerm: 1, Revision: f.head}
}
