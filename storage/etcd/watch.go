package etcd

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// noWatch is the ID of responses that are of no watch, or of all of a stream.
const noWatch = -1

// pieceBytes is about how large a response of a watch is. Events that are larger are sent alone.
const pieceBytes = 1 << 20

// watchRetry is how long a watch waits before it asks a database again that was away.
const watchRetry = time.Second

// watchStream is a stream of watches. Each watch has a goroutine that sends what its watcher hands
// out, so a client that does not read holds up its own stream and nothing else.
type watchStream struct {
	s      *storeServer
	ctx    context.Context
	cancel context.CancelCauseFunc
	stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]
	// sending is held while a response is sent. It is taken before mu, never after it. It protects
	// told, the newest revision that the client was told events or progress with.
	sending sync.Mutex
	told    contract.Revision
	// turn is held by the watch that has a piece of the log, until that is sent. The others of the
	// stream wait for their turns, but for watches that follow what is in memory anyway.
	turn chan struct{}
	wg   sync.WaitGroup

	// mu protects the fields below, and those of the watches that say so.
	mu      sync.Mutex
	watches map[int64]*watch
	next    int64
	// asked is the revision for which progress of all watches was asked for, 0 if it was told.
	asked contract.Revision
}

type watch struct {
	id                        int64
	w                         *mvcc.Watcher
	progress, prevKv          bool
	withoutPut, withoutDelete bool
	// seen is the revision up to which the client was told everything. Protected by watchStream.mu.
	seen contract.Revision
	// compacted is the compacted revision when the watch began.
	compacted contract.Revision
}

// Watch implements etcd's Watch.
func (s *storeServer) Watch(stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	ws := &watchStream{s: s, ctx: ctx, cancel: cancel, stream: stream, watches: map[int64]*watch{},
		turn: make(chan struct{}, 1)}
	md, _ := metadata.FromIncomingContext(ctx)
	if slices.Contains(md.Get(rpctypes.MetadataRequireLeaderKey), rpctypes.MetadataHasLeader) {
		ws.begin(ws.mindLeader)
	}
	received := make(chan error, 1)
	go func() { received <- s.guarded(ws.receive) }()
	// The end of the stream ends its context, and with it Recv. A slow client blocks Send until
	// then.
	defer func() {
		if !errors.Is(context.Cause(ctx), errSlowReader) {
			ws.wg.Wait()
		}
	}()
	defer cancel(nil)
	select {
	case err := <-received:
		if err != nil && ctx.Err() == nil {
			return failure(err)
		}
		<-ctx.Done() // a client that has no more requests still wants its events
	case <-ctx.Done():
		if stream.Context().Err() != nil {
			// Recv has ended, and the stream must not be used after this function.
			<-received //nolint:errcheck // it ended with the stream
		}
	}
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return nil
	case errors.Is(cause, context.Canceled):
		return rpctypes.ErrGRPCWatchCanceled
	default:
		return failure(cause)
	}
}

// begin runs f beside the others of the stream, and ends all of them if it panics.
func (ws *watchStream) begin(f func()) {
	ws.wg.Go(func() {
		if err := ws.s.guarded(func() error { f(); return nil }); err != nil {
			ws.cancel(err)
		}
	})
}

// mindLeader ends the stream when the database has been away for too long, as etcd does without a
// leader. A client that does not require one waits.
func (ws *watchStream) mindLeader() {
	half := ws.s.cfg.LeaderTimeout / 2
	ticker := time.NewTicker(half)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ws.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(ws.ctx, half)
		_, err := ws.s.s.Head(ctx)
		cancel()
		if err != nil {
			ws.cancel(rpctypes.ErrGRPCNoLeader)
			return
		}
	}
}

// receive answers the requests of the stream, until the client has no more.
func (ws *watchStream) receive() error {
	for {
		r, err := ws.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch u := r.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			if u.CreateRequest != nil {
				err = ws.create(u.CreateRequest)
			}
		case *pb.WatchRequest_CancelRequest:
			if u.CancelRequest != nil {
				err = ws.end(u.CancelRequest.WatchId)
			}
		case *pb.WatchRequest_ProgressRequest:
			err = ws.ask()
		}
		if err != nil {
			return err
		}
	}
}

// sendEvents sends a response whose events have about so many bytes, when there is room for it.
func (ws *watchStream) sendEvents(r *pb.WatchResponse, bytes int) error {
	if err := ws.s.events.wait(ws.ctx, int64(bytes)); err != nil {
		return err
	}
	defer ws.s.events.add(-int64(bytes))
	slow := time.AfterFunc(ws.s.cfg.SendTimeout, func() { ws.cancel(errSlowReader) })
	defer slow.Stop()
	return ws.send(r)
}

// errSlowReader lets clients watch again, from what they have seen.
var errSlowReader = status.Error(codes.Unavailable,
	"the client has not read the events of its watches in time: watch again")

func (ws *watchStream) send(r *pb.WatchResponse) error {
	ws.sending.Lock()
	defer ws.sending.Unlock()
	if !r.Created && !r.Canceled {
		ws.told = max(ws.told, contract.Revision(r.Header.Revision))
	}
	return ws.stream.Send(r)
}

// create begins a watch. The client hears that it was created before it hears anything of it.
func (ws *watchStream) create(r *pb.WatchCreateRequest) error {
	head, err := ws.s.s.Head(ws.ctx)
	if err != nil {
		return err
	}
	refuse := func(reason string) error {
		return ws.send(&pb.WatchResponse{Header: ws.s.header(head), WatchId: noWatch, Created: true,
			Canceled: true, CancelReason: reason})
	}
	key := r.Key
	if len(key) == 0 {
		key = []byte{0}
	}
	b := boundsOf(key, r.RangeEnd)
	switch {
	case r.StartRevision < 0:
		return refuse(rpctypes.ErrCompacted.Error())
	case b.empty():
		return refuse("mvcc: watcher range is empty")
	case ws.full():
		return refuse("this stream has as many watches as it takes: use another one")
	case !ws.s.watchers.take(1):
		return refuse("this server has as many watches as it takes")
	}
	w := &watch{progress: r.ProgressNotify, prevKv: r.PrevKv}
	for _, f := range r.Filters {
		w.withoutPut = w.withoutPut || f == pb.WatchCreateRequest_NOPUT
		w.withoutDelete = w.withoutDelete || f == pb.WatchCreateRequest_NODELETE
	}
	if !ws.add(w, r.WatchId) {
		ws.s.watchers.add(-1)
		return refuse("mvcc: duplicate watch ID provided on the WatchStream")
	}
	after := head
	if r.StartRevision > 0 {
		after = contract.Revision(r.StartRevision - 1)
	}
	watcher, err := ws.s.s.Watch(ws.ctx, ws.options(b, after, w))
	if err != nil && !errors.Is(err, contract.ErrCompacted) {
		ws.forget(w)
		return err
	}
	sendErr := ws.send(&pb.WatchResponse{Header: ws.s.header(head), WatchId: w.id, Created: true})
	if err != nil || sendErr != nil {
		ws.forget(w)
		if sendErr != nil {
			return sendErr
		}
		return ws.compacted(w)
	}
	ws.mu.Lock()
	w.w = watcher
	w.seen = max(w.seen, after) // the client has not asked for what is older
	w.compacted = ws.s.s.CompactedRevision()
	ws.mu.Unlock()
	ws.begin(func() { ws.follow(w) })
	return ws.answer()
}

// full tells whether the stream has no room for another watch.
func (ws *watchStream) full() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return int64(len(ws.watches)) >= ws.s.cfg.MaxStreamWatchers
}

// options say what to watch. An empty store is at revision 1, which has no event.
func (ws *watchStream) options(b bounds, after contract.Revision, w *watch) mvcc.WatchOptions {
	o := mvcc.WatchOptions{After: max(after, 1), AllPrev: w.prevKv, Progress: w.progress,
		Turn: ws.turn, Pieces: ws.s.pieces}
	switch {
	case b.single:
		o.Key = b.start
	case b.start[len(b.start)-1] == '/' && b.end == b.start[:len(b.start)-1]+"0":
		o.Prefix = b.start
	default:
		o.Start, o.End = b.start, b.end
	}
	return o
}

// add gives the watch an ID: the one that was asked for, or if that is 0 a free one.
func (ws *watchStream) add(w *watch, id int64) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if id == 0 {
		for ws.watches[ws.next] != nil {
			ws.next++
		}
		id = ws.next
		ws.next++
	} else if ws.watches[id] != nil {
		return false
	}
	w.id = id
	ws.watches[id] = w
	return true
}

// forget ends a watch. It tells whether it was one.
func (ws *watchStream) forget(w *watch) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.watches[w.id] != w {
		return false
	}
	delete(ws.watches, w.id)
	ws.s.watchers.add(-1)
	if w.w != nil {
		w.w.Close()
	}
	return true
}

// end ends a watch that the client cancels.
func (ws *watchStream) end(id int64) error {
	ws.mu.Lock()
	w := ws.watches[id]
	ws.mu.Unlock()
	if w == nil || !ws.forget(w) {
		return nil
	}
	ws.mu.Lock()
	seen := w.seen
	ws.mu.Unlock()
	return ws.send(&pb.WatchResponse{Header: ws.s.header(seen), WatchId: id, Canceled: true})
}

// compacted tells the client that the watch cannot go on.
func (ws *watchStream) compacted(w *watch) error {
	compacted := ws.s.s.CompactedRevision()
	return ws.send(&pb.WatchResponse{Header: ws.s.header(compacted), WatchId: w.id, Canceled: true,
		CompactRevision: int64(compacted), CancelReason: rpctypes.ErrCompacted.Error()})
}

// follow sends what a watch sees, until it ends.
func (ws *watchStream) follow(w *watch) {
	defer ws.forget(w)
	defer w.w.EndTurn()
	for {
		b, err := w.w.Next(ws.ctx)
		switch {
		case err == nil:
			if err := ws.tell(w, b); err != nil {
				ws.cancel(err)
				return
			}
			continue
		case ws.ctx.Err() != nil:
			return
		case errors.Is(err, contract.ErrCompacted):
			if ws.forget(w) {
				err = ws.compacted(w)
			} else {
				return // the client has canceled it
			}
			if err == nil {
				return
			}
			ws.cancel(err)
			return
		case errors.Is(err, contract.ErrClosed), errors.Is(err, contract.ErrDropped):
			ws.mu.Lock()
			canceled := ws.watches[w.id] != w
			ws.mu.Unlock()
			if !canceled {
				ws.cancel(err)
			}
			return
		}
		// The database is away. The watcher has not moved.
		select {
		case <-time.After(watchRetry):
		case <-ws.ctx.Done():
		}
	}
}

// tell sends a batch, in pieces, each with all events of its revisions. A piece that is not the
// last one has the revision of its last event, since the client has not seen what follows.
func (ws *watchStream) tell(w *watch, b mvcc.Batch) error {
	if w.prevKv {
		_ = ws.s.s.LoadPrevious(ws.ctx, b.Events) // what it has not read is read one by one
	}
	var events []*mvccpb.Event
	size := 0
	flush := func(seen contract.Revision) error {
		if len(events) == 0 {
			return nil
		}
		r := &pb.WatchResponse{Header: ws.s.header(seen), WatchId: w.id, Events: events}
		bytes := size
		events, size = nil, 0
		return ws.sendEvents(r, bytes)
	}
	for i, e := range b.Events {
		if e.Deleted && w.withoutDelete || !e.Deleted && w.withoutPut {
			continue
		}
		event, bytes, err := ws.event(w, e)
		if err != nil {
			return err
		}
		events = append(events, event)
		if size += bytes; size >= pieceBytes && i+1 < len(b.Events) &&
			b.Events[i+1].Revision > e.Revision {
			if err := flush(e.Revision); err != nil {
				return err
			}
		}
	}
	if err := flush(b.Progress); err != nil {
		return err
	}
	if b.Requested && w.progress && len(b.Events) == 0 {
		r := &pb.WatchResponse{Header: ws.s.header(b.Progress), WatchId: w.id}
		if err := ws.send(r); err != nil {
			return err
		}
	}
	return ws.moved(w, b.Progress)
}

// event makes an event of etcd. The previous state is missing if compaction has removed it. As in
// etcd, it is missing where the watch began at the compacted revision, though memory may have it: a
// client that needs both states learns there, always, that it was too late.
func (ws *watchStream) event(w *watch, e *mvcc.Event) (*mvccpb.Event, int, error) {
	event := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(e.Key), ModRevision: int64(e.Revision)}}
	if e.Deleted {
		event.Type = mvccpb.Event_DELETE
	} else {
		event.Kv.CreateRevision, event.Kv.Version = int64(e.Create), e.Version
		event.Kv.Lease, event.Kv.Value = int64(e.Lease), e.Value
	}
	size := len(e.Key) + len(e.Value)
	if !w.prevKv || e.Prev == 0 || e.Revision <= w.compacted {
		return event, size, nil
	}
	for {
		was, err := ws.s.s.Previous(ws.ctx, e)
		switch {
		case err == nil:
			event.PrevKv = keyValue(was)
			return event, size + len(was.Key) + len(was.Value), nil
		case errors.Is(err, contract.ErrCompacted):
			return event, size, nil
		case errors.Is(err, contract.ErrClosed), contract.ClassOf(err) == contract.Invalid,
			contract.ClassOf(err) == contract.Data:
			return nil, 0, err
		}
		// The watcher has moved over the event, so it waits here for a database that is away.
		select {
		case <-time.After(watchRetry):
		case <-ws.ctx.Done():
			return nil, 0, ws.ctx.Err()
		}
	}
}

// ask asks all watches of the stream for progress: up to the newest revision, which is not older
// than any write that was acknowledged before.
func (ws *watchStream) ask() error {
	head, err := ws.s.s.Head(ws.ctx)
	if err != nil {
		return nil // the client asks again
	}
	ws.mu.Lock()
	ws.asked = max(ws.asked, head)
	ws.mu.Unlock()
	return ws.answer()
}

// moved notes how far the client was told everything of a watch.
func (ws *watchStream) moved(w *watch, seen contract.Revision) error {
	ws.mu.Lock()
	w.seen = max(w.seen, seen)
	ws.mu.Unlock()
	return ws.answer()
}

// answer tells the client, if it has asked, how far all watches of the stream have seen everything.
//
// That must not be older than anything that the client was told before: kube-apiserver's cache
// would take its newer content for the state at the older revision. So nothing is sent between the
// decision and the answer, and the answer waits until all watches are where the newest of them is.
func (ws *watchStream) answer() error {
	ws.mu.Lock()
	asked := ws.asked
	ws.mu.Unlock()
	if asked == 0 {
		return nil
	}
	ws.sending.Lock()
	defer ws.sending.Unlock()
	ws.mu.Lock()
	if ws.asked == 0 { // another one has answered
		ws.mu.Unlock()
		return nil
	}
	to, done := max(ws.asked, ws.told), true
	for _, w := range ws.watches {
		if w.seen >= to {
			continue
		}
		done = false
		if w.w != nil {
			w.w.RequestProgress(to)
		}
	}
	if done {
		ws.asked = 0
	}
	ws.mu.Unlock()
	if !done {
		return nil
	}
	ws.told = to
	return ws.stream.Send(&pb.WatchResponse{Header: ws.s.header(to), WatchId: noWatch})
}
