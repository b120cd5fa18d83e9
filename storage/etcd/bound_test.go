package etcd

import (
	"math/rand/v2"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/memory"
)

// TestMemory: all bounds together fit into the memory that the process has, whatever that is, and
// leave five parts of 32 to what stores keep themselves.
func TestMemory(t *testing.T) {
	for _, memory := range []int64{32 << 20, 128 << 20, 1 << 30, 64 << 30, 1 << 40} {
		for _, stores := range []int{1, 2, 100, 5_000} {
			c := ServerConfig{Memory: memory}.withDefaults(stores)
			sum := c.MaxConnections*connectionBytes + c.MaxStreams*streamBytes +
				c.MaxWatchers*watcherBytes + c.MaxAnswerBytes + c.MaxCalls*firstWindow +
				c.arrivals*int64(c.MaxRequestBytes+overhead) + c.eventBytes
			sum += 2 * c.requestBytes // those of the gateway, too
			sum += c.eventBytes       // the pieces of the log
			// With less, what there is at least is more than its share.
			if sum > memory*27/32 && memory >= 128<<20 {
				t.Errorf("of %d bytes for %d stores %d may be used: %+v", memory, stores, sum, c)
			}
			if all := c.pieces * int64(stores) * contract.ReadBytes; all > c.eventBytes && c.pieces > 1 {
				t.Errorf("of %d bytes for %d stores %d are pieces of the log", memory, stores, all)
			}
			if c.arrivals < 2 || c.pieces < 1 || min(c.MaxCalls, c.MaxConnections, c.MaxStreams,
				c.MaxWatchers) < 64 {
				t.Errorf("%d bytes for %d stores are enough for no more than %+v", memory, stores, c)
			}
			if memory == 1<<40 && (c.MaxAnswerBytes != 2<<30 || c.MaxCalls != 5_000 ||
				c.MaxWatchers != 100_000 || stores <= 100 && c.MaxStreams != max(10_000, 500*int64(stores))) {
				t.Errorf("a large machine has %+v", c)
			}
		}
	}
	if c := (ServerConfig{Memory: 1 << 30, MaxAnswerBytes: 7}).withDefaults(1); c.MaxAnswerBytes != 7 {
		t.Errorf("what is asked for is %d", c.MaxAnswerBytes)
	}
	if m := memory.Available(); m <= 0 {
		t.Errorf("the process has %d bytes", m)
	}
}

// TestOperations: the operations of a transaction are counted in what was encoded.
func TestOperations(t *testing.T) {
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte("k")}}}
	nested := func(r *pb.TxnRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
	}
	deep := func(levels int) *pb.TxnRequest {
		r := &pb.TxnRequest{}
		for range levels {
			r = &pb.TxnRequest{Success: []*pb.RequestOp{nested(r)}}
		}
		return r
	}
	for what, test := range map[string]struct {
		txn        *pb.TxnRequest
		most, want int
	}{
		"nothing": {&pb.TxnRequest{}, 10, 0},
		"all":     {&pb.TxnRequest{Compare: []*pb.Compare{{}, {}}, Success: []*pb.RequestOp{get}}, 10, 3},
		"nested": {&pb.TxnRequest{Failure: []*pb.RequestOp{get, nested(&pb.TxnRequest{
			Compare: []*pb.Compare{{}}, Success: []*pb.RequestOp{get}})}}, 10, 4},
		"many":             {&pb.TxnRequest{Compare: slices.Repeat([]*pb.Compare{{}}, 100)}, 10, 11},
		"many, and deep":   {deep(20), 10, 11},
		"deep":             {deep(maxTxnDepth), 1_000, maxTxnDepth},
		"too deep":         {deep(maxTxnDepth + 1), 1_000, 1_001},
		"very much deeper": {deep(4_000), 100_000, 100_001},
	} {
		data, err := proto.Marshal(test.txn)
		if err != nil {
			t.Fatal(err)
		}
		n := operations(data, test.most, 0)
		if n != test.want && (n <= test.most || test.want <= test.most) {
			t.Errorf("%s: %d operations, want %d", what, n, test.want)
		}
		operations(data[:len(data)/2], test.most, 0) // which does not end well encoded
	}
}

// TestBound: stores hold no more than all may together, whatever they take and give back, and each
// can always have what is its own.
func TestBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1_000 {
		most, stores := 1+r.Int64N(10_000), 1+r.IntN(20)
		all := newTotal(most, stores)
		bounds := make([]bound, stores)
		for i := range bounds {
			bounds[i].total = all
		}
		for range 1_000 {
			b := &bounds[r.IntN(stores)]
			if r.IntN(3) == 0 {
				b.add(-r.Int64N(b.held + 1))
				continue
			}
			before, n := b.held, 1+r.Int64N(most)
			if taken := b.take(n); taken && b.held != before+n || !taken && b.held != before {
				t.Fatalf("%d, and %d more, are %d", before, n, b.held)
			}
		}
		forced := r.Int64N(2) * most // what is sent counts, whether or not there is room
		bounds[0].add(forced)
		sum := -forced
		for i := range bounds {
			b := &bounds[i]
			if missing := all.own - b.held; missing > 0 && !b.take(missing) {
				t.Fatalf("a store that holds %d is refused some of its own %d", b.held, all.own)
			}
			sum += b.held
		}
		if sum > most {
			t.Fatalf("%d stores hold %d, and may hold %d", stores, sum, most)
		}
		for i := range bounds {
			bounds[i].add(-bounds[i].held)
		}
		if all.used != 0 || !bounds[0].take(all.ever()) || bounds[0].take(1) ||
			stores == 1 && all.ever() != most {
			t.Fatalf("%d of %d stores holds %d, and may hold %d", 1, stores, bounds[0].held, most)
		}
	}
}

// TestBuffers: a buffer is not much larger than what goes into it.
func TestBuffers(t *testing.T) {
	for size := 256; size <= 4<<20; size += size/3 + 1 {
		if got := cap(*buffers.Get(size)); got < size || got >= 2*size {
			t.Errorf("the buffer for %d bytes has %d", size, got)
		}
	}
}
