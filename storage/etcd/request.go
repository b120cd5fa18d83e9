package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"path"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

// connWindow is how much all calls of a connection may send before the server has taken it from the
// network. gRPC takes it at once, whoever reads it, so this holds no memory: the windows of the
// calls bound that. With 64 KiB, callers who write 20 KB each wait for one another.
const connWindow = 4 << 20

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
	// counts is where it counts, and with how much, until it is answered. It is nil if it does not.
	counts *bound
	bytes  int64
}

// answered ends the count. To call it twice does nothing.
func (r *received) answered() {
	if r.counts != nil {
		r.counts.add(-r.bytes)
		r.counts = nil
	}
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
// room when it has come. A larger one counts before it comes, and is refused if there is no room:
// gRPC's own RecvMsg would hold what has come of it, for as long as its client likes.
type countedStream struct {
	grpc.ServerStream
	s *Server
	// most is how large a request may be.
	most int
	held int64
}

// incoming is what gRPC's transport has of a call.
type incoming interface {
	ReadMessageHeader(header []byte) error
	Read(length int) (mem.BufferSlice, error)
	// RecvCompress names how messages are compressed that say so.
	RecvCompress() string
}

// smallRequest is larger than a request to watch a range of the longest keys.
const smallRequest = 4 << 10

var errManyRequests = status.Error(codes.Unavailable,
	"the requests that this server is answering are as large together as they may be: try again")

// RecvMsg implements [grpc.ServerStream].
func (s *countedStream) RecvMsg(v any) error {
	s.release()
	data, err := s.next()
	if err != nil {
		data.Free()
		if _, known := status.FromError(err); !known && !errors.Is(err, io.EOF) {
			err = rpctypes.ErrGRPCCanceled
		}
		return err
	}
	return (&received{data: data}).decode(v)
}

// next reads a request, which counts.
func (s *countedStream) next() (data mem.BufferSlice, err error) {
	in, ok := grpc.ServerTransportStreamFromContext(s.Context()).(incoming)
	if !ok {
		return nil, status.Error(codes.Internal, "the transport of a call is not gRPC's")
	}
	var header [5]byte // whether it is compressed, and how long it is
	if err := in.ReadMessageHeader(header[:]); err != nil {
		return nil, err
	}
	length, most := int(binary.BigEndian.Uint32(header[1:])), s.most
	compressed := header[0] != 0
	expected := length
	if compressed {
		expected = most // it is not known what it becomes
	}
	if length > most {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	if expected > smallRequest {
		if n := int64(decodedTimes * expected); s.s.requests.take(n) {
			s.held = n
		} else {
			return nil, errManyRequests
		}
		giveUp := s.Context().Value(admissionKey{}).(admission).giveUp
		defer time.AfterFunc(s.s.cfg.RequestTimeout, giveUp).Stop()
	}
	if data, err = in.Read(length); err == nil && compressed {
		data, err = decompress(data, in.RecvCompress(), most)
	}
	if err != nil {
		return data, err
	}
	n := int64(decodedTimes * data.Len())
	if s.held > 0 {
		s.s.requests.add(n - s.held)
	} else if err := s.s.requests.wait(s.Context(), n); err != nil {
		return data, err
	}
	s.held = n
	return data, nil
}

// decompress returns what a request was before it was compressed, which may have so many bytes.
func decompress(data mem.BufferSlice, how string, most int) (mem.BufferSlice, error) {
	defer data.Free()
	c := encoding.GetCompressor(how)
	if c == nil {
		return nil, status.Errorf(codes.Unimplemented, "requests that are compressed by %q are not "+
			"read here", how)
	}
	from := data.Reader()
	defer from.Close()
	r, err := c.Decompress(from)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the request cannot be decompressed: %v", err)
	}
	whole, err := mem.ReadAll(io.LimitReader(r, int64(most)+1), buffers)
	if err != nil {
		return whole, status.Errorf(codes.Internal, "the request cannot be decompressed: %v", err)
	}
	if whole.Len() > most {
		return whole, rpctypes.ErrGRPCRequestTooLarge
	}
	return whole, nil
}

// release tells that the last request was answered.
func (s *countedStream) release() {
	s.s.requests.add(-s.held)
	s.held = 0
}

// decodedTimes is how much larger a request is when it was decoded, with what was read of it.
const decodedTimes = 2

// receive reads the request of a call, which counts from then on.
func (s *Server) receive(stream grpc.ServerStream, method string,
	giveUp context.CancelFunc) (*received, error) {
	ctx := stream.Context()
	arrival, err := s.arrivals.begin(ctx, giveUp)
	if err != nil {
		return nil, err
	}
	r := &received{}
	err = stream.RecvMsg(r)
	s.arrivals.end(arrival)
	if err != nil {
		r.data.Free()
		return nil, err
	}
	s.metrics.received.Add(float64(r.data.Len()))
	if r.data.Len() > maxBody && !ofKV(stream) {
		r.data.Free()
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	r.bytes = int64(decodedTimes * r.data.Len())
	if err := s.requests.wait(ctx, r.bytes); err != nil {
		r.data.Free()
		return nil, rpctypes.ErrGRPCCanceled
	}
	r.counts = &s.requests
	if method == "Txn" {
		whole := r.data.MaterializeToBuffer(buffers)
		r.data.Free()
		r.data = mem.BufferSlice{whole}
		if most := 3 * s.cfg.MaxTxnOps; operations(whole.ReadOnlyData(), most, 0) > most {
			r.data.Free()
			r.answered()
			return nil, rpctypes.ErrGRPCTooManyOps
		}
	}
	return r, nil
}

// ofKV tells whether the requests of a call have keys and values. Those of all others are small.
// They may have lists, and an empty element of two bytes takes sixteen when it was decoded.
func ofKV(stream grpc.ServerStream) bool {
	method, _ := grpc.MethodFromServerStream(stream)
	return path.Dir(method) == "/"+pb.KV_ServiceDesc.ServiceName
}

// maxTxnDepth is how deep transactions within transactions may be. Each level is an operation of
// the one above, and takes it away from those that the levels below may have together. So by
// default, which is 128 operations, this refuses nothing that etcd answers. Where the flag allows
// more, it bounds the stack of all that walks through the levels; the number of operations bounds
// what else they cost.
const maxTxnDepth = 128

// operations counts the comparisons and operations of an encoded transaction, and those of
// transactions within it, as far as most. When it was decoded, an empty one of two bytes takes a
// hundred. A transaction that cannot be decoded is for the decoder to refuse.
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
