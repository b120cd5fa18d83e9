package etcd

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// gRPC reads a whole request before it calls what answers it, however many requests come at a time.
// So to gRPC all calls are streams here, which read their requests themselves. Until a call does, a
// stream takes no more of its request than firstWindow. Only so many calls of a store do it at a
// time, and then a request counts by its size, until it was answered. It is decoded after that, so
// one that was compressed counts as what it became.

// firstWindow is how much of a request comes before it is read. gRPC takes no less.
const firstWindow = 64 << 10

// arrivals are the requests of a store that are being read.
type arrivals struct {
	slots bound
	// patience is how long one may take while others wait.
	patience time.Duration
	mu       sync.Mutex
	now      map[*arrival]struct{}
}

type arrival struct {
	since time.Time
	// giveUp ends the reading, and the call is Canceled: gRPC says so by itself.
	giveUp context.CancelFunc
}

// begin waits until a request may be read.
func (a *arrivals) begin(ctx context.Context, giveUp context.CancelFunc) (*arrival, error) {
	for !a.slots.take(1) {
		waited, cancel := context.WithTimeout(ctx, a.patience/4)
		err := a.slots.wait(waited, 1)
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil, rpctypes.ErrGRPCCanceled
		}
		a.hurry()
	}
	r := &arrival{since: time.Now(), giveUp: giveUp}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now[r] = struct{}{}
	return r, nil
}

// hurry gives up what takes too long to come.
func (a *arrivals) hurry() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := range a.now {
		if time.Since(r.since) > a.patience {
			r.giveUp()
		}
	}
}

func (a *arrivals) end(r *arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.now, r)
	a.slots.add(-1)
}

// received is a request that was read, and not decoded. The codec fills it.
type received struct {
	data mem.BufferSlice
	// answered ends its count. To call it twice does nothing.
	answered func()
}

// decode decodes the request, once.
func (r *received) decode(v any) error {
	err := encoding.GetCodecV2("proto").Unmarshal(r.data, v)
	r.data.Free()
	r.data = nil
	if err != nil {
		return status.Errorf(codes.Internal, "the request cannot be decoded: %v", err)
	}
	return nil
}

// receivedStream is a call whose only request was read.
type receivedStream struct {
	grpc.ServerStream
	decode func(any) error
}

// RecvMsg implements [grpc.ServerStream].
func (s *receivedStream) RecvMsg(v any) error { return s.decode(v) }

// decodeLasting is decode for a call that lasts, and makes calls that wait for room themselves. If
// its request counted all the time, such calls could take all the room, and none would go on. They
// are small (maxLastingBytes), and there are no more of them than streams.
func (r *received) decodeLasting(v any) error {
	defer r.answered()
	return r.decode(v)
}

// countedStream is a call with any number of requests, which come when the client likes. Each
// counts until the next one is asked for. A small one, as every ordinary client sends it, waits for
// room. A larger one would be held meanwhile, so it is refused if there is none.
//
// gRPC holds what has come of one, up to the size of the greatest request, until it is whole, and
// tells nobody. So the streams together can hold as many times that: docs/operate/sizing.md says
// so. No setting of gRPC bounds it. The limit of a request's size is one for all calls. The window
// of a stream is widened to the size that a request claims to have, and the window of a connection
// is given back when data is read, not when it is used. A client may have many connections, so a
// bound for each of them would bound nothing.
type countedStream struct {
	grpc.ServerStream
	s    *Server
	held int64
}

// smallRequest is larger than a request to watch a range of the longest keys.
const smallRequest = 4 << 10

var errManyRequests = status.Error(codes.Unavailable,
	"the requests that this server is answering are as large together as they may be: try again")

// RecvMsg implements [grpc.ServerStream].
func (s *countedStream) RecvMsg(v any) (err error) {
	s.release()
	r := &received{}
	if err := s.ServerStream.RecvMsg(r); err != nil {
		return err
	}
	n := int64(decodedTimes * r.data.Len())
	if r.data.Len() <= smallRequest {
		err = s.s.requests.wait(s.Context(), n)
	} else if !s.s.requests.take(n) {
		err = errManyRequests
	}
	if err != nil {
		r.data.Free()
		return failure(err)
	}
	s.held = n
	return r.decode(v)
}

// release tells that the last request was answered.
func (s *countedStream) release() {
	s.s.requests.add(-s.held)
	s.held = 0
}

// decodedTimes is how much larger a request is when it was decoded, with what was read of it.
const decodedTimes = 2

// receive reads the request of a call. It counts until done is called.
func (s *Server) receive(stream grpc.ServerStream, method string,
	giveUp context.CancelFunc) (r *received, done func(), err error) {
	ctx := stream.Context()
	arrival, err := s.arrivals.begin(ctx, giveUp)
	if err != nil {
		return nil, nil, err
	}
	r = &received{}
	err = stream.RecvMsg(r)
	s.arrivals.end(arrival)
	if err != nil {
		r.data.Free()
		return nil, nil, err
	}
	s.metrics.received.Add(float64(r.data.Len()))
	n := int64(decodedTimes * r.data.Len())
	if err := s.requests.wait(ctx, n); err != nil {
		r.data.Free()
		return nil, nil, rpctypes.ErrGRPCCanceled
	}
	done = sync.OnceFunc(func() { s.requests.add(-n) })
	r.answered = done
	if method == "Txn" {
		whole := r.data.MaterializeToBuffer(mem.DefaultBufferPool())
		r.data.Free()
		r.data = mem.BufferSlice{whole}
		if most := 3 * s.cfg.MaxTxnOps; operations(whole.ReadOnlyData(), most, 0) > most {
			r.data.Free()
			done()
			return nil, nil, rpctypes.ErrGRPCTooManyOps
		}
	}
	return r, done, nil
}

// maxTxnDepth is how deep transactions within transactions are counted. None is served.
const maxTxnDepth = 8

// operations counts the comparisons and operations of an encoded transaction, and those of
// transactions within it, as far as most. When it was decoded, an empty one of two bytes takes a
// hundred. What cannot be decoded is for the decoder to refuse.
func operations(txn []byte, most, depth int) (n int) {
	if depth > maxTxnDepth {
		return most + 1
	}
	eachField(txn, func(field protowire.Number, value []byte) bool {
		if field > 3 { // compare, success and failure
			return true
		}
		n++
		if field > 1 {
			eachField(value, func(field protowire.Number, value []byte) bool {
				if field == 4 { // request_txn
					n += operations(value, most-n, depth+1)
				}
				return n <= most
			})
		}
		return n <= most
	})
	return n
}

// eachField calls each with the fields of a message that hold bytes, until it returns false.
func eachField(message []byte, each func(protowire.Number, []byte) bool) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 || !each(field, value) {
				return
			}
			message = message[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return
		}
		message = message[n:]
	}
}
