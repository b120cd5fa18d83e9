package etcd

import (
	"context"
	"path"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec "proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// All that clients make a process hold is bounded, whatever they do; see total for how its stores
// share that.
//
//   - A call counts from its header on, before its request is received, until what answers it has
//     returned, which may be long after its client has reset it: see admit.
//   - Few requests are received at a time, and then count by their size: see request.go.
//   - Of connections, streams and watches there are no more than the memory is enough for.
//   - A connection ends if its client does not speak within [ServerConfig.ConnectTimeout], and if
//     it has made no call for some minutes. It counts for as long as it is there, and gives way to
//     another one while it has no call: see [Server.Connect].
//   - The sizes of a request and of its header are bounded by gRPC, and the bytes of queued writes
//     are by mvcc's queue.
//   - An answer's keys and values count twice while it is made, in a bill, since they are encoded
//     after that, and then in its encoded form until it is sent or its connection is gone: see
//     codec. So a client that asks for much and reads nothing is refused further answers.
//   - A watch has a cursor, no queue. Those of a stream take turns to read the log, and so do the
//     streams of a store, of which few have a piece of the log at a time. Responses with events
//     count as answers do, and wait for room. A client that does not read for
//     [ServerConfig.SendTimeout] loses its stream, so the others come to their turn.
//
// The bounds in bytes are shares of the memory that the process has ([ServerConfig.Memory]).
//
// A call that is refused is Unavailable, which etcd's client tries again if the call only reads.
// etcd's own error for overload would not be tried again, so it is for calls that could never be
// answered.

var (
	errManyCalls = status.Error(codes.Unavailable,
		"this server has as many calls in flight as it takes: try again")
	errMuchAnswered = status.Error(codes.Unavailable, "the answers that this server is sending "+
		"are as large together as they may be: ask for fewer keys at a time, or try again")
	errLargeAnswer = status.Error(codes.ResourceExhausted, "the answer is larger than all answers "+
		"that this server sends at a time may be: ask for fewer keys at a time")
)

// total is how much of one kind the stores of a process may hold together. Each store has own for
// itself, and common is for the stores that need more. The stores' own parts are half of all. So a
// store that takes what it can leaves the other stores their own parts, and a store alone may have
// all.
type total struct {
	own, common int64

	// mu protects used, which is what is used of common, and what each store holds.
	mu   sync.Mutex
	used int64
	// freed is closed when something was given back. It is nil while nobody waits for that.
	freed chan struct{}
}

func newTotal(most int64, stores int) *total {
	own := most / 2 / int64(stores)
	return &total{own: own, common: most - own*int64(stores)}
}

// ever is the most that a store may hold in any case.
func (t *total) ever() int64 { return t.own + t.common }

// bound is what a store holds of that.
type bound struct {
	*total
	held int64
}

// take takes n more, all or nothing.
func (b *bound) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(n) {
		return false
	}
	b.hold(n)
	return true
}

// wait takes n more as soon as there is room. A store that holds nothing has room for anything.
func (b *bound) wait(ctx context.Context, n int64) error {
	for {
		b.mu.Lock()
		if b.held == 0 || b.fits(n) {
			b.hold(n)
			b.mu.Unlock()
			return nil
		}
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fits tells whether there is room for n more. mu is held.
func (b *bound) fits(n int64) bool {
	more := b.beyond(n)
	return more <= 0 || b.used+more <= b.common
}

// add takes n more, or gives some back, whatever the bounds are.
func (b *bound) add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold(n)
}

// hold notes that the store holds n more. mu is held.
func (b *bound) hold(n int64) {
	b.used += b.beyond(n)
	b.held += n
	if n < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// beyond is how much more of common is used if the store holds n more.
func (b *bound) beyond(n int64) int64 { return max(b.held+n, b.own) - max(b.held, b.own) }

// admission is a call that is counted.
type admission struct {
	// end ends the count. It is nil if the call is refused.
	end func()
	// begin says that the call is being answered. It returns false if the call has ended before.
	begin func() bool
	// giveUp ends the call's context.
	giveUp context.CancelFunc
}

type admissionKey struct{}

// lasts has the calls that last, and as how many they count. Locks and elections are made of calls
// that last, too, which do not count by themselves: if they did, calls that wait for a lock could
// be so many that none of them got what it needs to go on.
var lasts = map[string]int64{"Watch": 1, "LeaseKeepAlive": 1, "Lock": 3, "Campaign": 3, "Observe": 2}

// admit counts a call. It is called before anything of the request is read but its header. Until
// it is answered, the call is over as soon as its client gives it up. From then on it counts until
// what answers it has returned: see answering.
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	count, as := &s.calls, int64(1)
	if n := lasts[path.Base(info.FullMethodName)]; n > 0 {
		count, as = &s.streams, n
	}
	if s.inside.part(info.Header) {
		as = 0
	}
	if !count.take(as) {
		// An error here would leave the timer of its deadline behind, so it is answered as others
		// are.
		return context.WithValue(ctx, admissionKey{}, admission{}), nil
	}
	conn := connOf(ctx)
	conn.has(1)
	end := func() {
		count.add(-as)
		conn.has(-1)
	}
	ctx, giveUp := context.WithCancel(ctx)
	begin := context.AfterFunc(ctx, end)
	return context.WithValue(ctx, admissionKey{}, admission{end, begin, giveUp}), nil
}

// answering begins to answer a call that was admitted, and returns what ends that, and what gives
// the call up. A call that its client has given up is not answered, and one that was refused is
// told so.
func answering(ctx context.Context) (end func(), giveUp context.CancelFunc, err error) {
	a := ctx.Value(admissionKey{}).(admission)
	if a.end == nil {
		return nil, nil, errManyCalls
	}
	if !a.begin() {
		return nil, nil, rpctypes.ErrGRPCCanceled
	}
	return a.end, a.giveUp, nil
}

// bill is what the answer of a call needs while it is made, or while the gateway has it.
type bill struct {
	s     *Server
	bytes int64
}

// entryBytes is about what a key needs besides its name and value.
const entryBytes = 128

// add counts keys and values.
func (b *bill) add(kvs ...mvcc.KeyValue) error {
	n := int64(0)
	for i := range kvs {
		n += int64(2 * (len(kvs[i].Key) + len(kvs[i].Value) + entryBytes))
	}
	return b.take(n)
}

func (b *bill) take(n int64) error {
	if b.bytes+n > b.s.answers.ever() {
		return errLargeAnswer
	}
	if !b.s.answers.take(n) {
		return errMuchAnswered
	}
	b.bytes += n
	return nil
}

// note counts what has to be answered, whatever the bounds are.
func (b *bill) note(n int64) {
	b.s.answers.add(n)
	b.bytes += n
}

// pay ends the count, when the answer is given away.
func (b *bill) pay() {
	b.s.answers.add(-b.bytes)
	b.bytes = 0
}

// countedBytes is the least size of an encoded answer that is counted until it is sent.
const countedBytes = 4 << 10

// buffers are for requests and answers. A pool of gRPC clears the whole of a buffer before it gives
// it away, and its default one has none between 32 KiB and 1 MiB: an object of 50 KB had a MiB
// cleared twice, which was a fifth of the processor time of a front end.
var buffers = func() mem.BufferPool {
	const least, most = 8, 22 // 256 bytes to 4 MiB
	var exponents []uint8
	for exponent := uint8(least); exponent <= most; exponent++ {
		exponents = append(exponents, exponent)
	}
	pool, err := mem.NewBinaryTieredBufferPool(exponents...)
	if err != nil {
		panic(err) // an exponent is too large for this machine, and these are not
	}
	return pool
}()

// codec encodes as gRPC does, and counts what is not sent yet. It leaves requests to those who
// answer them.
type codec struct {
	encoding.CodecV2
	answers, events *bound
	sent            prometheus.Counter
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	r.data = data
	return nil
}

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	to := c.answers
	if _, ok := v.(*pb.WatchResponse); ok {
		to = c.events
	}
	size := int64(proto.Size(m))
	c.sent.Add(float64(size))
	if size < countedBytes {
		data, err := proto.MarshalOptions{UseCachedSize: true}.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(data)}, err
	}
	to.add(2 * size)
	buffer := buffers.Get(int(size))
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buffer)[:0], m)
	to.add(-2 * size)
	if err != nil {
		buffers.Put(buffer)
		return nil, err
	}
	*buffer = data
	count := &counted{answers: to, bytes: int64(len(data))}
	to.add(count.bytes)
	u := &unsent{mem.NewBuffer(buffer, buffers), count}
	// gRPC gives a buffer back when it is sent, but may forget those of a connection that is lost.
	runtime.AddCleanup(u, (*counted).end, count)
	return mem.BufferSlice{mem.NewBuffer(&data, u)}, nil
}

// unsent is an encoded answer. As the pool that its buffer belongs to, it hears when that is sent.
type unsent struct {
	mem.Buffer
	count *counted
}

// Get is never called: nothing else is taken of the pool.
func (u *unsent) Get(length int) *[]byte { return buffers.Get(length) }

// Put implements mem.BufferPool.
func (u *unsent) Put(*[]byte) {
	u.Free()
	u.count.end()
}

// counted is what is counted of an answer, once.
type counted struct {
	answers *bound
	bytes   int64
	ended   atomic.Bool
}

func (c *counted) end() {
	if c.ended.CompareAndSwap(false, true) {
		c.answers.add(-c.bytes)
	}
}
