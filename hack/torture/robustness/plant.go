package main

import (
	"context"
	"net"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// bug is what a proxy does wrong, to test that the judge finds it. Those that etcd had, by the
// record of its robustness tests, have the number of etcd's issue.
type bug string

const (
	// lostWrite answers a write that is not done (#14370).
	lostWrite bug = "a write is answered and lost"
	// hiddenWrite answers that nothing was written, though it was.
	hiddenWrite bug = "a write is refused and done"
	// decreasingRevision tells a revision of before (#13766, #14685, #17780).
	decreasingRevision bug = "the revision decreases"
	// staleRead answers a read as it was answered before (#20418).
	staleRead bug = "a read is stale"
	// listHole leaves a key out of each read at an old revision; there are few of them. A list
	// keeps one: the framework's clients ask for the next page from the last key on, and for an
	// empty page with a count again and again.
	listHole bug = "a key is missing at an old revision"
	// progressAhead tells progress before the event of that revision (#15220).
	progressAhead bug = "progress is told before the event"
	// timeTravel sends old events again (#15271).
	timeTravel bug = "a watch travels back in time"
	// repeatEvent sends an event twice (#17247).
	repeatEvent bug = "an event is sent twice"
	// dropEvents leaves out all events of an answer (#17529).
	dropEvents bug = "events are lost"
	// dropDelete leaves out deletions (#18089).
	dropDelete bug = "a deletion is lost"
	// dropFirst leaves out the first event of a watch (#19179).
	dropFirst bug = "the first event of a watch is lost"
	// earlyEvents sends a watch of a future revision events of before (#20221).
	earlyEvents bug = "a watch of a future revision has old events"
	// reorderEvents exchanges neighbours.
	reorderEvents bug = "events are out of order"
	// splitRevision sends a second event of a revision in an answer of its own.
	splitRevision bug = "a revision is split over two answers"
	wrongPrevious bug = "the previous value is another one"
	wrongCreation bug = "an update is a creation"
	otherKey      bug = "a watch has an event of another key"
)

// every is how many answers with events, writes or reads there are for one that is wrong.
const every = 20

// proxy is a front end with a bug: it hands requests on to another one.
type proxy struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer

	address string
	bug     bug
	server  *grpc.Server
	conn    *grpc.ClientConn
	kv      pb.KVClient
	watch   pb.WatchClient

	mu     sync.Mutex
	counts map[string]int
	newest int64
	reads  map[string]*pb.RangeResponse
}

func newProxy(target string, b bug) (*proxy, error) {
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{address: listener.Addr().String(), bug: b, server: grpc.NewServer(), conn: conn,
		kv: pb.NewKVClient(conn), watch: pb.NewWatchClient(conn), counts: map[string]int{},
		reads: map[string]*pb.RangeResponse{}}
	pb.RegisterKVServer(p.server, p)
	pb.RegisterWatchServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }() // until Close
	return p, nil
}

// Close ends all calls.
func (p *proxy) Close() {
	p.server.Stop()
	_ = p.conn.Close() // nobody uses it any more
}

// turn tells whether this one of a kind is wrong.
func (p *proxy) turn(kind string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[kind]++
	return p.counts[kind]%every == 0
}

// saw notes the newest revision, and returns it.
func (p *proxy) saw(revision int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = max(p.newest, revision)
	return p.newest
}

// onward is the context of a call for the front end behind.
func onward(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.NewOutgoingContext(ctx, metadata.MD{"hasleader": md.Get("hasleader")})
}

// Range implements etcd's KV.
func (p *proxy) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	answer, err := p.kv.Range(onward(ctx), r)
	if err != nil {
		return nil, err
	}
	p.saw(answer.Header.Revision)
	switch {
	case p.bug == decreasingRevision && r.Revision == 0 && p.turn("read"):
		answer.Header.Revision--
	case p.bug == listHole && r.Revision != 0 && r.Revision < answer.Header.Revision &&
		(len(answer.Kvs) > 1 || len(answer.Kvs) == 1 && len(r.RangeEnd) == 0):
		answer.Kvs = answer.Kvs[1:]
	case p.bug == staleRead && r.Revision == 0:
		if old := p.before(r.String(), answer); p.turn("read") && old != nil {
			return old, nil
		}
	}
	return answer, nil
}

// before is what the same read was answered when it was asked first.
func (p *proxy) before(request string, answer *pb.RangeResponse) *pb.RangeResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.reads[request]; old != nil {
		return old
	}
	p.reads[request] = proto.Clone(answer).(*pb.RangeResponse)
	return nil
}

// Put implements etcd's KV.
func (p *proxy) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return p.kv.Put(onward(ctx), r)
}

// Txn implements etcd's KV.
func (p *proxy) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	var put *pb.PutRequest
	if len(r.Success) == 1 {
		put = r.Success[0].GetRequestPut()
	}
	// Only updates: what compares with nothing, or with a version, is another kind of write.
	update := put != nil && len(r.Compare) == 1 && r.Compare[0].GetModRevision() > 0
	if p.bug == lostWrite && update && p.turn("write") {
		return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: p.saw(0) + 1}, Succeeded: true,
			Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{
				ResponsePut: &pb.PutResponse{}}}}}, nil
	}
	answer, err := p.kv.Txn(onward(ctx), r)
	if err != nil {
		return nil, err
	}
	p.saw(answer.Header.Revision)
	if p.bug == hiddenWrite && update && answer.Succeeded && p.turn("write") {
		now, err := p.kv.Range(onward(ctx), &pb.RangeRequest{Key: put.Key,
			Revision: r.Compare[0].GetModRevision()})
		if err != nil {
			return nil, err
		}
		answer.Header.Revision--
		answer.Succeeded, answer.Responses = false, []*pb.ResponseOp{{
			Response: &pb.ResponseOp_ResponseRange{ResponseRange: now}}}
	}
	return answer, nil
}

// Compact implements etcd's KV.
func (p *proxy) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse,
	error) {
	return p.kv.Compact(onward(ctx), r)
}

// Watch implements etcd's Watch.
func (p *proxy) Watch(down grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	up, err := p.watch.Watch(onward(down.Context()))
	if err != nil {
		return err
	}
	go func() {
		for {
			r, err := down.Recv()
			if err != nil {
				_ = up.CloseSend() // its answers end, and so does the stream
				return
			}
			// A client that has seen nothing of later asks for what is to come.
			if c := r.GetCreateRequest(); c != nil && p.bug == earlyEvents &&
				c.StartRevision > p.saw(0)+1 {
				c.StartRevision = p.saw(0)
			}
			if up.Send(r) != nil {
				return // Recv tells why
			}
		}
	}()
	s := &stream{p: p, first: map[int64]*pb.WatchResponse{}}
	for {
		r, err := up.Recv()
		if err != nil {
			return err
		}
		for _, answer := range s.change(r) {
			if err := down.Send(answer); err != nil {
				return err
			}
		}
	}
}

// stream is what a proxy remembers of a stream of watches.
type stream struct {
	p *proxy
	// first is each watch's first answer with events.
	first map[int64]*pb.WatchResponse
	// held is an answer that is sent after the next.
	held *pb.WatchResponse
}

// change returns what is sent in the place of an answer.
func (s *stream) change(r *pb.WatchResponse) []*pb.WatchResponse {
	if r.Created || r.Canceled {
		if r.Canceled {
			s.held = nil
		}
		return []*pb.WatchResponse{r}
	}
	s.p.saw(r.Header.Revision)
	if len(r.Events) == 0 {
		if s.held != nil {
			return nil // progress must not come before what is held
		}
		return []*pb.WatchResponse{r}
	}
	if s.held != nil && s.held.WatchId == r.WatchId {
		held := s.held
		s.held = nil
		return []*pb.WatchResponse{r, held}
	}
	first := s.first[r.WatchId] == nil
	if first {
		s.first[r.WatchId] = proto.Clone(r).(*pb.WatchResponse)
	}
	switch {
	case s.p.bug == dropFirst && first:
		r.Events = r.Events[1:]
	case s.p.bug == dropDelete:
		var left []*mvccpb.Event
		for _, e := range r.Events {
			if e.Type != mvccpb.Event_DELETE || !s.p.turn("deletion") {
				left = append(left, e)
			}
		}
		r.Events = left
	case !first && s.p.turn("events"):
		return s.wrong(r, r.Events[len(r.Events)-1])
	}
	if len(r.Events) == 0 {
		return nil
	}
	return []*pb.WatchResponse{r}
}

// wrong returns what is sent in the place of an answer with events whose turn it is to be wrong.
func (s *stream) wrong(r *pb.WatchResponse, last *mvccpb.Event) []*pb.WatchResponse {
	with := func(events ...*mvccpb.Event) *pb.WatchResponse {
		return &pb.WatchResponse{Header: r.Header, WatchId: r.WatchId, Events: events}
	}
	switch s.p.bug {
	case dropEvents:
		return nil
	case repeatEvent:
		r.Events = append(r.Events, last)
	case reorderEvents:
		s.held = r
		return nil
	case timeTravel:
		return []*pb.WatchResponse{r, with(s.first[r.WatchId].Events...)}
	case progressAhead:
		progress := with()
		progress.Header = proto.Clone(r.Header).(*pb.ResponseHeader)
		progress.Header.Revision = last.Kv.ModRevision
		return []*pb.WatchResponse{progress, r}
	case splitRevision:
		e := proto.Clone(last).(*mvccpb.Event)
		e.Kv.Key = append(e.Kv.Key, '+')
		return []*pb.WatchResponse{r, with(e)}
	case wrongPrevious:
		if last.PrevKv != nil {
			last.PrevKv.Value = append(last.PrevKv.Value, '+')
		}
	case wrongCreation:
		if last.Type == mvccpb.Event_PUT {
			last.Kv.CreateRevision, last.Kv.Version = last.Kv.ModRevision, 1
		}
	case otherKey:
		last.Kv.Key = []byte("/elsewhere")
	}
	return []*pb.WatchResponse{r}
}
